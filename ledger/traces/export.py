"""Sends the traces of operations that this process has ended to a collector, by OTLP over HTTP.

It is beside everything: nobody waits for it, what ends faster than the collector takes it is
dropped and counted, and with the process what waits is lost.  The log has it all the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from aggregates.base import Aggregate, Event
from aggregates.operation import Operation
from host_agent.shared.contract.spans import Span
from host_agent.shared.platform.settings import ConfigError
from ledger.traces.spans import SpanData, spans_of
from projections.reads.queries import Queries

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

#: Operations that have ended and wait for their trace to be made.
WAITING_MAX = 1_000
#: Of these, so many are sent together.
TOGETHER_MAX = 20
#: Events that are read at once.
EVENTS_MAX = 500
#: How long the collector may take.
SEND_S = 10.0

_log = structlog.get_logger(__name__)

#: Whether the collector has taken them.
Send = Callable[[Sequence[SpanData]], bool]


class Traces(Collector):
    """Has `take` told of every append, from any thread, and sends what `run` makes of it."""

    def __init__(self, queries: Queries, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self._queries, self._send, self._loop = queries, send, loop
        self._ended = asyncio.Queue[UUID](WAITING_MAX)
        self._outcomes = Counter[str]()  # of operations

    def take(self, changed: Iterable[Aggregate], events: Iterable[Event]) -> None:
        """The operations that ended with this append are sent soon."""
        del changed
        for event in events:
            if isinstance(event, Operation.OperationFinished):
                with suppress(RuntimeError):  # the loop is closed: the process ends
                    self._loop.call_soon_threadsafe(self._wait, event.originator_id)

    def _wait(self, operation_id: UUID) -> None:
        if self._ended.full():
            self._outcomes["dropped"] += 1
        else:
            self._ended.put_nowait(operation_id)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For /metrics."""
        return counters(dict(self._outcomes))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty() and len(ended) < TOGETHER_MAX:
                ended.append(self._ended.get_nowait())
            try:
                made = [spans_of(await self._history(each)) for each in ended]
                spans = list(chain.from_iterable(made))
                accepted = not spans or await asyncio.to_thread(self._send, spans)
            except Exception as error:  # noqa: BLE001 - the database's, or a library's
                _log.warning("traces_not_sent", why=repr(error))
                accepted = False
            self._outcomes["sent" if accepted else "refused"] += len(ended)

    async def _history(self, operation_id: UUID) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while True:
            page = await self._queries.events(
                ("operation_id", str(operation_id)),
                after=rows[-1]["position"] if rows else 0,
                limit=EVENTS_MAX,
            )
            rows += page
            if len(page) < EVENTS_MAX:
                return rows


def counters(outcomes: Mapping[str, int]) -> Iterator[CounterMetricFamily]:
    """What /metrics shows of traces, where they are sent."""
    family = CounterMetricFamily(
        "ledger_traces",
        "Operations whose trace was made; outcome: sent, refused, dropped. With tracing.endpoint",
        labels=["outcome"],
    )
    for outcome, count in outcomes.items():
        family.add_metric([outcome], count)
    yield family


def sender(endpoint: str, stack: AsyncExitStack) -> Send:
    """To an OTLP endpoint, "http://collector:4318/v1/traces"; headers and certificates are
    the exporter's own environment (OTEL_EXPORTER_OTLP_HEADERS, ...).  Raises ConfigError.

    Who leaves the stack waits for the request under way at most, SEND_S: none is tried again then.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        text = "tracing.endpoint needs OpenTelemetry: pip install '.[service,otel]'"
        raise ConfigError(text) from None
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
    stack.callback(exporter.shutdown)
    ours = {"service.name": "attachment-ledger", "service.version": version("attachment-ledger")}
    resource = Resource.create(ours)

    def send(spans: Sequence[SpanData]) -> bool:
        result = exporter.export([_readable(span, resource) for span in spans])
        return result is SpanExportResult.SUCCESS

    return send


def _readable(data: SpanData, resource: Any) -> ReadableSpan:
    """As OpenTelemetry's SDK would have made it of what it measures."""
    from opentelemetry.sdk.trace import Event as Turn
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status, StatusCode

    return ReadableSpan(
        name=data.name,
        context=_context(data.span),
        parent=data.parent and _context(data.parent),
        resource=resource,
        attributes=data.attributes,
        events=[Turn(name, facts, _ns(at)) for name, at, facts in data.turns],
        status=Status(StatusCode.ERROR, data.error) if data.error else Status(StatusCode.OK),
        start_time=_ns(data.start),
        end_time=_ns(data.end),
    )


def _context(span: Span) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        trace_id=int(span.trace_id, 16),
        span_id=int(span.span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if span.sampled else TraceFlags.DEFAULT),
    )


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1000
