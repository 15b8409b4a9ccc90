"""Volumes that we make have an owner from before they exist."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.operation import Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from handlers.requests.build import BootDisk
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.ports import LATE_S
from ledger.core.effects import EFFECTS
from ledger.core.steps.context import EffectContext
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.rows import Late
from tests.flows.test_overtaken import overtaken
from tests.memory import Crash, Trouble
from tests.regressions.worlds import NEIGHBOUR, Street
from tests.world import CONTEXT, HOST, Broken, World, events

MADE = BootDisk(create={"size_gb": 1}, delete_on_termination=True)
KEPT = BootDisk(create={"size_gb": 1})


def booting(disk: BootDisk) -> tuple[World, str]:
    world = World(None, volumes=1)
    operation_id = world.build(disk)
    world.trouble = Trouble()
    return world, operation_id


def made(world: World) -> list[str]:
    return [row.id for row in world.cinder.listed_volumes() if MADE_FOR in row.metadata]


def points() -> list[str]:
    world, operation_id = booting(MADE)
    world.run(operation_id)
    return world.trouble.met


def test_its_id_is_in_the_log_while_it_is_creating() -> None:
    world, operation_id = booting(MADE)
    world.service.advance(operation_id)
    [event] = events(world, Volume.VolumeMade)
    assert [str(event.originator_id)] == list(world.cinder.volumes.keys() - world.volumes)
    assert world.cinder.volumes[str(event.originator_id)].status == "creating"
    assert event.mark == world.operation(operation_id).lanes[0].bdm_id


@pytest.mark.parametrize("disk", [MADE, KEPT], ids=["goes-with-server", "stays"])
def test_a_made_volume_that_ends_in_error_is_deleted(disk: BootDisk) -> None:
    world, operation_id = booting(disk)
    world.service.advance(operation_id)
    volume = next(v for v in world.cinder.volumes.values() if MADE_FOR in v.metadata)
    volume.creating, volume.status = None, "error"
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert made(world) == []
    assert len(events(world, Volume.VolumeDeleted)) == 1
    assert world.wrong() == []


@pytest.mark.parametrize("mode", ["final", "final_after", "retryable", "unknown_after"])
@pytest.mark.parametrize("call", ["cinder.attachment_create", "cinder.volume"])
def test_a_boot_that_fails_before_the_server_has_it_deletes_it(call: str, mode: str) -> None:
    world, operation_id = booting(MADE)
    met = [n for n, point in enumerate(points()) if point == call][:1]
    first = met[0]
    plan = dict.fromkeys(range(first, first + 300), mode)
    world.trouble = Trouble(plan) if mode in {"retryable", "unknown_after"} else Trouble()
    if not world.trouble.plan:
        world.trouble = Trouble({first: mode})
    operation = world.run(operation_id)
    world.trouble = Trouble()
    if operation.state is OperationState.PARKED:
        world.service.act(operation_id, "retry", "healed", CONTEXT)
        operation = world.run(operation_id)
    assert operation.outcome is Outcome.FAILED
    assert made(world) == []


def test_another_lanes_error_deletes_what_is_still_creating() -> None:
    world = World(None, volumes=1)
    operation_id = world.build(MADE, BootDisk(volume_id=world.volumes[0]))
    world.service.advance(operation_id)
    volume = world.cinder.volumes[made(world)[0]]
    volume.status, volume.creating = "creating", Late(at=world.clock.seconds, reads=5)
    world.cinder.volume(world.volumes[0]).status = "error"
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert made(world) == []
    assert world.mappings() == []


@pytest.mark.parametrize("disk", [MADE, KEPT])
def test_it_goes_with_a_server_whose_boot_is_parked(disk: BootDisk) -> None:
    world, operation_id = booting(disk)
    world.service.advance(operation_id)
    broken = Broken(world, "cinder.volume", ErrorKind.FINAL)
    refused = Broken(world, "cinder.volume_delete", ErrorKind.FINAL)
    assert world.run(operation_id).state is OperationState.PARKED
    with pytest.raises(errors.OperatorActError, match=r"cannot be given up: .*stay behind"):
        world.service.act(operation_id, "give_up", "whatever", CONTEXT)
    step = world.operation(operation_id).left[0]["step"]
    skip = partial(world.service.act, operation_id, "skip", "looked", CONTEXT, step=step)
    assert [each.left and each.left.what for each in skip(dry_run=True).remnants] == ["volume"]
    broken.heal()
    refused.heal()
    assert len(made(world)) == 1
    world.done(world.delete())
    assert made(world) == []
    assert world.wrong() == []


def test_one_that_the_server_has_goes_with_it_if_it_is_to() -> None:
    for disk, left in ((MADE, 0), (KEPT, 1)):
        world, operation_id = booting(disk)
        world.done(operation_id)
        world.done(world.delete())
        assert len(made(world)) == left
        assert len(events(world, Volume.VolumeDeleted)) == 1 - left


def test_what_cinder_refuses_to_delete_is_in_the_history() -> None:
    world, operation_id = booting(MADE)
    world.done(operation_id)
    Broken(world, "cinder.volume_delete", ErrorKind.FINAL)
    world.done(world.delete())
    [refused] = events(world, Volume.VolumeDeletionRefused)
    assert str(refused.originator_id) == made(world)[0]
    assert "broken" in refused.why


def test_one_of_which_cinder_writes_an_image_goes_when_that_is_done() -> None:
    """Cinder shows `uploading` also when nobody has it any more, and deletes it only then."""
    world, operation_id = booting(MADE)
    world.done(operation_id)
    volume, cinder = world.cinder.volume(made(world)[0]), world.ports["cinder"]
    real, volume.status = cinder.volume_delete, "uploading"

    def delete(volume_id: str) -> None:
        if len(events(world, Operation.StepRetried)) > 1:
            volume.status = "available"
        real(volume_id)

    cinder.volume_delete = delete
    world.done(world.delete())
    assert (made(world), events(world, Volume.VolumeDeletionRefused)) == ([], [])


def test_one_that_comes_late_is_found_by_its_mark() -> None:
    """Its request is carried out when its sender is dead."""
    world, operation_id = booting(MADE)
    create, late = world.cinder.add_volume, list[dict[str, Any]]()
    world.trouble = Trouble({points().index("cinder.volume_create"): "crash"})
    with pytest.raises(Crash):
        world.service.advance(operation_id)
    world.boot()
    world.service.on_dispatcher_lost(operation_id)
    mark = world.operation(operation_id).lanes[0].bdm_id
    late.append({"metadata": {MADE_FOR: mark}, "available_after_reads": 1})
    world.clock.wait(LATE_S)  # which the next dispatcher gives it
    create(**late.pop())
    world.done(operation_id)
    assert len(made(world)) == 1


def test_one_that_was_made_beside_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused behind its look: two were made, and one of them is the server's."""
    world, operation_id = booting(MADE)
    cinder: Any = world.service._cinder
    real = cinder.volume_create

    def beside(_wanted: dict[str, Any], key: str) -> Any:
        monkeypatch.setattr(cinder, "volume_create", real)
        overtaken(world, operation_id)
        made = world.cinder.add_volume(metadata={MADE_FOR: key}, available_after_reads=1)
        made.status, made.creating = "creating", Late(at=world.clock.seconds, reads=3)
        return made.id

    monkeypatch.setattr(cinder, "volume_create", beside, raising=False)
    world.done(operation_id)
    [kept] = made(world)
    assert [str(e.originator_id) for e in events(world, Volume.VolumeMade)] == [kept]
    [gone] = events(world, Volume.VolumeDeleted)
    assert str(gone.originator_id) != kept


