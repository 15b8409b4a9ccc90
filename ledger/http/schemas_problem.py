"""An error as /v1 answers it."""

from __future__ import annotations

from uuid import UUID

from ledger.http.schemas import Shown


class BlockedBy(Shown):
    """The operation in the way of a request, and what may be done about it."""

    operation_id: UUID
    flow: str
    state: str
    acts: list[str]


class Problem(Shown):
    """RFC 9457 problem details; `code` is stable, `detail` for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    operation: str | None = None
    blocked_by: BlockedBy | None = None
    hint: str | None = None
