"""What was counted of calls."""

from __future__ import annotations

from prometheus_client import Histogram


def outcomes(calls: Histogram) -> dict[tuple[str, ...], float]:
    """How many calls there were, by neighbour and outcome."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in calls.collect()
        for sample in family.samples
        if sample.name.endswith("_count")
    }
