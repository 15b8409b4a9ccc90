"""Steps of flows in numbers, from the events that this process has stored of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from aggregates.base import Aggregate, Event
from aggregates.operation import Operation
from host_agent.shared.telemetry import STEP_BOUNDS_S, Tallies


class StepNumbers:
    """How long steps took, by flow and step; and how often one did not work, by the error's kind.

    Any thread adds and reads.  The undoing of a step is a step of its own: "undo connect".
    """

    def __init__(self) -> None:
        self.seconds = Tallies(STEP_BOUNDS_S)
        self._lock = threading.Lock()
        self._failures = Counter[tuple[str, str, str]]()

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
                    self.seconds.add(
                        (flow, step_name(event.step, event.undo)), event.took_ms / 1000
                    )
                case Operation.StepFailed() | Operation.StepRetried():
                    failed = (flow, step_name(event.step, event.undo), str(event.error["kind"]))
                    with self._lock:
                        self._failures[failed] += 1

    def failures(self) -> dict[tuple[str, str, str], int]:
        with self._lock:
            return dict(self._failures)


def step_name(step: str, undo: bool) -> str:
    """As metrics and traces call it."""
    return f"undo {step}" if undo else step
