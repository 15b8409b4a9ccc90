"""What may be done to a server one of whose operations is parked (decision 0054)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aggregates import errors
from aggregates.operation import OperationState
from handlers.engine.claims import leaves_disks
from handlers.flows import FLOWS
from host_agent.shared.contract.messages import ErrorKind
from tests.doubles.host_checks import connected_paths, plugged
from tests.memory import Trouble
from tests.world import CONTEXT, HOST, OTHER, Broken, World


def parked_detach() -> tuple[World, str, Broken]:
    """A running server with all volumes but one; the detach of the first is parked, its disk out
    of the guest.
    """
    world = World(volumes=3, encrypted=False)
    for volume_id in world.volumes[:-1]:
        world.done(world.attach(volume_id))
    world.trouble = Trouble()
    broken = Broken(world, "brick.disconnect", ErrorKind.FINAL)
    parked = world.detach()
    assert world.run(parked).state is OperationState.PARKED
    return world, parked, broken


def parked_attach() -> tuple[World, str, Broken]:
    """The same of an attach whose rollback could not take the disk out of the guest."""
    world = World(volumes=3, encrypted=False)
    world.done(world.attach(world.volumes[1]))
    world.trouble = Trouble()
    failing = Broken(world, "cinder.attachment_complete", ErrorKind.FINAL)
    broken = Broken(world, "guests.unplug", ErrorKind.FINAL)
    parked = world.attach()
    assert world.run(parked).state is OperationState.PARKED
    failing.heal()
    return world, parked, broken


PARKED: dict[str, Callable[[], tuple[World, str, Broken]]] = {
    "detach": parked_detach,
    "attach": parked_attach,
}


def settle(world: World, parked: str, broken: Broken) -> None:
    """An operator has mended it; afterwards everything is as if nothing had been."""
    broken.heal()
    world.service.act(parked, "retry", "mended", CONTEXT)
    assert world.run(parked).state is OperationState.FINISHED
    assert world.instance.vm_state != "error"
    assert world.wrong() == []


@pytest.mark.parametrize("what", PARKED)
def test_other_volumes_are_attached_and_detached_beside_it(what: str) -> None:
    world, parked, broken = PARKED[what]()
    assert world.instance.vm_state == "error", "S1: the fault is shown until it is solved"
    if what == "attach":
        broken.heal()
    world.done(world.attach(world.volumes[2]))
    broken2 = broken
    if what == "detach":
        broken.heal()
    world.done(world.detach(world.volumes[1]))
    assert world.operation(parked).state is OperationState.PARKED
    settle(world, parked, broken2)
    assert {m.volume_id for m in world.mappings()} == {world.volumes[2]}


@pytest.mark.parametrize("acts", [["stop", "start"], ["reboot"], ["pause", "unpause"]])
@pytest.mark.parametrize("what", PARKED)
def test_the_guest_is_stopped_started_and_paused_beside_it(what: str, acts: list[str]) -> None:
    """Without the volume in question, which is neither connected nor given to the guest."""
    world, parked, broken = PARKED[what]()
    connected = connected_paths(world.host)
    for act in acts:
        world.done(world.act(act))
    assert world.instance.power_state == "running"
    if "start" in acts or "reboot" in acts:
        disks = plugged(world.host)[world.server_id]
        assert set(disks) == {world.volumes[1]}
    assert connected_paths(world.host) == connected
    settle(world, parked, broken)


@pytest.mark.parametrize("flow", ["resize", "live_migrate", "shelve", "rebuild", "refresh"])
def test_what_needs_all_volumes_is_refused_and_told_why(flow: str) -> None:
    world, parked, _ = parked_detach()
    where = {"destination": OTHER} if flow in {"resize", "live_migrate"} else {}
    with pytest.raises(errors.ParkedClaimError) as refusal:
        world.act(flow, **where)
    told = refusal.value.fields
    assert told["operation_id"] == parked
    assert (told["flow"], told["state"]) == ("detach", "parked")
    assert told["acts"] == ["retry", "skip", "give_up"]
    assert all(word in str(refusal.value) for word in (parked, "detach", "parked", "give_up"))


def test_its_own_volume_is_refused_and_told_why() -> None:
    world, parked, _ = parked_detach()
    for ask in (world.detach, world.attach):
        with pytest.raises(errors.ParkedClaimError) as refusal:
            ask()
        assert refusal.value.fields["operation_id"] == parked


def test_who_is_refused_for_one_that_runs_is_told_what_it_is() -> None:
    world = World(volumes=1, encrypted=False)
    running = world.attach()
    with pytest.raises(errors.BusyClaimError, match=rf"{running} .attach, running.") as refusal:
        world.act("reboot")
    assert refusal.value.fields["acts"] == ["unwind"]


def test_a_half_moved_server_names_what_is_parked() -> None:
    """Its own state would say nothing: it is the operation that has to be settled."""
    world = World(volumes=1, encrypted=False)
    world.done(world.attach())
    world.trouble = Trouble()
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    parked = world.act("shelve")
    assert world.run(parked).state is OperationState.PARKED
    for flow, where in (("pause", {}), ("unshelve", {"destination": OTHER})):
        with pytest.raises(errors.ParkedClaimError) as refusal:
            world.act(flow, **where)
        assert refusal.value.fields["operation_id"] == parked


@pytest.mark.parametrize("act", ["retry", "unwind"])
def test_it_does_not_go_on_while_the_server_is_changed_as_a_whole(act: str) -> None:
    """Else it would plug into a guest that is just being defined without its volume."""
    world, parked, broken = parked_attach()
    reboot = world.act("reboot")
    with pytest.raises(errors.BusyClaimError) as refusal:
        world.service.act(parked, act, "now", CONTEXT)
    assert refusal.value.fields["operation_id"] == reboot
    world.done(reboot)
    settle(world, parked, broken)


def test_one_that_is_retried_is_in_the_way_as_any_other() -> None:
    world, parked, broken = parked_detach()
    broken.heal()
    world.service.act(parked, "retry", "mended", CONTEXT)
    with pytest.raises(errors.BusyClaimError):
        world.act("stop")
    assert world.run(parked).state is OperationState.FINISHED
    world.done(world.act("stop"))


def test_a_fence_retries_nothing_beside_a_change_of_the_whole_server() -> None:
    world, parked, _ = parked_attach()
    world.act("reboot")
    world.fence(HOST)
    assert world.operation(parked).state is OperationState.PARKED


def test_a_flow_leaves_disks_where_they_are_by_what_its_steps_do() -> None:
    """Beside these a server is started with all its disks (storms 204, 620, 976)."""
    leave = {name for name, flow in FLOWS.items() if leaves_disks(flow)}
    assert leave == {
        *("grow", "grow_for_cinder"),
        *("complete_attachment", "drop_attachment", "drop_reservation", "settle_volume"),
    }
