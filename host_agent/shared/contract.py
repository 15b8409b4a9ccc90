"""The published language between ledger and host agents.

Both sides import this module and nothing else of each other's protocol, so that
either can be upgraded first.

A *command* is a contiguous run of host steps of one lane (one volume of one server).
The agent runs the steps in order under one shared-target lock.  Their results travel
together in a *report*; the first failed step ends the run.  Running a command again is
always right: every verb looks before it acts.

All wire forms are plain JSON objects; `to_wire`/`from_wire` convert.  Unknown
keys are ignored on reading (the other side may be newer), missing ones are an
error that names the key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

from host_agent.shared.lane import Lane
from host_agent.shared.spans import REQUESTS_MAX, Span, is_request_id, span_of_run
from host_agent.shared.wire import WireError, may, take

E = TypeVar("E", bound=StrEnum)

#: Raised whenever agents learn something a ledger must know before it relies on it.
SERVICE_VERSION = 1
#: A call's header, in which an agent says which one it is: a place in which only one runs.
AGENT_HEADER = "X-Ledger-Agent"
#: The same of a poll: the token of the last question for a survey that its agent has got.
SURVEY_HEADER = "X-Ledger-Survey"
#: What storage knows a host by, of the connector that os-brick makes.
CONNECTOR_KEYS = ("host", "ip", "initiator", "nqn")
#: Where another host's libvirt may be.  A query could name a command to run (`?command=`), and a
#: host that begins with "-" an option of ssh.
MIGRATION_URI = re.compile(
    r"(qemu\+(tls|tcp|ssh)://([\w.-]+@)?([A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?/system"
    r"|simulated:[\w.:/+@-]{0,512})\Z",
    re.ASCII,
)
#: Results of one report: the steps of the longest run.
RESULTS_MAX = 64


class Verb(StrEnum):
    """What a host step does.  Names are stable for ever: plans outlive deployments."""

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
    DISK_FOLLOW = "disk_follow"  # libvirt, records: what a snapshot left is what Cinder tells
    DISK_MERGE = "disk_merge"  # libvirt: put the data of one file of the disk into another
    DISK_MERGE_ABORT = "disk_merge_abort"  # libvirt: end that, if it still is under way
    GUEST_SPAWN = "guest_spawn"  # libvirt: define with these disks, run if wanted
    GUEST_START = "guest_start"  # libvirt: run it again as it is defined, if it shall run
    GUEST_STOP = "guest_stop"  # libvirt: shut down, by force if it must be
    GUEST_PAUSE = "guest_pause"  # libvirt
    GUEST_RESUME = "guest_resume"  # libvirt
    GUEST_REMOVE = "guest_remove"  # libvirt: power off and undefine
    GUEST_MIGRATE = "guest_migrate"  # libvirt: live, to another host
    GUEST_STAY = "guest_stay"  # libvirt: end a migration, if it is not too late
    GUEST_FIND = "guest_find"  # libvirt: whether a migration has brought it; its source is dead
    DRIFT_LOOK = "drift_look"  # what this host has of a volume and a server; changes nothing
    DISK_VERIFY = "disk_verify"  # libvirt: the guest's disk is the one that was connected
    CONNECTION_RELEASE = "connection_release"  # os-brick, by the host's own record alone
    SECRET_DROP = "secret_drop"  # noqa: S105 - libvirt: of a volume that is not on this host


class ErrorKind(StrEnum):
    """What a failure says about the world, and so what may be done next."""

    RETRYABLE = "retryable"  # did not happen, may work later
    FINAL = "final"  # did not happen, will not
    UNKNOWN = "unknown"  # may have happened: look before you act


class PowerState(StrEnum):
    """Power state of a guest as the hypervisor tells it."""

    RUNNING = "running"
    PAUSED = "paused"
    SHUTDOWN = "shutdown"
    CRASHED = "crashed"
    NOSTATE = "nostate"  # the hypervisor does not know the guest (any more)


def _choice(kinds: type[E], value: str, what: str) -> E:
    try:
        return kinds(value)
    except ValueError:
        raise WireError(
            f"{what} {value!r} is not known to service version {SERVICE_VERSION}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class GuestOrder:
    """What is to be done with a whole server: its guest, and all its volumes' disks.

    `definition` is the guest without its volumes (see Guest).  `destination` is where a
    live migration goes: {"host": ..., "uri": ..., "address": ...}, as that host's agent
    told of itself (see Registration).
    """

    server_id: str
    lanes: tuple[Lane, ...] = ()
    definition: str | None = None
    running: bool = True  # whether it shall run afterwards
    force: bool = False  # stop: do not ask the guest first
    destination: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        return {**vars(self), "lanes": [lane.to_wire() for lane in self.lanes]}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            server_id=take(data, "server_id", str),
            lanes=tuple(Lane.from_wire(lane) for lane in take(data, "lanes", list)),
            definition=may(data, "definition", str),
            running=take(data, "running", bool),
            force=take(data, "force", bool),
            destination=may(data, "destination", dict),
        )


@dataclass(frozen=True, kw_only=True)
class CommandStep:
    """One step of a command: `name` is unique in the plan, `verb` says what to do.

    `durable`: the ledger has its result before the next step begins; so if it is not said.
    """

    name: str
    verb: Verb
    durable: bool = True

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "verb": self.verb.value, "durable": self.durable}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        verb = _choice(Verb, take(data, "verb", str), "verb")
        durable = may(data, "durable", bool) is not False
        return cls(name=take(data, "name", str), verb=verb, durable=durable)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A run of steps on one host, for one lane or (`guest`) for a whole server.

    `position` is the place of the intent in the ledger's log: commands of a host
    are handed out in this order, and the highest one seen is the cursor to
    subscribe from.  `epoch` is the host's epoch when the command was given; an
    agent that was fenced since refuses it, and the ledger refuses its reports.

    A run that somebody wants to be undone is handed out again with `cancel`: the step
    that is under way shall end, undone, if that is still possible; else nothing changes.
    """

    operation_id: str
    run: int  # number of the run within the operation
    position: int
    epoch: int
    request_id: str
    flow: str
    steps: tuple[CommandStep, ...]
    lane: Lane | None = None
    guest: GuestOrder | None = None
    cancel: bool = False
    traceparent: str | None = None  # of the run (shared.tracing)

    @property
    def id(self) -> str:
        return f"{self.operation_id}/{self.run}"

    @property
    def span(self) -> Span:
        """The run's; its steps' are its children."""
        return Span.parse(self.traceparent) or span_of_run(self.operation_id, None, self.run)

    @property
    def server_id(self) -> str:
        order = self.lane or self.guest
        assert order is not None, "from_wire has seen to it"
        return order.server_id

    def to_wire(self) -> dict[str, Any]:
        return {
            **vars(self),
            "lane": self.lane.to_wire() if self.lane else None,
            "guest": self.guest.to_wire() if self.guest else None,
            "steps": [step.to_wire() for step in self.steps],
        }

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        lane, guest = may(data, "lane", dict), may(data, "guest", dict)
        if (lane is None) == (guest is None):
            raise WireError("a command is for either a 'lane' or a 'guest'")
        return cls(
            operation_id=take(data, "operation_id", str),
            run=take(data, "run", int),
            position=take(data, "position", int),
            epoch=take(data, "epoch", int),
            request_id=take(data, "request_id", str),
            flow=take(data, "flow", str),
            lane=Lane.from_wire(lane) if lane else None,
            guest=GuestOrder.from_wire(guest) if guest else None,
            cancel=bool(may(data, "cancel", bool)),
            traceparent=may(data, "traceparent", str),
            steps=tuple(CommandStep.from_wire(step) for step in take(data, "steps", list)),
        )


