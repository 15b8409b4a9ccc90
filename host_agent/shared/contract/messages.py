"""The messages between ledger and host agents, as a published contract.

Both sides import this module and nothing else of each other's protocol, so that
either can be upgraded first.

A *command* is a contiguous run of host steps of one lane (one volume of one server).
The agent runs the steps in order under one shared-target lock, and sends their results together in
a *report*; the first failed step ends the run.  It is always safe to run a command again, because
every verb looks before it acts.

Each type is a message or a part of one, with its limits; `wire` reads and writes its JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.spans import REQUEST_ID, REQUESTS_MAX, Span, span_of_run
from host_agent.shared.contract.wire import Bytes, Id, Number, Run, Word, form, refers_to

#: Raised whenever agents gain an ability that a ledger must know of before it relies on it.
SERVICE_VERSION = 1
#: A header of each call: the agent's id (Locks.place).
AGENT_HEADER = "X-Ledger-Agent"
#: A header of a poll: the token of the last survey request that the agent has received.
SURVEY_HEADER = "X-Ledger-Survey"
#: A header of a registration: "EPOCH POSITION", the last that the ledger has sent.  A ledger whose
#: log is shorter was restored from an older backup.
TOLD_HEADER = "X-Ledger-Told"
#: The keys of os-brick's connector by which storage knows a host.
CONNECTOR_KEYS = ("host", "ip", "initiator", "nqn")
#: The URIs of other hosts' libvirt.  No query, which could name a command to run (`?command=`); no
#: host that begins with "-", which ssh would take as an option.
_MIGRATION_URI = (
    r"qemu\+(tls|tcp|ssh)://([A-Za-z0-9_.-]+@)?([A-Za-z0-9][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])"
    r"(:[0-9]{1,5})?/system|simulated:[A-Za-z0-9_.:/+@-]{0,512}"
)
MIGRATION_URI = re.compile(rf"({_MIGRATION_URI})\Z")
_ADDRESS = r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,254}|\[[0-9A-Fa-f:.]{1,45}\])?"
#: Results in one report: the steps of the longest run.
RESULTS_MAX = 64
GUESTS_MAX = 10_000
CONNECTIONS_MAX = 100_000
DEVICES_MAX = 1_000  # of a guest
CAPABILITIES_MAX = 64
NAME_CHARS_MAX = 255


class Verb(StrEnum):
    """What a host step does.  Names never change, because stored plans have them."""

    ATTACHMENT_UPDATE = "attachment_update"  # Cinder: give it this host's connector
    VOLUME_WAIT_READY = "volume_wait_ready"  # Cinder: until provisioned, service_uuid set
    VOLUME_CONNECT = "volume_connect"  # os-brick
    DISK_PLUG = "disk_plug"  # libvirt, live and persistent
    ATTACHMENT_COMPLETE = "attachment_complete"  # Cinder
    DISK_UNPLUG = "disk_unplug"  # libvirt, live and persistent
    VOLUME_DISCONNECT = "volume_disconnect"  # os-brick
    ATTACHMENT_DELETE = "attachment_delete"  # Cinder
    ATTACHMENT_CREATE = "attachment_create"  # Cinder: one of its own, with this host's connector
    ATTACHMENT_CONVERT = "attachment_convert"  # Cinder: from the old calls to the new ones
    ATTACHMENT_REFRESH = "attachment_refresh"  # Cinder: a fresh connection for the same host
    DISK_REPLACE = "disk_replace"  # libvirt: the definition follows a refreshed connection
    DISK_GROW = "disk_grow"  # os-brick, libvirt: host and guest see a volume's new size
    DISK_COPY = "disk_copy"  # libvirt: mirror to the other volume, then switch to it
    DISK_COPY_ABORT = "disk_copy_abort"  # libvirt: stay on the old volume, if it still is
    DISK_SNAPSHOT = "disk_snapshot"  # libvirt: the guest writes to the file above its present one
    DISK_SNAPSHOT_REVERT = "disk_snapshot_revert"  # libvirt: back to the file below, with its data
    DISK_FOLLOW = "disk_follow"  # libvirt, records: update the definition after a snapshot
    DISK_MERGE = "disk_merge"  # libvirt: merge one file of the disk into another
    DISK_MERGE_ABORT = "disk_merge_abort"  # libvirt: abort that, if it is still in progress
    GUEST_SPAWN = "guest_spawn"  # libvirt: define with these disks, start if requested
    GUEST_START = "guest_start"  # libvirt: start it as it is defined, if it should run
    GUEST_STOP = "guest_stop"  # libvirt: shut down, then by force
    GUEST_PAUSE = "guest_pause"  # libvirt
    GUEST_RESUME = "guest_resume"  # libvirt
    GUEST_REMOVE = "guest_remove"  # libvirt: power off and undefine
    GUEST_MIGRATE = "guest_migrate"  # libvirt: live, to another host
    GUEST_STAY = "guest_stay"  # libvirt: abort a migration, if it is not too late
    GUEST_FIND = "guest_find"  # libvirt: whether a migration from a fenced source has arrived
    DRIFT_LOOK = "drift_look"  # what this host has of a volume and a server; changes nothing
    DISK_VERIFY = "disk_verify"  # libvirt: the guest's disk is the one that was connected
    CONNECTION_RELEASE = "connection_release"  # os-brick, by the host's own record alone
    SECRET_DROP = "secret_drop"  # noqa: S105 - libvirt: of a volume that is not on this host


class ErrorKind(StrEnum):
    """What a failure says about the effect."""

    RETRYABLE = "retryable"  # it did not happen, and may work later
    FINAL = "final"  # it did not happen, and will not
    UNKNOWN = "unknown"  # it may have happened: look first


class PowerState(StrEnum):
    """Power state of a guest, from the hypervisor."""

    RUNNING = "running"
    PAUSED = "paused"
    SHUTDOWN = "shutdown"
    CRASHED = "crashed"
    NOSTATE = "nostate"  # the hypervisor does not have the guest


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestOrder:
    """A whole server in a command: its guest, and the disks of all its volumes.

    `definition` is the guest without its volumes (see Guest).  `destination` is where a live
    migration goes: {"host": ..., "uri": ..., "address": ...}, from that host's Registration.
    """

    server_id: str
    lanes: tuple[Lane, ...] = ()
    definition: str | None = None
    running: bool = True  # whether the guest should run afterwards
    force: bool = False  # for a stop: power off without a shutdown
    destination: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandStep:
    """One step of a command: `name` is unique in the plan, `verb` says what to do.

    `durable`: its result must be delivered before the next step begins.
    """

    name: str
    verb: Verb
    durable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A run of steps on one host, for one lane or (`guest`) for a whole server.

    `position` is the place of the intent in the ledger's log: a host gets its commands in this
    order, and the highest position seen is the cursor of its polls.  `epoch` is the host's epoch at
    that time; an agent of a later epoch refuses the command, and the ledger refuses its reports.

    To cancel a run, the ledger sends it again with `cancel`: the present step is aborted, if that
    is still possible; else nothing changes.

    `first`: no earlier run had any of these steps, so there is nothing left of one.  Whether this
    run itself was begun before, by an agent process that died, its host knows.
    """

    operation_id: str
    run: int  # number of the run within the operation
    position: int
    epoch: int
    request_id: str
    flow: str
    steps: Annotated[tuple[CommandStep, ...], Meta(min_length=1)]
    lane: Lane | None = None
    guest: GuestOrder | None = None
    cancel: bool = False
    first: bool = False
    traceparent: str | None = None  # of the run (shared.platform.tracing)

    def __post_init__(self) -> None:
        if (self.lane is None) == (self.guest is None):
            raise ValueError("a command is for either a 'lane' or a 'guest'")

    @property
    def id(self) -> str:
        return f"{self.operation_id}/{self.run}"

    @property
    def span(self) -> Span:
        """The run's span, the parent of its steps' spans."""
        return Span.parse(self.traceparent) or span_of_run(self.operation_id, None, self.run)

    def seeing(self, now: float | None) -> Command:
        """With only the fresh `seen` of its lanes (Lane.seeing)."""
        lane = self.lane and self.lane.seeing(now)
        guest = self.guest and replace(
            self.guest, lanes=tuple(each.seeing(now) for each in self.guest.lanes)
        )
        return replace(self, lane=lane, guest=guest)

    @property
    def server_id(self) -> str:
        order = self.lane or self.guest
        assert order is not None, "Command has seen to it"
        return order.server_id


