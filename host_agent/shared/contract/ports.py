"""The ports that the agent's verbs use: storage control, host storage, hypervisor.

Each port has a real adapter and a simulated one, and one set of contract tests
holds both to the same behaviour.  All calls block (os-brick, libvirt and
cinderclient do) and are made from worker threads.

Errors: every port raises only `PortError`, with one of the contract's three kinds; adapters map
what their library raises.  A timeout is UNKNOWN.
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
#: Seconds within which Cinder begins a request whose sender is gone (a few rows in its database).
#: After a request with an unknown outcome, the state is read only after that.
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
    """Connecting has returned a device that is another volume now.

    `device`: for the disconnect (Brick.connect), marked by OTHER.
    """

    OTHER = "other"

    def __init__(self, message: str, device: dict[str, Any]) -> None:
        super().__init__(ErrorKind.FINAL, "stale_device", message)
        self.device = {**device, self.OTHER: True}


@dataclass(frozen=True, kw_only=True)
class VolumeView:
    """A volume as Cinder shows it at the highest microversion of both sides.

    `shared_targets`: True and None mean that the target lock is needed, False that it is not (S3;
    os-brick 1800515, cinder LP 1961102).  `service_uuid` is the lock's name; a volume may be
    `available` before it is set; "" in a Cinder before 3.48, which never sets it.
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
    readonly: bool  # os-update_readonly_flag, which makes every attachment read-only
    new_size_gb: int | None = None  # the target of `extending`, if Cinder waits for the guest
    image_id: str | None = None  # of the image written to it last (volume_image_metadata)
    origin: Origin = UNTOLD


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    """A snapshot of a volume, as Cinder shows it."""

    id: str
    volume_id: str
    size_gb: int
    project_id: str | None
    status: str
    progress: str | None  # "90%" after Cinder was told that the guest has done its part


@dataclass(frozen=True, kw_only=True)
class AttachmentView:
    """An attachment in Cinder.  `connection_info` is empty before it has a connector.

    `mode`: the requested one, "rw" or "ro"; None: unknown.
    """

    id: str
    volume_id: str
    server_id: str | None
    status: str  # reserved, attaching, attached, detached, error_attaching, ...
    connection_info: ConnectionInfo
    mode: str | None = None

    @property
    def incomplete(self) -> bool:
        """Whether it was never completed."""
        return self.status in {"reserved", "attaching", "error_attaching"}

    def __repr__(self) -> str:  # connection_info holds secrets: never show it
        return f"AttachmentView({self.id}, {self.status}, connected={bool(self.connection_info)})"


#: All of Cinder's names for QEMU's "luks".  QEMU supports neither LUKS 2 nor "plain".
LUKS = frozenset(
    {
        "luks",
        "LuksEncryptor",
        "nova.volume.encryptors.luks.LuksEncryptor",
        "os_brick.encryptors.luks.LuksEncryptor",
    }
)


@dataclass(frozen=True, kw_only=True)
class Encryption:
    """A volume's encryption in Cinder; None and "" if it is not encrypted."""

    provider: str | None  # "luks", "luks2", "plain", or in old releases the path of a class
    key_id: str | None  # the key manager's
    cipher: str | None
    key_size: int | None


@dataclass(frozen=True, kw_only=True)
class OldAttachment:
    """A row of `volume.attachments`, where Cinder shows attachments of the old calls."""

    id: str
    server_id: str
    host_name: str | None
    mountpoint: str | None = None  # the disk's name, without a directory


