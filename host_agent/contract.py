"""The published language between ledger and host agents.

Both sides import this module and nothing else of each other's protocol; it is
stdlib only, so that either side can be upgraded first.

A *command* is a contiguous run of host steps of one lane (one volume of one
server).  The agent runs the steps in order under one shared-target lock and
posts one *report* per step as it happens; the first failed step ends the run.
Running a command again is always right: every verb looks before it acts.

All wire forms are plain JSON objects; `to_wire`/`from_wire` convert.  Unknown
keys are ignored on reading (the other side may be newer), missing ones are an
error that names the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

E = TypeVar("E", bound=StrEnum)

#: Raised whenever agents learn something a ledger must know before it relies on it.
SERVICE_VERSION = 1


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


class WireError(ValueError):
    """The message does not have the form of the contract."""


def _take(data: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(data, dict) or name not in data:
        raise WireError(f"{name!r} is missing")
    if not isinstance(data[name], kind) or (isinstance(data[name], bool) and kind is int):
        raise WireError(f"{name!r} is a {type(data[name]).__name__}")
    return data[name]


def _choice(kinds: type[E], value: str, what: str) -> E:
    try:
        return kinds(value)
    except ValueError:
        raise WireError(
            f"{what} {value!r} is not known to service version {SERVICE_VERSION}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One volume of one server: everything a host needs to know about it.

    No secrets: connection information is fetched from Cinder by `attachment_id`.
    """

    server_id: str
    volume_id: str
    bdm_id: str
    attachment_id: str | None
    device_name: str | None  # without /dev/, e.g. "vdb"
    multiattach: bool = False
    tag: str | None = None
    boot_index: int | None = None
    delete_on_termination: bool = False

    def to_wire(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        text, optional = str, (str, type(None))
        return cls(
            server_id=_take(data, "server_id", text),
            volume_id=_take(data, "volume_id", text),
            bdm_id=_take(data, "bdm_id", text),
            attachment_id=_take(data, "attachment_id", optional),
            device_name=_take(data, "device_name", optional),
            multiattach=_take(data, "multiattach", bool),
            tag=_take(data, "tag", optional),
            boot_index=_take(data, "boot_index", (int, type(None))),
            delete_on_termination=_take(data, "delete_on_termination", bool),
        )


@dataclass(frozen=True, kw_only=True)
class CommandStep:
    """One step of a command: `name` is unique in the plan, `verb` says what to do."""

    name: str
    verb: Verb

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "verb": self.verb.value}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        verb = _choice(Verb, _take(data, "verb", str), "verb")
        return cls(name=_take(data, "name", str), verb=verb)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A run of steps for one lane on one host.

    `position` is the place of the intent in the ledger's log: commands of a host
    are handed out in this order, and the highest one seen is the cursor to
    subscribe from.  `epoch` is the host's epoch when the command was given; an
    agent that was fenced since refuses it, and the ledger refuses its reports.
    """

    operation_id: str
    run: int  # number of the run within the operation
    position: int
    epoch: int
    request_id: str
    flow: str
    lane: Lane
    steps: tuple[CommandStep, ...]

    @property
    def id(self) -> str:
        return f"{self.operation_id}/{self.run}"

    def to_wire(self) -> dict[str, Any]:
        return {
            **vars(self),
            "lane": self.lane.to_wire(),
            "steps": [step.to_wire() for step in self.steps],
        }

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            operation_id=_take(data, "operation_id", str),
            run=_take(data, "run", int),
            position=_take(data, "position", int),
            epoch=_take(data, "epoch", int),
            request_id=_take(data, "request_id", str),
            flow=_take(data, "flow", str),
            lane=Lane.from_wire(_take(data, "lane", dict)),
            steps=tuple(CommandStep.from_wire(step) for step in _take(data, "steps", list)),
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
            kind=_choice(ErrorKind, _take(data, "kind", str), "error kind"),
            code=_take(data, "code", str),
            message=_take(data, "message", str),
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one step.  Success if `error` is None; then `outputs` are facts.

    Outputs a ledger understands, by verb (all optional, all free of secrets):
    `attachment_update`: driver, target_digest; `volume_connect`: device_path;
    `disk_plug`: device_name, bus; `volume_disconnect`: shared (another guest of
    this host still uses the connection).
    """

    operation_id: str
    run: int
    epoch: int
    step: str
    took_ms: int
    outputs: dict[str, Any] = field(default_factory=dict)
    error: StepError | None = None

    def to_wire(self) -> dict[str, Any]:
        return {**vars(self), "error": self.error.to_wire() if self.error else None}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        error = _take(data, "error", (dict, type(None)))
        return cls(
            operation_id=_take(data, "operation_id", str),
            run=_take(data, "run", int),
            epoch=_take(data, "epoch", int),
            step=_take(data, "step", str),
            took_ms=_take(data, "took_ms", int),
            outputs=_take(data, "outputs", dict),
            error=StepError.from_wire(error) if error is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A guest as the hypervisor shows it; `devices` are its disk targets ("vda", ...)."""

    server_id: str
    name: str
    power_state: PowerState
    devices: tuple[str, ...] = ()
    project_id: str | None = None
    user_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {**vars(self), "power_state": self.power_state.value, "devices": list(self.devices)}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        devices = _take(data, "devices", list)
        if not all(isinstance(device, str) for device in devices):
            raise WireError("'devices' holds something that is no string")
        return cls(
            server_id=_take(data, "server_id", str),
            name=_take(data, "name", str),
            power_state=_choice(PowerState, _take(data, "power_state", str), "power state"),
            devices=tuple(devices),
            project_id=_take(data, "project_id", (str, type(None))),
            user_id=_take(data, "user_id", (str, type(None))),
        )


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What an agent says when it (re)connects: who it is, what it can, what runs here.

    `capabilities` are named booleans ("multiattach", "tag") and lists ("drivers").
    `guests` is the whole inventory: a guest that is not in it is not on the host.
    """

    service_version: int
    capabilities: dict[str, Any]
    guests: tuple[Guest, ...]

    def to_wire(self) -> dict[str, Any]:
        return {**vars(self), "guests": [guest.to_wire() for guest in self.guests]}

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            service_version=_take(data, "service_version", int),
            capabilities=_take(data, "capabilities", dict),
            guests=tuple(Guest.from_wire(guest) for guest in _take(data, "guests", list)),
        )
