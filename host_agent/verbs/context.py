"""The context of every verb, and the checks that several verbs share.

`RunContext` has the ports and the memory of one run; the functions read Cinder and the
guest, and turn what they find into the errors that the verbs share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from host_agent.clock import Clock
from host_agent.sent import Sent
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
    """A run whose progress nobody reads, and that nobody cancels."""

    def cancelled(self) -> bool:
        return False

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        pass


@dataclass(kw_only=True)
class Ports:
    """What runs work on.  `host`: the name by which ledger and Cinder know this one; `multiattach`:
    whether it can do that (S3).
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

    Some of it is memory within the run, nothing more: `connected` is the disk that it has
    connected (see Lane.disk), `volumes` are those that it has seen, `attachments` those that it
    has seen connected, by their ids, `infos` what the old flow has connected, by volume.

    `first`: nobody has begun any of its steps before (contract.Command.first), so a verb need not
    look for what an earlier attempt may have left (decision 0098).
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
    """What runs now is what is to run after the next start (DiskState.differs)."""
    if state.differs:
        raise PortError(
            ErrorKind.UNKNOWN,
            "guest_copies_differ",
            f"The disk of volume {lane.volume_id} differs between the running guest "
            f"{lane.server_id} and its definition, in: {', '.join(state.differs)}.",
        )


def refuse_if_plugged(ctx: RunContext, lane: Lane) -> None:
    """Raise FINAL `disk_still_plugged` if the guest has the disk.

    In a swap the guest has a disk of this serial, rightly, if it is on the other volume.
    """
    state = ctx.guests.disk(lane.server_id, lane.disk_serial)
    if is_plugged(state) and not (is_swap(lane) and _is_on_the_other(state, lane)):
        raise still_plugged(lane.server_id, lane.volume_id)


def still_plugged(server_id: str, volume_id: str) -> PortError:
    text = f"Guest {server_id} still has the disk of volume {volume_id}, so the volume is not"
    return final("disk_still_plugged", f"{text} disconnected.")


def refuse_other_source(ctx: RunContext, server_id: str, serial: str) -> None:
    """Raise FINAL `other_source` if the guest's disk is on something else than is connected for it.

    Somebody has put a file above it (`virsh snapshot-create --disk-only`), or other data behind it:
    taken from the guest now, what it wrote there would be in a file that nobody knows.
    """
    records = [each for each in of_server(ctx.records, server_id) if each.serial == serial]
    if not records:  # nothing is connected for it yet: the hypervisor, which may be away, can wait
        return
    state = ctx.guests.disk(server_id, serial)
    sources = certain(state.sources, live=state.live is not None)
    if set(sources) <= {place for record in records for place in record.places}:
        return  # nobody has to look at storage for that
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
    """The same of all disks of a guest that this host has connected something for."""
    for serial in sorted({record.serial for record in of_server(ctx.records, server_id)}):
        refuse_other_source(ctx, server_id, serial)


def refuse_if_open(ctx: RunContext, record: Record) -> None:
    """Raise FINAL `disk_still_plugged` if a guest here has what is connected by it without our
    serial: whoever goes by serials does not see that disk.

    So with what a guest may still have as the former volume (OtherVolumeError): without multipath
    the kernel would let its disk go, and QEMU reads zeros from then on.
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
    """Whether the disk stays in the guest while another volume takes this one's place."""
    return lane.other is not None and lane.other.volume_id != lane.volume_id


def _is_on_the_other(state: DiskState, lane: Lane) -> bool:
    """Whether a swap's guest reads and writes the other volume only.

    The former volume is let go only after the new one was connected, so with nothing
    known of either this is the new one, and it was never connected, nor copied to.
    """
    assert lane.other is not None, "a swap has two sides"
    other = path_of(lane.other.disk)
    if other is not None:
        return set(state.sources) == {other}
    return path_of(lane.disk) not in state.sources


def path_of(disk: dict[str, Any] | None) -> str | None:
    """A connected disk as DiskState.sources names it."""
    return connection.device_path(disk) if disk else None


def no_attachment_id(lane: Lane) -> PortError:
    return final("no_attachment_id", f"Mapping {lane.bdm_id} has no attachment.")
