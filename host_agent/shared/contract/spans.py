"""The trace of a step, in the format of W3C's Trace Context.

No span is kept here: the log has every step, and the service makes the spans from it
(`ledger.traces`).  A span's id follows from its parent's and its name, so each process that
takes part knows it without being told, and the same step is the same span however often its
trace is made.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Self

#: Of the requests of one step that changed something, or failed, so many are remembered.
REQUESTS_MAX = 20

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
#: What services of OpenStack take for a request's id (oslo.middleware).
REQUEST_ID = "[Rr][Ee][Qq]-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_SAMPLED = 0x01


def is_request_id(text: str) -> bool:
    """Whether it has the form of REQUEST_ID."""
    return re.fullmatch(REQUEST_ID, text) is not None


class Span(NamedTuple):
    """A span's place: its trace (32 hexadecimal digits), itself (16); `sampled`: is it kept?"""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str | None) -> Self | None:
        """From the header `traceparent`; None if it says nothing (W3C: then it is ignored)."""
        found = _TRACEPARENT.match(traceparent or "")
        if found is None or (found[4] and traceparent and traceparent.startswith("00")):
            return None
        trace_id, span_id, flags = found[1], found[2], int(found[3], 16)
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(flags & _SAMPLED))

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"

    def child(self, name: str) -> Self:
        """The span of this name within it."""
        digest = hashlib.sha256(f"{self.trace_id}/{self.span_id}/{name}".encode())
        return self._replace(span_id=digest.hexdigest()[:16])


def span_of_operation(operation_id: str, traceparent: str | None) -> Span:
    """In the caller's trace; without one the operation's id is its trace's, so all have one."""
    trace_id = operation_id.replace("-", "")
    return (Span.parse(traceparent) or Span(trace_id, trace_id[:16])).child(operation_id)


def span_of_run(operation_id: str, traceparent: str | None, run: int) -> Span:
    """A run's steps are its children by their names: each is tried once in it."""
    return span_of_operation(operation_id, traceparent).child(f"run {run}")
