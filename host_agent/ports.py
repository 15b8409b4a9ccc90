"""What the agent's verbs need of the world: storage control, host storage, hypervisor.

Each port has a real adapter and a simulated one, and one set of contract tests
holds both to the same behaviour.  All calls block (os-brick, libvirt and
cinderclient do) and are made from worker threads.

Errors: every port raises `PortError` with one of the contract's three kinds and
nothing else; adapters map what their library raises.  A time-out is UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from host_agent.contract import ErrorKind, StepError
from host_agent.contract import Guest as GuestSeen

#: Cinder's connection information.  Holds secrets: never logged, stored or reported.
ConnectionInfo = dict[str, Any]


class PortError(Exception):
    """A call to Cinder, os-brick or libvirt failed; `kind` says what that means."""

    def __init__(self, kind: ErrorKind, code: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message

    def as_step_error(self) -> StepError:
        return StepError(kind=self.kind, code=self.code, message=self.message)


@dataclass(frozen=True, kw_only=True)
class VolumeView:
    """A volume as Cinder shows it at microversion 3.69 or better.

    `shared_targets`: True and None mean take the target lock, False means none
    is needed (S3; os-brick 1800515, cinder LP 1961102: null means "always").
    `service_uuid` is the lock's name; a volume may be `available` before it is set.
    """

    id: str
    status: str
    size_gb: int
    multiattach: bool
    shared_targets: bool | None
    service_uuid: str | None
    bootable: bool
    encrypted: bool
    availability_zone: str | None
    project_id: str | None
    name: str | None
    migration_status: str | None


@dataclass(frozen=True, kw_only=True)
class AttachmentView:
    """A Cinder attachment.  `connection_info` is empty until a connector was given."""

    id: str
    volume_id: str
    server_id: str | None
    status: str  # reserved, attaching, attached, detached, error_attaching, ...
    connection_info: ConnectionInfo

    def __repr__(self) -> str:  # connection_info holds secrets: never show it
        return f"AttachmentView({self.id}, {self.status}, connected={bool(self.connection_info)})"


class Cinder(Protocol):
    """The part of the Block Storage API v3 (>= 3.44) that the flows use."""

    def volume(self, volume_id: str) -> VolumeView: ...
    def attachment(self, attachment_id: str) -> AttachmentView: ...
    def attachments(self, volume_id: str, server_id: str) -> list[AttachmentView]: ...
    def attachment_create(
        self, volume_id: str, server_id: str, connector: dict[str, Any] | None = None
    ) -> AttachmentView: ...
    def attachment_update(
        self, attachment_id: str, connector: dict[str, Any]
    ) -> AttachmentView: ...
    def attachment_complete(self, attachment_id: str) -> None: ...
    def attachment_delete(self, attachment_id: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk for a guest: where its data is and how the guest shall see it.

    `source` is one of {"type": "block"|"file", "path": ...} or {"type":
    "network", "protocol": "rbd", "name": ..., "hosts": [[host, port], ...],
    "auth": {"user": ..., "secret_uuid": ...} | None}.
    """

    volume_id: str  # also the disk's serial, as Nova sets it
    source: dict[str, Any]
    device_name: str  # target, e.g. "vdb" (virtio) or "sdb" (scsi)
    bus: str  # "virtio" or "scsi"
    format: str = "raw"
    shareable: bool = False
    discard: bool = False
    readonly: bool = False  # the attachment's access_mode is "ro"
    cache: str = "none"
    tag: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiskState:
    """Where a volume's disk is in a guest: None means not there."""

    live: str | None  # target name in the running guest
    persistent: str | None  # target name in the guest's definition
    running: bool  # whether there is a live guest at all


class Brick(Protocol):
    """Host storage: os-brick."""

    def connector(self) -> dict[str, Any]:
        """This host's connector properties, as Cinder's update wants them."""

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        """Make the volume visible on this host; again if it already is.

        Returns the `source` of a Disk (see there), plus "format".
        """

    def disconnect(self, info: ConnectionInfo) -> None:
        """Flush and remove the volume from this host; nothing to do is success.

        A failed flush is an error, never a success (os-brick LP 1502534).
        """


class Guests(Protocol):
    """The hypervisor: libvirt."""

    def inventory(self) -> list[GuestSeen]: ...

    def disk(self, server_id: str, volume_id: str) -> DiskState:
        """Where this volume's disk is, judged by its serial in the XML re-read now."""

    def users(self, volume_id: str) -> list[str]:
        """The servers on this host with a disk of this volume, live or persistent."""

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        """Attach where it is missing: persistent definition, and live if running."""

    def unplug(self, server_id: str, volume_id: str) -> DiskState:
        """Detach where it is present; returns when both copies agree.

        Success is judged by the device-removed event plus the XML re-read, never by
        the return code.  FINAL `guest_refused` if the guest keeps the device after
        all attempts: then the persistent definition has it (again) as well.
        A missing disk, or a missing domain, is success (LP 1727260).
        """
