"""/metrics: what Prometheus reads.  No ids, tokens or host names as labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["CONTENT_TYPE_LATEST", "METRICS", "Metrics"]

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The API's own numbers, and gauges that are read when somebody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._seconds = Histogram(
            "ledger_http_request_seconds",
            "Time of requests, held ones included",
            ["route", "method"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._requests = Counter(
            "ledger_http_requests",
            "Requests answered",
            ["route", "method", "status"],
            registry=registry,
        )
        self._head = Gauge("ledger_events", "Events in the log", registry=registry)
        self._lag = Gauge(
            "ledger_projection_lag_events",
            "Events the projection has not seen",
            ["projection"],
            registry=registry,
        )
        self._operations = Gauge(
            "ledger_operations_open", "Operations not finished", ["state"], registry=registry
        )
        self._oldest_parked = Gauge(
            "ledger_operation_oldest_parked_seconds",
            "Age of the operation that waits longest for an operator, 0 if none does",
            registry=registry,
        )
        self._due = Gauge(
            "ledger_operations_due", "Operations a dispatcher should look at", registry=registry
        )
        self._hosts = Gauge("ledger_hosts", "Hosts by state", ["state"], registry=registry)
        self._held = Gauge(
            "ledger_http_requests_held", "Long polls and streams held open", registry=registry
        )

    def requested(self, route: str, method: str, status: int, took_s: float) -> None:
        known = method if method in _METHODS else "other"
        self._seconds.labels(route, known).observe(took_s)
        self._requests.labels(route, known, str(status)).inc()

    def show(
        self,
        *,
        head: int,
        lag: Mapping[str, int],
        counts: Mapping[str, Any],
        hosts: Mapping[str, int],
        held: int,
    ) -> bytes:
        """Take what was counted just now and return the page."""
        self._head.set(head)
        for projection, events in lag.items():
            self._lag.labels(projection).set(events)
        for state in ("running", "parked"):
            self._operations.labels(state).set(counts[state])
        self._oldest_parked.set(counts["oldest_parked_s"])
        self._due.set(counts["due"])
        for state, count in hosts.items():
            self._hosts.labels(state).set(count)
        self._held.set(held)
        return generate_latest(self._registry)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)
