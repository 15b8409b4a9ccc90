"""Cinder has guests of small worlds take and delete snapshots, and waits for them."""

from __future__ import annotations

from collections.abc import Callable

from aggregates import errors
from aggregates.operation import Operation
from handlers.requests.snapshots import SnapshotInUse
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.ports import PortError
from ledger.trial.cinder.model import snapshots as cinder_snapshots
from ledger.trial.cinder.model.rows import Snapshot
from tests.memory import Crash
from tests.world import CONTEXT, HOST, ROUNDS_MAX, World, events


def take(world: World) -> str:
    """Cinder makes a file above the first volume's present one, and calls; the operation's id."""
    made = cinder_snapshots.begin_online(world.cinder, world.volumes[0])
    return _called(world, "snapshot", made, {"file": made.file})


def delete_newest(world: World) -> str:
    return _delete(world, snapshots_of(world)[-1])


def delete_oldest(world: World) -> str:
    return _delete(world, snapshots_of(world)[0])


def _delete(world: World, snapshot: Snapshot) -> str:
    files = cinder_snapshots.begin_online_deletion(world.cinder, snapshot)
    return _called(world, "delete_snapshot", snapshot, files)


def taken(world: World, count: int) -> World:
    for _ in range(count):
        world.done(take(world))
    return world


def snapshots_of(world: World) -> list[Snapshot]:
    """The first volume's, in the order in which they were taken."""
    return list(world.cinder.snapshots.values())


def _called(world: World, flow: str, snapshot: Snapshot, files: dict[str, str | None]) -> str:
    request = SnapshotInUse(
        flow=flow, volume_id=world.volumes[0], snapshot_id=snapshot.id, files=files
    )
    return begun(world, lambda: world.requests.snapshot(request, CONTEXT, world.fleet))


def begun(world: World, call: Callable[[], object]) -> str:
    """The operation of a call, whose answer may be lost: Cinder then gives up, and we go on."""
    known = len(events(world, Operation.OperationStarted))
    for _ in range(ROUNDS_MAX):
        try:
            call()
        except Crash:
            world.boot()
        except (errors.ClaimedError, PortError):
            pass
        if started := events(world, Operation.OperationStarted)[known:]:
            return str(started[-1].originator_id)
    raise AssertionError("Cinder was never heard")


def chain(world: World, host: str = HOST) -> list[str]:
    """The files of the first volume's disk in its running guest, the one it writes to first."""
    live = world.hosts[host].read()["guests"][world.server_id]["live"]
    disk = disk_xml.parse(live).disk_of(world.volumes[0])
    assert disk is not None
    return [layer.name or "" for layer in disk.chain]
