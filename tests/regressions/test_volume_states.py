"""What Cinder is doing with a volume: asked before anything is accepted, and heeded to the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.operation import OperationState, Outcome
from handlers.drift.repairs import REPAIRS
from handlers.engine.volumes import TAKEN_ELSEWHERE, TAKEN_NOWHERE
from handlers.flows import FLOWS
from handlers.requests.accept import DetachVolume
from handlers.requests.actions import ActOnServer
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.volume_states import AT_WORK, FAILED, letting_go
from ledger.trial.cinder.model import migration as cinder_migration
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.model import VOLUME_STATUSES, CinderModel
from ledger.trial.cinder.model.rows import CinderFault, StoredVolume
from tests.doubles.direct_cinder import DirectCinder
from tests.memory import Trouble
from tests.regressions.worlds import NEIGHBOUR, RUNNING, STOPPED, Street, attached, offloaded
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World

#: What Cinder does by itself with a volume that is in use, and how that ends.
WORK: dict[str, Callable[[World, StoredVolume], Callable[[], object]]] = {}


Begin = Callable[[World, StoredVolume], Callable[[], object]]


def work(name: str) -> Callable[[Begin], Begin]:
    def add(begin: Begin) -> Begin:
        return WORK.setdefault(name, begin)

    return add


@work("backing-up")
def _backup(_world: World, volume: StoredVolume) -> Callable[[], object]:
    cinder_work.begin_backup(volume, force=True)
    return partial(cinder_work.end_backup, volume)


@work("extending")
def _extension(world: World, volume: StoredVolume) -> Callable[[], object]:
    cinder_work.begin_extension(volume, attached=True)
    return partial(cinder_work.end_extension, world.cinder, volume, volume.size + 1)


@work("migrating")
def _migration(world: World, volume: StoredVolume) -> Callable[[], object]:
    target = cinder_migration.migrate(world.cinder, volume, {"host": "sim@rbd#rbd"})
    return partial(cinder_migration.fail, world.cinder, volume, target)


@work("retyping")
def _retype(world: World, volume: StoredVolume) -> Callable[[], object]:
    wanted = {"new_type": "rbd", "migration_policy": "on-demand"}
    target = cinder_migration.retype(world.cinder, volume, wanted)
    assert target is not None
    return partial(cinder_migration.fail, world.cinder, volume, target)


#: A request, and a world in which nothing else forbids it.
ASKS: dict[str, tuple[Callable[[], World], Callable[[World], object]]] = {
    "detach": (
        attached,
        lambda world: world.requests.detach(
            DetachVolume(server_id=SERVER, volume_id=world.volumes[0]), CONTEXT, world.fleet
        ),
    ),
    **{
        flow: (begin, partial(lambda flow, world: _act(world, flow), flow))
        for flow, begin in {
            "shelve": attached,
            "resize": attached,
            "live_migrate": attached,
            "refresh": attached,
            "rebuild": attached,
            "unshelve": offloaded,
        }.items()
    },
}


def _act(world: World, flow: str) -> object:
    where = None if flow in {"shelve", "refresh", "rebuild"} else OTHER
    request = ActOnServer(server_id=SERVER, flow=flow, destination=where)
    return world.requests.act(request, CONTEXT, world.fleet)


def volume_of(world: World) -> StoredVolume:
    return world.cinder.volume(world.volumes[0])


# --- asked before --------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(AT_WORK | {"uploading", "awaiting-transfer"}))
@pytest.mark.parametrize("flow", sorted(ASKS))
def test_what_cinder_would_refuse_is_refused_before_anything_is_touched(
    flow: str, status: str
) -> None:
    begin, ask = ASKS[flow]
    world = begin()
    stored, before, world.trouble = len(world.store.log), world.summary(), Trouble()
    volume_of(world).status = status
    with pytest.raises(errors.VolumeStateError) as refused:
        ask(world)
    assert f"{world.volumes[0]} is {status} in Cinder" in str(refused.value)
    assert refused.value.status == (400 if flow == "detach" else 409)
    assert set(world.trouble.met) == {"cinder.volume"}, "it only looked"
    assert len(world.store.log) == stored
    assert world.summary() | {"volumes": ...} == before | {"volumes": ...}


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("creating", "wait until Cinder has finished with it"),
        ("error", "see its messages in Cinder"),
        ("awaiting-transfer", "accept or delete its transfer"),
        ("maintenance", "an administrator ends its maintenance"),
        ("deleting", "use another volume"),
    ],
)
def test_a_refusal_by_a_volumes_state_says_what_to_do(status: str, advice: str) -> None:
    world = World()
    volume_of(world).status = status
    with pytest.raises(errors.VolumeStateError, match=advice):
        world.attach()


@pytest.mark.parametrize("what", sorted(WORK))
def test_lp1489304_a_rebuild_waits_until_cinder_has_done_its_work(what: str) -> None:
    """A rebuild without image, which Cinder is not asked to write."""
    world = attached()
    end = WORK[what](world, volume_of(world))
    with pytest.raises(errors.VolumeStateError, match="in Cinder, so this cannot be done now"):
        _act(world, "rebuild")
    assert world.open_operations() == []
    end()
    world.done(world.act("rebuild"))


def test_an_evacuation_asks_too() -> None:
    world = attached()
    world.fence(HOST)
    volume_of(world).status = "backing-up"
    with pytest.raises(errors.VolumeStateError):
        _act(world, "evacuate")


def test_a_volume_that_migrates_is_not_detached_though_it_says_in_use() -> None:
    world = attached()
    _migration(world, volume_of(world))
    with pytest.raises(errors.VolumeStateError, match="is in-use, migrating in Cinder"):
        ASKS["detach"][1](world)


@pytest.mark.parametrize("flow", sorted(name for name, flow in FLOWS.items() if not flow.volumes))
def test_what_asks_cinder_for_nothing_says_so(flow: str) -> None:
    """None but a deletion makes an attachment, connects it anew or ends a volume's last one; and
    a repair asks by itself, in its first step (decision 0059).
    """
    assert flow in {
        *("start", "stop", "pause", "unpause", "reboot"),
        *("confirm_resize", "revert_resize", "delete", "grow", "snapshot", "delete_snapshot"),
        *REPAIRS,
    }


@pytest.mark.parametrize("status", VOLUME_STATUSES)
def test_what_a_move_accepts_cinder_does_too(status: str) -> None:
    model = CinderModel()
    volume = model.add_volume()
    row = model.attachment_create(volume.id, SERVER, {"host": HOST})
    model.attachment_complete(row.id)
    volume.status = status
    try:
        model.attachment_create(volume.id, SERVER)
        takes = True
    except CinderFault:
        takes = False
    # Of reimaging Cinder would take it: what it then writes back is not what we made.
    assert (status in TAKEN_NOWHERE.statuses) == (takes and status != "downloading")
    assert TAKEN_NOWHERE.statuses < TAKEN_ELSEWHERE.statuses


@pytest.mark.parametrize("status", sorted(FAILED))
@pytest.mark.parametrize("flow", ["start", "reboot"])
def test_an_error_of_the_volume_keeps_no_server_from_starting(flow: str, status: str) -> None:
    world = attached(STOPPED)
    volume_of(world).status = status
    world.done(world.act(flow))
    assert world.instance.power_state == RUNNING


@pytest.mark.parametrize("status", sorted(FAILED))
def test_a_volume_in_an_error_can_be_detached(status: str) -> None:
    world = attached()
    volume_of(world).status = status
    world.done(world.detach())
    assert world.cinder.attachments_of(world.volumes[0]) == []


# --- heeded to the end -----------------------------------------------------------------------


@pytest.mark.parametrize("what", sorted(WORK))
def test_a_server_is_deleted_at_once_and_its_volume_let_go_when_cinder_is_done(what: str) -> None:
    world = attached()
    end = WORK[what](world, volume_of(world))
    operation_id = world.delete()
    for _ in range(20):
        world.service.advance(operation_id)
        world.run_agent(operation_id)
        world.clock.seconds += 1.0
    assert world.instance.deleted
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1, "Cinder needs it"
    end()
    world.done(operation_id)
    assert (volume_of(world).status, volume_of(world).attach_status) == ("available", "detached")


@pytest.mark.parametrize("what", sorted(WORK))
def test_what_begins_after_a_detach_was_accepted_is_waited_for(what: str) -> None:
    world = attached()
    operation_id = world.detach()
    end = WORK[what](world, volume_of(world))
    operation = world.run(operation_id)
    assert operation.state is OperationState.PARKED
    assert operation.first_error is not None
    assert operation.first_error["code"] == "volume_busy"
    end()
    world.service.act(operation_id, "retry", "it is over", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    assert (volume_of(world).status, volume_of(world).attach_status) == ("available", "detached")


@pytest.mark.parametrize("what", sorted(WORK))
@pytest.mark.parametrize("legacy", [False, True], ids=["new", "old"])
def test_nothing_begins_between_the_look_and_the_deletion(what: str, legacy: bool) -> None:
    """Cinder refuses it, for the volume is `detaching`."""
    world = attached(legacy=legacy)
    name = "detach" if legacy else "attachment_delete"
    port = world.agents[HOST]["cinder"]
    real, refused = getattr(port, name), []

    def overtaken(*args: object) -> object:
        with pytest.raises(CinderFault) as seen:
            WORK[what](world, volume_of(world))
        refused.append(seen)
        return real(*args)

    setattr(port, name, overtaken)
    world.done(world.detach())
    assert refused
    assert volume_of(world).status == "available"


def test_a_migration_that_begins_after_the_look_is_seen() -> None:
    """Cinder's begin_detaching says yes to a volume that migrates, and does nothing."""
    world = attached()
    port, ends = world.agents[HOST]["cinder"], list[Callable[[], object]]()
    real = port.begin_detaching

    def overtaken(volume_id: str) -> None:
        if not ends:
            ends.append(_migration(world, volume_of(world)))
        real(volume_id)

    port.begin_detaching = overtaken
    operation = world.run(world.detach())
    assert operation.state is OperationState.PARKED
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1
    ends[0]()
    world.service.act(str(operation.id), "retry", "it is over", CONTEXT)
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED
    assert volume_of(world).status == "available"


