"""The verbs a host runs, each an *ensure*: probe, act, verify.

A verb may be called when nothing, half or all of it has happened before: after a
crash, a time-out, or a report that got lost.  It looks first, does what is missing,
and looks again.  So running a verb after an unknown outcome is always right, and a
second run of a finished one changes nothing.

Verbs raise PortError only; what it means for the flow is the ledger's business.  The
one exception is `Stopping`, raised by the clock while the agent shuts down: the run
is dropped without a report, and the ledger hands it out again.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

from host_agent import connection, masking
from host_agent.context import (
    Connected,
    Context,
    attachment_of,
    connection_of,
    final,
    is_missing,
    is_plugged,
    no_attachment_id,
    refuse_if_plugged,
)
from host_agent.contract import ErrorKind, Lane, Verb
from host_agent.ports import Disk, PortError, VolumeView

#: Volume states in which the data is not there yet (nova: block device allocation).
PROVISIONING = frozenset({"creating", "downloading"})
#: How often a name chosen here may be taken by a parallel lane of the same server.
NAME_CHOICES_MAX = 5

_CONNECTED = frozenset({"attaching", "attached"})
_BUSES = {"vd": "virtio", "xvd": "virtio", "sd": "scsi", "hd": "scsi"}


# --- Cinder ---------------------------------------------------------------------------


def attachment_update(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Give the attachment this host's connector, unless it has a connection already.

    An update of an attached attachment would send it back to `attaching`.
    """
    view = attachment_of(ctx, lane)
    if not (view.connection_info and view.status in _CONNECTED):
        view = ctx.cinder.attachment_update(view.id, ctx.brick.connector())
        masking.learn(view.connection_info)
    if not view.connection_info:
        view = attachment_of(ctx, lane)
    info = connection_of(view)
    return {"driver": connection.driver(info), "target_digest": connection.target_digest(info)}


