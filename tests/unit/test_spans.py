"""Which trace a step belongs to, and what a service of OpenStack is told of it."""

from __future__ import annotations

import pytest

from host_agent.shared.contract.spans import REQUESTS_MAX, Span, span_of_operation, span_of_run
from host_agent.shared.platform.tracing import answered, doing, headers

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OPERATION = "0b2e7f0c-54a3-4d0b-9c39-7a7d5d0c2f11"
REQUEST = "req-0b2e7f0c-54a3-4d0b-9c39-7a7d5d0c2f11"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),  # flags that are not known yet
        (f"cc-{TRACE}-{PARENT}-01-what-will-be", True),  # a later version
    ],
)
def test_what_w3c_allows_is_taken(header: str, sampled: bool) -> None:
    assert Span.parse(header) == (TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_what_w3c_does_not_allow_is_as_if_it_were_not_there(header: str | None) -> None:
    assert Span.parse(header) is None
    assert span_of_operation(OPERATION, header) == span_of_operation(OPERATION, None)


def test_every_process_knows_the_same_span_without_being_told() -> None:
    caller = f"00-{TRACE}-{PARENT}-01"
    operation = span_of_operation(OPERATION, caller)
    run = span_of_run(OPERATION, caller, 1)
    assert {operation.trace_id, run.trace_id} == {TRACE}
    assert run == operation.child("run 1")
    steps = [run.child("connect"), operation.child("run 2").child("connect")]
    assert len({PARENT, operation.span_id, run.span_id, *(step.span_id for step in steps)}) == 5
    assert Span.parse(run.header()) == run


def test_an_operation_without_a_caller_s_trace_has_one_that_its_id_names() -> None:
    assert span_of_operation(OPERATION, None).trace_id == OPERATION.replace("-", "")


def test_what_is_not_to_be_kept_is_not_anywhere_within_it() -> None:
    assert not span_of_run(OPERATION, f"00-{TRACE}-{PARENT}-00", 1).child("connect").sampled


def test_a_service_is_told_for_whom_it_is_asked_only_while_that_is_done() -> None:
    span = Span(TRACE, PARENT)
    assert headers() == {}
    with doing(span, REQUEST):
        assert headers() == {"traceparent": span.header(), "X-OpenStack-Request-ID": REQUEST}
    assert headers() == {}


def test_the_ids_of_what_was_changed_or_refused_are_kept_and_of_what_was_read_not() -> None:
    with doing(Span(TRACE, PARENT), REQUEST) as told:
        answered("GET", 200, {"x-openstack-request-id": REQUEST.replace("0b", "0a")})
        answered("PUT", 200, {"x-openstack-request-id": REQUEST})
        answered("GET", 404, {"x-openstack-request-id": REQUEST.replace("0b", "0c")})
        answered("PUT", 200, {"x-openstack-request-id": "req-of somebody\nelse"})
        answered("PUT", 200, {})
    assert told == [REQUEST, REQUEST.replace("0b", "0c")]
    answered("PUT", 200, {"x-openstack-request-id": REQUEST})  # nothing is done: nobody's


def test_a_step_that_asks_for_ever_remembers_the_first_ones() -> None:
    with doing(Span(TRACE, PARENT), REQUEST) as told:
        for _ in range(2 * REQUESTS_MAX):
            answered("POST", 202, {"x-openstack-request-id": REQUEST})
    assert len(told) == REQUESTS_MAX
