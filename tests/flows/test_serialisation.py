"""Who may work on what at the same time (S2, bug [6]; LP 1937375, LP 1762687).

Whatever would collide is refused with a 409 that names the operation in the way; whatever
would not goes on together.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.operation import OperationState, Outcome
from aggregates.volume import Volume
from handlers.requests.actions import RULES
from handlers.requests.build import BootDisk
from host_agent.shared.contract.messages import ErrorKind, PowerState
from tests.doubles.host_checks import connected_paths, plugged
from tests.regressions.worlds import NEIGHBOUR, Street
from tests.world import HOST, OTHER, Broken, World

#: What is accepted of a running server with a volume, and changes it as a whole.
ACTS = ["live_migrate", "resize", "shelve", "stop", "pause", "reboot", "rebuild", "refresh"]
MOVES = {"live_migrate", "resize", "unshelve", "evacuate"}


def act(world: World, flow: str) -> str:
    return world.act(flow, destination=OTHER) if flow in MOVES else world.act(flow)


def attached(volumes: int = 2, **more: object) -> World:
    """A running server with its first volume attached."""
    world = World(volumes=volumes, **more)  # type: ignore[arg-type]
    return world.done(world.attach(world.volumes[0]))


def refused_because_of(ask: Callable[[], object], operation_id: str) -> None:
    """It is a 409 that names the operation in the way, and nothing else has happened."""
    with pytest.raises(errors.ClaimedError) as refusal:
        ask()
    assert refusal.value.status == 409
    assert refusal.value.fields["operation_id"] == operation_id
    assert operation_id in str(refusal.value)


@pytest.mark.parametrize("flow", ACTS)
def test_an_attach_keeps_out_what_changes_the_server_as_a_whole(flow: str) -> None:
    world = attached()
    under_way = world.attach(world.volumes[1])
    stored = len(world.store.log)
    refused_because_of(lambda: act(world, flow), under_way)
    assert len(world.store.log) == stored
    world.done(under_way).done(act(world, flow))
    assert world.wrong() == []


@pytest.mark.parametrize("flow", ACTS)
def test_a_change_of_the_server_keeps_out_attach_and_detach(flow: str) -> None:
    world = attached()
    under_way = act(world, flow)
    refused_because_of(lambda: world.attach(world.volumes[1]), under_way)
    refused_because_of(world.detach, under_way)
    world.done(under_way)
    assert world.wrong() == []


@pytest.mark.parametrize("first", ACTS)
def test_a_change_of_the_server_keeps_out_every_other(first: str) -> None:
    world = attached()
    under_way = act(world, first)
    vm_state = world.instance.vm_state
    for flow, rule in RULES.items():
        if vm_state in rule.states and flow not in {"evacuate", "convert"}:
            refused_because_of(lambda flow=flow: act(world, flow), under_way)  # type: ignore[misc]
    world.done(under_way)


def test_a_swap_keeps_out_everything_and_is_kept_out() -> None:
    world = attached(volumes=3, encrypted=False)
    under_way = world.attach(world.volumes[2])
    refused_because_of(lambda: world.swap(*world.volumes[:2]), under_way)
    world.done(under_way)
    under_way = world.swap(*world.volumes[:2])
    refused_because_of(lambda: world.detach(world.volumes[2]), under_way)
    refused_because_of(lambda: act(world, "stop"), under_way)
    world.done(under_way)
    assert world.wrong() == []


def test_one_volume_is_detached_once_at_a_time() -> None:
    world = attached()
    under_way = world.detach()
    refused_because_of(world.detach, under_way)
    world.done(under_way)
    assert world.attachments() == []


def test_a_volume_is_not_attached_twice_to_one_server() -> None:
    world = World()
    under_way = world.attach()
    with pytest.raises(errors.AlreadyAttachedError):
        world.attach()
    world.done(under_way)
    assert len(world.mappings()) == 1


def test_a_volume_that_one_server_is_getting_is_not_given_to_another() -> None:
    world = World()
    world.build()  # becomes the world's server
    built = world.running()[0]
    world.done(str(built))
    first, second = world.server_id, World().server_id
    under_way = world.attach()
    world.server_id = second
    refused_because_of(world.attach, under_way)
    world.server_id = first
    world.done(under_way)
    world.server_id = second
    with pytest.raises(errors.AttachedElsewhereError):
        world.attach()


def test_who_wants_a_volume_that_another_server_lets_go_of_is_told_to_wait() -> None:
    """Cinder says `available` a moment before that is over: who waits for it asks then."""
    world = Street(volumes=2)
    world.add_neighbour()
    wanted, own = world.volumes
    world.done(world.attach(wanted))
    leaving = world.detach(wanted)
    root = BootDisk(volume_id=wanted, boot_index=0)
    with world.meant(NEIGHBOUR):
        world.done(world.attach(own))
        refused_because_of(lambda: world.swap(own, wanted), leaving)
        refused_because_of(lambda: world.build(root), leaving)
        world.done(leaving)
        world.done(world.build(root))


def test_a_boot_keeps_out_whoever_wants_its_volume() -> None:
    world = World()
    first = world.server_id
    under_way = world.build(BootDisk(volume_id=world.volumes[0], boot_index=0))
    world.server_id = first
    refused_because_of(world.attach, under_way)


def test_of_two_requests_that_meet_at_the_save_one_is_accepted() -> None:
    """Both have looked before either was written: the second one decides again."""
    world = attached()
    faster: list[str] = []
    world.store.before_save = lambda: faster.append(world.act("stop"))
    with pytest.raises(errors.ClaimedError) as refusal:
        world.attach(world.volumes[1])
    assert refusal.value.fields["operation_id"] == faster[0]
    world.done(faster[0])
    assert world.wrong() == []


def test_a_parked_operation_still_is_in_the_way() -> None:
    """Nobody changes what an operator has to look at first; only its server's deletion may."""
    world = attached()
    broken = Broken(world, "brick.disconnect", ErrorKind.FINAL)
    under_way = world.detach()
    assert world.run(under_way).state is OperationState.PARKED
    assert world.instance.vm_state == "error"
    refused_because_of(lambda: act(world, "rebuild"), under_way)
    with pytest.raises(errors.ParkedClaimError, match=r"detach.*parked.*retry, skip, give_up"):
        act(world, "shelve")
    broken.heal()
    world.done(world.delete())
    assert world.attachments() == []


