"""Cinder extends volumes of small worlds, and tells."""

from __future__ import annotations

from aggregates.operation import Operation
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.rows import StoredVolume
from tests.memory import Crash
from tests.world import CONTEXT, ROUNDS_MAX, World, events


def extend(world: World, *, waits: bool = False) -> str:
    """Cinder extends the first volume by 1 GiB, and says so; the operation's id.

    `waits`: until it hears that the guest has it (3.71).
    """
    volume = world.cinder.volume(world.volumes[0])
    if waits:
        cinder_work.begin_waiting_extension(volume, volume.size + 1)
    else:
        size_behind(world, volume, volume.size + 1)
    return told(world)


def extend_waiting(world: World) -> str:
    return extend(world, waits=True)


def size_behind(world: World, volume: StoredVolume, size: int) -> None:
    """What Cinder and storage have, and nobody was told."""
    cinder_work.begin_extension(volume, attached=True)
    cinder_work.end_extension(world.cinder, volume, size)


def told(world: World) -> str:
    """Cinder's event, until it is heard; the operation that it begins."""
    known = len(events(world, Operation.OperationStarted))
    for _ in range(ROUNDS_MAX):
        try:
            world.requests.grow(world.server_id, world.volumes[0], CONTEXT)
        except Crash:
            world.boot()
        if begun := events(world, Operation.OperationStarted)[known:]:
            return str(begun[-1].originator_id)
    raise AssertionError("the event was never heard")
