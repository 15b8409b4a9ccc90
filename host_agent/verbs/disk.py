"""Verbs that connect a volume to this host, and attach it to a guest as a disk."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import structlog

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    GIB,
    ConnectionInfo,
    Disk,
    OtherVolumeError,
    PortError,
)
from host_agent.storage import connection
from host_agent.storage.records import Record, is_known, remember, there_now
from host_agent.storage.sources import is_same
from host_agent.verbs.cinder_flow import flow_of
from host_agent.verbs.context import (
    RunContext,
    final,
    is_plugged,
    looked_at,
    no_attachment_id,
    path_of,
    refuse_if_copies_differ,
    refuse_if_open,
    refuse_if_plugged,
    refuse_other_source,
)
from host_agent.verbs.disks import bus_of, disk_for
from host_agent.verbs.encryption import is_encrypted, key_to

_LOG = structlog.get_logger(__name__)

#: Attempts to choose a device name: a parallel lane of the same server may take it first.
NAME_CHOICES_MAX = 5


# --- os-brick -------------------------------------------------------------------------


def volume_connect(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Connect the volume to this host, by its attachment's present connection information.

    Refused if the guest's disk has another source.
    """
    refuse_other_source(ctx, lane.server_id, lane.disk_serial)
    info = flow_of(ctx, lane).info()
    disk = connect(ctx, lane, info)
    mode = connection.access_mode(info, lane.access_mode)
    return {"device_path": path_of(disk), "disk": disk, "access_mode": mode}


def connect(ctx: RunContext, lane: Lane, info: ConnectionInfo) -> dict[str, Any]:
    """Connect, at the volume's full size, and return the disk (see Lane.disk)."""
    had = is_known(ctx.records, info)
    source = _connect(ctx, lane, info)
    if had:
        _see_growth(ctx, lane, info, source)
    return source


def _see_growth(ctx: RunContext, lane: Lane, info: ConnectionInfo, source: dict[str, Any]) -> None:
    """Rescan a device that was connected before, because a second connect does not rescan it.

    Only if the volume has grown: os-brick's rescan fails while one of several paths is down
    (LP 2032177).  A device that os-brick cannot rescan at all keeps its size.
    """
    seen = ctx.brick.size(source)
    if seen is None:
        return
    volume = ctx.volumes.get(lane.volume_id) or ctx.cinder.volume(lane.volume_id)
    if seen >= volume.size_gb * GIB:
        return
    try:
        ctx.brick.extend(info, source)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
        _LOG.warning("growth_not_seen", volume=lane.volume_id, why=error.message)


def _connect(ctx: RunContext, lane: Lane, info: ConnectionInfo) -> dict[str, Any]:
    """Write the record, then connect."""
    new = _unconnected(lane)
    limits, ignored = connection.iotune(info)
    if ignored:
        _LOG.warning("qos_specs_ignored", volume=lane.volume_id, names=ignored)
    tuning = {"iotune": limits, "blockio": connection.blockio(info)}
    key = key_to(ctx, lane.volume_id, info)  # LP 1812945: before anything is connected
    record = remember(ctx.records, new, info)
    secret = key and ctx.guests.keep_secret(record.volume_id, key.passphrase)
    try:
        source = dict(ctx.brick.connect(info))
    except OtherVolumeError as error:  # the undo checks first whether a guest has that device
        ctx.records[record.attachment_id] = record.connected(info, error.device)
        raise
    if (known := record.connected(info, source.pop("device", None))) != record:
        ctx.records[record.attachment_id] = known
    if key is not None:
        if not lane.multiattach:  # else two hosts could format it at the same time
            ctx.brick.format_luks(source, key.passphrase, key.encryption)
        source["encryption"] = {"format": "luks", "secret_uuid": secret}
    ctx.connected = {
        **source,
        "discard": bool(info.get("discard")),
        "readonly": info.get("access_mode") == "ro",
        **tuning,
    }
    return ctx.connected


def _unconnected(lane: Lane) -> Record:
    """A record of the lane's attachment without a connection."""
    if lane.attachment_id is None:
        raise no_attachment_id(lane)
    return Record(
        attachment_id=lane.attachment_id,
        volume_id=lane.volume_id,
        server_id=lane.server_id,
        serial=lane.disk_serial,
    )


