"""/metrics: what Prometheus reads.  No ids, tokens or host names as labels.

What happens often is counted where it happens, in memory; what is true of the whole ledger
is asked of the database when somebody reads the page, by queries that count what is open,
never what has been.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from aggregates.finding import FindingState
from handlers.drift.classes import BY_NAME
from ledger.log.clock import DatabaseClock
from ledger.log.writer import Writer
from ledger.telemetry import Tally

__all__ = ["CONTENT_TYPE_LATEST", "METRICS", "Metrics", "registry_of"]

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Row = Mapping[str, Any]

_OPEN = (FindingState.SUSPECTED, FindingState.CONFIRMED, FindingState.IGNORED)


@dataclass(frozen=True)
class Drift:
    """What differs, by class and state, and when it was looked for (projections.drift_reads)."""

    counts: Sequence[Row]
    looks: Mapping[str, int]
    look_ages_s: Mapping[str, float]


#: What is true when somebody reads the page: the gauge, its help, its label.
_GAUGES: dict[str, tuple[str, ...]] = {
    "ledger_events": ("Events in the log",),
    "ledger_projection_lag_events": ("Events that the projection has not folded yet", "projection"),
    "ledger_projection_lag_seconds": (
        "Age of the oldest event that the projection has not folded yet; 0 if there is none",
        "projection",
    ),
    "ledger_projection_held": (
        "1 if an event that it cannot fold holds the projection back, else 0; see /readyz",
        "projection",
    ),
    "ledger_operations_open": ("Operations that are not finished: running, parked", "state"),
    "ledger_operation_oldest_parked_seconds": (
        "Time since the operation that is parked longest was parked; 0 if none is parked",
    ),
    "ledger_operations_due": ("Operations whose next step is the ledger's, and due now",),
    "ledger_operation_oldest_due_seconds": (
        "Age of the oldest due operation: time since it became due; 0 if none is due",
    ),
    "ledger_operations_leased": ("Operations that dispatchers of all processes work on now",),
    "ledger_hosts": (
        "Hosts by state: alive, silent (no contact for host_down_after_s), fenced",
        "state",
    ),
    "ledger_drift_open": (
        "Findings that are not over, by class and state: suspected, confirmed, ignored",
        "class",
        "state",
    ),
    "ledger_drift_oldest_seconds": (
        "Age of the oldest finding of the class that is open and not ignored; 0 if there is none",
        "class",
    ),
    "ledger_looks": ("Looks that have ended: completed, stopped, void", "outcome"),
    "ledger_look_age_seconds": (
        "Time since the last completed look of the kind (all, host, server, volume), if any was",
        "kind",
    ),
    "ledger_agents_connected": ("Agents whose poll for commands this process holds open",),
    "ledger_http_requests_held": ("Long polls and streams that this process holds open",),
    "ledger_operation_latest_due_seconds": (
        "Time until the last operation that is put off is tried again; 0 if none is put off",
    ),
    "ledger_clock_skew_seconds": (
        "How far this host's clock is ahead of the database's clock, which decides",
    ),
    "ledger_clock_error_seconds": ("Error bound of the database's time as this process knows it",),
    "ledger_database_clock_sets": ("Times that this process saw the database's clock set",),
    "ledger_log_ahead_seconds": (
        "How far the time of the log's last event is ahead of the database's clock",
    ),
    "ledger_policy_stale": (
        "1 if an earlier policy file is in force than the one there is, else 0; see /readyz",
    ),
    "ledger_host_clock_skew_max_seconds": (
        "Largest clock skew of the hosts that are in contact, ahead or behind",
    ),
}


@dataclass(frozen=True)
class Counted:
    """What is true of the whole ledger, as the database was asked (projections.queries)."""

    head: Row
    tracking: Sequence[Row]
    counts: Row
    hosts: Row
    drift: Drift


class Metrics:
    """The API's own numbers, and gauges that are read when somebody asks."""

    def __init__(self, registry: CollectorRegistry, refused: Callable[[], int]) -> None:
        self._registry = registry
        self._requests = _Requests(refused)
        registry.register(self._requests)

        self._gauges = {
            name: Gauge(name, what, labels, registry=registry)
            for name, (what, *labels) in _GAUGES.items()
        }

    def requested(self, route: str, method: str, status: int, took_s: float) -> None:
        self._requests.add(route, method if method in _METHODS else "other", status, took_s)

    def show(
        self, counted: Counted, *, agents: int, held: int, clock: DatabaseClock, stale_policy: bool
    ) -> bytes:
        """Take what was counted just now and return the page."""
        gauges, counts, hosts = self._gauges, counted.counts, counted.hosts
        gauges["ledger_events"].set(counted.head["position"])
        for row in counted.tracking:
            gauges["ledger_projection_lag_events"].labels(row["projection"]).set(row["lag_events"])
            gauges["ledger_projection_lag_seconds"].labels(row["projection"]).set(row["lag_s"])
            gauges["ledger_projection_held"].labels(row["projection"]).set(row["held"] is not None)
        for state in ("running", "parked"):
            gauges["ledger_operations_open"].labels(state).set(counts[state])
        gauges["ledger_operation_oldest_parked_seconds"].set(counts["oldest_parked_s"])
        gauges["ledger_operations_due"].set(counts["due"])
        gauges["ledger_operation_oldest_due_seconds"].set(counts["oldest_due_s"])
        gauges["ledger_operations_leased"].set(counts["leased"])
        gauges["ledger_operation_latest_due_seconds"].set(counts["latest_due_s"])
        for state in ("alive", "silent", "fenced"):
            gauges["ledger_hosts"].labels(state).set(hosts[state])
        gauges["ledger_host_clock_skew_max_seconds"].set(hosts["clock_skew_max_s"])
        self._show_drift(counted.drift)
        gauges["ledger_clock_skew_seconds"].set(clock.skew_s)
        gauges["ledger_clock_error_seconds"].set(clock.error_s)
        gauges["ledger_log_ahead_seconds"].set(clock.log_ahead_s)
        gauges["ledger_database_clock_sets"].set(clock.set_count)
        gauges["ledger_agents_connected"].set(agents)
        gauges["ledger_http_requests_held"].set(held)
        gauges["ledger_policy_stale"].set(stale_policy)
        return generate_latest(self._registry)

    def _show_drift(self, drift: Drift) -> None:
        open_ = {(row["drift_class"], row["state"]): row for row in drift.counts}
        for name in BY_NAME:
            ages_s = [0.0]
            for state in _OPEN:
                row = open_.get((name, state))
                self._gauges["ledger_drift_open"].labels(name, state).set(
                    row["count"] if row else 0
                )
                if row and state is not FindingState.IGNORED:
                    ages_s.append(row["oldest_s"])
            self._gauges["ledger_drift_oldest_seconds"].labels(name).set(max(ages_s))
        for outcome, count in drift.looks.items():
            self._gauges["ledger_looks"].labels(outcome).set(count)
        for kind, age_s in drift.look_ages_s.items():
            self._gauges["ledger_look_age_seconds"].labels(kind).set(age_s)


