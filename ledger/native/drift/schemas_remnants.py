"""What operators' acts may have left behind, as /v1 answers it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from aggregates.remnant import RemnantKind, RemnantState
from ledger.http.schemas import Asked, HostName, Id, Limit, Position, Shown
from ledger.native.schemas import OperationShown


class RemnantsQuery(Asked):
    state: RemnantState | None = None
    server: Id | None = None
    host: HostName | None = None
    limit: Limit | None = None
    after: Position | None = None


class RemnantSummary(Shown):
    """What may be left, and where: on `host`, or (null) in Cinder; `detail` says it in words.

    `attachment_id` null for an attachment: one whose id nobody knows.
    """

    remnant_id: UUID
    kind: RemnantKind
    step: str
    server_id: UUID
    volume_id: UUID | None
    attachment_id: UUID | None
    host: str | None
    detail: str


class OperationActed(OperationShown):
    """The operation after the act; `remnants`: what that leaves behind, or would (`dry_run`)."""

    dry_run: bool
    remnants: list[RemnantSummary]


class RemnantShown(RemnantSummary):
    """Which act left it, why, and whether somebody has seen to it."""

    state: RemnantState
    act: str
    reason: str
    from_operation: UUID
    left_at: datetime
    acknowledged_at: datetime | None
    acknowledged_reason: str | None
    position: int


class Remnants(Shown):
    remnants: list[RemnantShown]
    next: int | None
