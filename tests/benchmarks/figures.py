"""What a benchmark says: one figure per line of the table, beside its target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Size(StrEnum):
    """`QUICK` is all of it within ten minutes on two cores; `FULL` has the 10 M events."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value.  Without a target it is reported, not judged."""

    row: int  # of the table of targets in docs/benchmarks.md
    name: str
    value: float
    unit: str
    target: float | None = None
    more_is_better: bool = False
    compared_with: str | None = None  # what a ratio is to, with its own figure

    @property
    def ok(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.more_is_better else self.value <= self.target

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "name": self.name,
            "value": float(f"{self.value:.4g}"),
            "unit": self.unit,
            "target": self.target,
            "ok": self.ok,
            "compared_with": self.compared_with,
            "on": datetime.now(UTC).date().isoformat(),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def interleaved(repeats: int, *ways: Callable[[], float]) -> list[float]:
    """The median of each way, run in turns, so that what else the machine does hits all."""
    rounds = [[way() for way in ways] for _ in range(repeats)]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]
