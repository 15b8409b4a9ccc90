"""What is shown of the log."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from ledger.http.schemas import Asked, Shown


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