def test_a_host_that_is_fenced_while_it_is_creating_leaves_nothing_to_nobody() -> None:
    world, operation_id = booting(MADE)
    world.service.advance(operation_id)
    world.fence(HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    world.done(world.delete())
    assert made(world) == []


def test_one_that_somebody_has_got_hold_of_is_neither_taken_nor_deleted_with_the_server() -> None:
    """Its request came late; a user found the volume, and gave it to another server."""
    world = Street(None, volumes=1)
    world.add_neighbour()
    operation_id = world.build(MADE)
    mark = world.operation(operation_id).lanes[0].bdm_id
    late = world.cinder.add_volume(metadata={MADE_FOR: mark})
    with world.meant(NEIGHBOUR):
        world.done(world.attach(late.id))
    world.done(operation_id)
    assert late.id not in {mapping.volume_id for mapping in world.mappings()}
    world.done(world.delete())
    assert (late.status, made(world)) == ("in-use", [late.id])


def test_one_that_is_being_backed_up_is_deleted_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Begun when its last attachment went: what Cinder refuses for a while is tried again."""
    world = World()
    world.done(world.attach(delete_on_termination=True))
    volume, real, asked = world.cinder.volume(world.volumes[0]), world.cinder.delete_volume, [0]

    def busy(volume_id: str) -> None:
        asked[0] += 1
        if asked[0] == 1:
            cinder_work.begin_backup(volume)
        elif asked[0] == 3:
            cinder_work.end_backup(volume)
        real(volume_id)

    monkeypatch.setattr(world.cinder, "delete_volume", busy)
    world.done(world.delete())
    assert (world.volumes[0] in world.cinder.volumes, asked) == (False, [3])


@pytest.mark.parametrize("verb", [LedgerVerb.VOLUME_UNMAKE, LedgerVerb.VOLUME_DELETE], ids=str)
def test_a_reservation_that_came_too_late_does_not_keep_a_volume_from_its_deletion(
    monkeypatch: pytest.MonkeyPatch, verb: LedgerVerb
) -> None:
    """Storm 200292: Cinder refuses to delete a volume that is reserved, and nobody knew by whom."""
    world, operation_id = booting(MADE)
    if verb is LedgerVerb.VOLUME_DELETE:
        world.done(operation_id)
    else:
        world.trouble = Trouble({points().index("cinder.attachment_create"): "final"})
    real, cinder, late = EFFECTS[verb], world.service._cinder, list[str]()

    def just_before(lane: Lane, context: EffectContext) -> dict[str, Any]:
        late.append(cinder.attachment_create(lane.volume_id, lane.server_id, None, "rw").id)
        return real(lane, context)

    monkeypatch.setitem(EFFECTS, verb, just_before)
    if verb is LedgerVerb.VOLUME_DELETE:
        world.done(world.delete())
    else:
        assert world.run(operation_id).outcome is Outcome.FAILED
    assert made(world) == []
    [disowned] = events(world, Attachment.Disowned)
    assert [str(disowned.originator_id)] == late
