"""The ports that the agent's verbs use: storage control, host storage, hypervisor.

Each port has a real adapter and a simulated one, and one set of contract tests
holds both to the same behaviour.  All calls block (os-brick, libvirt and
cinderclient do) and are made from worker threads.

Errors: every port raises `PortError` with one of the contract's three kinds and
nothing else; adapters map what their library raises.  A time-out is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from host_agent.shared.contract.messages import ErrorKind, PowerState, StepError
from host_agent.shared.contract.messages import Guest as GuestSeen
from host_agent.shared.contract.origin import UNTOLD, Dependents, Origin
from host_agent.shared.contract.survey import GuestsShown

#: Cinder's connection information.  Holds secrets: never logged, stored or reported.
ConnectionInfo = dict[str, Any]

GIB = 1 << 30  # Cinder's unit of size
#: How long, in seconds, Cinder may take to begin with a request whose sender is gone: a few rows
#: in its database.  Whoever may have such a request under way looks only after that.
LATE_S = 5.0


class PortError(Exception):
    """A call to Cinder, os-brick or libvirt failed; `kind` says what that means."""

    def __init__(self, kind: ErrorKind, code: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message

    def as_step_error(self) -> StepError:
        return StepError(kind=self.kind, code=self.code, message=self.message)


class OtherVolumeError(PortError):
    """What connecting returned is another volume by now.

    `device` is what a disconnect is given (Brick.connect), marked by OTHER.
    """

    OTHER = "other"

    def __init__(self, message: str, device: dict[str, Any]) -> None:
        super().__init__(ErrorKind.FINAL, "stale_device", message)
        self.device = {**device, self.OTHER: True}


@dataclass(frozen=True, kw_only=True)
class VolumeView:
    """A volume as Cinder shows it at the best microversion that both sides know.

    `shared_targets`: True and None mean take the target lock, False means none
    is needed (S3; os-brick 1800515, cinder LP 1961102: null means "always").
    `service_uuid` is the lock's name; a volume may be `available` before it is set.
    "" means that this Cinder (before 3.48) names no service: do not wait for it.
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
    readonly: bool  # its flag (os-update_readonly_flag), which makes every attachment read-only
    new_size_gb: int | None = None  # to have when `extending` ends, if Cinder waits for its guest
    image_id: str | None = None  # which was written to it last (volume_image_metadata)
    origin: Origin = UNTOLD


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    """A snapshot of a volume, as Cinder shows it."""

    id: str
    volume_id: str
    size_gb: int
    project_id: str | None
    status: str
    progress: str | None  # "90%" if Cinder was told that a guest has done its part


@dataclass(frozen=True, kw_only=True)
class AttachmentView:
    """A Cinder attachment.  `connection_info` is empty until a connector was given.

    `mode`: what it was asked for with, "rw" or "ro"; None: Cinder does not say.
    """

    id: str
    volume_id: str
    server_id: str | None
    status: str  # reserved, attaching, attached, detached, error_attaching, ...
    connection_info: ConnectionInfo
    mode: str | None = None

    @property
    def incomplete(self) -> bool:
        """Whether Cinder was never told that it is in use."""
        return self.status in {"reserved", "attaching", "error_attaching"}

    def __repr__(self) -> str:  # connection_info holds secrets: never show it
        return f"AttachmentView({self.id}, {self.status}, connected={bool(self.connection_info)})"


@dataclass(frozen=True, kw_only=True)
class Encryption:
    """How a volume is encrypted, as Cinder tells it; None and "" for one that is not."""

    provider: str | None  # "luks", "luks2", "plain", or the path of a class, as in early days
    key_id: str | None  # the key manager's
    cipher: str | None
    key_size: int | None


@dataclass(frozen=True, kw_only=True)
class OldAttachment:
    """A row of `volume.attachments`: what the old calls leave in Cinder."""

    id: str
    server_id: str
    host_name: str | None
    mountpoint: str | None = None  # the disk's name, without a directory


