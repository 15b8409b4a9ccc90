"""The context of the work in this thread, for requests to Cinder and for log records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from structlog.contextvars import bound_contextvars

from host_agent.shared.contract.spans import REQUESTS_MAX, Span, is_request_id


class _Doing(NamedTuple):
    span: Span
    request_id: str
    request_ids: list[str]


_doing: ContextVar[_Doing | None] = ContextVar("doing", default=None)


@contextmanager
def doing(span: Span, request_id: str) -> Iterator[list[str]]:
    """Calls in the block belong to the span; yields the request ids of changes."""
    request_ids: list[str] = []
    token = _doing.set(_Doing(span, request_id, request_ids))
    try:
        with bound_contextvars(trace_id=span.trace_id, span_id=span.span_id):
            yield request_ids
    finally:
        _doing.reset(token)


def headers() -> dict[str, str]:
    """For a service of OpenStack: the span, and the request id (oslo.middleware)."""
    now = _doing.get()
    if now is None:
        return {}
    return {"traceparent": now.span.header(), "X-OpenStack-Request-ID": now.request_id}


def answered(method: str, status: int, answer: Mapping[str, str]) -> None:
    """Remember the service's request id of a change, also of a failed request."""
    now = _doing.get()
    if now is None or (method == "GET" and status < 400):  # noqa: PLR2004 - HTTP's
        return
    request_id = answer.get("x-openstack-request-id", "")
    if len(now.request_ids) < REQUESTS_MAX and is_request_id(request_id):
        now.request_ids.append(request_id)