class _Requests(Collector):
    """What was answered, and (`refused`) how many connections were not let in."""

    def __init__(self, refused: Callable[[], int]) -> None:
        self._refused = refused
        self._seconds = defaultdict[tuple[str, str], Tally](lambda: Tally(_BUCKETS_S))
        self._answered = Counter[tuple[str, str, str]]()

    def add(self, route: str, method: str, status: int, took_s: float) -> None:
        self._seconds[route, method].add(took_s)
        self._answered[route, method, str(status)] += 1

    def collect(self) -> Iterator[Metric]:
        held = "Duration of requests; a held request counts with the time it was held"
        seconds = HistogramMetricFamily(
            "ledger_http_request_seconds", held, labels=["route", "method"]
        )
        for labels, tally in self._seconds.items():
            seconds.add_metric(labels, _buckets(tally), tally.sum)
        answered = CounterMetricFamily(
            "ledger_http_requests",
            "Requests that were answered",
            labels=["route", "method", "status"],
        )
        for names, count in self._answered.items():
            answered.add_metric(names, count)
        refused = CounterMetricFamily(
            "ledger_http_connections_refused",
            "Connections of addresses that had too many without a token",
            value=self._refused(),
        )
        yield from (seconds, answered, refused)


class _Appends(Collector):
    """What the writer has counted, as histograms."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def collect(self) -> Iterator[HistogramMetricFamily]:
        writer = self._writer
        seconds = "Time from the call of an append to its durable answer; refused ones count too"
        yield _histogram("ledger_append_seconds", seconds, writer.append_seconds)
        appends = "Appends in one commit"
        yield _histogram("ledger_append_batch_appends", appends, writer.batch_appends)
        events = "Events in one commit"
        yield _histogram("ledger_append_batch_events", events, writer.batch_events)


def _histogram(name: str, what: str, tally: Tally) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, what, buckets=_buckets(tally), sum_value=tally.sum)


def _buckets(tally: Tally) -> Sequence[tuple[str, int]]:
    bounds = [*map(str, tally.bounds), "+Inf"]
    return list(zip(bounds, accumulate(tally.counts), strict=True))


def registry_of(writer: Writer) -> CollectorRegistry:
    """A registry that shows what the process's writer counts."""
    registry = CollectorRegistry()
    registry.register(_Appends(writer))
    return registry


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)
