"""/v1 as data: attachments, where they are, and where they were."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import RootModel

from ledger.http.schemas import Asked, HostName, Id, Instant, Limit, Position, Shown
from ledger.native.schemas import Order


class Made(StrEnum):
    """By which of Cinder's calls: those for attachments, or the volume actions of before (S1)."""

    NEW = "new"
    OLD = "old"


class AttachmentsQuery(Asked):
    """`at`: which were on a host at this moment; needs `volume`, `host` or `flow=old`.

    `known_at`: as far as it was known then, not before `at` (null: at `at` itself).  `since`: which
    were at any moment from then to `at`, or to now; the newest first.  `after`: a position, in the
    order asked for.
    """

    open: bool = True
    flow: Made | None = None
    volume: Id | None = None
    server: Id | None = None
    host: HostName | None = None
    at: Instant | None = None
    known_at: Instant | None = None
    since: Instant | None = None
    limit: Limit | None = None
    after: Position | None = None
    order: Order = Order.OLDEST


class ToldShown(Shown):
    """What a notification of Nova's said: when it was by Nova's clock, and who asked for it."""

    event: str
    at: datetime
    user_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None


class SeenShown(Shown):
    """Whose it is, and when it became so; `claimed`: as Cinder says; `told`: as Nova did."""

    origin: str
    after: datetime | None
    before: datetime
    claimed: datetime | None = None
    told: ToldShown | None = None


class AttachmentShown(Shown):
    """An attachment: where it is, and which operation touched it last.

    `from_seen`: as its first span has it, also when its server is adopted; of one that was never on
    a host, that it was seen by then.  `open_drift`: of a list, how many findings of its volume are
    open, and operations parked there.
    """

    attachment_id: UUID
    volume_id: UUID
    server_id: UUID
    server_name: str | None = None
    host: str | None
    state: str
    driver: str | None
    target_digest: str | None
    device_path: str | None
    adopted: bool
    access_mode: str | None  # "ro", "rw"; null: attached before that was kept
    flow: Made
    operation_id: UUID | None
    origin: str | None  # whose it is, if it was only seen
    from_seen: SeenShown | None = None
    open_drift: int | None = None
    created_at: datetime
    ended_at: datetime | None
    updated_at: datetime
    position: int


class Attachments(Shown):
    attachments: list[AttachmentShown]
    next: int | None


class SpanShown(Shown):
    """An attachment was on this host since a moment.

    `to_position`, `to_at`: null if, as it was known then, it still was.

    `from_seen`, `to_seen`: if that was seen at somebody else's, and not done: since then it is
    known, and so it was not before `after` (null: nobody knows) and not after `before`.

    `certain`: false, if the moment that was asked about is within such an interval, so that it had
    perhaps not begun, or was over.
    """

    attachment_id: UUID
    volume_id: UUID
    server_id: UUID
    host: str
    flow: Made
    from_position: int
    to_position: int | None
    from_at: datetime
    to_at: datetime | None
    from_seen: SeenShown | None = None
    to_seen: SeenShown | None = None
    certain: bool = True


class AttachmentsAt(Shown):
    """`at`: null, if only `since` was given: as of now.  `known_at`: null, if it was not given."""

    at: datetime | None
    known_at: datetime | None = None
    attachments: list[SpanShown]


class AttachmentsAnswer(RootModel[Attachments | AttachmentsAt]):
    """A page of attachments; with `at`, the spans that were open then."""
