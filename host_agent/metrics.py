"""The agent's own numbers, as Prometheus reads them, over HTTP where the settings say.

The text form is a few lines (Prometheus, exposition formats, 0.0.4), so a hypervisor needs no
library for it.  No ids, tokens or names of hosts, servers and volumes as labels.

One thread answers one reader at a time: who is slow keeps other readers waiting, and no work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6
from typing import NamedTuple

from host_agent.line.credentials import Ending
from host_agent.reporting import Verdict
from host_agent.shared.contract import SERVICE_VERSION, Report
from host_agent.shared.settings import ConfigError
from host_agent.shared.telemetry import CALL_BOUNDS_S, STEP_BOUNDS_S, Tallies

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: How long a reader may take for each piece of its request.
READ_S_MAX = 5.0


class Family(NamedTuple):
    """A metric.  A sample is the suffix of the name, the labels, and the value."""

    name: str
    kind: str
    what: str
    samples: list[tuple[str, Mapping[str, str], float]]


class State(NamedTuple):
    """How it stands with the ledger; the clock is None until the ledger has told the time, the
    certificate where the host shows none.
    """

    registered: bool
    clock_skew_s: float | None
    certificate: Ending | None = None


@dataclass(frozen=True)
class Numbers:
    """What this agent counts: calls by neighbour and outcome, steps by name and outcome."""

    calls: Tallies = field(default_factory=lambda: Tallies(CALL_BOUNDS_S))
    steps: Tallies = field(default_factory=lambda: Tallies(STEP_BOUNDS_S))

    def counting(self, report: Callable[[Report], Verdict]) -> Callable[[Report], Verdict]:
        """`report`, with the steps counted that it tells of."""

        def counted(given: Report) -> Verdict:
            for result in given.results:
                outcome = result.error.kind.value if result.error else "succeeded"
                self.steps.add((result.step, outcome), result.took_ms / 1000)
            return report(given)

        return counted

    def page(self, state: State) -> str:
        """The page of /metrics."""
        skew = [] if state.clock_skew_s is None else [state.clock_skew_s]
        shown = [] if state.certificate is None else [state.certificate]
        return text(
            Family(
                "ledger_agent_info",
                "gauge",
                "1; says of which service version the agent is",
                [("", {"service_version": str(SERVICE_VERSION)}, 1)],
            ),
            Family(
                "ledger_agent_registered",
                "gauge",
                "1 if the ledger has taken the agent's registration and is in contact, else 0",
                [("", {}, state.registered)],
            ),
            Family(
                "ledger_agent_clock_skew_seconds",
                "gauge",
                "How far this host's clock is ahead of the ledger's; none until that is known",
                [("", {}, one) for one in skew],
            ),
            Family(
                "ledger_agent_certificate_expiry_seconds",
                "gauge",
                "Time until the certificate that the agent shows ends; below 0: it has ended. With "
                "a certificate",
                [("", {}, one.left_s) for one in shown],
            ),
            Family(
                "ledger_agent_certificate_ending",
                "gauge",
                "1 if that should have been renewed or may not be used, else 0. With a certificate",
                [("", {}, one.soon) for one in shown],
            ),
            _histogram(
                "ledger_agent_step_seconds",
                "Duration of steps; outcome: succeeded, retryable, final, unknown",
                ("step", "outcome"),
                self.steps,
            ),
            _histogram(
                "ledger_agent_call_seconds",
                "Duration of calls of Cinder and Keystone, each attempt; outcome: 2xx, 4xx, "
                "no_answer",
                ("neighbour", "outcome"),
                self.calls,
            ),
        )


def _histogram(name: str, what: str, names: tuple[str, ...], tallies: Tallies) -> Family:
    samples: list[tuple[str, Mapping[str, str], float]] = []
    for values, (buckets, sum_) in tallies.counted().items():
        labels = dict(zip(names, values, strict=True))
        samples += [("_bucket", {**labels, "le": bound}, count) for bound, count in buckets]
        samples += [("_sum", labels, sum_), ("_count", labels, buckets[-1][1])]
    return Family(name, "histogram", what, samples)


def text(*families: Family) -> str:
    """Metrics in the text form."""
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.what}"
    yield f"# TYPE {family.name} {family.kind}"
    for suffix, labels, value in family.samples:
        pairs = ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items())
        labelled = f"{{{pairs}}}" if pairs else ""
        yield f"{family.name}{suffix}{labelled} {float(value)!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@contextmanager
def serving(host: str, port: int, page: Callable[[], str]) -> Iterator[int]:
    """Answer GET /metrics there, for as long as the block lasts; the port, for 0 is any.

    Raises ConfigError if nobody can listen there.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = READ_S_MAX

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = page().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Who reads numbers is nobody's news."""

    class Server(HTTPServer):
        address_family = AF_INET6 if _is_ipv6(host) else AF_INET

        def handle_error(self, *_: object) -> None:
            """A reader that breaks off needs no traceback."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise ConfigError(f"[metrics] nobody can listen at {host} port {port}: {error}") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