class Cinder(Protocol):
    """The part of the Block Storage API v3 that the flows use: from 3.44 on, and at the end the
    calls of before, S1's old flow, which are all actions of a volume.
    """

    def new_flow(self) -> bool:
        """Whether Cinder offers v3 >= 3.44; without it only volumes and the old calls work."""

    def reimages(self) -> bool: ...  # whether it offers 3.68
    def volume(self, volume_id: str) -> VolumeView: ...
    def snapshot(self, snapshot_id: str) -> SnapshotView: ...
    def encryption(self, volume_id: str) -> Encryption: ...
    def attachment(self, attachment_id: str) -> AttachmentView: ...
    def attachments(self, volume_id: str | None, server_id: str | None) -> list[AttachmentView]:
        """All of the pair, or (None) of the server or the volume, with connection information."""

    def attachment_create(
        self,
        volume_id: str,
        server_id: str,
        connector: dict[str, Any] | None = None,
        mode: str = "rw",
    ) -> AttachmentView:
        """`mode`: "rw" or "ro", which Cinder shows from 3.54 on (before: by the connector's)."""

    def attachment_update(
        self, attachment_id: str, connector: dict[str, Any]
    ) -> AttachmentView: ...
    def attachment_complete(self, attachment_id: str) -> None: ...
    def attachment_delete(self, attachment_id: str) -> list[AttachmentView] | None:
        """The volume's other attachments, of any server, as Cinder has them afterwards; they show
        no connection.  None: the answer does not show that this one is gone, only a look can tell.
        """

    def volume_create(self, wanted: dict[str, Any], key: str) -> str:
        """Its id; `key` is in its metadata.  `wanted`: size_gb; name, volume_type, snapshot_id,
        image_id, availability_zone, project_id may be None.  Never multi-attach (S3).
        """

    def volumes_made(self, key: str, project_id: str | None) -> list[VolumeView]:
        """All with this key in their metadata, copies too, which `handlers.results.made` knows."""

    def dependents(self, volume_id: str) -> Dependents: ...  # one of each kind is enough
    def own_user(self) -> str | None: ...  # who creates what we create; None: nobody says

    def volume_delete(self, volume_id: str) -> None:
        """Ask for deletion; a volume that is gone, or going, is success."""

    def volume_reimage(self, volume_id: str, image_id: str) -> None:
        """Write it to a reserved volume: `downloading`, then `reserved` again, or `error`."""

    def migrate_volume_completion(self, old_id: str, new_id: str, *, error: bool) -> str:
        """Tell Cinder how its migration ended; returns the id that the volume keeps."""

    def extend_volume_completion(self, volume_id: str, *, error: bool) -> None:
        """Tell a Cinder that waits (3.71) how extending ended; told so before is success."""

    def tell_snapshot(self, snapshot_id: str, status: str) -> None:
        """Tell Cinder of a guest's part in a snapshot: done (its present status, "creating" or
        "deleting", with progress 90%), or not ("error", "error_deleting").
        """

    def reserve(self, volume_id: str) -> None: ...
    def unreserve(self, volume_id: str) -> None: ...
    def initialize_connection(
        self, volume_id: str, connector: dict[str, Any]
    ) -> ConnectionInfo: ...
    def terminate_connection(self, volume_id: str, connector: dict[str, Any]) -> None: ...
    def attach(
        self, volume_id: str, server_id: str, device: str, host: str, mode: str = "rw"
    ) -> None: ...
    def begin_detaching(self, volume_id: str) -> None: ...
    def roll_detaching(self, volume_id: str) -> None: ...
    def detach(self, volume_id: str, attachment_id: str) -> None: ...
    def old_attachments(self, volume_id: str) -> list[OldAttachment]: ...


