"""The context of all verbs, and the checks that several verbs share.

`RunContext` has the ports and the memory of one run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from host_agent.clock import Clock
from host_agent.late_requests import Sent
from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    AttachmentView,
    Brick,
    Cinder,
    ConnectionInfo,
    DiskState,
    Guests,
    Keys,
    OtherVolumeError,
    PortError,
    VolumeUsers,
    VolumeView,
    Watch,
)
from host_agent.shared.contract.survey import Opened
from host_agent.storage import connection
from host_agent.storage.keys import NO_KEYS
from host_agent.storage.port import Storage, StorageView
from host_agent.storage.records import Record, Records, of_server
from host_agent.storage.sources import by_name, certain, elsewhere, volume_behind


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long to wait for a volume to be ready (S1; nova waits 60 times 3 s)."""

    ready_deadline_s: float = 180.0
    ready_poll_s: float = 1.0


class Unwatched:
    """A Watch that reports nothing and is never cancelled."""

    def cancelled(self) -> bool:
        return False

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        pass


@dataclass(kw_only=True)
class Ports:
    """The ports of runs.  `host`: this host's name in the ledger and in Cinder; `multiattach`:
    whether the host supports it (S3).
    """

    host: str
    cinder: Cinder
    brick: Brick
    guests: Guests
    users: VolumeUsers
    storage: Storage
    keys: Keys = NO_KEYS
    records: Records = field(default_factory=dict)
    sent: Sent = field(default_factory=set)
    multiattach: bool = True


@dataclass(kw_only=True)
class RunContext(Ports):
    """The ports and the memory of one run.

    `connected`: the disk that the run has connected (see Lane.disk).  `volumes`: those that it has
    read; `attachments`: those that it has seen connected; both by id.  `infos`: connection
    information of the old flow, by volume.

    `first`: no earlier run has begun any of its steps (contract.Command.first), so a verb need not
    look for what one may have left (decision 0098).
    """

    clock: Clock
    waits: Waits
    watch: Watch = field(default_factory=Unwatched)
    first: bool = False
    connected: dict[str, Any] | None = None
    volumes: dict[str, VolumeView | VolumeSeen] = field(default_factory=dict)
    attachments: dict[str, AttachmentView] = field(default_factory=dict)
    infos: dict[str, ConnectionInfo] = field(default_factory=dict)


def final(code: str, message: str) -> PortError:
    return PortError(ErrorKind.FINAL, code, message)


def is_missing(error: PortError) -> bool:
    """Whether the error says that the object does not exist."""
    return error.kind is ErrorKind.FINAL and error.code == "not_found"


def is_plugged(state: DiskState) -> bool:
    return state.live is not None or state.persistent is not None


def refuse_if_copies_differ(lane: Lane, state: DiskState) -> None:
    """Raise UNKNOWN if the running guest's disk differs from its definition (DiskState.differs)."""
    if state.differs:
        raise PortError(
            ErrorKind.UNKNOWN,
            "guest_copies_differ",
            f"The disk of volume {lane.volume_id} differs between the running guest "
            f"{lane.server_id} and its definition, in: {', '.join(state.differs)}.",
        )


def refuse_if_plugged(ctx: RunContext, lane: Lane) -> None:
    """Raise FINAL `disk_still_plugged` if the guest has the disk.

    In a swap a disk of this serial is allowed, if it is on the other volume.
    """
    state = ctx.guests.disk(lane.server_id, lane.disk_serial)
    if is_plugged(state) and not (is_swap(lane) and _is_on_the_other(state, lane)):
        raise still_plugged(lane.server_id, lane.volume_id)


def still_plugged(server_id: str, volume_id: str) -> PortError:
    text = f"Guest {server_id} still has the disk of volume {volume_id}, so the volume is not"
    return final("disk_still_plugged", f"{text} disconnected.")


