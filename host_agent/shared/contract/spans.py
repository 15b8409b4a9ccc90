"""The trace of a step, in the format of W3C's Trace Context.

No span is stored: the log has every step, and the service makes the spans from it
(`ledger.traces`).  A span's id follows from its parent's id and its name.  So each process can
compute it, and a step has the same span however often its trace is made.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Self

#: Request ids that are kept of one step; of requests that changed something, or failed.
REQUESTS_MAX = 20

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
#: The form of a request id in OpenStack (oslo.middleware).
REQUEST_ID = "[Rr][Ee][Qq]-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_SAMPLED = 0x01


def is_request_id(text: str) -> bool:
    """Whether it has the form of REQUEST_ID."""
    return re.fullmatch(REQUEST_ID, text) is not None


class Span(NamedTuple):
    """A span's context: trace id (32 hexadecimal digits), span id (16), whether it is sampled."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str | None) -> Self | None:
        """From the header `traceparent`; None if it is invalid (W3C: then it is ignored)."""
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
        """Its child span of this name."""
        digest = hashlib.sha256(f"{self.trace_id}/{self.span_id}/{name}".encode())
        return self._replace(span_id=digest.hexdigest()[:16])


def span_of_operation(operation_id: str, traceparent: str | None) -> Span:
    """In the caller's trace; without one, in a trace with the operation's id."""
    trace_id = operation_id.replace("-", "")
    return (Span.parse(traceparent) or Span(trace_id, trace_id[:16])).child(operation_id)


def span_of_run(operation_id: str, traceparent: str | None, run: int) -> Span:
    """The span of a run; its children are the spans of its steps, by name."""
    return span_of_operation(operation_id, traceparent).child(f"run {run}")
