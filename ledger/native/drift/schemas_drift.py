"""What differs, and looks at it, as /v1 answers it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, BeforeValidator, Field, StringConstraints, TypeAdapter

from aggregates.finding import FindingState
from aggregates.look import LookState
from handlers.drift.classes import Severity
from ledger.http.schemas import Asked, HostName, Id, Instant, Limit, Position, Shown
from ledger.native.log.schemas_events import EventShown

_INSTANT: TypeAdapter[Any] = TypeAdapter(AwareDatetime)


def _moment(value: Any) -> Any:
    """A moment of a body, where texts stay texts if nobody reads them."""
    return _INSTANT.validate_python(value) if isinstance(value, str) else value


Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]
ClassName = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]


class DriftState(StrEnum):
    """`open`: suspected or confirmed, so somebody's turn."""

    OPEN = "open"
    SUSPECTED = FindingState.SUSPECTED.value
    CONFIRMED = FindingState.CONFIRMED.value
    IGNORED = FindingState.IGNORED.value
    OVER = FindingState.OVER.value
    ALL = "all"


class DriftQuery(Asked):
    """`at`: what differed at this moment, ignored or not; a state is not asked for then."""

    drift_class: ClassName | None = Field(default=None, alias="class")
    severity: Severity | None = None
    state: DriftState | None = None
    server: Id | None = None
    volume: Id | None = None
    host: HostName | None = None
    at: Instant | None = None
    limit: Limit | None = None
    after: Position | None = None


class FindingQuery(Asked):
    """`at`: as it was known at this moment."""

    at: Instant | None = None


class FindingShown(Shown):
    """What differs, of whom, and how it stands.

    `finding_id`: of a remnant its id, of a parked operation the operation's.  `repair`: what would
    mend it, null: a person.  `times`: how often it came.  `seen_at`: since when it differs as it
    does.  `over_how`: gone by itself, repaired, or settled by a person.
    """

    finding_id: UUID
    drift_class: str
    severity: Severity
    state: FindingState
    subject: str
    key: str
    server_id: UUID | None
    volume_id: UUID | None
    attachment_id: UUID | None
    host: str | None
    repair: str | None
    found_at: datetime
    found_position: int
    times: int
    seen_at: datetime
    confirmed_at: datetime | None
    over_at: datetime | None
    over_how: str | None
    ignored_until: datetime | None
    ignored_reason: str | None
    repairing: UUID | None
    repaired_by: UUID | None
    position: int


class Drift(Shown):
    """`at`: as of this moment; null: as it is now."""

    at: datetime | None
    findings: list[FindingShown]
    next: int | None


class FindingDetails(FindingShown):
    """One finding with what it means, what to do, what each party says, and its history.

    `differs`: null for users of a project.  `acts`: what may be done about it now.  `history`: its
    newest events, oldest first.
    """

    meaning: str
    by_hand: str | None
    acts: list[str]
    differs: dict[str, Any] | None
    look_id: UUID | None
    boot_id: str | None
    epoch: int | None
    history: list[EventShown]


class DriftClassShown(Shown):
    """`compares`: whose words are held against each other; `again`: whom the repair asks anew.

    `or_else`: its other repair, for what no guest has.
    """

    name: str
    subject: str
    compares: list[str]
    severity: Severity
    meaning: str
    repair: str | None
    or_else: str | None = None
    by_hand: str | None
    again: list[str]


class DriftClasses(Shown):
    classes: list[DriftClassShown]


# ------------------------------------------------------------------------------- looks


class LooksQuery(Asked):
    state: LookState | None = None
    limit: Limit | None = None
    after: Position | None = None


class LookAsked(Shown):
    """It is begun as soon as a process is free for it."""

    look_id: UUID
    scope: dict[str, str]


class LookStanding(StrEnum):
    """`asked`: nobody has begun it yet; `stopped`: it waits to be resumed, or for another look."""

    ASKED = "asked"
    UNDER_WAY = LookState.UNDER_WAY.value
    STOPPED = LookState.STOPPED.value
    ENDED = LookState.ENDED.value


class LookShown(Shown):
    """A look and what came of it: null until it has ended.  When it began: null before that.

    `done` of about `total` things are compared so far; null where nobody is at it.  `found`: new
    findings by class.  `unknown`: of which hosts nothing is known, and of which volumes ("volume
    ID") Cinder has not told all, and why.  `braked`: how many new findings of a class were too many
    to be believed; `examples`: some of these.  `believe`: the classes that `asked_by` told it to
    believe however many there are, and the `reason`.  `held_back`: what was braked, in words, and
    what to do.
    """

    look_id: UUID
    kind: str
    scope: dict[str, str]
    why: str
    asked_by: str | None
    believe: list[str]
    reason: str | None
    state: LookStanding
    outcome: str | None
    done: int | None
    total: int | None
    eta_s: float | None
    compared: dict[str, int] | None
    found: dict[str, int] | None
    unknown: dict[str, str] | None
    braked: dict[str, int] | None
    examples: dict[str, list[str]] | None
    held_back: list[str]
    trouble: str | None
    began_at: datetime | None
    began_position: int | None
    ended_at: datetime | None
    position: int | None


class Looks(Shown):
    """`asked`: those that nobody has begun yet, however one asks for the others."""

    asked: list[LookShown]
    looks: list[LookShown]
    next: int | None