def test_lp880399_a_deletion_that_fails_takes_detaching_back() -> None:
    world = attached()
    Broken(world, "cinder.attachment_delete", ErrorKind.FINAL)
    assert world.run(world.detach()).state is OperationState.PARKED
    assert volume_of(world).status == "in-use"


def test_what_takes_detaching_back_is_tried_again_until_it_is_done() -> None:
    """Also if the deletion alone would not be tried again."""
    world = attached()
    broken = Broken(world, "cinder.roll_detaching", ErrorKind.RETRYABLE)
    broken.while_ = lambda: broken.calls < 2
    Broken(world, "cinder.attachment_delete", ErrorKind.FINAL)
    operation = world.run(world.detach())
    assert (operation.first_error or {}).get("message") == "cinder.attachment_delete is broken"
    assert (broken.calls, volume_of(world).status) == (2, "in-use")


@pytest.mark.parametrize("fails", [0, 2])
def test_an_attachment_that_was_gone_does_not_leave_a_shared_volume_detaching(fails: int) -> None:
    """Storm 1004: what takes that back had failed, and nobody did it again."""
    world = Street(multiattach=True)
    world.add_neighbour()
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        world.done(world.attach())
    [mine] = [r for r in world.cinder.attachments_of(world.volumes[0]) if r.instance == SERVER]
    world.cinder.drop_attachment(mine.id)
    broken = Broken(world, "cinder.roll_detaching", ErrorKind.RETRYABLE)
    broken.while_ = lambda: broken.calls < fails
    world.done(world.detach())
    assert (broken.calls, volume_of(world).status) == (fails, "in-use")


def test_an_attachment_that_was_gone_does_not_leave_a_volume_detaching_that_has_another() -> None:
    """Planted storm 102: who was paused deletes what another process has replaced meanwhile."""
    world = attached()
    cinder, volume_id = DirectCinder(world.cinder), world.volumes[0]
    gone = str(UUID(int=1))
    lane = Lane(
        server_id=SERVER, volume_id=volume_id, bdm_id="", attachment_id=gone, device_name=None
    )
    with letting_go(cinder, lane) as deletion:
        assert volume_of(world).status == "detaching"
        deletion.shown = cinder.attachment_delete(gone) is not None
    assert volume_of(world).status == "in-use"