def refuse_other_source(ctx: RunContext, server_id: str, serial: str) -> None:
    """Raise FINAL `other_source` if the guest's disk has another source than was connected for it.

    An operator has put a file above it (`virsh snapshot-create --disk-only`), or changed the
    source.  If the disk were detached now, the guest's latest data would be in a file that nobody
    knows.
    """
    records = [each for each in of_server(ctx.records, server_id) if each.serial == serial]
    if not records:  # nothing is connected for it yet, so the hypervisor need not be asked
        return
    state = ctx.guests.disk(server_id, serial)
    sources = certain(state.sources, live=state.live is not None)
    if set(sources) <= {place for record in records for place in record.places}:
        return  # without a look at storage
    if elsewhere(sources, records, looked_at(ctx)):
        known = sorted({place for record in records for place in record.places})
        raise final(
            "other_source",
            f"The disk of guest {server_id} with serial {serial} is on {', '.join(sources)}, and "
            f"this host has connected {', '.join(known)} for it: what the guest has written may "
            "be there. Nothing was changed. Bring the data back (`virsh blockcommit --active "
            "--pivot`, if it is a snapshot), or copy it, then ask again.",
        )


def refuse_other_sources(ctx: RunContext, server_id: str) -> None:
    """As `refuse_other_source`, for all disks of a guest that this host has connected."""
    for serial in sorted({record.serial for record in of_server(ctx.records, server_id)}):
        refuse_other_source(ctx, server_id, serial)


def refuse_if_open(ctx: RunContext, record: Record) -> None:
    """Raise FINAL `disk_still_plugged` if a guest here has the record's device without the serial,
    because checks by serial do not see that disk.

    A device that may still be in use as its former volume (OtherVolumeError) counts as well:
    without multipath the kernel would remove it, and QEMU would read zeros from then on.
    """
    other = any(device.get(OtherVolumeError.OTHER) for device in record.devices.values())
    opened = [
        disk
        for disk in ctx.guests.survey().opened
        if disk.serial is None or (other and disk.serial != record.serial)
    ]
    if not any(disk.sources for disk in opened):
        return
    view = looked_at(ctx)
    volumes = by_name([record], view)
    for disk in opened:
        for source in certain(disk.sources, live=disk.live):
            if volume_behind(source, volumes, view) == record.volume_id:
                raise _still_open(disk, source, record)


def _still_open(disk: Opened, source: str, record: Record) -> PortError:
    here = f"Guest {disk.server_id} has {source} as its disk {disk.target}"
    if disk.serial is None:
        why = f"without the serial of volume {record.volume_id}: take it out of the guest first."
    else:
        why = (
            f"of volume {disk.serial}, but the storage has given its LUN to volume "
            f"{record.volume_id}: stop that guest, for what it writes goes there. Then retry."
        )
    return final("disk_still_plugged", f"{here}, {why}")


def looked_at(ctx: RunContext) -> StorageView:
    try:
        return ctx.storage.look()
    except OSError as error:
        text = f"What storage this host has cannot be seen: {error.strerror or error}."
        raise PortError(ErrorKind.RETRYABLE, "storage_unseen", text) from error


def is_swap(lane: Lane) -> bool:
    """Whether the guest keeps the disk while another volume replaces this one."""
    return lane.other is not None and lane.other.volume_id != lane.volume_id


def _is_on_the_other(state: DiskState, lane: Lane) -> bool:
    """Whether a swap's guest reads and writes only the other volume.

    The former volume is released only after the new one was connected.  So if neither disk is
    known, this is the new volume, and it was never connected or copied to.
    """
    assert lane.other is not None, "a swap has two sides"
    other = path_of(lane.other.disk)
    if other is not None:
        return set(state.sources) == {other}
    return path_of(lane.disk) not in state.sources


def path_of(disk: dict[str, Any] | None) -> str | None:
    """The path of a connected disk, as in DiskState.sources."""
    return connection.device_path(disk) if disk else None


def no_attachment_id(lane: Lane) -> PortError:
    return final("no_attachment_id", f"Mapping {lane.bdm_id} has no attachment.")
