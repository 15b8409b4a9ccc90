"""A user puts another volume behind a disk while the guest writes to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.control import COMPLETE, Lab
from tests.lab.guest import LabGuest, wait_node
from tests.lab.settings import ENV, WHEN, neighbours_in_quick, some
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab


class Swapping:
    """A guest that writes to a volume with data, and the volume that is to take its place."""

    def __init__(self, lab: Lab, guest: LabGuest, old: str, new: str) -> None:
        self.lab, self.guest, self.old, self.new = lab, guest, old, new
        lab.cloud.fill(old)
        lab.cloud.attach(guest.id, old)
        self.target = str(guest.disk(old))
        with guest.console() as console:
            self._writer = Writer(console, wait_node(console, old))
            self._writer.wait_progress(console)

    def swap(self) -> None:
        self.lab.ledger.as_user("attachment", "swap", self.guest.id, self.old, self.new)

    def assert_swapped(self) -> None:
        """The same disk, on the new volume with all that was ever written; the old one is free."""
        cloud, guest = self.lab.cloud, self.guest
        operation = self.lab.ledger.wait_outcome("swap", self.old)
        assert operation["outcome"] == "completed"
        # The guest knows its disk by the serial it has had from the start.
        assert guest.disk(self.old) == guest.disk(self.old, persistent=True) == self.target
        assert guest.disks() == (1, 1)
        cloud.wait_status(self.old, "available")
        assert cloud.attachments(self.old) == cloud.users(self.old) == []
        assert [item.status for item in cloud.attachments(self.new)] == ["attached"]
        assert cloud.users(self.new) == [ENV["LAB_HOST"]]
        with guest.console() as console:
            self._writer.wait_progress(console)
            last = self._writer.stop(console)
        cloud.detach(guest.id, self.new)
        assert_written(partial(cloud.data, self.new), last)


@pytest.fixture
def swapping(lab: Lab, guest: LabGuest, new_volume: Callable[[str], str], backend: str) -> Swapping:
    return Swapping(lab, guest, new_volume(backend), new_volume(backend))


def test_a_guest_writes_on_while_its_volume_is_swapped(swapping: Swapping) -> None:
    swapping.swap()
    swapping.assert_swapped()


def test_what_a_guest_may_only_read_it_may_only_read_on_the_other_volume(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str], backend: str
) -> None:
    """The copy writes to the new volume; the guest's disk on it does not."""
    old, new = new_volume(backend), new_volume(backend)
    lab.cloud.fill(old)
    lab.cloud.openstack("volume", "set", "--read-only", old)
    lab.cloud.attach(guest.id, old)
    assert guest.read_only(old) == (True, True)
    lab.ledger.as_user("attachment", "swap", guest.id, old, new)
    assert lab.ledger.wait_outcome("swap", old)["outcome"] == "completed"
    assert guest.read_only(old) == (True, True)
    with guest.console() as console:
        node = wait_node(console, old)
        assert console.run(f"cat /sys/block/{node}/ro") == "1"
    assert [item.attach_mode for item in lab.cloud.attachments(new)] == ["ro"]
    lab.cloud.detach(guest.id, new)


@pytest.mark.parametrize("who", some("agent", "service"))
def test_one_of_us_dies_while_a_volume_is_copied_to_the_other(
    who: str, lab: Lab, swapping: Swapping
) -> None:
    swapping.swap()
    swapping.guest.hold_copy(swapping.target)
    dying = getattr(lab, who)
    dying.kill()
    swapping.guest.let_copy_go(swapping.target)
    dying.start()
    swapping.assert_swapped()


@neighbours_in_quick
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("who", some("service", "agent"))
def test_one_of_us_dies_when_the_copy_is_done(
    who: str, when: str, lab: Lab, swapping: Swapping
) -> None:
    with lab.dying(getattr(lab, who), COMPLETE, when):
        swapping.swap()
    swapping.assert_swapped()
