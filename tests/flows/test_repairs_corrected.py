"""Repairs of what Cinder has wrong, and guests of their disks: what is refused."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.finding import Finding
from aggregates.operation import Outcome
from handlers.drift import recheck
from tests.flows import corrected, drifted
from tests.flows.drifted import finding
from tests.world import HOST, OTHER, World, events


def _refused(world: World) -> str:
    """A repair that looks, and does nothing; why."""
    before, updates = world.summary(), _updates(world)
    operation = world.run(drifted.repair(world))
    assert operation.outcome is Outcome.FAILED
    assert (world.summary(), _updates(world)) == (before, updates)
    assert finding(world).state == "confirmed"
    error = operation.first_error or {}
    assert error["code"] == recheck.UNPROVEN
    return str(error["message"])


def _updates(world: World) -> int:
    return world.trouble.met.count("cinder.attachment_update")


def _of_the_other_host(world: World) -> None:
    """A record: whatever was connected by it could be ended by that host's connector alone."""
    [record] = world.records[HOST].values()
    world.records[OTHER][str(UUID(int=9))] = record


def _of_both(world: World) -> None:
    """The guest runs there, too."""
    with world.host.edit() as mine, world.hosts[OTHER].edit() as other:
        other["guests"][world.server_id] = mine["guests"][world.server_id]


def _out_of_the_guest(world: World) -> None:
    drifted._guests(world).unplug(world.server_id, world.volumes[0])


def _without_a_record(world: World) -> None:
    world.records[HOST].clear()


@pytest.mark.parametrize(
    ("drift", "plant", "words"),
    [
        (corrected.host_differs, _of_the_other_host, f"Host {OTHER} has volume"),
        (corrected.host_differs, _of_both, f"on host {OTHER} has a disk"),
        (corrected.host_differs, _out_of_the_guest, "does not have the disk"),
        (corrected.host_differs, _without_a_record, "no record of it"),
        (corrected.mountpoint_differs, _out_of_the_guest, "does not have the disk"),
    ],
)
def test_cinder_is_told_nothing_but_what_hosts_show(
    drift: Callable[[], World], plant: Callable[[World], None], words: str
) -> None:
    world = drift()
    plant(world)
    assert words in _refused(world)


def test_a_host_that_cinder_names_and_nobody_can_ask_keeps_its_connector() -> None:
    world = corrected.host_differs(host="elsewhere")
    with pytest.raises(errors.RepairError, match="elsewhere may have it"):
        drifted.repair(world)


def test_every_host_that_could_have_it_is_asked_before_cinder_forgets_whose_it_was() -> None:
    world = corrected.host_differs()
    operation = world.operation(drifted.repair(world))
    assert [lane.host for lane in operation.lanes] == [HOST, OTHER]
    world.done(str(operation.id))
    [row] = world.cinder.attachments_of(world.volumes[0])
    assert (row.host, row.connector["host"], row.status) == (HOST, HOST, "attached")


def test_the_name_of_a_disk_is_the_matter_of_its_own_host() -> None:
    world = corrected.mountpoint_differs()
    operation = world.operation(drifted.repair(world))
    assert [lane.host for lane in operation.lanes] == [HOST]
    world.done(str(operation.id))
    [row] = world.cinder.attachments_of(world.volumes[0])
    assert row.mountpoint == "/dev/vdb"


def test_a_guest_that_is_off_is_corrected_as_one_that_runs() -> None:
    world = World(encrypted=False)
    world.done(world.attach())
    world.done(world.act("stop"))
    world.done(drifted.repair(corrected.host_differs(world)))
    [row] = world.cinder.attachments_of(world.volumes[0])
    assert (row.host, row.status, finding(world).state) == (HOST, "attached", "over")
    assert world.wrong() == []


def test_a_volume_in_an_error_is_refused_before_anything_is_done() -> None:
    """Cinder would refuse the update, when the guest that is off had let go already."""
    world = corrected.host_differs()
    world.cinder.volume(world.volumes[0]).status = "error"
    with pytest.raises(errors.VolumeStateError):
        drifted.repair(world)
    assert not events(world, Finding.RepairBegun)


@pytest.mark.parametrize(
    ("copies", "mode", "stopped", "words"),
    [
        (("live",), "rw", False, "may not write to it: stop the server"),
        (("live", "persistent"), "ro", False, "may write to it: stop the server"),
        (("persistent",), "rw", True, "only a detach ends that"),
    ],
    ids=["runs read-only", "runs writable", "defined read-only"],
)
def test_how_a_running_guest_has_its_disk_is_not_changed_and_read_only_stays(
    copies: tuple[str, ...], mode: str, stopped: bool, words: str
) -> None:
    assert words in _refused(corrected.readonly_differs(*copies, mode=mode, stopped=stopped))


def test_a_volume_some_of_whose_attachments_are_not_complete_is_not_settled() -> None:
    world = drifted.volume_detaching()
    world.cinder.attachments_of(world.volumes[0])[0].status = "attaching"
    assert "its attachments attaching" in _refused(world)