class Cinder(Protocol):
    """The part of the Block Storage API v3 that the flows use: from 3.44 on, and at the end the
    older volume actions (S1, old flow).
    """

    def new_flow(self) -> bool:
        """Whether Cinder offers 3.44; without it only volumes and the old calls work."""

    def reimages(self) -> bool: ...  # whether it offers 3.68
    def volume(self, volume_id: str) -> VolumeView: ...
    def snapshot(self, snapshot_id: str) -> SnapshotView: ...
    def encryption(self, volume_id: str) -> Encryption: ...
    def attachment(self, attachment_id: str) -> AttachmentView: ...
    def attachments(self, volume_id: str | None, server_id: str | None) -> list[AttachmentView]:
        """All of the server and volume (None: any), with connection information."""

    def attachment_create(
        self,
        volume_id: str,
        server_id: str,
        connector: dict[str, Any] | None = None,
        mode: str = "rw",
    ) -> AttachmentView:
        """`mode`: "rw" or "ro"; before 3.54 Cinder takes the connector's."""

    def attachment_update(
        self, attachment_id: str, connector: dict[str, Any]
    ) -> AttachmentView: ...
    def attachment_complete(self, attachment_id: str) -> None: ...
    def attachment_delete(self, attachment_id: str) -> list[AttachmentView] | None:
        """The volume's remaining attachments, of any server, without connection information.  None:
        the answer does not show whether this one is gone.
        """

    def volume_create(self, wanted: dict[str, Any], key: str) -> str:
        """Returns the id; `key` is stored in the metadata.  `wanted`: size_gb; name, volume_type,
        snapshot_id, image_id, availability_zone, project_id may be None.  Never multi-attach (S3).
        """

    def volumes_made(self, key: str, project_id: str | None) -> list[VolumeView]:
        """All with this key in their metadata, also copies (`handlers.results.made` tells them)."""

    def dependents(self, volume_id: str) -> Dependents: ...  # at most one of each kind
    def own_user(self) -> str | None: ...  # of this client's token; None: unknown

    def volume_delete(self, volume_id: str) -> None:
        """Request the deletion; a volume that is missing or `deleting` is success."""

    def volume_reimage(self, volume_id: str, image_id: str) -> None:
        """Write it to a reserved volume: `downloading`, then `reserved` again, or `error`."""

    def migrate_volume_completion(self, old_id: str, new_id: str, *, error: bool) -> str:
        """Complete Cinder's migration; returns the id that the volume keeps."""

    def extend_volume_completion(self, volume_id: str, *, error: bool) -> None:
        """Complete an extension for which Cinder waits (3.71); idempotent."""

    def tell_snapshot(self, snapshot_id: str, status: str) -> None:
        """Report a guest's part of a snapshot: done (the present status, "creating" or "deleting",
        with progress 90%), or failed ("error", "error_deleting").
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
        """The passphrase of the volumes with this key.

        FINAL `no_key_manager`, `no_key`, `key_forbidden`; RETRYABLE `key_manager_unavailable`.
        """


#: What a backend may say of a disk's blocks, in bytes, by libvirt's names.
BLOCK_SIZES = LOGICAL, PHYSICAL = "logical_block_size", "physical_block_size"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk for a guest: its source, and how the guest sees it.

    `source` is one of {"type": "block"|"file", "path": ...} or {"type":
    "network", "protocol": "rbd", "name": ..., "hosts": [[host, port], ...],
    "auth": {"user": ..., "secret_uuid": ...} | None}; of an encrypted volume with
    "encryption": {"format": "luks", "secret_uuid": ...}, the hypervisor's secret.
    """

    serial: str  # the id of the volume that was attached first, as in Nova
    source: dict[str, Any]
    device_name: str  # target, e.g. "vdb" (virtio) or "sdb" (scsi)
    bus: str  # "virtio" or "scsi"
    format: str = "raw"
    shareable: bool = False
    discard: bool = False
    readonly: bool = False
    #: By libvirt's names: limits in bytes and requests per second, block sizes in bytes.
    iotune: dict[str, int] = field(default_factory=dict)
    blockio: dict[str, int] = field(default_factory=dict)
    cache: str = "none"
    boot_index: int | None = None  # the order in which the firmware tries the disks


@dataclass(frozen=True)
class Merge:
    """A merge of a disk's files, named as in Cinder's remotefs driver: `file` into the next one
    below, `into`; or, if `into` is None, all files above `file` (None: all) into the top one.
    """

    file: str | None
    into: str | None