def volume_wait_ready(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Wait until the volume is provisioned (S1, attach, third step)."""
    wait_until(ctx, lane.volume_id, _is_ready)
    return {}


def wait_until(ctx: Context, volume_id: str, is_ready: Callable[[VolumeView], bool]) -> VolumeView:
    """Poll Cinder; FINAL `volume_error`, or `volume_not_ready` at the deadline."""
    end = ctx.clock.now() + ctx.waits.ready_deadline_s
    while True:
        volume = ctx.cinder.volume(volume_id)
        if volume.status.startswith("error"):
            raise final(
                "volume_error",
                f"Volume {volume_id} is in status {volume.status!r} in Cinder: see its messages.",
            )
        if is_ready(volume):
            return volume
        if ctx.clock.now() + ctx.waits.ready_poll_s > end:
            raise final(
                "volume_not_ready",
                f"Volume {volume_id} was not ready after {ctx.waits.ready_deadline_s:g} s: status "
                f"{volume.status!r}, service_uuid {'set' if volume.service_uuid else 'not set'}.",
            )
        ctx.clock.wait(ctx.waits.ready_poll_s)


def _is_ready(volume: VolumeView) -> bool:
    # A volume may say "available" before its service_uuid is set, and shared_targets
    # with it: the lock of S3 needs both.
    return volume.status not in PROVISIONING and volume.service_uuid is not None


def attachment_complete(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Mark the attachment attached, given evidence that it is.

    Cinder would accept it without (in-use with nothing connected): so we look.
    """
    view = attachment_of(ctx, lane)
    info = connection_of(view)
    if not is_plugged(ctx.guests.disk(lane.server_id, lane.volume_id)):
        raise final(
            "disk_not_plugged",
            f"Guest {lane.server_id} has no disk of volume {lane.volume_id}: nothing to complete.",
        )
    if view.status != "attached":
        ctx.cinder.attachment_complete(view.id)
        view = attachment_of(ctx, lane)
        if view.status != "attached":
            raise PortError(
                ErrorKind.UNKNOWN,
                "complete_not_seen",
                f"Attachment {view.id} is {view.status!r} in Cinder after being completed.",
            )
    return {"driver": connection.driver(info)}


def attachment_delete(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Delete the attachment; one that is gone is a success.

    Never while the guest here has the disk: Cinder would take the export away under
    it, and the device could come back as another tenant's (CVE-2023-2088).
    """
    if lane.attachment_id is None:
        raise no_attachment_id(lane)
    refuse_if_plugged(ctx, lane)
    try:
        ctx.cinder.attachment_delete(lane.attachment_id)
        left = ctx.cinder.attachment(lane.attachment_id)
    except PortError as error:
        if is_missing(error):
            return {}
        raise
    raise PortError(  # LP 1935057: a failed remove_export leaves the row
        ErrorKind.RETRYABLE,
        "attachment_left",
        f"Attachment {left.id} is still there ({left.status!r}) after its deletion.",
    )


# --- os-brick -------------------------------------------------------------------------


def volume_connect(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Make the volume visible on this host."""
    return {"device_path": connection.device_path(_connect(ctx, lane).source)}


def _connect(ctx: Context, lane: Lane) -> Connected:
    info = connection_of(attachment_of(ctx, lane))
    if info.get("encrypted"):
        raise final(
            "encryption_not_supported",
            f"Volume {lane.volume_id} is encrypted, which this agent cannot decrypt for a guest.",
        )
    source = dict(ctx.brick.connect(info))
    ctx.connected = Connected(
        format=source.pop("format", None) or connection.image_format(info),
        source=source,
        discard=bool(info.get("discard")),
        readonly=info.get("access_mode") == "ro",
    )
    return ctx.connected


def volume_disconnect(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Remove the volume from this host, unless another guest here uses it.

    The volume's lock is held by the caller for multi-attach volumes, so that of two
    detaches at the same time exactly one is the last.
    """
    refuse_if_plugged(ctx, lane)
    others = set(ctx.guests.users(lane.volume_id)) - {lane.server_id}
    if others:
        return {"shared": True}
    try:
        view = attachment_of(ctx, lane)
    except PortError as error:
        if error.code != "attachment_gone":
            raise
        raise final(
            "attachment_gone_connected",
            f"Attachment {lane.attachment_id} is gone from Cinder, and with it what os-brick needs "
            f"to disconnect volume {lane.volume_id}: check this host for leftovers of it.",
        ) from error
    if view.connection_info:  # LP 1738254: without a connector nothing was connected
        ctx.brick.disconnect(view.connection_info)
    return {"shared": False}


# --- libvirt --------------------------------------------------------------------------


def disk_plug(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Give the guest the disk, in its definition and, if it runs, live."""
    for _ in range(NAME_CHOICES_MAX):
        name = lane.device_name or _free_name(ctx, lane)
        bus = bus_of(name)
        connected = ctx.connected or _connect(ctx, lane)
        try:
            state = ctx.guests.plug(lane.server_id, _disk(lane, connected, name, bus))
            break
        except PortError as error:
            if lane.device_name or error.code != "device_name_taken":
                raise
    else:
        raise PortError(
            ErrorKind.RETRYABLE, "device_name_taken", "Other lanes took every name chosen here."
        )
    found = state.live or state.persistent
    if found is None or (state.running and state.live is None):
        raise PortError(
            ErrorKind.UNKNOWN,
            "plug_not_seen",
            f"Guest {lane.server_id} does not show the disk of volume {lane.volume_id} "
            "after it was plugged.",
        )
    return {"device_name": found, "bus": bus_of(found)}


def disk_unplug(ctx: Context, lane: Lane) -> dict[str, Any]:
    """Take the disk from the guest; a missing disk or guest is success (LP 1727260)."""
    state = ctx.guests.unplug(lane.server_id, lane.volume_id)
    if is_plugged(state):
        raise PortError(
            ErrorKind.UNKNOWN,
            "unplug_not_seen",
            f"Guest {lane.server_id} still shows the disk of volume {lane.volume_id}.",
        )
    return {}


def bus_of(device_name: str) -> str:
    """Virtio for vdX and xvdX, scsi for sdX and hdX (IDE cannot be plugged)."""
    found = re.fullmatch(r"(vd|xvd|sd|hd)[a-z]{1,2}", device_name)
    if found is None:
        raise final(
            "bad_device_name", f"Device name {device_name!r} is none of vdX, xvdX, sdX, hdX."
        )
    return _BUSES[found[1]]


def _free_name(ctx: Context, lane: Lane) -> str:
    seen = ctx.guests.disk(lane.server_id, lane.volume_id)
    if found := seen.live or seen.persistent:
        return found
    guest = next((g for g in ctx.guests.inventory() if g.server_id == lane.server_id), None)
    taken = set(guest.devices) if guest else set()
    letters = string.ascii_lowercase[1:]  # "a" is the root disk's
    for name in (f"vd{letter}" for letter in letters):
        if name not in taken:
            return name
    raise final("no_device_name", f"Guest {lane.server_id} has no free name from vdb to vdz.")


def _disk(lane: Lane, connected: Connected, name: str, bus: str) -> Disk:
    return Disk(
        volume_id=lane.volume_id,
        source=connected.source,
        device_name=name,
        bus=bus,
        format=connected.format,
        shareable=lane.multiattach,
        discard=connected.discard,
        readonly=connected.readonly,
        tag=lane.tag,
    )


VERBS: dict[Verb, Callable[[Context, Lane], dict[str, Any]]] = {
    Verb.ATTACHMENT_UPDATE: attachment_update,
    Verb.VOLUME_WAIT_READY: volume_wait_ready,
    Verb.VOLUME_CONNECT: volume_connect,
    Verb.DISK_PLUG: disk_plug,
    Verb.ATTACHMENT_COMPLETE: attachment_complete,
    Verb.DISK_UNPLUG: disk_unplug,
    Verb.VOLUME_DISCONNECT: volume_disconnect,
    Verb.ATTACHMENT_DELETE: attachment_delete,
}
