"""Every flow, at every point, in every way - and every pair of those.

A new flow gets these tests by adding a `Scenario`.  One case is: bring a world to
where the flow can start, make trouble at one point (or two), let everything that
crashed start again, and look at ledger, Cinder and host together.  Either all is
as if nothing had happened, or all is as if nothing had been asked for, or the
operation is parked, says so, and ends in one of the two when it is retried.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from aggregates import errors
from aggregates.operation import ActiveRun, Operation, OperationState, Outcome
from handlers.build import BootDisk
from host_agent.shared.contract import PowerState, Report, StepResult
from host_agent.verbs import GUEST_VERBS, VERBS
from ledger.effects import EFFECTS
from tests.memory import CALL_MODES, SAVE_MODES, Trouble
from tests.world import CONTEXT, HOST, OTHER, World

#: So many pairs of each scenario, chosen by a seed; `make test-deep` and nightly runs take more.
PAIRS_DEFAULT = 5
PAIRS = int(os.environ.get("FLOW_PAIRS", PAIRS_DEFAULT))


@dataclass(frozen=True)
class Scenario:
    """A flow and the world it starts in.

    `fails_to`: what a failure leaves; None: what was before.
    """

    name: str
    world: Callable[[], World]
    ask: Callable[[World], str]
    fails_to: Callable[[dict[str, Any]], bool] | None = None

    def begin(self) -> World:
        """A world of its own for each case."""
        return _prepared(self).copy()


@cache
def _prepared(scenario: Scenario) -> World:
    return scenario.world()


RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN


def _attached(power_state: PowerState = RUNNING, volumes: int = 1, **more: Any) -> World:
    world = World(power_state, volumes=volumes, **more)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    return world


def _with_a_spare() -> World:
    world = World(volumes=2)
    return world.done(world.attach(world.volumes[0]))


def _after(*flows: str, power_state: PowerState = RUNNING, **more: Any) -> World:
    world = _attached(power_state, volumes=2, **more)
    for flow in flows:
        world.done(_do(flow)(world))
    return world


def _do(flow: str, **more: Any) -> Callable[[World], str]:
    moves = {"live_migrate", "resize", "evacuate", "unshelve"}
    where = {"destination": OTHER} if flow in moves else {}
    return lambda world: world.act(flow, **where, **more)


def _fenced() -> World:
    world = _attached(volumes=2)
    world.fence(HOST)
    return world


def _built(world: World) -> str:
    root = BootDisk(volume_id=world.volumes[0], boot_index=0)
    return world.build(root, BootDisk(create={"size_gb": 1}, delete_on_termination=True))


def _boots_from_volume(power_state: PowerState = STOPPED) -> World:
    world = World(None, volumes=2)
    world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0)))
    return world.done(world.act("stop")) if power_state is STOPPED else world


def _rootless() -> World:
    world = _boots_from_volume()
    return world.done(_detach_root(world))


def _detach_root(world: World) -> str:
    return world.detach(world.volumes[0], root_allowed=True)


def _attach_root(world: World) -> str:
    return world.attach(world.volumes[1], is_root=True)


def _is_error(summary: dict[str, Any]) -> bool:
    """Nothing is on a host, and what was reserved stays so (LP 1899649)."""
    nowhere = not any(summary["guests"].values()) and not any(summary["connected"].values())
    return summary["vm_state"] == "error" and nowhere and set(summary["cinder"]) <= {"reserved"}


def _offloaded() -> World:
    world = World()
    return world.done(world.act("shelve"))


def _reserved_offloaded() -> World:
    """Given by the old calls while the server was on no host: Cinder has no row of it."""
    world = World(legacy=True)
    world.done(world.act("shelve"))
    return world.done(world.attach())


def _swap(world: World) -> str:
    return world.swap(*world.volumes)


def _cinder_migrates() -> World:
    """Cinder copies to the second volume, which is to become the first."""
    world = _with_a_spare()
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    return world


def _stays_on_the_old(summary: dict[str, Any]) -> bool:
    """Cinder deletes the new volume when it hears that the migration failed."""
    return (summary["volumes"], summary["cinder"]) == (["in-use"], ["attached"])


def _swap_for_cinder(world: World) -> str:
    return world.swap(*world.volumes, by_cinder=True)


def _delete_with_volumes(power_state: PowerState) -> World:
    world = World(power_state, volumes=2)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id, delete_on_termination=True))
    return world


SCENARIOS = [
    Scenario("attach-running", World, World.attach),
    Scenario("attach-stopped", lambda: World(STOPPED), World.attach),
    Scenario("attach-rbd", lambda: World(driver="rbd"), World.attach),
    Scenario("attach-shared", lambda: World(multiattach=True), World.attach),
    Scenario("attach-encrypted", lambda: World(encrypted=True), World.attach),
    Scenario("detach-encrypted", lambda: _attached(encrypted=True), World.detach),
    Scenario("detach-running", _attached, World.detach),
    Scenario("detach-stopped", lambda: _attached(STOPPED), World.detach),
    Scenario("boot", lambda: World(None), _built, fails_to=_is_error),
    Scenario("live-migrate", lambda: _attached(volumes=2), _do("live_migrate")),
    Scenario("live-migrate-bare", lambda: World(volumes=0), _do("live_migrate")),
    Scenario("resize", lambda: _attached(volumes=2), _do("resize", memory_mb=2048)),
    Scenario("migrate-stopped", lambda: _attached(STOPPED, volumes=2), _do("resize")),
    Scenario("confirm", lambda: _after("resize"), _do("confirm_resize")),
    Scenario("revert", lambda: _after("resize"), _do("revert_resize")),
    Scenario("evacuate", _fenced, _do("evacuate")),
    Scenario("shelve", lambda: _attached(volumes=2), _do("shelve")),
    Scenario("unshelve", lambda: _after("shelve"), _do("unshelve")),
    Scenario("attach-offloaded", _offloaded, World.attach),
    Scenario("detach-offloaded", lambda: _after("shelve"), World.detach),
    Scenario("root-detach", _boots_from_volume, _detach_root),
    Scenario("root-attach", _rootless, _attach_root),
    Scenario("swap", _with_a_spare, _swap),
    Scenario("migrate-volume", _cinder_migrates, _swap_for_cinder, fails_to=_stays_on_the_old),
    Scenario("stop", lambda: _attached(volumes=2), _do("stop")),
    Scenario("start", lambda: _after("stop"), _do("start")),
    Scenario("pause", _attached, _do("pause")),
    Scenario("unpause", lambda: _after("pause"), _do("unpause")),
    Scenario("reboot", lambda: _attached(volumes=2), _do("reboot")),
    Scenario("delete", lambda: _delete_with_volumes(RUNNING), World.delete),
    Scenario("delete-offloaded", lambda: _after("shelve"), World.delete),
    Scenario("delete-resized", lambda: _after("resize"), World.delete),
    Scenario("delete-fenced", _fenced, World.delete),
    Scenario("refresh-stopped", lambda: _attached(STOPPED, volumes=2), _do("refresh")),
    Scenario("refresh-running", lambda: _attached(volumes=2), _do("refresh")),
    Scenario("legacy-attach", lambda: World(legacy=True), World.attach),
    Scenario("legacy-detach", lambda: _attached(legacy=True), World.detach),
    Scenario("legacy-detach-offloaded", lambda: _after("shelve", legacy=True), World.detach),
    Scenario("legacy-live-migrate", lambda: _attached(volumes=2, legacy=True), _do("live_migrate")),
    Scenario("legacy-resize", lambda: _attached(volumes=2, legacy=True), _do("resize")),
    Scenario("legacy-revert", lambda: _after("resize", legacy=True), _do("revert_resize")),
    Scenario("legacy-shelve", lambda: _attached(volumes=2, legacy=True), _do("shelve")),
    Scenario("legacy-unshelve", lambda: _after("shelve", legacy=True), _do("unshelve")),
    Scenario("legacy-delete", lambda: _attached(volumes=2, legacy=True), World.delete),
    Scenario("convert", lambda: _attached(volumes=2, legacy=True), _do("convert")),
    Scenario("convert-stopped", lambda: _attached(STOPPED, legacy=True), _do("convert")),
    Scenario("convert-offloaded", lambda: _after("shelve", legacy=True), _do("convert")),
    Scenario("convert-reserved", _reserved_offloaded, _do("convert")),
]
#: What a deletion does not end, or not to its end, if it is parked.
_KEPT_PARKED = frozenset({"delete", "migrate_volume", "convert", "convert_offloaded"})
BY_NAME = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)


@dataclass
class Undisturbed:
    """What a scenario does when nothing happens to it."""

    before: dict[str, Any]
    after: dict[str, Any]
    points: list[str]


def _undisturbed(scenario: Scenario) -> Undisturbed:
    world = scenario.begin()
    before = world.summary()
    world.trouble = Trouble()
    operation = world.run(scenario.ask(world))
    assert operation.outcome is Outcome.COMPLETED
    assert world.wrong() == []
    return Undisturbed(before, world.summary(), list(world.trouble.met))


def _modes(point: str) -> tuple[str, ...]:
    if point == "cinder.volume_delete":  # Cinder's refusal is noted, and nothing fails (S3)
        return tuple(mode for mode in CALL_MODES if not mode.startswith("final"))
    return SAVE_MODES if point == "save" else CALL_MODES


def _disturbed(scenario: Scenario, trouble: dict[int, str]) -> tuple[World, Operation]:
    world = scenario.begin()
    world.trouble = Trouble(dict(trouble))
    return world, world.run(scenario.ask(world))


def _check(scenario: Scenario, calm: Undisturbed, trouble: dict[int, str]) -> str:
    """Run one case; how the operation ended, with what had to be done about it."""
    world, operation = _disturbed(scenario, trouble)
    points = [world.trouble.met[n] for n in trouble if n < len(world.trouble.met)]
    what = f"{scenario.name} with {trouble} at {points}"
    parked = operation.state is OperationState.PARKED
    if parked:
        assert world.instance.vm_state in {"error", "deleted"}, f"{what}: parked without ERROR"
        world.trouble = Trouble()
        world.service.act(str(operation.id), "retry", "the fault is healed", CONTEXT)
        operation = world.run(str(operation.id))
    assert operation.outcome in {Outcome.COMPLETED, Outcome.FAILED}, what
    if operation.outcome is Outcome.FAILED and scenario.fails_to is not None:
        assert scenario.fails_to(world.summary()), f"{what}: {world.summary()}"
    else:
        expected = calm.after if operation.outcome is Outcome.COMPLETED else calm.before
        assert world.summary() == expected, what
    assert world.wrong() == [], what
    if operation.outcome is Outcome.FAILED:
        assert operation.first_error is not None, what
    return f"{'parked, then ' if parked else ''}{operation.outcome}"


def test_no_case_meets_what_another_one_left() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "resize")
    before, stored = scenario.begin().summary(), len(_prepared(scenario).store.log)
    world = scenario.begin()
    world.done(scenario.ask(world))
    assert world.summary() != before
    assert scenario.begin().summary() == before
    assert len(_prepared(scenario).store.log) == stored


@BY_NAME
def test_every_kind_of_trouble_at_every_point(
    scenario: Scenario, record_property: Callable[[str, int], None]
) -> None:
    calm = _undisturbed(scenario)
    cases = [{n: mode} for n, point in enumerate(calm.points) for mode in _modes(point)]
    ended = {_check(scenario, calm, trouble) for trouble in cases}
    record_property("cases", len(cases))
    assert "completed" in ended


@pytest.mark.deep
@BY_NAME
def test_every_pair_of_troubles(
    scenario: Scenario, record_property: Callable[[str, int], None]
) -> None:
    """The second trouble meets whatever the first one led to: retries, undoing, recovery."""
    calm = _undisturbed(scenario)
    chance = random.Random(os.environ.get("FLOW_SEED", scenario.name))
    ended = [_check(scenario, calm, _pair(scenario, calm, chance)) for _ in range(PAIRS)]
    record_property("cases", len(ended))
    assert any("completed" in how for how in ended)


def _pair(scenario: Scenario, calm: Undisturbed, chance: random.Random) -> dict[int, str]:
    """Trouble at any point, and again at any point that is met after it."""
    first = chance.randrange(len(calm.points))
    trouble = {first: chance.choice(_modes(calm.points[first]))}
    world, _ = _disturbed(scenario, trouble)
    later = world.trouble.met[first + 1 :]
    if later:
        second = chance.randrange(len(later))
        trouble[first + 1 + second] = chance.choice(_modes(later[second]))
    return trouble


@pytest.mark.deep
@BY_NAME
def test_an_agent_that_dies_and_then_fails_further_back_leaves_nothing(scenario: Scenario) -> None:
    """What it had done is not all told: its next life begins before it, and gets stuck there."""
    calm = _undisturbed(scenario)
    kind = _failure(calm)
    for first in range(len(calm.points)):
        _check(scenario, calm, {first: "crash_after", first + 1: kind})


@BY_NAME
def test_an_agent_that_reports_each_result_by_itself_does_the_same(scenario: Scenario) -> None:
    """As agents did before results travelled together, and as they do with such a ledger."""
    calm = _undisturbed(scenario)
    world = scenario.world()
    world.alone = True
    operation = world.run(scenario.ask(world))
    assert operation.outcome is Outcome.COMPLETED
    assert world.summary() == calm.after
    assert world.wrong() == []


@BY_NAME
def test_ports_that_stay_broken_leave_a_truthful_account(scenario: Scenario) -> None:
    """From each point on every call of a port fails; when all is healed, a retry ends it.

    One kind of failure for each point, in turn, by default; all of them in the deep tier.
    """
    calm = _undisturbed(scenario)
    asked = _points_of_asking(scenario)
    kinds = ["retryable", _failure(calm), "unknown"]
    for first, point in enumerate(calm.points):
        if point != "save" and first >= asked:
            for kind in kinds if PAIRS > PAIRS_DEFAULT else (kinds[first % 3],):
                _check(scenario, calm, dict.fromkeys(range(first, first + 300), kind))


def _failure(calm: Undisturbed) -> str:
    """A failure for good; but Cinder's refusal to delete a volume is noted, and none (S3)."""
    return "retryable" if "cinder.volume_delete" in calm.points else "final"