@dataclass(frozen=True, kw_only=True)
class DiskState:
    """A volume's disk in a guest; None: not there."""

    live: str | None  # target name in the running guest
    persistent: str | None  # target name in the guest's definition
    running: bool  # whether the guest is live
    #: The disk's sources: live, persistent, and the target of a copy (disk_xml.short).
    sources: tuple[str, ...] = field(default=(), compare=False)
    #: The facts that differ between the running guest and its definition (disk_xml.differences).
    differs: tuple[str, ...] = field(default=(), compare=False)
    #: Whether it is read-only: live, and in the definition.
    readonly: tuple[bool | None, bool | None] = field(default=(None, None), compare=False)


class Brick(Protocol):
    """Host storage: os-brick."""

    def connector(self) -> dict[str, Any]:
        """This host's connector properties, for Cinder's attachment update."""

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        """Connect the volume to this host; idempotent.

        Returns the `source` of a Disk (see there), plus "format" and, if there is one, "device":
        the argument of `disconnect`.
        """

    def format_luks(self, source: dict[str, Any], passphrase: str, encryption: Encryption) -> None:
        """Format a blank block device as LUKS; one that is LUKS already stays as it is.

        Cinder leaves that to the first host (cinder LP 1739442), except for files and RBD.
        """

    def size(self, source: dict[str, Any]) -> int | None:
        """The host's size of a connected block device, in bytes, including the LUKS header.

        None: the host has no device of it (see `extend`).
        """

    def extend(self, info: ConnectionInfo, source: dict[str, Any]) -> int | None:
        """Rescan a connected block device; returns its size for a guest, in bytes, without the LUKS
        header.

        None: the host has no device of it (RBD, a file); only QEMU knows.
        """

    def disconnect(self, info: ConnectionInfo, device: dict[str, Any] | None = None) -> None:
        """Flush and disconnect the volume from this host; idempotent.

        `device`: what `connect` returned, if that is known.
        A failed flush is an error, never a success (os-brick LP 1502534).
        """


class Watch(Protocol):
    """The progress and the cancellation of a long call."""

    def cancelled(self) -> bool: ...
    def progress(self, done_bytes: int, total_bytes: int) -> None: ...


