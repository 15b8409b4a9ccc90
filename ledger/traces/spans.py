"""An operation as the spans of a trace, folded from its events.  Pure.

The operation is a span in its caller's trace, its runs are within it, their steps within those.
Nothing was measured for it: intents and results have their times in the log.  So any operation
has its trace, at any time, with the same ids each time it is made
(host_agent.shared.platform.tracing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from aggregates.operation import Operation, Outcome
from host_agent.shared.contract.spans import Span, span_of_operation
from ledger.telemetry import step_name

Row = Mapping[str, Any]
Attributes = dict[str, str | int | bool | list[str]]

_RESULTS = frozenset(
    event.TOPIC for event in (Operation.StepSucceeded, Operation.StepRetried, Operation.StepFailed)
)
#: What happens to the whole of an operation on its way: events of its span.
_TURNS = frozenset(
    event.TOPIC
    for event in (
        Operation.Parked,
        Operation.RetryRequested,
        Operation.StepSkipped,
        Operation.UnwindRequested,
    )
)


@dataclass(kw_only=True)
class SpanData:
    """What a span is made of.  `error`: why it did not work, None if it did."""

    span: Span
    parent: Span | None
    name: str
    start: datetime
    end: datetime
    attributes: Attributes
    error: str | None = None
    turns: list[tuple[str, datetime, Attributes]] = field(default_factory=list)


def spans_of(rows: Iterable[Row]) -> list[SpanData]:
    """Of all events of one operation that has ended, in the log's order.

    Empty if these are not all of them (the operation's archive is detached), or if its caller's
    trace is not to be kept.
    """
    events = [row for row in rows if row["topic"].startswith("Operation.")]
    topics = [row["topic"] for row in events]
    started, finished = Operation.OperationStarted.TOPIC, Operation.OperationFinished.TOPIC
    if len(events) != len({row["version"] for row in events}) or started not in topics[:1]:
        return []
    if topics[-1] != finished or events[-1]["version"] != len(events):
        return []
    whole = _operation(events)
    return [whole, *_runs(whole.span, events)] if whole.span.sampled else []


def _operation(events: list[Row]) -> SpanData:
    first, last = events[0], events[-1]
    body, operation_id = first["body"], str(first["originator_id"])
    outcome = last["body"]["outcome"]
    attributes = {
        "ledger.operation.id": operation_id,
        "ledger.flow": body["flow"],
        "ledger.outcome": outcome,
        "ledger.server.id": body["server_id"],
        "ledger.request.id": body["request_id"],
        "ledger.global_request.id": body.get("global_request_id"),
        "ledger.project.id": body["actor"].get("project_id"),
        "ledger.volume.ids": sorted({lane["volume_id"] for lane in body["plan"]["lanes"]}),
    }
    return SpanData(
        span=span_of_operation(operation_id, body.get("traceparent")),
        parent=Span.parse(body.get("traceparent")),
        name=body["flow"],
        start=first["recorded_at"],
        end=last["recorded_at"],
        attributes=_known(attributes),
        error=None if outcome == Outcome.COMPLETED else outcome,
        turns=[_turn(row) for row in events if row["topic"] in _TURNS],
    )


def _turn(row: Row) -> tuple[str, datetime, Attributes]:
    body = row["body"]
    facts = {"ledger.reason": body.get("reason"), "ledger.step": body.get("step")}
    return row["topic"].partition(".")[2], row["recorded_at"], _known(facts)


def _runs(operation: Span, events: list[Row]) -> Iterator[SpanData]:
    """Each run before its steps.  One that has no result was taken away from its host."""
    for begun in events:
        if begun["topic"] != Operation.RunStarted.TOPIC:
            continue
        number = begun["body"]["run"]
        results = [
            row for row in events if row["topic"] in _RESULTS and row["body"]["run"] == number
        ]
        if results:
            yield from _run(operation.child(f"run {number}"), operation, begun, results)


def _run(run: Span, operation: Span, begun: Row, results: list[Row]) -> Iterator[SpanData]:
    """The wait for its host is what lies between the run's start and its first step's."""
    place = begun["body"]["host"] or "ledger"
    start: datetime = begun["recorded_at"]
    steps: list[SpanData] = []
    for row in results:
        steps.append(_step(run, row, place, steps[-1].end if steps else start))
    yield SpanData(
        span=run,
        parent=operation,
        name="run",
        start=start,
        end=results[-1]["recorded_at"],
        attributes={"ledger.place": place, "ledger.run": begun["body"]["run"]},
        error=steps[-1].error,
    )
    yield from steps


def _step(run: Span, row: Row, place: str, not_before: datetime) -> SpanData:
    """It was after `not_before`, its run's begin or the end of the step before, and before it was
    recorded, whatever the host's clock says.
    """
    body = row["body"]
    end = min(max(row["occurred_at"] or row["recorded_at"], not_before), row["recorded_at"])
    took_ms = body.get("took_ms")  # failures do not say it
    start = not_before if took_ms is None else end - timedelta(milliseconds=took_ms)
    error = body.get("error")
    attributes = {
        "ledger.place": place,
        "ledger.volume.id": row["volume_id"] and str(row["volume_id"]),
        "ledger.attachment.id": row["attachment_id"] and str(row["attachment_id"]),
        "ledger.cinder_requests": body.get("cinder_requests") or None,
        "error.type": error and error["code"],
    }
    return SpanData(
        span=run.child(body["step"]),
        parent=run,
        name=step_name(body["step"], body["undo"]),
        start=max(start, not_before),
        end=end,
        attributes=_known(attributes),
        error=error and error["message"],
    )


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
