"""A copy that carries our mark is neither taken for a server's disk nor deleted (decision 0089).

Each kind of copy stands beside a volume whose answer was lost, in its place, or beside one that
the log has as made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aggregates.base import About
from aggregates.operation import Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.drift import recheck, rows
from handlers.requests.build import BootDisk
from handlers.results.made import CLOCKS_APART_S, CREATED_WITHIN_S
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import MADE_FOR, Dependents
from ledger.trial.cinder.model import backups as cinder_backups
from ledger.trial.cinder.model import migration as cinder_migration
from ledger.trial.cinder.model.rows import Snapshot, StoredAttachment
from ledger.trial.cinder.model.rows import StoredVolume as Row
from tests.flows.drifted import found, repair
from tests.memory import Trouble
from tests.world import CONTEXT, SERVER, Broken, World, events

DISK = BootDisk(create={"size_gb": 1}, delete_on_termination=True)
SOMEBODY = "somebody"


def booting() -> tuple[World, str, str]:
    """A boot that has not asked Cinder for anything yet; its disk's mark."""
    world = World(None, volumes=1)
    operation_id = world.build(DISK)
    return world, operation_id, world.operation(operation_id).lanes[0].bdm_id


def marked(world: World) -> set[str]:
    return {row.id for row in world.cinder.listed_volumes() if MADE_FOR in row.metadata}


def lose_the_answer(world: World, operation_id: str) -> Row:
    """Cinder creates it, and nobody hears of it."""
    world.trouble = Trouble({0: "unknown_after"})  # the first time nothing is looked for
    world.service.advance(operation_id)
    world.trouble = Trouble()
    [id_] = marked(world)
    return world.cinder.volume(id_)


# --- copies ---------------------------------------------------------------------------------------


def backup_restored(world: World, volume: Row) -> Row:
    backup = cinder_backups.add(world.cinder, volume.id)
    made = cinder_backups.restored(world.cinder, backup.id, user_id=SOMEBODY)
    del world.cinder.backups[backup.id]
    return made


def target_of_a_migration(world: World, volume: Row) -> Row:
    volume.status, volume.creating = "available", None
    return cinder_migration.migrate(world.cinder, volume, {"host": _other_backend(world, volume)})


def _other_backend(world: World, volume: Row) -> str:
    return next(b.host for b in world.cinder.backends.values() if b.name != volume.backend)


def metadata_written(world: World, volume: Row) -> Row:
    """By its owner, in the same project."""
    return world.cinder.add_volume(user_id=SOMEBODY, metadata=dict(volume.metadata))


def metadata_written_in_another_project(world: World, volume: Row) -> Row:
    metadata = dict(volume.metadata)
    return world.cinder.add_volume(user_id=SOMEBODY, project_id="another", metadata=metadata)


def perfect(world: World, volume: Row) -> Row:
    """As if we had created it: nothing tells them apart but that there are two."""
    return world.cinder.add_volume(size=volume.size, metadata=dict(volume.metadata))


Copy = Callable[[World, Row], Row]
COPIES = pytest.mark.parametrize(
    "copy",
    [backup_restored, target_of_a_migration, metadata_written, perfect],
    ids=lambda copy: copy.__name__,
)
EVERY_COPY = pytest.mark.parametrize(
    "copy",
    [
        *(backup_restored, target_of_a_migration, metadata_written),
        *(metadata_written_in_another_project, perfect),
    ],
    ids=lambda copy: copy.__name__,
)


def gone(world: World, volume: Row) -> None:
    world.cinder.volumes.pop(volume.id)


# --- making ---------------------------------------------------------------------------------------


def test_one_whose_answer_was_lost_becomes_the_servers_disk() -> None:
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    world.done(operation_id)
    assert [m.volume_id for m in world.mappings()] == [volume.id]
    assert marked(world) == {volume.id}


@COPIES
def test_beside_a_copy_another_one_is_made_and_neither_is_taken_or_deleted(copy: Copy) -> None:
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    others = {volume.id, copy(world, volume).id}
    world.done(operation_id)
    [mapping] = world.mappings()
    assert mapping.volume_id not in others
    world.done(world.delete())
    assert marked(world) == others


@EVERY_COPY
def test_a_copy_in_the_place_of_the_lost_one_is_not_taken(copy: Copy) -> None:
    """But for one that looks in everything like it: that it is not it nobody can know."""
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    other = copy(world, volume)
    gone(world, volume)
    world.done(operation_id)
    assert ([m.volume_id for m in world.mappings()] == [other.id]) == (copy is perfect)
    assert copy is perfect or other.id in marked(world)


def test_a_copy_from_another_time_is_not_taken() -> None:
    for off_s in (-CLOCKS_APART_S - 1, CREATED_WITHIN_S + CLOCKS_APART_S + 100):
        world, operation_id, _ = booting()
        volume = lose_the_answer(world, operation_id)
        volume.created_at += off_s
        world.done(operation_id)
        [mapping] = world.mappings()
        assert mapping.volume_id != volume.id


# --- unmaking -------------------------------------------------------------------------------------


def unwound(world: World, operation_id: str) -> None:
    world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.CANCELLED


def test_the_undo_of_a_boot_deletes_one_whose_answer_was_lost() -> None:
    world, operation_id, _ = booting()
    lose_the_answer(world, operation_id)
    unwound(world, operation_id)
    assert marked(world) == set()


@EVERY_COPY
def test_the_undo_of_a_boot_deletes_what_the_log_has_as_made_and_no_copy_of_it(copy: Copy) -> None:
    world, operation_id, _ = booting()
    world.service.advance(operation_id)
    [made] = events(world, Volume.VolumeMade)
    volume = world.cinder.volume(str(made.originator_id))
    volume.creating = None
    other = copy(world, volume)
    volume.status, volume.migration_status = "error", None
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert marked(world) == {other.id}


