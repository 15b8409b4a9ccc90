"""What is put off is so until its own time, and for no longer than ever, whatever clocks do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest

from aggregates.errors import OperatorActError
from aggregates.operation import Operation, OperationState, Outcome, StepStatus
from handlers.engine.verbs import PUT_OFF_MAX_S, VERBS, is_due
from handlers.requests import operator
from host_agent.shared.contract.messages import ErrorKind
from ledger.log.mapper import IndexedEvent, JSONBody, LedgerMapper
from tests.store.histories import Folded, logged
from tests.world import CONTEXT, Broken, World, events

HOURS_S = 7_200.0


def put_off() -> tuple[World, Operation, Broken]:
    """An attach whose reservation does not work, and is to be tried again."""
    world = World()
    broken = Broken(world, "cinder.attachment_create", ErrorKind.RETRYABLE)
    operation_id = world.attach()
    while world.service.advance(operation_id) is None:
        pass
    assert broken.calls == 1
    return world, world.operation(operation_id), broken


def row_of(world: World, at: Callable[[], float]) -> dict[str, object]:
    folded = Folded()
    for position, (event, context) in enumerate(world.store.log, 1):
        folded.fold(logged(position, event, context, datetime.fromtimestamp(at(), UTC)))
    [operation] = folded.table("operations")
    return operation


def test_nothing_is_put_off_for_longer_than_the_longest_delay() -> None:
    assert max(spec.retry.max_s for spec in VERBS.values()) < PUT_OFF_MAX_S
    assert [is_due(1_000.0 + s, 1_000.0) for s in (-1, 0, 1, 60, PUT_OFF_MAX_S)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert is_due(1_000.0 + HOURS_S, 1_000.0)


@pytest.mark.parametrize("log_ahead_s", [0.0, 45.0, HOURS_S])
def test_a_row_is_due_at_the_time_of_the_retry_however_far_the_log_is_ahead(
    log_ahead_s: float,
) -> None:
    world, operation, _ = put_off()
    [retried] = events(world, Operation.StepRetried)
    row = row_of(world, lambda: world.clock() + log_ahead_s)
    due_at = row["due_at"]
    assert isinstance(due_at, datetime)
    assert due_at.timestamp() == pytest.approx(retried.retry_at, abs=1e-3)
    assert world.clock() < retried.retry_at
    assert operation.state is OperationState.RUNNING


def test_a_step_put_off_by_a_clock_two_hours_ahead_is_tried_again() -> None:
    world, operation, broken = put_off()
    world.clock.seconds -= HOURS_S
    broken.heal()
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED
    assert world.clock() < 1_000_000 - HOURS_S / 2, "without the time having passed"


def test_an_operator_need_not_wait_and_the_attempts_are_counted_on() -> None:
    world, operation, broken = put_off()
    at = world.clock()
    for attempt in range(2, 5):
        world.service.act(str(operation.id), "retry", "it is back", CONTEXT)
        while world.service.advance(str(operation.id)) is None:
            pass
        assert broken.calls == attempt
    record = world.operation(str(operation.id)).history.of_step(0, "reserve", undo=False)
    assert (record.attempts, record.status) == (4, StepStatus.RETRYING)
    assert world.clock() == at
    broken.heal()
    world.service.act(str(operation.id), "retry", "now it is", CONTEXT)
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED


def test_what_runs_and_does_not_wait_is_not_retried() -> None:
    world = World()
    operation_id = world.attach()
    while world.service.advance(operation_id) is None:
        pass
    with pytest.raises(OperatorActError, match="no step waits to be tried again"):
        world.service.act(operation_id, "retry", "why not", CONTEXT)
    world.run(operation_id)
    with pytest.raises(OperatorActError, match="finished"):
        world.service.act(operation_id, "retry", "why not", CONTEXT)


def test_what_is_being_undone_waits_no_more_for_what_it_was_to_do() -> None:
    _, operation, _ = put_off()
    assert operator.waits(operation)
    operation.history.unwinding = True
    assert not operator.waits(operation)


@pytest.mark.parametrize("topic", ["StepSucceeded", "StepRetried", "StepFailed"])
def test_events_of_before_say_nothing_of_when_they_were(topic: str) -> None:
    fields = {"run": 1, "lane": 0, "step": "s", "undo": False}
    more: dict[str, dict[str, Any]] = {
        "StepSucceeded": {"outputs": {}, "took_ms": 1},
        "StepRetried": {"error": {}, "retry_at": 1.0},
        "StepFailed": {"error": {}},
    }
    body = orjson.dumps({**fields, **more[topic]})
    stored = IndexedEvent(UUID(int=1), 1, f"Operation.{topic}", body)
    event = LedgerMapper(JSONBody()).to_domain_event(stored)
    assert event.occurred is None  # type: ignore[attr-defined]
