"""Every flow, at every point, in every way - and every pair of those.

Scenarios are in `tests.flows.scenarios`.  One case is: bring a world to
where the flow can start, make trouble at one point (or two), let everything that
crashed start again, and look at ledger, Cinder and host together.  Either all is
as if nothing had happened, or all is as if nothing had been asked for, or the
operation is parked, says so, and ends in one of the two when it is retried.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from aggregates import errors
from aggregates.operation import ActiveRun, Operation, OperationState, Outcome
from host_agent.shared.contract.messages import Report, StepResult
from host_agent.verbs import GUEST_VERBS, VERBS
from host_agent.verbs.context import RunContext
from ledger.core.effects import EFFECTS
from ledger.core.steps.context import EffectContext
from tests.flows.drifted import finding
from tests.flows.scenarios import ENDS, SCENARIOS, Scenario, every_scenario, prepared, turn_of
from tests.memory import CALL_MODES, SAVE_MODES, Crash, Trouble
from tests.tiers import PAIRS, every
from tests.world import CONTEXT, HOST, World

#: What a deletion does not end, or not to its end, if it is parked.
_KEPT_PARKED = frozenset(
    {"delete", "forget_server", "migrate_volume", "grow_for_cinder", "snapshot", "delete_snapshot"}
)
#: Nor what had been wrong before, which is for its repair to end.
_REPAIRED_LATER = frozenset({"drop_attachment"})


@dataclass
class Undisturbed:
    """What a scenario does when nothing happens to it."""

    before: dict[str, Any]
    after: dict[str, Any]
    points: list[str]
    was_wrong: list[str]


@cache
def _undisturbed(scenario: Scenario) -> Undisturbed:
    world = scenario.begin()
    before, was_wrong = world.summary(), world.wrong()
    world.trouble = Trouble()
    operation = world.run(scenario.ask(world))
    assert operation.outcome is Outcome.COMPLETED
    assert world.wrong() == []
    after = world.summary()
    assert _end(after) == ENDS[scenario.name]
    return Undisturbed(before, after, list(world.trouble.met), was_wrong)


def _end(summary: dict[str, Any]) -> str:
    """As ENDS says it."""
    counted = sorted(Counter(summary["ledger"]).items())
    had = ", ".join(f"{n} {attachment.removesuffix(' False')}" for attachment, n in counted)
    return f"{summary['vm_state']}: {had or 'none'}"


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
    if operation.outcome is Outcome.FAILED:
        assert operation.first_error is not None, what
        assert set(world.wrong()) <= set(calm.was_wrong), what
    else:
        assert world.wrong() == [], what
    if scenario.repairs:
        over = operation.outcome is Outcome.COMPLETED
        heard = finding(world)
        assert (heard.state, heard.repairing) == ("over" if over else "confirmed", None), what
    return f"{'parked, then ' if parked else ''}{operation.outcome}"


def test_no_case_meets_what_another_one_left() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "resize")
    before, stored = scenario.begin().summary(), len(prepared(scenario).store.log)
    world = scenario.begin()
    world.done(scenario.ask(world))
    assert world.summary() != before
    assert scenario.begin().summary() == before
    assert len(prepared(scenario).store.log) == stored


@pytest.mark.deep
@every_scenario
def test_every_kind_of_trouble_at_every_point(
    scenario: Scenario, record_property: Callable[[str, int], None]
) -> None:
    """Six points in a row meet all kinds between them; by night each meets all."""
    calm, turn = _undisturbed(scenario), turn_of(scenario)
    cases = [
        {n: mode}
        for n, point in enumerate(calm.points)
        for mode in every(6, _modes(point), n + turn)
    ]
    ended = {_check(scenario, calm, trouble) for trouble in cases}
    record_property("cases", len(cases))
    assert "completed" in ended or len(calm.points) < 6


@pytest.mark.deep
@every_scenario
def test_every_pair_of_troubles(
    scenario: Scenario, record_property: Callable[[str, int], None]
) -> None:
    """The second trouble meets whatever the first one led to: retries, undoing, recovery."""
    calm = _undisturbed(scenario)
    chance = random.Random(os.environ.get("FLOW_SEED", scenario.name))
    ended = [_check(scenario, calm, _pair(scenario, calm, chance)) for _ in range(PAIRS)]
    record_property("cases", len(ended))
    assert any("completed" in how for how in ended)


@cache
def _met_after(scenario: Scenario, first: int, mode: str) -> list[str]:
    """The points that are met, once for each first trouble: many pairs begin with the same."""
    world, _ = _disturbed(scenario, {first: mode})
    return world.trouble.met


def _pair(scenario: Scenario, calm: Undisturbed, chance: random.Random) -> dict[int, str]:
    """Trouble at any point, and again at any point that is met after it."""
    first = chance.randrange(len(calm.points))
    trouble = {first: chance.choice(_modes(calm.points[first]))}
    later = _met_after(scenario, first, trouble[first])[first + 1 :]
    if later:
        second = chance.randrange(len(later))
        trouble[first + 1 + second] = chance.choice(_modes(later[second]))
    return trouble


@pytest.mark.deep
@every_scenario
def test_an_agent_that_dies_and_then_fails_further_back_leaves_nothing(scenario: Scenario) -> None:
    """What it had done is not all told: its next life begins before it, and gets stuck there."""
    calm = _undisturbed(scenario)
    kind = _failure(calm)
    for first in every(6, range(len(calm.points)), turn_of(scenario)):
        _check(scenario, calm, {first: "crash_after", first + 1: kind})


@every_scenario
def test_an_agent_that_reports_each_result_by_itself_does_the_same(scenario: Scenario) -> None:
    """As agents did before results travelled together, and as they do with such a ledger."""
    calm = _undisturbed(scenario)
    world = scenario.begin()
    world.alone = True
    operation = world.run(scenario.ask(world))
    assert operation.outcome is Outcome.COMPLETED
    assert world.summary() == calm.after
    assert world.wrong() == []


@pytest.mark.deep
@every_scenario
def test_ports_that_stay_broken_leave_a_truthful_account(scenario: Scenario) -> None:
    """From each point on every call of a port fails; when all is healed, a retry ends it.

    By default every fourth point, with one kind of failure in turn; all of both by night.
    """
    calm = _undisturbed(scenario)
    asked = _points_of_asking(scenario)
    kinds = ["retryable", _failure(calm), "unknown"]
    for first, point in every(4, list(enumerate(calm.points)), turn_of(scenario)):
        if point != "save" and first >= asked:
            for kind in every(3, kinds, first):
                _check(scenario, calm, dict.fromkeys(range(first, first + 300), kind))


def _failure(calm: Undisturbed) -> str:
    """A failure for good; but Cinder's refusal to delete a volume is noted, and none (S3)."""
    return "retryable" if "cinder.volume_delete" in calm.points else "final"


