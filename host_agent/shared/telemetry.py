"""What happens often, counted where it happens: `Tally` by one thread, `Tallies` by many."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

#: Calls of Cinder and Keystone, in seconds; an update waits for the storage backend.
CALL_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
#: Steps of flows: from a question to Cinder up to the copy of a volume.
STEP_BOUNDS_S = (0.05, 0.25, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
#: The outcome of a call that nobody answered in time, or that could not be sent.
NO_ANSWER = "no_answer"


class Tally:
    """A histogram, counted without locks, as Prometheus shows it.

    One thread at a time adds, any may read.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last for what is larger than all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Sequence[tuple[str, int]]:
        """How many were at most so large, each bound with all below it."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


class Tallies:
    """A histogram for each combination of labels; any thread adds and reads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._by_labels: dict[tuple[str, ...], Tally] = {}

    def add(self, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            tally = self._by_labels.get(labels)
            if tally is None:
                tally = self._by_labels[labels] = Tally(self._bounds)
            tally.add(value)

    def counted(self) -> Mapping[tuple[str, ...], tuple[Sequence[tuple[str, int]], float]]:
        """Buckets and sum, by labels."""
        with self._lock:
            return {labels: (one.buckets(), one.sum) for labels, one in self._by_labels.items()}


def outcome_of(status: int) -> str:
    """Of a call that was answered, as a label: "2xx", "4xx", "5xx"."""
    return f"{status // 100}xx"