def volume_disconnect(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Disconnect the volume from this host, unless another server here uses it."""
    refuse_if_plugged(ctx, lane)
    shared = is_shared(ctx, lane)
    own = ctx.records.get(lane.attachment_id or "")
    if own is not None and not shared:
        refuse_if_open(ctx, own)
    disconnect(ctx, lane, shared=shared)
    ctx.records.pop(lane.attachment_id or "", None)
    return {"shared": shared}


def keep_unconnected(ctx: RunContext, lane: Lane) -> None:
    """Keep the attachment's record without a connection; `former`: the paths that the guest's
    definition still has.
    """
    record = _unconnected(lane)
    before = ctx.records.get(record.attachment_id)
    former = tuple(dict.fromkeys(before.places)) if before else ()
    ctx.records[record.attachment_id] = replace(record, former=former)


def keep_connected(ctx: RunContext, lane: Lane, info: ConnectionInfo) -> None:
    """Record a connection, if there is one, that another has made here, such as nova-compute."""
    if info:
        remember(ctx.records, _unconnected(lane), info)


def is_shared(ctx: RunContext, lane: Lane) -> bool:
    """Whether another server on this host uses the volume; then it stays connected.

    The run holds the volume's lock if it is multi-attach, so the answer is valid until its end, and
    of two simultaneous detaches exactly one is the last (S3).
    """
    if lane.attachment_id is None:
        raise no_attachment_id(lane)
    return bool(ctx.users.others(lane.volume_id, lane.attachment_id))


def disconnect(ctx: RunContext, lane: Lane, *, shared: bool) -> None:
    """Disconnect, unless the volume is shared (`is_shared`).  The caller removes or keeps the
    attachment's record.
    """
    begun = _begun_to_convert(ctx, lane)
    if not shared:
        own = ctx.records.get(lane.attachment_id or "") or next(iter(begun), None)
        infos = flow_of(ctx, lane).to_disconnect(own)
        for info in infos:
            ctx.brick.disconnect(info, own.device_of(info) if own else None)
        if is_encrypted(infos):
            ctx.guests.drop_secret(own.volume_id if own else lane.volume_id)
    for each in begun:
        ctx.records.pop(each.attachment_id, None)


def _begun_to_convert(ctx: RunContext, lane: Lane) -> list[Record]:
    """Records of the same connection under an attachment id that the ledger does not know, from an
    interrupted conversion.
    """
    if not lane.legacy:  # before records are read, which may fail
        return []
    known, of_pair = {lane.attachment_id, *lane.known}, (lane.server_id, lane.volume_id)
    return [
        record
        for record in there_now(ctx.records)
        if record.attachment_id not in known and (record.server_id, record.volume_id) == of_pair
    ]


def forget_former(ctx: RunContext, lane: Lane) -> None:
    """Disconnect the attachment's former connections, from before its storage moved (LP 1741364).

    The guest must have the present connection already.
    """
    own = ctx.records.get(lane.attachment_id or "")
    if own is None or len(own.infos) == 1:
        return
    present = connection.target_digest(flow_of(ctx, lane).info())
    kept = own
    for info in own.infos:
        if connection.target_digest(info) != present:
            ctx.brick.disconnect(info, own.device_of(info))
            kept = kept.without(info)
    ctx.records[own.attachment_id] = kept


# --- libvirt --------------------------------------------------------------------------


def disk_plug(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Attach the disk to the guest: to its definition and, if it runs, live."""
    for _ in range(NAME_CHOICES_MAX):
        name = lane.device_name or _free_name(ctx, lane)
        bus_of(name)  # a bad name fails before anything is connected
        disk = disk_for(lane, _connected(ctx, lane), name)
        try:
            state = ctx.guests.plug(lane.server_id, disk)
            break
        except PortError as error:
            if lane.device_name or error.code != "device_name_taken":
                raise
    else:
        raise PortError(
            ErrorKind.RETRYABLE, "device_name_taken", "Every device name that was tried is in use."
        )
    found = state.live or state.persistent
    if found is None or (state.running and state.live is None):
        raise PortError(
            ErrorKind.UNKNOWN,
            "plug_not_seen",
            f"Guest {lane.server_id} does not show the disk of volume {lane.volume_id} "
            "after it was plugged.",
        )
    refuse_if_copies_differ(lane, state)
    return {"device_name": found, "bus": bus_of(found)}


def disk_unplug(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Detach the disk from the guest; a missing disk or guest is success (LP 1727260)."""
    refuse_other_source(ctx, lane.server_id, lane.disk_serial)
    state = ctx.guests.unplug(lane.server_id, lane.disk_serial)
    if is_plugged(state):
        raise PortError(
            ErrorKind.UNKNOWN,
            "unplug_not_seen",
            f"Guest {lane.server_id} still shows the disk of volume {lane.volume_id}.",
        )
    return {}


def disk_replace(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Update the guest's definition to its volume's new connection."""
    disk = disk_for(lane, _connected(ctx, lane))
    refuse_other_source(ctx, lane.server_id, lane.disk_serial)
    if not _runs_with(ctx, lane, disk):
        ctx.guests.replace(lane.server_id, disk)
    return {}


def _runs_with(ctx: RunContext, lane: Lane, disk: Disk) -> bool:
    """Whether the guest has the same device under another name, live and in its definition: Nova
    uses the kernel's names.  The name stays until the guest is defined again.
    """
    state, own = ctx.guests.disk(lane.server_id, lane.disk_serial), path_of(disk.source)
    if own is None or state.live is None or state.differs:
        return False
    if not state.sources or own in state.sources:
        return False
    view = looked_at(ctx)
    return all(is_same(each, own, view) for each in state.sources)


def disk_grow(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Resize the disk in host and guest to the volume's present size.

    Cinder is read again at the end, in case the volume was extended meanwhile.  If Cinder waits
    (`extending`) and the volume is a file, the running guest must extend the file.
    """
    info = flow_of(ctx, lane).info()
    source = _connect(ctx, lane, info)
    volume = ctx.cinder.volume(lane.volume_id)
    while True:
        size_gb = volume.new_size_gb or volume.size_gb
        seen = ctx.brick.extend(info, source)
        room, unit = (size_gb * GIB, GIB) if seen is None else (seen, 1)
        has = ctx.guests.grow(lane.server_id, lane.disk_serial, room, unit=unit)
        if has is None and volume.new_size_gb is not None and seen is None:
            raise final(
                "guest_not_running",
                f"Volume {lane.volume_id} is a file that only a running guest can extend, and "
                f"{lane.server_id} does not run with it.",
            )
        before, volume = volume, ctx.cinder.volume(lane.volume_id)
        if volume.size_gb <= before.size_gb:
            return {} if has is None else {"size_bytes": has}


def disk_copy(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Copy the guest's disk to this volume while it runs, and switch it over."""
    disk = disk_for(lane, _connected(ctx, lane))
    ctx.guests.copy(lane.server_id, disk, ctx.watch)
    return {}


def disk_copy_abort(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Abort the copy; `passed` if the guest has switched to the new volume already."""
    disk = disk_for(lane, lane.disk or _connected(ctx, lane))
    return {} if ctx.guests.stay_on(lane.server_id, disk) else {"passed": True}


def _connected(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """The disk, connected by this run: the host may have been rebooted since an earlier run."""
    return ctx.connected or connect(ctx, lane, flow_of(ctx, lane).info())


def _free_name(ctx: RunContext, lane: Lane) -> str:
    seen = ctx.guests.disk(lane.server_id, lane.disk_serial)
    if found := seen.live or seen.persistent:
        return found
    guest = next((g for g in ctx.guests.inventory() if g.server_id == lane.server_id), None)
    taken = set(guest.devices) if guest else set()
    letters = string.ascii_lowercase[1:]  # vda is the root disk
    for name in (f"vd{letter}" for letter in letters):
        if name not in taken:
            return name
    raise final("no_device_name", f"Guest {lane.server_id} has no free name from vdb to vdz.")