def _points_of_asking(scenario: Scenario) -> int:
    world = scenario.begin()
    world.trouble = Trouble()
    scenario.ask(world)
    return len(world.trouble.met)


@BY_NAME
def test_a_server_is_deleted_with_all_that_a_parked_operation_left(scenario: Scenario) -> None:
    """From each point on every call fails, and the first one has been carried out all the same.

    Not that of a conversion: the old calls do not show what it has begun to convert.
    """
    calm, asked = _undisturbed(scenario), _points_of_asking(scenario)
    for first, point in enumerate(calm.points):
        if point == "save" or first < asked:
            continue
        trouble = {**dict.fromkeys(range(first, first + 300), "final"), first: "final_after"}
        world, operation = _disturbed(scenario, trouble)
        flow = operation.started and operation.started.flow
        if operation.state is not OperationState.PARKED or flow in _KEPT_PARKED:
            continue
        world.trouble = Trouble()
        world.done(world.delete())
        left, what = world.summary(), f"{scenario.name} from {first} {point} on"
        assert not any(left[where] for where in ("cinder", "ledger", "mappings", "claims")), what
        assert set(left["volumes"]) <= {"available"}, what
        assert world.wrong() == [], what


@BY_NAME
def test_every_step_done_twice_is_done_once(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = _undisturbed(scenario)
    tables: list[dict[Any, Callable[..., Any]]] = [EFFECTS, VERBS, GUEST_VERBS]
    for table in tables:
        for verb, do in list(table.items()):
            monkeypatch.setitem(table, verb, _twice(do))
    world = scenario.begin()
    operation = world.run(scenario.ask(world))
    assert operation.outcome is Outcome.COMPLETED
    assert world.summary() == calm.after
    assert world.wrong() == []


def _twice(do: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        do(*args)
        return do(*args)

    return both


@BY_NAME
def test_every_report_of_another_epoch_is_refused(scenario: Scenario) -> None:
    world = scenario.begin()
    operation_id = scenario.ask(world)
    refused = 0
    while world.operation(operation_id).state is OperationState.RUNNING:
        for run in world.operation(operation_id).history.active.values():
            if run.host is not None:
                stored = len(world.store.log)
                with pytest.raises(errors.StaleEpochError):
                    world.service.report(HOST, _report(operation_id, run, epoch=7), CONTEXT)
                assert len(world.store.log) == stored
                refused += 1
        waits = world.service.advance(operation_id)
        if waits is not None and not world.run_agent(operation_id, steps=1):
            assert waits.until is not None, "nothing is due and nobody works on it"
            world.clock.seconds = max(world.clock.seconds, waits.until)
    hosted = any(point.startswith(("guests.", "brick.")) for point in _undisturbed(scenario).points)
    assert (refused > 0) is hosted


def _report(operation_id: str, run: ActiveRun, epoch: int) -> Report:
    results = (StepResult(step=run.steps[0], took_ms=0),)
    return Report(operation_id=operation_id, run=run.number, epoch=epoch, results=results)
