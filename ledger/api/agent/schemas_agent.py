"""What agents send, for the OpenAPI document alone: `host_agent.shared.contract` is what reads it.

A test holds that both know the same keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from host_agent.shared.contract import RESULTS_MAX, ErrorKind, PowerState
from host_agent.shared.spans import REQUESTS_MAX
from ledger.api.agent.survey_checks import BYTES_MAX, DIFFERS_MAX
from ledger.api.schemas import POSITION_MAX, Asked, Id, Leftovers, Position, Shown, WaitS

_NUMBER_MAX = 2**31 - 1

Number = Annotated[int, Field(ge=0, le=_NUMBER_MAX)]
Bytes = Annotated[int, Field(ge=0, le=BYTES_MAX)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]


class FromAgent(BaseModel):
    """Unknown keys are ignored: the agent may be newer."""

    model_config = ConfigDict(extra="ignore")


class GuestBody(FromAgent):
    server_id: Id
    name: Annotated[str, Field(max_length=255)]
    power_state: PowerState
    devices: list[Word]
    volumes: list[Id] = []
    project_id: Word | None
    user_id: Word | None
    definition: Annotated[str, Field(max_length=64 * 1024, pattern="^<domain")] | None = None


class MigrationBody(FromAgent):
    """The capability "migration": where libvirt is, and where memory is sent."""

    model_config = ConfigDict(extra="forbid")

    uri: str
    address: str


class RegistrationBody(FromAgent):
    """The agent and the whole inventory of its host."""

    service_version: Number
    capabilities: dict[Word, bool | list[Word] | MigrationBody]
    guests: list[GuestBody]
    connections: list[Id] = []
    connector: dict[str, str] | None = None


class ChangesBody(FromAgent):
    """Guests that have changed, or are gone, since this epoch's agent showed them last."""

    epoch: Number
    guests: list[GuestBody]
    gone: list[Id]


class DiskShownBody(FromAgent):
    """A volume's disk; None: it is not in that copy of the guest."""

    serial: Id
    live: Word | None
    persistent: Word | None
    readonly_live: bool | None = None
    readonly_persistent: bool | None = None
    source: str | None = None
    differs: Annotated[list[Word], Field(max_length=DIFFERS_MAX)] = []
    recorded: bool | None = None
    size_bytes: Bytes | None = None
    device_bytes: Bytes | None = None


class UnlabelledShownBody(FromAgent):
    """A disk that has no volume's serial, and a volume's source."""

    target: Word
    source: str
    volume_id: Id


class GuestShownBody(FromAgent):
    server_id: Id
    power_state: PowerState
    defined: bool = True
    disks: list[DiskShownBody]
    unlabelled: list[UnlabelledShownBody] | None = None


class ConnectionShownBody(FromAgent):
    """A record of what the host has connected."""

    attachment_id: Id
    volume_id: Id
    server_id: Id
    serial: Id
    present: bool | None = None
    used: bool | None = None


class StorageShownBody(FromAgent):
    """A session, subsystem, map, mount or loop device."""

    kind: Word
    name: str
    recorded: bool
    used: bool
    faulty: bool = False


class SurveyBody(FromAgent):
    """What a host shows: all but the first three, or none, if it is the survey of that digest."""

    token: Id
    epoch: Number
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    boot_id: Word | None = None
    guests: list[GuestShownBody] = []
    connections: list[ConnectionShownBody] = []
    storage: list[StorageShownBody] = []
    secrets: list[Id] = []
    blind: list[Literal["guests", "connections", "storage", "secrets"]] = []
    why_blind: list[str] = []


class SurveyAgain(BaseModel):
    """Whether the whole survey is wanted, because that of its digest is not here."""

    again: bool


class Again(BaseModel):
    """Whether the inventory is to be sent again, because a flow is changing part of it."""

    again: bool


class StepErrorBody(FromAgent):
    kind: ErrorKind
    code: Word
    message: str


class OccurredBody(FromAgent):
    """When it was by the host's clock (seconds since the epoch), which was then `offset_s` ahead of
    the ledger's, give or take `error_s`.
    """

    at: float
    offset_s: float
    error_s: float


class ResultBody(FromAgent):
    """The result of one step; `outputs` that the contract does not name are dropped."""

    step: Word
    took_ms: Number
    outputs: dict[str, Any]
    error: StepErrorBody | None
    occurred: OccurredBody | None = None
    cinder_requests: Annotated[list[str], Field(max_length=REQUESTS_MAX)] = []


class ReportBody(ResultBody):
    """The results of consecutive steps of a run: the first, and `more`.

    `further`: steps after these may have been begun by an agent that died.
    """

    operation_id: Id
    run: Annotated[int, Field(ge=1, le=_NUMBER_MAX)]
    epoch: Number
    more: Annotated[list[ResultBody], Field(max_length=RESULTS_MAX - 1)] = []
    further: bool = False


class Continue(BaseModel):
    """Whether the agent goes on with the run, and how many of the results were taken."""

    continue_: Annotated[bool, Field(alias="continue")]
    taken: int


class CommandsQuery(Asked):
    after: Position = 0
    epoch: Position
    wait_s: WaitS = 0.0


class UsersQuery(Asked):
    """`attachment_id`: the one that is not meant."""

    attachment_id: Id


class ProgressBody(Asked):
    """How far a long step of a run has come."""

    model_config = ConfigDict(extra="ignore")

    operation_id: Id
    run: Annotated[int, Field(ge=1, le=2**31 - 1)]
    done_bytes: Annotated[int, Field(ge=0, le=POSITION_MAX)]
    total_bytes: Annotated[int, Field(ge=0, le=POSITION_MAX)]


class Release(Leftovers):
    """`unknown`: records of connections that explain no disk, and are not to be released."""

    unknown: list[UUID] = Field(default=[])


class Registered(Shown):
    """`release`: the leftovers that the host must release before it gets any command; `again`:
    the inventory is to be sent again, because a flow is changing part of it;
    `position`: where the log ended, so that commands after it were never given before.
    """

    host: str
    epoch: int
    fenced: bool
    release: Release
    again: bool
    position: int


class Users(Shown):
    """Servers that have the volume connected on the host by other attachments."""

    servers: list[UUID]


class SurveyWanted(Shown):
    """A survey that is wanted; `digest`: what the last one is called that is here."""

    token: UUID
    digest: str | None


class Commands(Shown):
    """Commands in order; `after` is the cursor for the next poll."""

    commands: list[dict[str, Any]]
    after: int
    survey: SurveyWanted | None = None
