"""The spans of an operation, from its events alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from aggregates.base import Event
from aggregates.operation import Operation
from host_agent.shared.contract.spans import span_of_operation
from ledger.traces.spans import SpanData, spans_of

OPERATION = str(uuid4())
T0 = datetime(2026, 11, 22, 14, 2, tzinfo=UTC)
ACTOR = {"name": "alice", "project_id": "p", "roles": []}
STARTED = {
    "flow": "attach",
    "server_id": "s",
    "plan": {"lanes": [{"volume_id": "v"}]},
    "request_id": "req-1",
    "actor": ACTOR,
}
STEP = {"run": 1, "step": "connect", "undo": False}
REFUSED = {"error": {"kind": "retryable", "code": "no_path", "message": "There is no path."}}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def history(*events: tuple[float, type[Event], dict[str, Any]]) -> list[dict[str, Any]]:
    """Events after the start, each at so many seconds since it."""
    told: list[tuple[float, type[Event], dict[str, Any]]] = [
        (0.0, Operation.OperationStarted, STARTED)
    ]
    told += events
    return [
        {
            "topic": kind.TOPIC,
            "version": version,
            "originator_id": OPERATION,
            "recorded_at": at(seconds),
            "occurred_at": body.get("occurred_at"),
            "volume_id": None,
            "attachment_id": None,
            "body": body,
        }
        for version, (seconds, kind, body) in enumerate(told, 1)
    ]


def run(number: int, host: str | None = "compute-1") -> dict[str, Any]:
    return {"run": number, "host": host}


def ended(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "error": None, "reason": None}


def lines(spans: list[SpanData]) -> list[tuple[str, float, float, str | None]]:
    return [
        (span.name, (span.start - T0).total_seconds(), (span.end - T0).total_seconds(), span.error)
        for span in spans
    ]


RETRIED = history(
    (1, Operation.RunStarted, run(1)),
    (5, Operation.StepRetried, {**STEP, **REFUSED}),
    (6, Operation.Parked, {"left": []}),
    (60, Operation.RetryRequested, {"reason": "the array is back"}),
    (61, Operation.RunStarted, run(2)),
    (70, Operation.StepSucceeded, {**STEP, "run": 2, "took_ms": 2000, "occurred_at": at(66)}),
    (71, Operation.OperationFinished, ended("completed")),
)


def test_a_step_is_where_it_was_and_the_wait_for_its_host_is_before_it() -> None:
    assert lines(spans_of(RETRIED)) == [
        ("attach", 0, 71, None),
        ("run", 1, 5, "There is no path."),
        ("connect", 1, 5, "There is no path."),
        ("run", 61, 70, None),
        ("connect", 64, 66, None),
    ]


def test_what_became_of_the_whole_is_told_in_its_span() -> None:
    whole = spans_of(RETRIED)[0]
    assert [(name, facts) for name, _, facts in whole.turns] == [
        ("Parked", {}),
        ("RetryRequested", {"ledger.reason": "the array is back"}),
    ]


def test_a_host_whose_clock_errs_cannot_put_a_step_outside_its_run() -> None:
    for occurred, took_ms in ((at(-500), 10), (at(500), 10), (at(3), 900_000)):
        done = {**STEP, "took_ms": took_ms, "occurred_at": occurred}
        rows = history(
            (1, Operation.RunStarted, run(1)),
            (5, Operation.StepSucceeded, done),
            (6, Operation.OperationFinished, ended("completed")),
        )
        _, within, step = spans_of(rows)
        assert within.start <= step.start <= step.end <= within.end


def test_a_run_that_was_taken_away_unanswered_is_no_span() -> None:
    rows = history(
        (1, Operation.RunStarted, run(1, None)),
        (6, Operation.OperationFinished, ended("cancelled")),
    )
    assert lines(spans_of(rows)) == [("attach", 0, 6, "cancelled")]


def test_undoing_a_step_is_another_step_of_another_run() -> None:
    rows = history(
        (1, Operation.RunStarted, run(1)),
        (2, Operation.StepFailed, {**STEP, **REFUSED}),
        (3, Operation.RunStarted, run(2)),
        (4, Operation.StepSucceeded, {**STEP, "run": 2, "undo": True, "took_ms": 500}),
        (5, Operation.OperationFinished, ended("failed")),
    )
    spans = spans_of(rows)
    assert [span.name for span in spans] == ["attach", "run", "connect", "run", "undo connect"]
    assert len({span.span for span in spans}) == len(spans)


def test_the_same_operation_has_the_same_spans_however_often_they_are_made() -> None:
    assert spans_of(RETRIED) == spans_of(RETRIED)
    assert spans_of(RETRIED)[0].span == span_of_operation(OPERATION, None)


def test_a_trace_is_whole_or_not_made() -> None:
    for lost in range(len(RETRIED)):
        assert spans_of([row for row in RETRIED if row is not RETRIED[lost]]) == []


def test_what_the_caller_does_not_keep_is_not_kept_here() -> None:
    unwanted = {**STARTED, "traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}
    assert spans_of([{**RETRIED[0], "body": unwanted}, *RETRIED[1:]]) == []
