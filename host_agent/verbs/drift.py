"""Verbs of repairs: report what this host has of a volume and a server, and release the rest.

The ledger decides (handlers.drift.recheck); a host only reports.  A verb that removes something
looks again, under the volume's locks (CVE-2023-2088).  `connection_release` refuses while a guest
here has the disk, and leaves a connection that others use; `secret_drop` refuses while a guest or a
connection record here has the volume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.ports import DiskState
from host_agent.storage.records import Record, there_now
from host_agent.storage.sources import is_same
from host_agent.verbs.context import (
    RunContext,
    final,
    is_plugged,
    looked_at,
    path_of,
    refuse_if_open,
    still_plugged,
)
from host_agent.verbs.encryption import is_encrypted

_NO_DISK = DiskState(live=None, persistent=None, running=False)


def drift_look(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Report what this host has of the lane's server, volume and attachment; changes nothing.

    `guests`: the servers whose guests have a disk of the volume.  `records`: by attachment, the
    server for which the volume is connected here.  `unexplained`: serials of the server's guest
    without a record; any of these disks may be of this volume.  `elsewhere`: the guest's disk of
    this serial belongs to another attachment.  `process`: whether the guest's process runs here,
    also if the hypervisor does not know it.
    """
    state = ctx.guests.disk(lane.server_id, lane.disk_serial) if lane.volume_id else _NO_DISK
    shown = {guest.server_id: set(guest.volumes) for guest in ctx.guests.inventory()}
    records, own = there_now(ctx.records), ctx.records.get(lane.attachment_id or "")
    explained = {record.serial for record in records if record.server_id == lane.server_id}
    of_volume = [record for record in records if record.volume_id == lane.volume_id]
    power = ctx.guests.power(lane.server_id)
    return {
        "shown": {
            "power_state": power and power.value,
            "process": ctx.guests.process(lane.server_id),
            **{name: getattr(state, name) for name in ("live", "persistent", "running")},
            "differs": list(state.differs),
            "readonly_live": state.readonly[0],
            "readonly_persistent": state.readonly[1],
            "guests": sorted(_having(shown, {lane.volume_id, lane.disk_serial} - {""})),
            "unexplained": sorted(shown.get(lane.server_id, set()) - explained),
            "record": lane.attachment_id in ctx.records,
            "elsewhere": own is not None and _is_anothers(ctx, own),
            "records": {record.attachment_id: record.server_id for record in of_volume},
        }
    }


def _having(shown: dict[str, set[str]], ids: set[str]) -> list[str]:
    return [server_id for server_id, volumes in shown.items() if volumes & ids]


def disk_verify(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Refuse unless the guest's disk is the device of this attachment's connection.

    While the volume had no attachment, the storage may have given its LUN to another volume.
    """
    state, path = ctx.guests.disk(lane.server_id, lane.disk_serial), path_of(lane.disk)
    if not is_plugged(state):
        raise final("disk_not_plugged", f"Guest {lane.server_id} has no disk {lane.disk_serial}.")
    if path is None or not _is_at(ctx, state, path):
        raise final(
            "other_device",
            f"The disk of guest {lane.server_id} is {', '.join(state.sources)}, and volume "
            f"{lane.volume_id} is {path} now: stop the guest before it writes to another's data.",
        )
    return {}


def _is_at(ctx: RunContext, state: DiskState, path: str) -> bool:
    """By whatever name: Nova's guests have the kernel's."""
    if set(state.sources) == {path}:
        return True
    view = looked_at(ctx)
    return bool(state.sources) and all(is_same(each, path, view) for each in state.sources)


def connection_release(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Disconnect by this host's own record, and remove it; no record is success.

    Only the devices of this connection: a session that others use stays (os-brick LP 1587256).
    """
    own = ctx.records.get(lane.attachment_id or "")
    if own is None:
        return {}
    plugged = is_plugged(ctx.guests.disk(own.server_id, own.serial))
    if plugged and not _is_anothers(ctx, own):
        raise still_plugged(own.server_id, own.volume_id)
    shared = _is_shared(ctx, own)
    if not shared:
        refuse_if_open(ctx, own)
        for info in own.infos:
            ctx.brick.disconnect(info, own.device_of(info))
        if is_encrypted(own.infos):
            ctx.guests.drop_secret(own.volume_id)
    ctx.records.pop(own.attachment_id, None)
    return {"shared": shared}


def _is_anothers(ctx: RunContext, own: Record) -> bool:
    """Whether the guest's disk belongs to another attachment of the server on this host: of the
    same volume; or of the volume that a swap put behind this serial, if all sources of the disk are
    its.
    """
    if any(record.server_id == own.server_id for record in _others(ctx, own)):
        return True
    behind = {
        place
        for record in there_now(ctx.records)
        if (record.server_id, record.serial) == (own.server_id, own.serial)
        if record.attachment_id != own.attachment_id
        for place in (*record.paths, *record.names)
    }
    sources = set(ctx.guests.disk(own.server_id, own.serial).sources)
    return bool(sources) and sources <= behind.difference(own.paths, own.names)


def _is_shared(ctx: RunContext, own: Record) -> bool:
    """Whether another attachment has the volume on this host, by records or by the ledger."""
    by_record = any(True for _ in _others(ctx, own))
    return by_record or bool(ctx.users.others(own.volume_id, own.attachment_id))


def _others(ctx: RunContext, own: Record) -> Iterator[Record]:
    for record in there_now(ctx.records):
        if record.volume_id == own.volume_id and record.attachment_id != own.attachment_id:
            yield record


def secret_drop(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Drop the hypervisor's secret of the volume; FINAL `volume_in_use` if the host has it."""
    records = [r for r in there_now(ctx.records) if r.volume_id == lane.volume_id]
    shown = {guest.server_id: set(guest.volumes) for guest in ctx.guests.inventory()}
    if records or _having(shown, {lane.volume_id}):
        raise final("volume_in_use", f"Volume {lane.volume_id} is in use on this host.")
    ctx.guests.drop_secret(lane.volume_id)
    return {}