@cache
def _points_of_asking(scenario: Scenario) -> int:
    world = scenario.begin()
    world.trouble = Trouble()
    scenario.ask(world)
    return len(world.trouble.met)


@pytest.mark.deep
@every_scenario
def test_a_server_is_deleted_with_all_that_a_parked_operation_left(scenario: Scenario) -> None:
    """From each point on every call fails, and the first one has been carried out all the same."""
    calm, asked = _undisturbed(scenario), _points_of_asking(scenario)
    cases = list(enumerate(calm.points))
    for first, point in every(6, cases, turn_of(scenario)):
        if point == "save" or first < asked:
            continue
        trouble = {**dict.fromkeys(range(first, first + 300), "final"), first: "final_after"}
        world, operation = _disturbed(scenario, trouble)
        flow = operation.started and operation.started.flow
        if operation.state is not OperationState.PARKED or flow in _KEPT_PARKED | _REPAIRED_LATER:
            continue
        world.trouble = Trouble()
        world.done(world.delete())
        left, what = world.summary(), f"{scenario.name} from {first} {point} on"
        assert not any(left[where] for where in ("cinder", "ledger", "mappings", "claims")), what
        assert set(left["volumes"]) <= {"available"}, what
        assert world.wrong() == [], what


@pytest.mark.parametrize("name", ["boot", "live-migrate", "resize", "evacuate", "unshelve"])
def test_a_server_is_deleted_with_what_an_agent_undid_without_a_word(name: str) -> None:
    """It got an attachment, and the volume was not ready; it dies as it has deleted that again,
    and its next life cannot go on.  The log knows that no step has begun to connect anything by
    it, so there is nothing to be looked for on the host.
    """
    scenario = next(each for each in SCENARIOS if each.name == name)
    points = _undisturbed(scenario).points
    not_ready = [number for number, point in enumerate(points) if point == "cinder.volume"]
    tries = ((first, at) for first in reversed(not_ready) for at in range(15))
    killed = (_killed_at_deleting(scenario, first, at) for first, at in tries)
    world = next(world for world in killed if world is not None)
    world.done(world.delete())
    assert world.wrong() == []


def _killed_at_deleting(scenario: Scenario, first: int, at: int) -> World | None:
    """All fails from `first` on, and again, when it is retried, after an agent has died `at` the
    deletion of an attachment; None: that was something else.
    """
    world, operation = _disturbed(scenario, dict.fromkeys(range(first, first + 300), "final"))
    if operation.state is not OperationState.PARKED:
        return None
    again = world.trouble = Trouble(dict.fromkeys(range(at + 1, at + 300), "final"))
    again.plan[at] = "crash_after"
    with suppress(Crash):
        world.service.act(str(operation.id), "retry", "try again", CONTEXT)
    operation, world.trouble = world.run(str(operation.id)), Trouble()
    killed = operation.state is OperationState.PARKED
    return world if killed and again.met[at] == "cinder.attachment_delete" else None


@every_scenario
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
        return do(*map(_later, args))

    return both


def _later(argument: Any) -> Any:
    """Whoever does it again knows that it is not the first attempt."""
    known = isinstance(argument, RunContext | EffectContext)
    return replace(argument, first=False) if known else argument


@every_scenario
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
