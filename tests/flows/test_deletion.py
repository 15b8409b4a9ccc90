"""A deletion that comes while something is at work is kept, and begun at its end (0086)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from aggregates import errors
from aggregates.instance import Instance
from aggregates.operation import Operation, OperationState
from handlers.requests import edits
from host_agent.shared.contract.messages import ErrorKind
from tests.doubles.host_checks import connected_paths
from tests.flows.test_presence import shows, shows_nothing
from tests.memory import SAVE_MODES, Trouble
from tests.regressions.worlds import NEIGHBOUR, Street, broken_on, rows
from tests.world import CONTEXT, HOST, OTHER, Broken, World, events


def attached(volumes: int = 1) -> World:
    world = World(volumes=volumes)
    return world.done(world.attach())


def gone(world: World) -> bool:
    free = {world.cinder.volume(volume_id).status for volume_id in world.volumes} == {"available"}
    none = not any(connected_paths(host) for host in world.hosts.values())
    return free and none and world.instance.deleted and not world.instance.claims


@pytest.mark.parametrize("flow", ["live_migrate", "reboot", "shelve"])
def test_what_is_in_the_way_ends_first_and_the_deletion_begins_with_its_end(flow: str) -> None:
    world = attached()
    first = world.act(flow, **({"destination": OTHER} if flow == "live_migrate" else {}))
    deletion = world.delete()
    assert (world.instance.deleted, world.operation(deletion).started) == (False, None)
    world.done(first)
    assert world.instance.deleted, "in the transaction that ended the first"
    world.settle()
    assert world.operation(deletion).outcome == "completed"
    assert gone(world), world.summary()


def test_of_many_in_the_way_the_last_one_to_end_begins_it() -> None:
    world = World(volumes=3)
    attaches = [world.attach(volume_id) for volume_id in world.volumes]
    deletion = world.delete()
    for operation_id in attaches:
        assert world.operation(deletion).started is None
        world.done(operation_id)
    world.settle()
    assert gone(world), world.summary()


def test_what_parks_meanwhile_is_taken_over() -> None:
    world = attached()
    broken = broken_on(world, HOST, "brick.disconnect", ErrorKind.FINAL)
    detach = world.detach()
    deletion = world.delete()
    assert world.run(detach).outcome == "cancelled"
    broken.heal()
    world.done(deletion)
    assert gone(world), world.summary()


def test_a_host_that_dies_lets_the_deletion_begin_when_it_is_fenced() -> None:
    world = attached()
    world.dead.add(HOST)
    world.run(world.act("reboot"))
    deletion = world.delete()
    assert world.operation(deletion).started is None
    world.fence(HOST)
    world.settle()
    assert world.operation(deletion).outcome == "completed"


def test_meanwhile_nothing_else_begins_and_who_asks_again_is_told_the_same() -> None:
    world = attached(volumes=2)
    first = world.act("reboot")
    deletion, stored = world.delete(), len(world.store.log)
    assert world.delete() == deletion
    asked: list[Callable[[], str]] = [
        lambda: world.attach(world.volumes[1]),
        world.detach,
        lambda: world.act("stop"),
    ]
    told = f"instance {world.server_id} while it is in task_state deleting"
    for ask in asked:
        with pytest.raises(errors.DeletingError, match=told):
            ask()
    assert len(world.store.log) == stored
    assert world.requests.grow(world.server_id, world.volumes[0], CONTEXT) is None
    world.done(first)
    world.settle()
    flows = [event.flow for event in events(world, Operation.OperationStarted)]
    assert flows == ["attach", "reboot", "delete"]
    assert len(events(world, Instance.DeletionAwaited)) == 1
    senders = [event.sender for event in events(world, Operation.OperationStarted)]
    assert senders == [CONTEXT.sender] * 3, "also of what waited"


def test_a_request_that_is_repeated_with_its_key_is_the_same_deletion_before_and_after() -> None:
    world = attached()
    first = world.act("reboot")
    asked = [world.requests.delete(world.server_id, CONTEXT, world.fleet, "once") for _ in range(2)]
    world.done(first)
    again = world.requests.delete(world.server_id, CONTEXT, world.fleet, "once")
    assert again.repeated
    assert {each.operation_id for each in [*asked, again]} == {again.operation_id}
    world.done(again.operation_id)


def test_it_is_told_as_who_asked_for_it_whoever_ends_what_was_in_the_way() -> None:
    world = attached()
    first = world.act("reboot")
    actor = replace(CONTEXT.actor, name="carol")
    asked = replace(CONTEXT, actor=actor, request_id="req-of-carol", global_request_id="req-g")
    deletion = world.requests.delete(world.server_id, asked, world.fleet).operation_id
    world.done(first)
    started = world.operation(deletion).started
    assert started is not None
    assert (started.actor["name"], started.request_id) == ("carol", "req-of-carol")
    assert started.global_request_id == "req-g"


def test_a_lock_refuses_what_comes_after_it_and_not_what_was_accepted_before() -> None:
    world = attached()
    first = world.act("reboot")
    world.requests.edit(Instance, world.server_id, partial(edits.lock, reason="mine"), CONTEXT)
    with pytest.raises(errors.LockedError):
        world.delete()
    world.requests.edit(Instance, world.server_id, partial(edits.unlock, overrides=False), CONTEXT)
    deletion = world.delete()
    world.requests.edit(Instance, world.server_id, partial(edits.lock, reason="mine"), CONTEXT)
    world.done(first)
    world.done(deletion)
    assert gone(world), world.summary()


@pytest.mark.parametrize("parked", [False, True])
def test_it_waits_for_another_server_that_is_getting_the_volume_on_the_same_host(
    parked: bool,
) -> None:
    """Who lets go must not find itself the last user meanwhile (decision 0042)."""
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour(HOST)
    world.done(world.attach())
    broken = broken_on(world, HOST, "guests.plug", ErrorKind.FINAL) if parked else None
    undone = broken_on(world, HOST, "guests.unplug", ErrorKind.FINAL) if parked else None
    with world.meant(NEIGHBOUR):
        getting = world.attach()
    deletion = world.delete()
    assert world.operation(deletion).started is None
    world.run(getting)
    assert world.instance.deleted
    if broken and undone:
        broken.heal()
        undone.heal()
    world.done(deletion)
    assert {row.instance for row in rows(world)} == {NEIGHBOUR}
    assert len(connected_paths(world.host)) == 1


@pytest.mark.parametrize("mode", SAVE_MODES)
def test_no_crash_and_no_race_around_a_save_loses_it(mode: str) -> None:
    """At every save from the wish to the end: it is kept, and carried out once."""
    for at in range(10_000):
        world = attached()
        first = world.act("reboot")
        world.trouble = Trouble({at: mode})
        deletion = world.delete()
        world.run(first)
        world.settle()
        assert world.operation(deletion).state is OperationState.FINISHED
        assert gone(world), (at, world.summary())
        if len(world.trouble.met) <= at:
            return
    raise AssertionError("it never ends")


def test_one_that_was_begun_and_is_undone_waits_no_more() -> None:
    """It begins in vain while another host shows the guest, and a person may undo it."""
    world = attached()
    first = world.act("pause")
    deletion = world.delete()
    shows(world, world.server_id)
    world.done(first)
    assert (world.operation(deletion).state, world.instance.deleted) == ("running", False)
    world.service.act(deletion, "unwind", "it is wanted", CONTEXT)
    assert (world.operation(deletion).outcome, world.instance.deletion) == ("cancelled", None)
    shows_nothing(world)
    world.done(world.act("unpause"))
    world.done(world.delete())
    assert gone(world), world.summary()


def test_a_parked_deletion_that_is_asked_for_again_still_ends() -> None:
    """Found by the explorer: the second was kept, and its beginning refused the first one's end."""
    world = attached()
    deletion = world.delete()
    broken = Broken(world, "brick.disconnect", ErrorKind.FINAL)
    assert world.run(deletion).state is OperationState.PARKED
    with pytest.raises(errors.VmStateError, match="deleted"):
        world.delete()
    broken.heal()
    world.service.act(deletion, "retry", "it is mended", CONTEXT)
    assert world.done(deletion).running() == []
    assert gone(world), world.summary()