class Guests(Protocol):
    """The hypervisor: libvirt.  `serial` identifies a volume's disk in a guest."""

    def inventory(self) -> list[GuestSeen]: ...

    def guest(self, server_id: str) -> GuestSeen | None:
        """This guest, as in the inventory; None if it is not on this host."""

    def sizes(self) -> dict[tuple[str, str], int]:
        """The sizes of running guests' disks, in bytes, by server and target.

        A guest that is busy or does not answer may be missing.
        """

    def survey(self) -> GuestsShown:
        """All guests with their volumes' disks, both copies, as they are now."""

    def secrets(self) -> list[str]:
        """The volumes of the secrets that `keep_secret` made, in order."""

    def power(self, server_id: str) -> PowerState | None:
        """None if the guest is not on this host."""

    def process(self, server_id: str) -> bool:
        """Whether the guest's process runs here, also if the hypervisor does not know it."""

    def disk(self, server_id: str, serial: str) -> DiskState:
        """This volume's disk, by its serial in the present XML."""

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        """Attach it to the persistent definition, and live if the guest runs; idempotent."""

    def unplug(self, server_id: str, serial: str) -> DiskState:
        """Detach it; returns when both copies agree.

        Success is decided by the device-removed event and the XML read again, never by the return
        code.  FINAL `guest_refused` if the guest keeps the device after all attempts: then the
        persistent definition has it as well.  A missing disk, or a missing domain, is success
        (LP 1727260).
        """

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        """Set the hypervisor's secret of the volume, before a guest's disk needs it; its uuid.

        It is only in memory, and nobody can read it; it is lost when the hypervisor's daemon ends.
        The uuid is the volume's id; or, on an adopted host, that of Nova's secret of the volume,
        which it replaces.
        """

    def drop_secret(self, volume_id: str) -> None:
        """Remove it, whoever made it; a missing one is success."""

    def replace(self, server_id: str, disk: Disk) -> None:
        """Set the source of the disk with this serial in the guest's definition.

        FINAL `refresh_needs_stop` if the live disk has another source, which cannot be changed.
        One that names another secret of the volume stays as it is.
        """

    def grow(self, server_id: str, serial: str, room: int, *, unit: int) -> int | None:
        """Grow the running guest's disk towards `room` bytes, by whole `unit`s; never smaller.

        Returns the new size; None if the guest does not run with the disk, because a definition has
        no sizes.  FINAL `guest_missing`: a guest that is elsewhere keeps the old size.
        """

    def spawn(
        self, server_id: str, definition: str, disks: Sequence[Disk], *, running: bool
    ) -> PowerState:
        """Define the guest with exactly these volumes' disks; start it if `running`.

        A guest that runs already stays as it is; if not `running`, that is FINAL `guest_running`.
        """

    def start(self, server_id: str) -> PowerState:
        """Start it as it is defined; one that runs already stays as it is."""

    def stop(self, server_id: str, *, force: bool) -> PowerState:
        """Stop it and keep its definition.  Requests a shutdown first, unless `force`; a guest that
        does not react in time is powered off.  A guest that is off or missing is success.
        """

    def pause(self, server_id: str) -> PowerState: ...
    def resume(self, server_id: str) -> PowerState: ...

    def remove(self, server_id: str) -> None:
        """Power off and undefine; a missing guest is success."""

    def migrate(
        self, server_id: str, destination: dict[str, Any], disks: Sequence[Disk], watch: Watch
    ) -> None:
        """Migrate the running guest live; `disks` are its volumes as the destination sees them.

        Returns when it runs there and is neither running nor defined here, at once if that is so
        already.  A migration in progress is followed.  FINAL (`cancelled`, `migration_failed`): it
        still runs here and there is no job.  UNKNOWN: look again.
        """

    def stay(self, server_id: str, destination: dict[str, Any]) -> bool:
        """Abort a migration in progress.  True: the guest is here; False: it has moved."""

    def arrived(self, server_id: str) -> bool:
        """Whether the guest has arrived here by a migration whose source is fenced."""

    def copy(self, server_id: str, disk: Disk, watch: Watch) -> None:
        """Mirror the disk with `disk.serial` to `disk.source` and switch the guest to it.

        Live and persistent; returns at once if that is so already.  A copy in progress is followed.
        The guest must run.  FINAL (`cancelled`, `copy_failed`, `guest_not_running`): it is on its
        old disk, and there is no job.
        """

    def stay_on(self, server_id: str, disk: Disk) -> bool:
        """Abort a copy in progress.  True: on the old disk; False: switched to `disk.source`."""

    def snapshot(self, server_id: str, serial: str, file: str) -> None:
        """Have the running guest write to this empty file above the present one, in its directory.

        FINAL (`no_file`, `guest_not_running`, `snapshot_failed`, `other_chain`): it does not.
        """

    def unsnapshot(self, server_id: str, serial: str, file: str, watch: Watch) -> None:
        """Undo `snapshot`: the guest writes to the file below again, with all its data."""

    def merge(self, server_id: str, serial: str, merge: Merge, watch: Watch) -> None:
        """Merge files of the running guest's disk; a merge in progress is followed.

        FINAL (`cancelled`, `merge_failed`, `guest_not_running`, `other_chain`): all is as before.
        """

    def end_merge(self, server_id: str, serial: str, merge: Merge) -> bool:
        """Abort one in progress.  True: the disk has its former files; False: it is merged."""


class VolumeUsers(Protocol):
    """Asks the ledger, under the host's lock of the volume (S3)."""

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        """Servers that have the volume connected on this host by other attachments."""
