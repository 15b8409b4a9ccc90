"""`Tally` counts what happens often."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


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