@dataclass(frozen=True, kw_only=True, slots=True)
class StepError:
    """Why a step failed.  `code` is stable and for machines, `message` for people."""

    kind: ErrorKind
    code: Word
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurred:
    """When something happened by its host's clock, and how far that clock was off.

    `at`: seconds since the epoch.  At that moment the clock was `offset_s` ahead of the ledger's
    (the database's), as measured by the agent, plus or minus `error_s`.  So by the ledger's clock
    it was at `at - offset_s`.
    """

    at: float
    offset_s: float
    error_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of one step.  Success if `error` is None; then `outputs` are facts.

    `occurred`: when it ended; None: unknown.  `cinder_requests`: the request ids of Cinder for the
    step's changes.
    """

    step: Word
    took_ms: Number
    #: From an agent: the fields of `outputs.Outputs`; others are dropped.
    outputs: Annotated[dict[str, Any], refers_to("Outputs")] = field(default_factory=dict)
    error: StepError | None = None
    occurred: Occurred | None = None
    cinder_requests: Annotated[
        tuple[Annotated[str, form(REQUEST_ID)], ...], Meta(max_length=REQUESTS_MAX)
    ] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Results of consecutive steps of a run, in order; only the last may be a failure.

    `further`: an earlier agent process may have begun later steps, and died before its report.
    `guest`: the guest that the run has changed, as it is now, without its unchanged definition.
    """

    operation_id: Id
    run: Run
    epoch: Number
    results: Annotated[tuple[StepResult, ...], Meta(min_length=1, max_length=RESULTS_MAX)]
    further: bool = False
    guest: Guest | None = None

    def __post_init__(self) -> None:
        if any(result.error for result in self.results[:-1]):
            raise ValueError("'results' go on after a failed step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """The answer to a report: whether the run continues, and how many results were stored.

    `shown`: its guest was stored, too, and need not be sent again.
    """

    goes_on: bool
    taken: int
    shown: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a long step of a run has come."""

    operation_id: Id
    run: Run
    done_bytes: Bytes
    total_bytes: Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Users:
    """Servers that have the volume connected on the host by other attachments."""

    servers: tuple[Id, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyWanted:
    """A request for a survey; `digest`: of the last one that the ledger has."""

    token: Id
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Commands:
    """Commands in order; `after` is the cursor for the next poll.

    Each is a Command, and read separately, so that one that cannot be read does not block others.
    """

    commands: list[Annotated[dict[str, Any], refers_to("Command")]]
    after: int
    survey: SurveyWanted | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Guest:
    """A guest as the hypervisor shows it; `devices` are its disk targets ("vda", ...).

    `volumes` are the serials of its disks that are ids: of the volume, or of the volume that the
    disk had first.  `definition` is what any host needs to define this guest: its inactive domain
    XML without the disks of volumes, and without what only this host can know (hypervisor type,
    emulator, addresses, security labels).
    """

    server_id: Id
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
    power_state: PowerState
    devices: Annotated[tuple[Word, ...], Meta(max_length=DEVICES_MAX)] = ()
    volumes: Annotated[tuple[Id, ...], Meta(max_length=DEVICES_MAX)] = ()
    project_id: Word | None = None
    user_id: Word | None = None
    definition: str | None = None


class Migration(TypedDict):
    """How a host receives live migrations: its libvirt's URI, and the address for memory."""

    uri: Annotated[str, form(_MIGRATION_URI)]
    address: Annotated[str, form(_ADDRESS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What an agent sends when it (re)connects: its abilities, and what the host has.

    `capabilities` are named booleans ("multiattach", "tag"), lists ("drivers") and, for a host that
    can receive live migrations, "migration".
    `guests` is the whole inventory: a guest that is not in it is not on the host.
    `connections` are the attachments of the host's connection records.
    `connector` has the CONNECTOR_KEYS of os-brick's connector.
    """

    service_version: Number
    capabilities: Annotated[
        dict[Word, bool | Annotated[list[Word], Meta(max_length=CAPABILITIES_MAX)] | Migration],
        Meta(max_length=CAPABILITIES_MAX),
    ]
    guests: Annotated[tuple[Guest, ...], Meta(max_length=GUESTS_MAX)]
    connections: Annotated[tuple[Id, ...], Meta(max_length=CONNECTIONS_MAX)] = ()
    connector: dict[str, Annotated[str, form("[A-Za-z0-9][A-Za-z0-9_.:-]{0,254}")]] | None = None

    def __post_init__(self) -> None:
        for name, value in self.capabilities.items():
            if isinstance(value, dict) != (name == "migration"):
                raise ValueError(f"{name!r} is no capability of this form")


@dataclass(frozen=True, slots=True)
class Release:
    """Leftovers of a host that was fenced: servers and attachments, by their ids.

    `unknown`: its records of attachments that the ledger does not know.  They stay, but do not
    justify a disk.
    """

    guests: tuple[Id, ...] = ()
    attachments: tuple[Id, ...] = ()
    unknown: tuple[Id, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.guests or self.attachments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """The answer to a registration.

    `release`: the leftovers that the host must clear before it gets any command; `again`: the
    inventory must be sent again, because a flow is changing part of it; `position`: the end of the
    log, so that commands after it were never sent before.
    """

    host: str
    epoch: int
    fenced: bool
    release: Release
    again: bool
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Whether all must be sent again: an inventory, because a flow is changing part of it; a
    survey, because the ledger does not have the one with its digest.
    """

    again: bool
