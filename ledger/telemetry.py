"""Metrics of steps, from the events that this process has stored."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from aggregates.base import Aggregate, Event
from aggregates.operation import Operation
from host_agent.shared.platform.telemetry import STEP_BOUNDS_S


class StepNumbers:
    """Durations of steps by flow and step, and failures also by the kind of error.

    Any thread may add and read.  Undoing a step is a separate step: "undo connect".
    """

    def __init__(self) -> None:
        self.seconds = Histogram(
            "ledger_step_seconds",
            "Duration of successful steps, from their events",
            ["flow", "step"],
            buckets=STEP_BOUNDS_S,
            registry=None,
        )
        self.failures = Counter(
            "ledger_step_failures",
            "Failed attempts of steps; kind: retryable, final, unknown",
            ["flow", "step", "kind"],
            registry=None,
        )

    def take(self, changed: Iterable[Aggregate], events: Iterable[Event]) -> None:
        """Count the results of steps in stored events; `changed`: the aggregates of the events."""
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
    """The name of the step in metrics and traces."""
    return f"undo {step}" if undo else step
