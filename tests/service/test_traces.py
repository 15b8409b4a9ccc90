"""Traces, as a collector gets them: every step of an attach, in the trace of who asked for it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.doubles.served import Handler, served
from tests.stack import Stack, eventually

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its endpoint, and the spans that it was sent."""
    spans: list[Any] = []

    class Collector(Handler):
        def respond(self) -> None:
            body = self.body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.answer(200)

    with served(Collector) as url:
        yield f"{url}/v1/traces", spans


def facts(span: Any) -> dict[str, Any]:
    return {
        pair.key: [each.string_value for each in pair.value.array_value.values]
        or pair.value.string_value
        for pair in span.attributes
    }


def test_a_trace_of_an_attach_shows_every_step(stack: Stack) -> None:
    with collector() as (endpoint, spans):
        stack.settings = f'[tracing]\nendpoint = "{endpoint}"\n'
        server = stack.add_server()
        stack.start_service()
        stack.start_agent()
        stack.wait_for_host()
        stack.http.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
        volume = stack.add_volume()
        answer = stack.attach(server, volume)
        operation = stack.finished(stack.operation_of(answer))
        assert operation["outcome"] == "completed"
        eventually(lambda: spans, "the collector has the trace")
        numbers = stack.get("/metrics").text
    assert 'ledger_traces_total{outcome="sent"} 1.0' in numbers

    assert {span.trace_id.hex() for span in spans} == {TRACE}
    by_id = {span.span_id.hex(): span for span in spans}
    [root] = [span for span in spans if span.parent_span_id.hex() == PARENT]
    assert (root.name, facts(root)["ledger.operation.id"]) == ("attach", operation["operation_id"])
    runs = {key: span for key, span in by_id.items() if span.name == "run"}
    steps = [span for span in spans if span is not root and span.name != "run"]
    assert {span.parent_span_id for span in runs.values()} == {root.span_id}
    assert {span.parent_span_id.hex() for span in steps} == set(runs)
    done = [row["step"] for row in operation["steps"] if row["status"] == "done"]
    assert sorted(span.name for span in steps) == sorted(done)
    assert {facts(span)["ledger.place"] for span in runs.values()} == {"ledger", "compute-1"}
    for span in spans:
        within = by_id.get(span.parent_span_id.hex(), span)
        assert within.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= within.end_time_unix_nano
    changed = {span.name for span in steps if facts(span).get("ledger.cinder_requests")}
    assert {"reserve", "update", "complete"} <= changed

    log = stack.agents["compute-1"].log.read_text()
    connect = next(span for span in steps if span.name == "connect")
    assert f'"span_id": "{connect.span_id.hex()}"' in log, "the host's lines say the step"


def test_a_collector_that_is_away_is_in_nobody_s_way(ready: Stack) -> None:
    ready.settings = '[tracing]\nendpoint = "http://127.0.0.1:9/v1/traces"\n'
    ready.components[0].kill()
    ready.start_service()
    ready.completed(ready.attach(next(iter(ready.servers)), ready.add_volume()))
    eventually(
        lambda: 'ledger_traces_total{outcome="refused"} 1.0' in ready.get("/metrics").text,
        "the trace is counted as refused",
    )
