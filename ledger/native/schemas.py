"""/v1 as data: what may be asked, and what is answered.

Requests know no keys but these.  Answers are made of rows of `projections.reads.queries`: a model
picks the columns that are shown, and gives them their documented types.  Lists are pages:
`next` is the cursor to give as `after` for the next one, null at the end.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from aggregates.operation import OperationState
from ledger.http.schemas import (
    Asked,
    HostName,
    Id,
    Instant,
    Leftovers,
    Limit,
    Position,
    Shown,
    Topic,
    WaitS,
)

# ------------------------------------------------------------------------- requests


class Order(StrEnum):
    OLDEST = "asc"
    NEWEST = "desc"


class PositionsQuery(Asked):
    """`at`: as of this moment.  `after`, `before`: positions, in the order asked for."""

    at: Instant | None = None
    after: Position | None = None
    before: Position | None = None
    limit: Limit | None = None
    order: Order = Order.OLDEST


class HistoryQuery(PositionsQuery):
    """`known_at`: as it was known then, not before `at` (null: at `at` itself): with what was seen
    only later, and had been so by `at`, or perhaps had (its `seen.before` is later).
    """

    known_at: Instant | None = None


class EventsQuery(PositionsQuery):
    """`topic`: events of this kind alone.  A page of them may be short of `limit`, even empty,
    before the end: `next` is null there, and nowhere else.
    """

    topic: Topic | None = None


class HostsQuery(Asked):
    """`observed`: also hosts of a Nova that is watched."""

    observed: bool = False


class StreamQuery(Asked):
    after: Position | None = None


class OperationsQuery(Asked):
    """`at`: those that had begun at this moment, as they are now."""

    state: OperationState | None = None
    flow: str | None = None
    server: Id | None = None
    volume: Id | None = None
    host: HostName | None = None
    at: Instant | None = None
    limit: Limit | None = None
    after: Position | None = None


class OperationQuery(Asked):
    """`wait_s`: answer when it is finished or parked, at the latest then.  `at`: as it was."""

    wait_s: WaitS = 0.0
    at: Instant | None = None


class ActQuery(Asked):
    """`dry_run`: say what the act would leave behind, and change nothing."""

    dry_run: bool = False


# -------------------------------------------------------------------------- answers


class StepShown(Shown):
    """A step of the plan, and what is known of it; `undo`: the plan is being unwound.

    A step for the whole server is in lane -1, without a volume.  `side`: whether it works on
    what the server has ("current"), or on what it is to have ("new").
    """

    lane: int
    side: str = "current"
    volume_id: UUID | None
    step: str
    verb: str
    place: str
    undo: bool
    status: str
    attempts: int = 0
    took_ms: int | None = None
    error: dict[str, Any] | None = None
    retry_at: datetime | None = None


class OperationSummary(Shown):
    """A flow under way, or over; `why` it is parked or has failed.

    `at`: the first step that is not done, in the direction it goes; null once it is over.
    `updated_at`: of its last event; a parked one is parked since then.
    """

    operation_id: UUID
    flow: str
    server_id: UUID
    server_name: str | None = None
    volume_ids: list[UUID]
    host: str | None
    destination: str | None = None
    state: OperationState
    outcome: str | None
    unwinding: bool
    at: StepShown | None = None
    why: str | None
    actor: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    started_at: datetime
    finished_at: datetime | None
    updated_at: datetime | None = None
    position: int


class ProgressShown(Shown):
    """How far the long step of a run has come."""

    run: int
    done_bytes: int
    total_bytes: int
    updated_at: datetime


class OperationShown(OperationSummary):
    """`left`: the steps that wait for the operator; `acts`: what can be done about it."""

    error: dict[str, Any] | None
    left: list[dict[str, Any]]
    steps: list[StepShown]
    progress: list[ProgressShown] = Field(default=[])
    acts: list[Literal["retry", "skip", "unwind", "give_up"]]


class Operations(Shown):
    operations: list[OperationSummary]
    next: int | None


class Flows(Shown):
    """How many were made by Cinder's attachment calls, and how many by its old ones."""

    new: int
    old: int


class HostShown(Shown):
    """`alive`: its agent was in contact within `host_down_after_s`.

    `suspect`: it was fenced, and has not released its leftovers yet; until then it gets no
    commands.  `unvouched`: the ledger was restored from an older backup, and no operator has
    vouched for the host since; until then it gets none, either.  `came_from`: whose it was before
    it was adopted, of a host that is asked for by itself.  `service_version` null: no agent has
    come since.  `registered_at`: when its agent first did, or until then when it was adopted.
    """

    host: str
    service_version: int | None
    capabilities: dict[str, Any]
    epoch: int
    fenced: bool
    fence_reason: str | None = None
    fence_evidence: str | None = None
    suspect: bool = False
    unvouched: bool | None = None
    came_from: str | None = None
    disabled: bool = False  # no servers are to come
    disabled_reason: str | None = None
    leftovers: Leftovers | None = None
    registered_at: datetime
    seen_at: datetime | None = None
    clock_ahead_s: float | None = None  # of the database's, as its agent said last
    alive: bool
    connector: dict[str, str] | None = None  # what storage knows it by
    open_attachments: int = 0
    flows: Flows | None = None  # of the open attachments
    open_commands: int = 0
    guests: int = 0


class HostObserved(Shown):
    """A host of a Nova that is watched, on which servers were seen.  `surveyed_at`: when it made
    the survey that it sent last; null: it has sent none.
    """

    host: str
    origin: str
    guests: int
    open_attachments: int
    surveyed_at: datetime | None = None


class Hosts(Shown):
    """`observed`: null, if these were not asked for."""

    hosts: list[HostShown]
    observed: list[HostObserved] | None = None


class ServerPassed(Shown):
    """A server of Nova's that is adopted, or goes back.

    `state`: "adopted" or "handed_back"; "adoptable" or "returnable", in a dry run; or "stays", and
    `why`.  `notes`: what is not known of it.  `sql`: what Nova's database lacks of it.
    """

    server_id: str
    name: str
    state: str
    why: list[str]
    notes: list[str]
    sql: str | None


class HostPassed(Shown):
    """A host on its way from Nova to the ledger, or back.

    `refusals`: why nothing of it can be taken now.  `whole`: no server stays whose it is.
    """

    host: str
    dry_run: bool
    refusals: list[str]
    notes: list[str]
    servers: list[ServerPassed]
    whole: bool


class FlowShown(Shown):
    """A flow's table as data: stages of steps, with the point of no return.

    `exclusive`: nothing else may be done to the server meanwhile.  `patient`: what may work
    later is tried until it does.  Of a stage, `once`: for the whole server, not for each
    volume; `side`: whether it works on what the server has, or on what it is to have; `of`: only
    where that is on this host, of two.
    """

    name: str
    pivot: str | None
    exclusive: bool
    patient: bool
    summary: str
    stages: list[dict[str, Any]]


class FlowsShown(Shown):
    flows: list[FlowShown]