@dataclass(frozen=True, kw_only=True)
class StepError:
    """Why a step failed.  `code` is stable and for machines, `message` for people."""

    kind: ErrorKind
    code: str
    message: str

    def to_wire(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "code": self.code, "message": self.message}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            kind=_choice(ErrorKind, take(data, "kind", str), "error kind"),
            code=take(data, "code", str),
            message=take(data, "message", str),
        )


@dataclass(frozen=True, kw_only=True)
class Occurred:
    """When something was by the clock of the host where it was, and how right that clock was.

    `at`: seconds since the epoch.  At that moment the clock was `offset_s` ahead of the ledger's
    (the database's), as its agent has measured it, give or take `error_s`.  So it was at
    `at - offset_s`, however wrong the clock is.
    """

    at: float
    offset_s: float
    error_s: float

    def to_wire(self) -> dict[str, float]:
        return dict(vars(self))

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(**{name: float(take(data, name, (int, float))) for name in _OCCURRED})


_OCCURRED = ("at", "offset_s", "error_s")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of one step.  Success if `error` is None; then `outputs` are facts.

    `occurred`: when it ended; None: the agent could not know.  `cinder_requests`:
    the ids that Cinder gave to the requests in which it was asked to change something.

    Outputs a ledger understands, by verb (all optional, all free of secrets):
    `attachment_update`: driver, target_digest, access_mode, connector_host (whose connector
    Cinder was given, if it was); `attachment_create`: these and attachment_id;
    `attachment_delete`: ended, others that nobody knew and that went with it, their ids with
    the volume's; `volume_connect`: device_path, access_mode, disk (see Lane);
    `disk_plug`: device_name, bus; `volume_disconnect`: shared (another server of this host still
    uses the connection); the undo of a pivot: passed (it is too late, it has happened);
    `guest_spawn`, `guest_stop`, `guest_pause`, `guest_resume`: power_state; `drift_look`: shown
    (see verbs.drift); `connection_release`: shared; `disk_grow`: size_bytes (what the guest has;
    absent: it does not run with the disk).
    """

    step: str
    took_ms: int
    outputs: dict[str, Any] = field(default_factory=dict)
    error: StepError | None = None
    occurred: Occurred | None = None
    cinder_requests: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            **vars(self),
            "error": self.error.to_wire() if self.error else None,
            "occurred": self.occurred.to_wire() if self.occurred else None,
            "cinder_requests": list(self.cinder_requests),
        }

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        error = take(data, "error", (dict, type(None)))
        occurred = may(data, "occurred", dict)
        return cls(
            step=take(data, "step", str),
            took_ms=take(data, "took_ms", int),
            outputs=take(data, "outputs", dict),
            error=StepError.from_wire(error) if error is not None else None,
            occurred=Occurred.from_wire(occurred) if occurred is not None else None,
            cinder_requests=_request_ids(may(data, "cinder_requests", list) or []),
        )


def _request_ids(ids: list[Any]) -> tuple[str, ...]:
    if len(ids) > REQUESTS_MAX or not all(isinstance(o, str) and is_request_id(o) for o in ids):
        raise WireError("'cinder_requests' is too long, or holds something that is no request's id")
    return tuple(ids)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of consecutive steps of a run, in order; only the last may be a failure.

    `further`: later steps may have been begun, by an agent that died before it said so.
    On the wire the first result stands beside the ids, the others are in "more".
    """

    operation_id: str
    run: int
    epoch: int
    results: tuple[StepResult, ...]
    further: bool = False

    def to_wire(self) -> dict[str, Any]:
        first, *more = [result.to_wire() for result in self.results]
        own = {name: value for name, value in vars(self).items() if name != "results"}
        return {**own, **first, "more": more}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        more = may(data, "more", list) or []
        results = tuple(map(StepResult.from_wire, (data, *more[:RESULTS_MAX])))
        if len(results) > RESULTS_MAX or any(result.error for result in results[:-1]):
            raise WireError("'more' is too long, or goes on after a failed step")
        return cls(
            operation_id=take(data, "operation_id", str),
            run=take(data, "run", int),
            epoch=take(data, "epoch", int),
            results=results,
            further=bool(may(data, "further", bool)),
        )


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A guest as the hypervisor shows it; `devices` are its disk targets ("vda", ...).

    `volumes` are the serials of its disks that are ids: a disk of a volume has the volume's, or
    that of the volume it was attached with.
    `definition` is what a host needs to define this guest anew: its inactive domain XML
    without the disks of volumes, and without what only this host can know (hypervisor
    type, emulator, addresses, security labels).
    """

    server_id: str
    name: str
    power_state: PowerState
    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    project_id: str | None = None
    user_id: str | None = None
    definition: str | None = None

    def to_wire(self) -> dict[str, Any]:
        lists = {"devices": list(self.devices), "volumes": list(self.volumes)}
        return {**vars(self), "power_state": self.power_state.value, **lists}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        devices, volumes = take(data, "devices", list), may(data, "volumes", list) or []
        if not all(isinstance(name, str) for name in (*devices, *volumes)):
            raise WireError("'devices' or 'volumes' holds something that is no string")
        return cls(
            server_id=take(data, "server_id", str),
            name=take(data, "name", str),
            power_state=_choice(PowerState, take(data, "power_state", str), "power state"),
            devices=tuple(devices),
            volumes=tuple(volumes),
            project_id=take(data, "project_id", (str, type(None))),
            user_id=take(data, "user_id", (str, type(None))),
            definition=may(data, "definition", str),
        )


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What an agent says when it (re)connects: who it is, what it can, what runs here.

    `capabilities` are named booleans ("multiattach", "tag"), lists ("drivers") and, of a
    host that can receive live migrations, "migration": {"uri": ..., "address": ...}.
    `guests` is the whole inventory: a guest that is not in it is not on the host.
    `connections` are the attachments that this host may have connected, by its own
    records, which it keeps to be able to disconnect what Cinder has forgotten.
    `connector` is what storage knows this host by, of os-brick's: CONNECTOR_KEYS.
    """

    service_version: int
    capabilities: dict[str, Any]
    guests: tuple[Guest, ...]
    connections: tuple[str, ...] = ()
    connector: dict[str, str] | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            **vars(self),
            "guests": [guest.to_wire() for guest in self.guests],
            "connections": list(self.connections),
        }

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            service_version=take(data, "service_version", int),
            capabilities=take(data, "capabilities", dict),
            guests=tuple(Guest.from_wire(guest) for guest in take(data, "guests", list)),
            connections=tuple(may(data, "connections", list) or ()),
            connector=may(data, "connector", dict),
        )