class Keys(Protocol):
    """The key manager: Barbican, or Cinder's one fixed key."""

    def passphrase(self, key_id: str) -> str:
        """What unlocks the volumes of this key.

        FINAL `no_key_manager`, `no_key`, `key_forbidden`; RETRYABLE `key_manager_unavailable`.
        """


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk for a guest: where its data is and how the guest shall see it.

    `source` is one of {"type": "block"|"file", "path": ...} or {"type":
    "network", "protocol": "rbd", "name": ..., "hosts": [[host, port], ...],
    "auth": {"user": ..., "secret_uuid": ...} | None}; of an encrypted volume with
    "encryption": {"format": "luks", "secret_uuid": ...}, the hypervisor's secret.
    """

    serial: str  # the volume's id when it was plugged first, as Nova sets it
    source: dict[str, Any]
    device_name: str  # target, e.g. "vdb" (virtio) or "sdb" (scsi)
    bus: str  # "virtio" or "scsi"
    format: str = "raw"
    shareable: bool = False
    discard: bool = False
    readonly: bool = False
    cache: str = "none"
    boot_index: int | None = None  # the guest's firmware tries its disks in this order


@dataclass(frozen=True)
class Merge:
    """As Cinder's remotefs driver names files of a disk: `file` goes into the one next below it,
    `into`; or, `into` None, all above `file` (None: all) into the top.
    """

    file: str | None
    into: str | None


@dataclass(frozen=True, kw_only=True)
class DiskState:
    """Where a volume's disk is in a guest: None means not there."""

    live: str | None  # target name in the running guest
    persistent: str | None  # target name in the guest's definition
    running: bool  # whether there is a live guest at all
    #: What the disk reads and writes, live, persistent, or being copied to (disk_xml.source_of).
    sources: tuple[str, ...] = field(default=(), compare=False)
    #: In what the running guest and its definition differ about it (disk_xml.differences).
    differs: tuple[str, ...] = field(default=(), compare=False)
    #: Whether it may only be read: live, and in the definition.
    readonly: tuple[bool | None, bool | None] = field(default=(None, None), compare=False)


class Brick(Protocol):
    """Host storage: os-brick."""

    def connector(self) -> dict[str, Any]:
        """This host's connector properties, as Cinder's update wants them."""

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        """Make the volume visible on this host; again if it already is.

        Returns the `source` of a Disk (see there), plus "format" and, where there is one,
        "device": what `disconnect` is to be given back.
        """

    def format_luks(self, source: dict[str, Any], passphrase: str, encryption: Encryption) -> None:
        """Make a blank block device a LUKS volume; one that is LUKS stays as it is.

        Cinder leaves that to the first host (cinder LP 1739442), but for files and RBD.
        """

    def size(self, source: dict[str, Any]) -> int | None:
        """How large the host takes a connected block device for, in bytes, all of it.

        None: the host has no device of it (see `extend`).
        """

    def extend(self, info: ConnectionInfo, source: dict[str, Any]) -> int | None:
        """Let this host see how large a connected block device is now: what a guest has of it,
        in bytes, which is less than all of an encrypted one.

        None: the host has no device of it (RBD, a file), QEMU alone knows.
        """

    def disconnect(self, info: ConnectionInfo, device: dict[str, Any] | None = None) -> None:
        """Flush and remove the volume from this host; nothing to do is success.

        `device`: what connecting it returned, if that is known (see `connect`).
        A failed flush is an error, never a success (os-brick LP 1502534).
        """


class Watch(Protocol):
    """How a long call is followed, and ended, from outside."""

    def cancelled(self) -> bool: ...
    def progress(self, done_bytes: int, total_bytes: int) -> None: ...


