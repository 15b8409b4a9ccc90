"""Guests that move between two hosts with their volumes, writing all the while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.settings import ENV
from tests.lab.world import SETTLE_S
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab

HERE, THERE = ENV["LAB_HOST"], ENV["LAB_HOST_2"]

ATTACH = ("POST", "/attachments$")
COMPLETE = ("POST", "/attachments/[^/]+/action$")
DELETE = ("DELETE", "/attachments/[^/]+$")


class Moving:
    """A guest on the first host that writes to two volumes."""

    def __init__(self, lab: Lab, guest: LabGuest, volumes: list[str]) -> None:
        self.lab, self.guest, self.volumes = lab, guest, volumes
        for volume in volumes:
            lab.cloud.attach(guest.id, volume)
        with guest.console() as console:
            nodes = [wait_node(console, volume) for volume in volumes]
            self._writers = [Writer(console, node) for node in nodes]
            self.written = [writer.wait_progress(console) for writer in self._writers]

    def migrate(self) -> None:
        self.lab.cloud.admin(
            "server", "migrate", "--live-migration", "--host", THERE, self.guest.id
        )

    def outcome(self, flow: str) -> str:
        """Of the newest operation; the guest is where it is looked for."""
        operation = self.lab.ledger.wait_outcome(flow, self.volumes[0])
        return str(operation["outcome"] or operation["state"])

    def assert_on(self, host: str) -> None:
        """There and nowhere else: the guest, the attachments, and who has the volumes open."""
        assert self.guest.running_on() == self.guest.defined_on() == [host]
        self.guest.moved_to(host)
        for volume in self.volumes:
            assert [item.status for item in self.lab.cloud.attachments(volume)] == ["attached"]
            assert self.lab.cloud.attached_hosts(volume) == [host]
            assert self.lab.cloud.users(volume) == [host]
            assert self.guest.disk(volume) == self.guest.disk(volume, persistent=True) is not None

    def assert_writes_on(self) -> None:
        """It never stopped, and all it wrote is on the volumes."""
        with self.guest.console() as console:
            for writer in self._writers:
                writer.wait_progress(console)
            last = [writer.stop(console) for writer in self._writers]
        for volume in self.volumes:
            self.lab.cloud.detach(self.guest.id, volume)
        self.assert_kept(last)

    def assert_kept(self, last: list[int]) -> None:
        for volume, count in zip(self.volumes, last, strict=True):
            assert_written(partial(self.lab.cloud.data, volume), count)


@pytest.fixture
def moving(
    lab: Lab, new_guest: Callable[..., LabGuest], new_volume: Callable[[str], str], backend: str
) -> Moving:
    return Moving(lab, new_guest("moving"), [new_volume(backend) for _ in range(2)])


@contextlib.contextmanager
def held(moving: Moving) -> Iterator[None]:
    """The migration is under way, and goes on only afterwards."""
    moving.guest.hold_migration()
    moving.migrate()
    moving.guest.wait_migrating()
    yield
    with contextlib.suppress(Exception):  # it may have ended otherwise
        moving.guest.let_migration_go()


def test_a_guest_moves_and_never_stops_writing(moving: Moving) -> None:
    moving.migrate()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


def test_an_aborted_migration_leaves_all_where_it_was(lab: Lab, moving: Moving) -> None:
    with held(moving):
        server = moving.guest.id
        [migration] = lab.cloud.admin(
            "server", "migration", "list", "--server", server, "-f", "json"
        )
        lab.cloud.admin("server", "migration", "abort", server, str(migration["Id"]))
        assert moving.outcome("live_migrate") in {"cancelled", "failed"}
    moving.assert_on(HERE)
    moving.assert_writes_on()


@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
def test_an_agent_dies_while_the_guest_moves(number: int, lab: Lab, moving: Moving) -> None:
    with held(moving):
        lab.hosts[number].agent.kill()
    lab.hosts[number].agent.start()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("call", "number"),
    [(ATTACH, 1), (COMPLETE, 1), (DELETE, 0)],
    ids=["attach", "complete", "delete"],
)
def test_an_agent_dies_while_cinder_works_on_a_move(
    call: tuple[str, str], number: int, when: str, lab: Lab, moving: Moving
) -> None:
    with lab.gate.hold(*call, when) as wait_held:
        moving.migrate()
        wait_held()
        lab.hosts[number].agent.kill()
    lab.hosts[number].agent.start()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


def test_the_service_dies_while_the_guest_moves(lab: Lab, moving: Moving) -> None:
    with held(moving):
        lab.service.kill()
    lab.service.start()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


def test_a_guest_of_a_dead_host_runs_on_the_other_one_with_all_it_wrote(
    lab: Lab, moving: Moving
) -> None:
    first, _ = lab.hosts
    first.power_off()
    evidence = ("--reason", "lost its power", "--evidence", "the power is off")
    lab.ledger.command("host", "fence", HERE, *evidence)
    lab.cloud.admin("server", "evacuate", "--host", THERE, moving.guest.id)
    assert moving.outcome("evacuate") == "completed"
    moving.guest.moved_to(THERE)
    moving.guest.wait_booted(2)
    moving.assert_kept(moving.written)

    first.power_on()  # with the guest's definition, and what it had connected
    lab.ledger.command("host", "unfence", HERE, "--reason", "it is back")
    wait_until(lambda: moving.guest.defined_on() == [THERE], "the old host to clear up", SETTLE_S)
    moving.assert_on(THERE)
    for volume in moving.volumes:
        lab.cloud.detach(moving.guest.id, volume)


def test_a_shelved_guest_keeps_its_volumes_and_comes_back_on_the_other_host(
    lab: Lab, moving: Moving
) -> None:
    server = moving.guest.id
    lab.cloud.admin("server", "shelve", server)
    lab.ledger.wait_status(server, "SHELVED_OFFLOADED")
    assert moving.guest.defined_on() == []
    for volume in moving.volumes:
        assert lab.cloud.volume_status(volume) == "reserved"
        assert lab.cloud.users(volume) == []
    moving.assert_kept(moving.written)

    lab.cloud.admin("server", "unshelve", "--host", THERE, server)
    lab.ledger.wait_status(server, "ACTIVE")
    moving.guest.moved_to(THERE)
    moving.guest.wait_booted(2)
    moving.assert_on(THERE)
    for volume in moving.volumes:
        lab.cloud.detach(server, volume)
