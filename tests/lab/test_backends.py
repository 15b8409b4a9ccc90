"""Cinder moves a volume to another backend while the guest writes to it: it asks us to swap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.control import VOLUME_ACTION, Lab
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.settings import ENV, FULL, SETTLE_S, WHEN, some, without_deaths
from tests.lab.world import share_file
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab

#: From a backend to another: files that QEMU opens, and Ceph's images.
ROUTES = [("nfs", "nfs2")]
if FULL:
    ROUTES += [("nfs", "rbd"), ("rbd", "nfs")]

NewVolume = Callable[[str], str]


class Changing:
    """A volume with data that a guest writes to, and where Cinder is to bring it."""

    def __init__(self, lab: Lab, guest: LabGuest, volume: str, backend: str) -> None:
        self.lab, self.guest, self.volume, self.backend = lab, guest, volume, backend
        lab.cloud.fill(volume)
        self._before = lab.cloud.backend_name(volume)
        lab.cloud.attach(guest.id, volume)
        self.target = str(guest.disk(volume))
        with guest.console() as console:
            self._writer = Writer(console, wait_node(console, volume))
            self._writer.wait_progress(console)

    def migrate(self) -> None:
        host = f"lab@{self.backend}#{self.backend}"
        self.lab.cloud.admin("volume", "migrate", "--host", host, self.volume)

    def retype(self) -> None:
        policy = ("--retype-policy", "on-demand")
        self.lab.cloud.openstack("volume", "set", "--type", self.backend, *policy, self.volume)

    def assert_changed(self) -> None:
        """Under its old id, with one attachment; and the old data are gone."""

        def settled() -> bool:
            return self.lab.cloud.migration_status(self.volume) in {"success", "error"}

        wait_until(settled, f"Cinder to end the migration of {self.volume}", SETTLE_S)
        self.lab.cloud.wait_status(self.volume, "in-use")
        operation = self.lab.ledger.wait_outcome("migrate_volume", self.volume)
        assert operation["outcome"] == "completed"
        assert self.lab.cloud.migration_status(self.volume) == "success"
        assert self.lab.cloud.backend_of(self.volume) == self.backend
        assert [item.status for item in self.lab.cloud.attachments(self.volume)] == ["attached"]
        assert self.lab.cloud.users(self.volume) == [ENV["LAB_HOST"]]
        assert self.guest.disk(self.volume) == self.target
        assert self.guest.disk(self.volume, persistent=True) == self.target
        assert self.guest.disks() == (1, 1)
        assert share_file(self._before) is None

    def assert_written(self) -> None:
        with self.guest.console() as console:
            self._writer.wait_progress(console)
            last = self._writer.stop(console)
        self.lab.cloud.detach(self.guest.id, self.volume)
        assert_written(partial(self.lab.cloud.data, self.volume), last)


@pytest.fixture(params=ROUTES, ids="-".join)
def changing(
    request: pytest.FixtureRequest, lab: Lab, guest: LabGuest, new_volume: NewVolume
) -> Changing:
    source, destination = request.param
    return Changing(lab, guest, new_volume(source), destination)


@without_deaths
def test_a_volume_is_retyped_under_a_writing_guest(changing: Changing) -> None:
    changing.retype()
    changing.assert_changed()
    changing.assert_written()


def test_a_volume_is_migrated_under_a_writing_guest(
    lab: Lab, guest: LabGuest, new_volume: NewVolume
) -> None:
    volume = new_volume("lab")
    backend = "nfs" if lab.cloud.backend_of(volume) == "nfs2" else "nfs2"
    changing = Changing(lab, guest, volume, backend)
    changing.migrate()
    changing.assert_changed()
    changing.assert_written()


@pytest.mark.parametrize("who", some("agent", "service"))
def test_one_of_us_dies_while_the_disk_is_copied(who: str, lab: Lab, changing: Changing) -> None:
    changing.retype()
    changing.guest.hold_copy(changing.target)
    dying = getattr(lab, who)
    dying.kill()
    changing.guest.let_copy_go(changing.target)
    dying.start()
    changing.assert_changed()
    changing.assert_written()


@pytest.mark.parametrize("when", WHEN)
def test_the_service_dies_while_it_tells_cinder_that_the_copy_is_done(
    when: str, lab: Lab, changing: Changing
) -> None:
    changing.retype()
    changing.guest.hold_copy(changing.target)
    with lab.dying(lab.service, VOLUME_ACTION, when):
        changing.guest.let_copy_go(changing.target)
    changing.assert_changed()
    changing.assert_written()
