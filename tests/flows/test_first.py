"""Which runs are the first of their steps (handlers.engine.plan.is_first)."""

from __future__ import annotations

from handlers.engine.plan import is_first
from host_agent.shared.contract.lane import SEEN_S
from host_agent.shared.contract.messages import ErrorKind
from tests.flows.drifts import DRIFTS
from tests.world import OTHER, Broken, World


def _firsts(world: World, operation_id: str) -> list[tuple[tuple[str, ...], bool]]:
    """The active runs with what they owe, and whether each is the first."""
    operation = world.operation(operation_id)
    return [(run.steps, is_first(operation, run)) for run in operation.history.active.values()]


def _to_the_host(world: World, operation_id: str) -> None:
    while world.service.advance(operation_id) is None:
        pass


def test_each_run_that_nothing_went_wrong_before_is_the_first() -> None:
    world = World()
    operation_id = world.attach()
    assert _firsts(world, operation_id) == [(("reserve", "bind"), True)]
    _to_the_host(world, operation_id)
    [(steps, first)] = _firsts(world, operation_id)
    assert (steps[0], first) == ("update", True)
    world.run_agent(operation_id, steps=2)
    assert [first for _, first in _firsts(world, operation_id)] == [True]


def test_a_step_that_is_tried_again_is_not_at_its_first() -> None:
    world = World()
    broken = Broken(world, "cinder.attachment_complete", ErrorKind.RETRYABLE)
    operation_id = world.attach()
    _to_the_host(world, operation_id)
    world.run_agent(operation_id)
    world.clock.seconds += 60
    broken.heal()
    _to_the_host(world, operation_id)
    assert _firsts(world, operation_id) == [(("complete",), False)]


def test_nor_is_what_a_lost_dispatcher_had_begun_nor_an_undo() -> None:
    world = World()
    operation_id = world.attach()
    world.service.on_dispatcher_lost(operation_id)
    world.service.advance(operation_id)
    assert [first for _, first in _firsts(world, operation_id)] == [False]
    Broken(world, "cinder.attachment_update", ErrorKind.FINAL)
    _to_the_host(world, operation_id)
    world.run_agent(operation_id)
    assert [first for _, first in _firsts(world, operation_id)] == [False]
    assert world.run(operation_id).outcome == "failed"


def test_a_repair_has_no_first_attempt() -> None:
    world = DRIFTS["repair-lost"].world()
    operation_id = DRIFTS["repair-lost"].ask(world)
    assert _firsts(world, operation_id)
    assert not any(first for _, first in _firsts(world, operation_id))


def test_what_was_seen_before_a_step_was_put_off_is_looked_at_anew() -> None:
    """A reservation that came meanwhile, of nobody who waits for it, is not left beside another."""
    world = World()
    operation_id = world.attach()
    assert world.operation(operation_id).lanes[0].volume_seen, "it was available"
    late = world.cinder.attachment_create(world.volumes[0], world.server_id, None, "rw")
    world.clock.seconds += SEEN_S + 1
    _to_the_host(world, operation_id)
    assert world.operation(operation_id).lanes[0].attachment_id == late.id


def test_what_cinder_showed_is_kept_with_its_moment() -> None:
    """Of both volumes of a swap; but not of one that Cinder moves, whose target changes."""
    world = World(volumes=2)
    at, operation_id = world.clock(), world.attach()
    [seen] = world.operation(operation_id).lanes[0].seen
    assert (seen.id, seen.at, seen.status) == (world.volumes[0], at, "available")
    world.done(operation_id)
    other = world.copy()
    [lane] = other.operation(other.swap(*other.volumes)).lanes
    assert {each.id for each in lane.seen} == set(world.volumes)
    world.cinder.volume(world.volumes[0]).migration_status = "migrating"
    [lane] = world.operation(world.act("live_migrate", destination=OTHER)).lanes
    assert lane.seen == ()