def test_many_volumes_of_one_server_attach_at_once() -> None:
    world = World(volumes=8)
    under_way = [world.attach(volume_id) for volume_id in world.volumes]
    assert {str(id_) for id_ in world.running()} == set(under_way)
    # One step of each in turn: they are all half done before any is done.
    for _ in range(3):
        for operation_id in under_way:
            world.service.advance(operation_id)
    for _ in range(2):
        for operation_id in under_way:
            world.run_agent(operation_id, steps=1)
    assert len(world.running()) == len(under_way)
    for operation_id in reversed(under_way):
        assert world.run(operation_id).outcome is Outcome.COMPLETED
    names = [mapping.device_name for mapping in world.mappings()]
    assert len(set(names)) == 8
    assert len(plugged(world.host)[world.server_id]) == 8
    assert world.wrong() == []


def test_volumes_of_one_server_attach_and_detach_at_once() -> None:
    world = attached(volumes=3)
    under_way = [world.detach(), *(world.attach(v) for v in world.volumes[1:])]
    for operation_id in under_way:
        world.done(operation_id)
    assert {m.volume_id for m in world.mappings()} == set(world.volumes[1:])
    assert world.wrong() == []


def test_a_shared_volume_is_attached_to_several_servers_one_after_the_other() -> None:
    """The volume is worked on by one operation at a time; after that each server has it (S3)."""
    world = World(multiattach=True)
    first = world.server_id
    world.done(world.build())
    second = world.server_id
    under_way = world.attach()
    world.server_id = first
    refused_because_of(world.attach, under_way)
    world.server_id = second
    world.done(under_way)
    world.server_id = first
    world.done(world.attach())
    volume = world.store.load(Volume, UUID(world.volumes[0]))
    assert set(volume.holders.values()) == {first, second}
    assert len(connected_paths(world.host)) == 1


def test_the_last_server_of_a_shared_volume_disconnects_it() -> None:
    world = World(multiattach=True)
    servers = [world.server_id]
    world.done(world.build())
    servers.append(world.server_id)
    for server_id in servers:
        world.server_id = server_id
        world.done(world.attach())
    for server_id, left in zip(servers, (1, 0), strict=True):
        world.server_id = server_id
        world.done(world.detach())
        assert len(connected_paths(world.host)) == left
    assert world.wrong() == []


def test_servers_do_not_wait_for_each_other() -> None:
    world = World(PowerState.RUNNING, volumes=2)
    first = world.server_id
    built = world.build()
    under_way = act_on(world, first, lambda: world.attach(world.volumes[0]))
    assert set(map(str, world.running())) == {built, under_way}
    world.done(built).done(under_way)
    assert world.wrong() == []


def act_on(world: World, server_id: str, ask: Callable[[], str]) -> str:
    world.server_id = server_id
    return ask()


def test_a_fence_between_a_decision_and_its_save_is_seen() -> None:
    """Else the host would be given a command of an epoch that is over, for ever."""
    world = attached()
    world.store.before_save = lambda: world.fence(HOST)
    with pytest.raises(errors.HostUnavailableError):
        world.attach(world.volumes[1])


def test_a_delete_that_meets_a_fence_asks_nothing_of_that_host() -> None:
    world = attached()
    world.store.before_save = lambda: world.fence(HOST)
    operation = world.operation(world.delete())
    started = [run for run in operation.history.active.values() if run.host == HOST]
    assert [run for run in started if run.epoch == 0] == []
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED
