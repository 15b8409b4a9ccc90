"""/metrics, for Prometheus.  No ids, tokens or host names as labels.

Frequent events are counted where they happen, in memory.  Facts about the whole ledger come from
the database when somebody reads the page, by queries that count open things and never the past.
Every process shows the same value for these: use `max`, not the sum.

Without the database there is a page all the same: `ledger_ready` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from aggregates.finding import FindingState
from handlers.drift.classes import BY_NAME
from ledger.log.clock import DatabaseClock
from ledger.log.writer import Writer
from ledger.telemetry import StepNumbers

__all__ = ["CONTENT_TYPE_LATEST", "METRICS", "Counted", "DriftCounts", "Metrics", "registry_of"]

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Row = Mapping[str, Any]
#: The name of a metric, the values of its labels, and what it is now.
Sample = tuple[str, tuple[str, ...], float]

_LOOKS = ("completed", "stopped", "void")
_OPEN = (FindingState.SUSPECTED, FindingState.CONFIRMED, FindingState.IGNORED)


@dataclass(frozen=True)
class DriftCounts:
    """Open findings by class and state, and the last looks (projections.reads.drift)."""

    counts: Sequence[Row]
    looks: Mapping[str, int]
    look_ages_s: Mapping[str, float]
    held_back: Mapping[str, int]


#: Read from the database or this process for each page: the metric, its help, its labels.
_GAUGES: dict[str, tuple[str, ...]] = {
    "ledger_ready": ("1 if the check of /readyz finds nothing wrong, else 0", "check"),
    "ledger_projection_lag_events": (
        "Events that the projection has not applied yet",
        "projection",
    ),
    "ledger_projection_lag_seconds": (
        "Age of the oldest event that the projection has not applied yet; 0 if there is none",
        "projection",
    ),
    "ledger_projection_held": (
        "1 if the projection stands still at an event that it cannot apply, else 0; see /readyz",
        "projection",
    ),
    "ledger_operations_open": (
        "Operations that have not ended, by state: running, parked",
        "state",
    ),
    "ledger_operation_oldest_running_seconds": (
        "Age of the oldest running operation; 0 if none runs",
    ),
    "ledger_operation_oldest_parked_seconds": (
        "Longest time that an operation is parked now; 0 if none is parked",
    ),
    "ledger_operations_due": ("Operations whose next step the ledger itself has to do now",),
    "ledger_operation_oldest_due_seconds": (
        "Longest time that an operation is due now; 0 if none is due",
    ),
    "ledger_operations_leased": ("Operations that the dispatchers of all processes work on now",),
    "ledger_hosts": (
        "Hosts by state: alive, silent (no contact for host_down_after_s), fenced",
        "state",
    ),
    "ledger_hosts_unvouched": (
        "Hosts, not fenced, that no operator has vouched for since the ledger was restored",
    ),
    "ledger_agents": (
        "Agents on hosts that are not fenced, by service version",
        "service_version",
    ),
    "ledger_drift_open": (
        "Open findings, by class and state: suspected, confirmed, ignored",
        "class",
        "state",
    ),
    "ledger_drift_oldest_seconds": (
        "Age of the oldest open finding of the class that is not ignored; 0 if there is none",
        "class",
    ),
    "ledger_drift_held_back": (
        "New findings of the class that the last completed look at everything suppressed",
        "class",
    ),
    "ledger_look_age_seconds": (
        "Time since the last completed look of the kind: all, host, server, volume",
        "kind",
    ),
    "ledger_agents_connected": ("Agents whose poll for commands this process holds open",),
    "ledger_http_requests_held": ("Long polls and streams that this process holds open",),
    "ledger_operation_latest_due_seconds": (
        "Longest time until a delayed operation is tried again; 0 if none is delayed",
    ),
    "ledger_clock_skew_seconds": (
        "How far this host's clock is ahead of the database's clock, which the ledger uses",
    ),
    "ledger_clock_error_seconds": ("Error bound of the database's time as this process knows it",),
    "ledger_log_ahead_seconds": (
        "How far the time of the log's last event is ahead of the database's clock",
    ),
    "ledger_policy_stale": (
        "1 if the policy file cannot be used and an earlier version is in force; see /readyz",
    ),
    "ledger_host_clock_skew_max_seconds": (
        "Largest clock skew of the hosts in contact, ahead or behind",
    ),
}

#: The same, for values that only grow.
_COUNTERS: dict[str, tuple[str, ...]] = {
    "ledger_events_total": ("Events in the log: its last position",),
    "ledger_looks_total": (
        "Looks that have ended, by outcome: completed, stopped, void",
        "outcome",
    ),
    "ledger_database_clock_sets_total": (
        "How often this process saw that the database's clock was set",
    ),
}


@dataclass(frozen=True)
class Counted:
    """Facts about the whole ledger, from the database (projections.reads.queries)."""

    head: Row
    tracking: Sequence[Row]
    counts: Row
    hosts: Row
    agents: Mapping[int, int]
    drift: DriftCounts

    def samples(self) -> Iterator[Sample]:
        yield "ledger_events_total", (), self.head["position"]
        for row in self.tracking:
            of = (row["projection"],)
            yield "ledger_projection_lag_events", of, row["lag_events"]
            yield "ledger_projection_lag_seconds", of, row["lag_s"]
            yield "ledger_projection_held", of, row["held"] is not None
        for state in ("alive", "silent", "fenced"):
            yield "ledger_hosts", (state,), self.hosts[state]
        yield "ledger_hosts_unvouched", (), self.hosts["unvouched"]
        for version, count in self.agents.items():
            yield "ledger_agents", (str(version),), count
        yield "ledger_host_clock_skew_max_seconds", (), self.hosts["clock_skew_max_s"]
        yield from _of_operations(self.counts)
        yield from _of_drift(self.drift)


def _of_operations(counts: Row) -> Iterator[Sample]:
    for state in ("running", "parked"):
        yield "ledger_operations_open", (state,), counts[state]
    for what in ("oldest_running", "oldest_parked", "oldest_due", "latest_due"):
        yield f"ledger_operation_{what}_seconds", (), counts[f"{what}_s"]
    yield "ledger_operations_due", (), counts["due"]
    yield "ledger_operations_leased", (), counts["leased"]


def _of_drift(drift: DriftCounts) -> Iterator[Sample]:
    open_ = {(row["drift_class"], row["state"]): row for row in drift.counts}
    for name in BY_NAME:
        ages_s = [0.0]
        for state in _OPEN:
            row = open_.get((name, state))
            yield "ledger_drift_open", (name, state), row["count"] if row else 0
            if row and state is not FindingState.IGNORED:
                ages_s.append(row["oldest_s"])
        yield "ledger_drift_oldest_seconds", (name,), max(ages_s)
        yield "ledger_drift_held_back", (name,), drift.held_back.get(name, 0)
    for outcome in _LOOKS:  # each from the beginning: a first one is an increase, too
        yield "ledger_looks_total", (outcome,), drift.looks.get(outcome, 0)
    for kind, age_s in drift.look_ages_s.items():
        yield "ledger_look_age_seconds", (kind,), age_s


def of_process(
    clock: DatabaseClock,
    checks: Mapping[str, str | None],
    *,
    agents: int,
    held: int,
    stale_policy: bool,
) -> Iterator[Sample]:
    """Facts about this process.  `checks`: the error of each check, or None (`health`)."""
    for check, wrong in checks.items():
        yield "ledger_ready", (check,), wrong is None
    yield "ledger_clock_skew_seconds", (), clock.skew_s
    yield "ledger_clock_error_seconds", (), clock.error_s
    yield "ledger_log_ahead_seconds", (), clock.log_ahead_s
    yield "ledger_database_clock_sets_total", (), clock.set_count
    yield "ledger_agents_connected", (), agents
    yield "ledger_http_requests_held", (), held
    yield "ledger_policy_stale", (), stale_policy


class Metrics:
    """The API's own counters, and the values that are read for each page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._seconds = Histogram(
            "ledger_http_request_seconds",
            "Duration of requests; for a held request this includes the time it was held",
            ["route", "method"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._answered = Counter(
            "ledger_http_requests",
            "Answered requests",
            ["route", "method", "status"],
            registry=registry,
        )
        self._found = _Found()
        registry.register(self._found)

    def requested(self, route: str, method: str, status: int, took_s: float) -> None:
        method = method if method in _METHODS else "other"
        self._seconds.labels(route, method).observe(took_s)
        self._answered.labels(route, method, status).inc()

    def page(self, found: Iterable[Sample]) -> bytes:
        """The page with the present values; a value that could not be read is absent."""
        self._found.samples = list(found)
        return generate_latest(self._registry)


class _Found(Collector):
    """The values for the page being made."""

    def __init__(self) -> None:
        self.samples: Sequence[Sample] = ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            **{
                name: GaugeMetricFamily(name, what, labels=labels)
                for name, (what, *labels) in _GAUGES.items()
            },
            **{
                name: CounterMetricFamily(name, what, labels=labels)
                for name, (what, *labels) in _COUNTERS.items()
            },
        }
        for name, labels, value in self.samples:
            families[name].add_metric(labels, float(value))
        yield from families.values()


def registry_of(writer: Writer, steps: StepNumbers, calls: Histogram) -> CollectorRegistry:
    """A registry that shows what is counted below the API."""
    registry = CollectorRegistry()
    appends = (writer.append_seconds, writer.batch_appends, writer.batch_events)
    for counted in (*appends, steps.seconds, steps.failures, calls):
        registry.register(counted)
    return registry


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)
