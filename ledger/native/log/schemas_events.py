"""What is shown of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from ledger.config import PAGE_ITEMS_MAX
from ledger.http.schemas import Asked, Id, Shown


class AskedBy(Shown):
    """Who asked for an operation; `global_request_id`: through which request of another service.

    `address`, `agent`: from where, and by what program (User-Agent), if that is known.
    """

    name: str | None
    user_id: str | None
    project_id: str | None
    global_request_id: str | None
    address: str | None = None
    agent: str | None = None


class EventShown(Shown):
    """One event of the log, whom it concerns and why it is there.

    `actor` is who delivered it, `asked_by` who asked for the operation that it is part of (null:
    it is part of none).  `occurred_at`: when it was on its host, by the host's clock less what
    that was ahead (null: nobody said).
    """

    position: int
    recorded_at: datetime
    occurred_at: datetime | None = None
    topic: str
    originator_id: UUID
    version: int
    attachment_id: UUID | None = None
    volume_id: UUID | None = None
    server_id: UUID | None = None
    host: str | None = None
    operation_id: UUID | None = None
    request_id: str | None = None
    cause: str | None = None
    actor: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    roles: list[str] | None = None
    asked_by: AskedBy | None = None
    body: dict[str, Any]


def _utc(text: str) -> str:
    """A time as a database prints it.  Raises ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is not None:
        raise ValueError("It has an offset; Nova's database has none.")
    return at.replace(tzinfo=UTC).isoformat()


RowTime = Annotated[str, AfterValidator(_utc)]
RowText = Annotated[str, StringConstraints(max_length=255)]


class DeletedRow(Asked):
    """A soft-deleted mapping in Nova's database; times without offset, as UTC."""

    mapping_id: Id
    server_id: Id
    volume_id: Id
    attachment_id: Id | None
    device_name: RowText | None
    tag: RowText | None
    boot_index: Annotated[int, Field(ge=-1, lt=2**31)] | None
    bus: RowText | None
    delete_on_termination: bool
    created_at: RowTime
    deleted_at: RowTime


class DeletedRows(Asked):
    """What the SQL of `history sql` reads in Nova's database: each of `rows` is a DeletedRow.

    `revision`: Nova's alembic revision there; `read_at`: when it was read, by its clock.
    """

    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    read_at: RowTime
    rows: Annotated[list[Any], Field(max_length=PAGE_ITEMS_MAX)]


class RowRefused(Shown):
    """`row`: its number, from 0."""

    row: int
    why: str


class RowsRecorded(Shown):
    """`known`: the log had them.  `oldest`: when the first one that is not refused was created."""

    recorded: int
    known: int
    refused: list[RowRefused]
    oldest: datetime | None


class Events(Shown):
    """`detached_to`: of the events up to there, some may be in the archive's files only."""

    events: list[EventShown]
    next: int | None
    detached_to: int = 0


class CheckpointShown(Shown):
    """The end of the log: who keeps this can prove later that nothing before it was changed.

    `log` is the same for as long as the log is; null while it is empty.  `chain` is
    the hash chain's value behind the event at `position`, in hexadecimal.
    """

    log: UUID | None
    position: int
    chain: str
    recorded_at: datetime


class Due(Shown):
    """An operation of which the next step is the ledger's, from that moment on."""

    operation_id: UUID
    flow: str
    due_at: datetime


class Period(StrEnum):
    """How long before now is counted."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


class ActivityQuery(Asked):
    period: Period = Period.HOUR


class Activity(Shown):
    """What happens just now, and has happened in the hour, day or week before `at`.

    `lag_events`, `lag_s`: of the projection that is furthest behind and that nothing holds back.
    `minutes`: by what is counted a number for each `each_minutes` minutes, the oldest first; not
    `complete` where more operations moved than are counted, so that the first ones lack some.
    `ages_s`: likewise, how old the oldest became there of what was not over, in seconds; 0: none.
    `oldest_s`: how old the oldest of it is now.
    """

    at: datetime
    lag_events: int
    lag_s: float
    oldest_due: Due | None
    complete: bool
    period: Period
    each_minutes: int
    minutes: dict[str, list[int]]
    ages_s: dict[str, list[int]]
    oldest_s: dict[str, int]


class Verification(Shown):
    """Whether the events behind `after`, up to the end of the log, are those that were stored there
    by the hash chain; `why` they are not.
    """

    log: UUID | None
    after: int
    position: int
    consistent: bool
    why: str | None
