"""The agent's own metrics for Prometheus, over HTTP at the address in the settings.

Labels have no ids, no tokens and no names of hosts, servers and volumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from host_agent.line.credentials import Expiry
from host_agent.reporting import Verdict
from host_agent.shared.contract.messages import SERVICE_VERSION, Report
from host_agent.shared.platform.settings import NotNowError
from host_agent.shared.platform.telemetry import STEP_BOUNDS_S, call_seconds

#: Seconds that a client may take for each part of its request.
READ_S_MAX = 5.0


class LineState(NamedTuple):
    """The agent's connection to the ledger.  `clock_skew_s` is None until the ledger has told the
    time; `certificate` is None if the host uses none.
    """

    registered: bool
    clock_skew_s: float | None
    certificate: Expiry | None = None


class Numbers:
    """The agent's counters: calls by neighbour and outcome, steps by name and outcome."""

    def __init__(self) -> None:
        self.calls = call_seconds("ledger_agent_call_seconds")
        self.steps = Histogram(
            "ledger_agent_step_seconds",
            "Duration of steps; outcome: succeeded, retryable, final, unknown",
            ["step", "outcome"],
            buckets=STEP_BOUNDS_S,
            registry=None,
        )

    def counting(
        self, report: Callable[[Report, str | None], Verdict]
    ) -> Callable[[Report, str | None], Verdict]:
        """`report`, which also counts the steps that it reports."""

        def counted(given: Report, changed: str | None) -> Verdict:
            for result in given.results:
                outcome = result.error.kind.value if result.error else "succeeded"
                self.steps.labels(result.step, outcome).observe(result.took_ms / 1000)
            return report(given, changed)

        return counted

    def registry(self, state: Callable[[], LineState]) -> CollectorRegistry:
        """The registry of the metrics page; `state` is called for each page."""
        registry = CollectorRegistry()
        for collector in (_Standing(state), self.steps, self.calls):
            registry.register(collector)
        return registry


@dataclass(frozen=True)
class _Standing(Collector):
    """Gauges of the present state; an unknown value is absent."""

    state: Callable[[], LineState]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self.state()
        info = "Always 1; the label has the agent's service version"
        version = GaugeMetricFamily("ledger_agent_info", info, labels=["service_version"])
        version.add_metric([str(SERVICE_VERSION)], 1)
        yield version
        yield GaugeMetricFamily(
            "ledger_agent_registered",
            "1 if the ledger has accepted the agent's registration and is in contact, else 0; "
            "also 0 while it cannot read its inventory, or while its calls of the ledger fail by "
            "its own fault",
            state.registered,
        )
        yield GaugeMetricFamily(
            "ledger_agent_clock_skew_seconds",
            "How far this host's clock is ahead of the ledger's; absent until that is known",
            state.clock_skew_s,
        )
        ending = state.certificate
        yield GaugeMetricFamily(
            "ledger_agent_certificate_expiry_seconds",
            "Time until the agent's client certificate expires; below 0: it has expired. Absent "
            "without a certificate",
            ending and ending.left_s,
        )
        yield GaugeMetricFamily(
            "ledger_agent_certificate_ending",
            "1 if the client certificate should be renewed or cannot be used, else 0. Absent "
            "without a certificate",
            ending and ending.soon,
        )


class _Reader(WSGIRequestHandler):
    """A request for the page.  A silent or broken connection is closed without a log line."""

    timeout = READ_S_MAX

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Requests for metrics are not logged."""


@contextmanager
def serving(host: str, port: int, registry: CollectorRegistry) -> Iterator[int]:
    """Serve the registry's page during the block; yields the port (`port` 0: any free one).

    Raises NotNowError if the address cannot be used.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise NotNowError(f"[metrics] cannot listen at {host} port {port}: {error}") from None
    server.RequestHandlerClass = _Reader
    with server:
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