class Guests(Protocol):
    """The hypervisor: libvirt.  `serial` is the id a guest knows a volume's disk by."""

    def inventory(self) -> list[GuestSeen]: ...

    def guest(self, server_id: str) -> GuestSeen | None:
        """Of the inventory this guest; None if it is not on this host."""

    def sizes(self) -> dict[tuple[str, str], int]:
        """What running guests have of their disks, in bytes, by server and target.

        Of a guest that is busy or does not answer nothing may be said.
        """

    def survey(self) -> GuestsShown:
        """All guests with their volumes' disks, both copies, as they are now."""

    def secrets(self) -> list[str]:
        """The volumes whose secrets `keep_secret` made, in order; those of others are left out."""

    def power(self, server_id: str) -> PowerState | None:
        """None if the guest is not on this host."""

    def process(self, server_id: str) -> bool:
        """Whether the guest's process runs here, also where the hypervisor has lost sight of it."""

    def disk(self, server_id: str, serial: str) -> DiskState:
        """Where this volume's disk is, judged by its serial in the XML re-read now."""

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        """Attach where it is missing: persistent definition, and live if running."""

    def unplug(self, server_id: str, serial: str) -> DiskState:
        """Detach where it is present; returns when both copies agree.

        Success is judged by the device-removed event plus the XML re-read, never by
        the return code.  FINAL `guest_refused` if the guest keeps the device after
        all attempts: then the persistent definition has it (again) as well.
        A missing disk, or a missing domain, is success (LP 1727260).
        """

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        """Let the hypervisor hold what unlocks the volume; the secret's uuid.

        Before any guest's disk needs it.  It is in memory only, and nobody can read it; it is
        lost when the hypervisor's daemon ends.  The uuid is the volume's id, unless
        somebody else's secret is there for the volume: that one gets this value.
        """

    def drop_secret(self, volume_id: str) -> None:
        """Forget it; not there is success."""

    def replace(self, server_id: str, disk: Disk) -> None:
        """The disk of this serial gets this source in the guest's definition.

        A running guest keeps what it has open: FINAL `refresh_needs_stop` unless its
        live disk has just this source already.
        """

    def grow(self, server_id: str, serial: str, room: int, *, unit: int) -> int | None:
        """Let the running guest see its disk grow to `room` bytes: by as many whole `unit`s as
        fit; never smaller.

        Returns what the guest has then; None if it does not run with the disk, or is not here.
        A definition knows no sizes: what starts from it has the disk as large as it is then.
        """

    def spawn(
        self, server_id: str, definition: str, disks: Sequence[Disk], *, running: bool
    ) -> PowerState:
        """Define the guest with just these volumes' disks; start it if `running`.

        A guest that already runs is left as it is.  One that is to be only defined and
        runs is FINAL `guest_running`.
        """

    def start(self, server_id: str) -> PowerState:
        """Run it as it is defined; one that runs already is left as it is."""

    def stop(self, server_id: str, *, force: bool) -> PowerState:
        """Off, its definition kept.  Asks the guest first, unless `force`; a guest that
        does not react in time is powered off.  Off, or not here, already is success.
        """

    def pause(self, server_id: str) -> PowerState: ...
    def resume(self, server_id: str) -> PowerState: ...

    def remove(self, server_id: str) -> None:
        """Power off and undefine; not here is success."""

    def migrate(
        self, server_id: str, destination: dict[str, Any], disks: Sequence[Disk], watch: Watch
    ) -> None:
        """Move the running guest live; `disks` are its volumes as the destination sees them.

        Returns when it runs there and is neither running nor defined here; at once if
        that is so already; a migration under way is followed.  FINAL (`cancelled`,
        `migration_failed`): it still runs here and there is no job.  UNKNOWN: look again.
        """

    def stay(self, server_id: str, destination: dict[str, Any]) -> bool:
        """End a migration under way.  True: the guest is here; False: it has moved."""

    def arrived(self, server_id: str) -> bool:
        """Whether a migration has brought the guest here whose source does nothing any more."""

    def copy(self, server_id: str, disk: Disk, watch: Watch) -> None:
        """Mirror the disk with `disk.serial` to `disk.source` and switch the guest to it.

        Live and persistent; at once if it is so already; a copy under way is followed.
        The guest must run.  FINAL (`cancelled`, `copy_failed`, `guest_not_running`): it
        is on its old disk, and there is no job.
        """

    def stay_on(self, server_id: str, disk: Disk) -> bool:
        """End a copy under way.  True: on the old disk; False: switched to `disk.source`."""

    def snapshot(self, server_id: str, serial: str, file: str) -> None:
        """Let the running guest write to this file: empty, beside the present one, and above it.

        FINAL (`no_file`, `guest_not_running`, `snapshot_failed`, `other_chain`): it does not.
        """

    def unsnapshot(self, server_id: str, serial: str, file: str, watch: Watch) -> None:
        """If the guest writes to this file: back to the one below it, with all that it wrote."""

    def merge(self, server_id: str, serial: str, merge: Merge, watch: Watch) -> None:
        """Take files out of the running guest's disk; a merge under way is followed.

        FINAL (`cancelled`, `merge_failed`, `guest_not_running`, `other_chain`): all is as before.
        """

    def end_merge(self, server_id: str, serial: str, merge: Merge) -> bool:
        """End one under way.  True: the disk has the files that it had; False: it is merged."""


class VolumeUsers(Protocol):
    """What only the ledger knows: asked under the host's lock of the volume (S3)."""

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        """Servers that have the volume connected on this host by other attachments."""
