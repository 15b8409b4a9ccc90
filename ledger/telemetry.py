"""Steps of flows in numbers, from the events that this process has stored of them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from aggregates.base import Aggregate, Event
from aggregates.operation import Operation
from host_agent.shared.platform.telemetry import STEP_BOUNDS_S


class StepNumbers:
    """How long steps took, by flow and step; and how often one did not work, by the error's kind.

    Any thread adds and reads.  The undoing of a step is a step of its own: "undo connect".
    """

    def __init__(self) -> None:
        self.seconds = Histogram(
            "ledger_step_seconds",
            "Duration of steps that succeeded, as their events say",
            ["flow", "step"],
            buckets=STEP_BOUNDS_S,
            registry=None,
        )
        self.failures = Counter(
            "ledger_step_failures",
            "Times that a step did not work; kind: retryable, final, unknown",
            ["flow", "step", "kind"],
            registry=None,
        )

    def take(self, changed: Iterable[Aggregate], events: Iterable[Event]) -> None:
        """Count what was stored of steps; `changed`: what these events are of."""
        operations = {each.id: each for each in changed if isinstance(each, Operation)}
        for event in events if operations else ():
            operation = operations.get(event.originator_id)
            if operation is None or operation.started is None:
                continue
            flow = operation.started.flow
            match event:
                case Operation.StepSucceeded():
                    took = self.seconds.labels(flow, step_name(event.step, event.undo))
                    took.observe(event.took_ms / 1000)
                case Operation.StepFailed() | Operation.StepRetried():
                    step, kind = step_name(event.step, event.undo), event.error["kind"]
                    self.failures.labels(flow, step, kind).inc()


def step_name(step: str, undo: bool) -> str:
    """As metrics and traces call it."""
    return f"undo {step}" if undo else step
