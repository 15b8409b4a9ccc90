"""Verbs that call Cinder.  The package's docstring has the rules of all verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import Verb
from host_agent.shared.contract.ports import ConnectionInfo, VolumeView
from host_agent.shared.contract.volume_states import FAILED
from host_agent.storage import connection
from host_agent.verbs.cinder_flow import NewFlow, OldFlow, flow_of, own_connector
from host_agent.verbs.context import (
    RunContext,
    final,
    is_plugged,
    is_swap,
    path_of,
    refuse_if_copies_differ,
    refuse_if_plugged,
    refuse_other_source,
)
from host_agent.verbs.disk import connect, disconnect, is_shared, keep_connected, keep_unconnected

#: Volume states in which the data is not there yet (nova: block device allocation).
PROVISIONING = frozenset({"creating", "downloading"})


def attachment_update(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Update the attachment with this host's connector, unless it has a connection."""
    _check_multiattach(ctx, lane)
    flow = flow_of(ctx, lane)
    return _target(lane, flow, flow.update())


def attachment_create(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Create an attachment for this host; the one of the server's other host stays."""
    _check_multiattach(ctx, lane)
    flow = flow_of(ctx, lane)
    made = flow.create()
    return {"attachment_id": made.attachment_id, **_target(lane, flow, made.info)}


def attachment_refresh(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Get a new connection for the same attachment.

    If the guest is off, the former connection is ended first and its record kept (decision 0081).
    That is impossible while it runs; whether it was necessary, `disk_replace` finds out.  Cinder
    forgets the former one: without a record, as of an adopted server, it is recorded first.
    """
    refuse_other_source(ctx, lane.server_id, lane.disk_serial)
    flow = flow_of(ctx, lane)
    if not ctx.guests.disk(lane.server_id, lane.disk_serial).running:
        own_connector(ctx)  # fails before anything is disconnected
        disconnect(ctx, lane, shared=is_shared(ctx, lane))
        keep_unconnected(ctx, lane)
    elif isinstance(flow, NewFlow) and lane.attachment_id not in ctx.records:
        keep_connected(ctx, lane, flow.shown())
    return _target(lane, flow, flow.refresh())


def attachment_convert(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Convert an attachment of the old calls: its row in Cinder gets this host's connector.

    The guest keeps its disk.
    """
    # The old calls do not show a row that an earlier attempt has begun to convert.
    rows = ctx.cinder.attachments(lane.volume_id, lane.server_id)
    row = next((row for row in rows if row.status in {"attached", "attaching"}), None)
    if row is None:
        raise final(
            "not_attached",
            f"Cinder has no attachment of volume {lane.volume_id} to server {lane.server_id} "
            "to convert: check it with `openstack volume show`.",
        )
    lane = replace(lane, attachment_id=row.id)
    flow = NewFlow(ctx, lane)
    # From the list: a single read of a row without connection fails in Cinder if the volume's
    # driver has a format (NFS).
    if row.connection_info:
        ctx.attachments[row.id] = row
    info = row.connection_info or flow.refresh()
    disk = connect(ctx, lane, info)
    flow.complete(lane.device_name or "")
    if lane.other is not None and lane.other.attachment_id is not None:
        ctx.records.pop(lane.other.attachment_id, None)
    return {"attachment_id": row.id, "device_path": path_of(disk), **_target(lane, flow, info)}


def attachment_complete(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Complete the attachment, after a check that the guest has the disk.

    Cinder does not check: it would set `in-use` with nothing connected.
    """
    flow = flow_of(ctx, lane)
    info = (_connected_here(ctx, lane) if ctx.first else None) or flow.info()
    state = ctx.guests.disk(lane.server_id, lane.disk_serial)
    own = path_of(lane.disk)
    elsewhere = is_swap(lane) and own and state.sources and own not in state.sources
    if not is_plugged(state) or elsewhere:
        raise final(
            "disk_not_plugged",
            f"Guest {lane.server_id} has no disk of volume {lane.volume_id}: nothing to complete.",
        )
    refuse_if_copies_differ(lane, state)
    flow.complete(state.live or state.persistent or "")
    return {"driver": connection.driver(info)}


def _connected_here(ctx: RunContext, lane: Lane) -> ConnectionInfo | None:
    """The connection in this host's record of the attachment, if it is exactly one."""
    own = ctx.records.get(lane.attachment_id or "")
    return own.infos[0] if own is not None and len(own.infos) == 1 else None


def attachment_delete(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Delete the attachment; a missing one is success.

    Never while the guest here has the disk: Cinder would end the export, and the device could come
    back as another tenant's volume (CVE-2023-2088).
    """
    refuse_if_plugged(ctx, lane)
    ended = flow_of(ctx, lane).delete()
    return {"ended": dict.fromkeys(ended, lane.volume_id)} if ended else {}


def take_back(ctx: RunContext, verb: Verb, lane: Lane) -> None:
    """Delete what a step created, if the ledger refused its result as stale."""
    if verb is Verb.ATTACHMENT_CREATE:
        flow_of(ctx, lane).take_back()


def volume_wait_ready(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Wait until the volume is provisioned (S1, attach, third step).

    It usually was when the run took its locks, and it stays so.
    """
    seen = ctx.volumes.get(lane.volume_id)
    if seen is None or not _is_ready(seen):
        wait_until(ctx, lane.volume_id, _is_ready)
    return {}


def wait_until(
    ctx: RunContext, volume_id: str, is_ready: Callable[[VolumeView], bool]
) -> VolumeView:
    """Poll Cinder; FINAL `volume_error`, `cancelled`, or `volume_not_ready` at the deadline.

    The wait can be long, so attachments that were read before it are forgotten.
    """
    end = ctx.clock.now() + ctx.waits.ready_deadline_s
    while True:
        volume = ctx.cinder.volume(volume_id)
        if is_ready(volume):
            ctx.volumes[volume_id] = volume
            return volume
        if volume.status in FAILED:
            raise final(
                "volume_error",
                f"Volume {volume_id} is in status {volume.status!r} in Cinder: see its messages.",
            )
        if ctx.watch.cancelled():
            raise final("cancelled", f"Cancelled while volume {volume_id} was not ready.")
        if ctx.clock.now() + ctx.waits.ready_poll_s > end:
            raise final(
                "volume_not_ready",
                f"Volume {volume_id} was not ready after {ctx.waits.ready_deadline_s:g} s: status "
                f"{volume.status!r}, service_uuid {'set' if volume.service_uuid else 'not set'}.",
            )
        ctx.attachments.clear()
        ctx.infos.clear()
        ctx.clock.wait(ctx.waits.ready_poll_s)


def _is_ready(volume: VolumeView | VolumeSeen) -> bool:
    # A volume may be "available" before its service_uuid and shared_targets are set; the lock of S3
    # needs both.
    return volume.status not in PROVISIONING | FAILED and volume.service_uuid is not None


def _check_multiattach(ctx: RunContext, lane: Lane) -> None:
    """S3: the service has checked already; "checked again on the host"."""
    if lane.multiattach and not ctx.multiattach:
        raise final(
            "multiattach_not_supported",
            f"This host cannot share volume {lane.volume_id} between servers.",
        )


def _target(lane: Lane, flow: NewFlow | OldFlow, info: ConnectionInfo) -> dict[str, Any]:
    """The outputs about the connection."""
    return {
        "connector_host": flow.connector_host,
        "driver": connection.driver(info),
        "target_digest": connection.target_digest(info),
        "access_mode": connection.access_mode(info, lane.access_mode),
    }