@COPIES
def test_the_undo_deletes_nothing_if_one_of_several_may_be_the_lost_one(copy: Copy) -> None:
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    others = {volume.id, copy(world, volume).id}
    unwound(world, operation_id)
    assert marked(world) == others
    done = [e.outputs for e in events(world, Operation.StepSucceeded) if e.undo]
    [left] = [outputs["left"] for outputs in done if "left" in outputs]
    assert left.keys() == others, "and the log says which, and why"


def _attached(world: World, volume: Row) -> None:
    world.cinder.put_attachment(StoredAttachment(id="a", volume_id=volume.id, instance=SERVER))


def _snapshot(world: World, volume: Row) -> None:
    world.cinder.add_snapshot(volume.id)


def _foreign_snapshot(world: World, volume: Row) -> None:
    row = Snapshot(id="s", volume_id=volume.id, size=1, project_id="another")
    world.cinder.snapshots[row.id] = row


def _backup(world: World, volume: Row) -> None:
    cinder_backups.add(world.cinder, volume.id)


def _clone(world: World, volume: Row) -> None:
    world.cinder.add_volume(source_volid=volume.id)


def _migrated(world: World, volume: Row) -> None:
    volume.migration_status = "success"


def _grown(world: World, volume: Row) -> None:
    volume.size = 2


USES = pytest.mark.parametrize(
    "use",
    [_attached, _snapshot, _foreign_snapshot, _backup, _clone, _migrated, _grown],
    ids=lambda use: use.__name__.strip("_"),
)


@USES
def test_one_whose_answer_was_lost_and_that_somebody_uses_is_left_by_its_boot(
    use: Callable[[World, Row], None],
) -> None:
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    volume.status, volume.creating = "available", None
    use(world, volume)
    unwound(world, operation_id)
    assert volume.id in marked(world)


def test_a_deletion_of_the_server_deletes_what_its_parked_boot_has_lost() -> None:
    for copy in (None, backup_restored):
        world, operation_id, _ = booting()
        volume = lose_the_answer(world, operation_id)
        left = {volume.id, copy(world, volume).id} if copy else set()
        parked(world, operation_id)
        world.done(world.delete())
        assert marked(world) == left


def parked(world: World, operation_id: str) -> None:
    """Its undo could not even look for it."""
    broken = Broken(world, "cinder.volumes_made", ErrorKind.FINAL)
    world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
    assert world.run(operation_id).state is OperationState.PARKED
    broken.heal()


# --- the repair -----------------------------------------------------------------------------------


def left_behind() -> tuple[World, Row]:
    """A boot lost the answer, and an operator passed over its undo."""
    world, operation_id, _ = booting()
    volume = lose_the_answer(world, operation_id)
    volume.status, volume.creating = "available", None
    parked(world, operation_id)
    world.service.act(operation_id, "skip", "looked", CONTEXT, step="make")
    assert world.run(operation_id).outcome is Outcome.CANCELLED
    return world, volume


def looked_at(world: World, volume: Row) -> World:
    """Two looks find it."""
    boot = events(world, Operation.OperationStarted)[0].originator_id
    row = rows.VolumeRow(
        id=volume.id,
        about=About(volume_id=volume.id, server_id=world.server_id),
        mappings=0,
        had=False,
        cinder=rows.CinderVolume(status=volume.status, attachments=0, made=True),
        made_by=str(boot),
    )
    return found(world, "volume_of_nobody", row)


def repaired(world: World) -> Any:
    operation = world.run(repair(world))
    return operation.first_error


def test_the_repair_deletes_one_whose_answer_was_lost() -> None:
    world, volume = left_behind()
    assert repaired(looked_at(world, volume)) is None
    assert marked(world) == set()


@EVERY_COPY
def test_the_repair_deletes_no_copy_and_says_why(copy: Copy) -> None:
    world, volume = left_behind()
    other = copy(world, volume)
    volume.status, volume.migration_status = "available", None
    error = repaired(looked_at(world, other))
    assert (error["code"], volume.id in error["message"] or "created it" in error["message"]) == (
        recheck.UNPROVEN,
        True,
    )
    assert marked(world) == {volume.id, other.id}


@pytest.mark.parametrize(
    "copy",
    [backup_restored, metadata_written, metadata_written_in_another_project],
    ids=lambda copy: copy.__name__,
)
def test_nor_does_it_delete_the_only_one_that_is_left_if_that_is_a_copy(copy: Copy) -> None:
    world, volume = left_behind()
    other = copy(world, volume)
    gone(world, volume)
    assert repaired(looked_at(world, other))["code"] == recheck.UNPROVEN
    assert marked(world) == {other.id}


@USES
def test_the_repair_deletes_none_that_somebody_uses(use: Callable[[World, Row], None]) -> None:
    world, volume = left_behind()
    use(world, volume)
    assert repaired(looked_at(world, volume))["code"] in {recheck.UNPROVEN, recheck.CHANGED}
    assert volume.id in marked(world)


@pytest.mark.parametrize("call", ["dependents", "own_user"])
def test_what_cinder_does_not_say_is_a_no(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, volume = left_behind()
    told = Dependents(snapshots=(), backups=None, clones=())
    answer = (lambda _: told) if call == "dependents" else (lambda: None)
    monkeypatch.setattr(world.service._cinder, call, answer, raising=False)
    error = repaired(looked_at(world, volume))
    assert error["code"] == recheck.UNPROVEN
    assert "does not say" in error["message"]
    assert marked(world) == {volume.id}
