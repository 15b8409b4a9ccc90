"""Prometheus metrics of both programs: calls of other services, and steps of flows."""

from __future__ import annotations

from prometheus_client import Histogram, disable_created_metrics

#: Without `_created`, a second series for each.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: Calls of Cinder and Keystone, in seconds; an update waits for the storage backend.
CALL_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
#: Steps of flows, in seconds: from a read of Cinder to the copy of a volume.
STEP_BOUNDS_S = (0.05, 0.25, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
#: The outcome of a call without an answer in time, or that could not be sent.
NO_ANSWER = "no_answer"


def call_seconds(name: str = "ledger_call_seconds") -> Histogram:
    """A histogram of calls by neighbour and outcome, not registered."""
    return Histogram(
        name,
        "Duration of calls of Cinder, Keystone and Glance, each attempt; "
        "outcome: 2xx, 4xx, 5xx, no_answer",
        ["neighbour", "outcome"],
        buckets=CALL_BOUNDS_S,
        registry=None,
    )


def outcome_of(status: int) -> str:
    """The label of an answered call: "2xx", "4xx", "5xx"."""
    return f"{status // 100}xx"
