"""Verbs for whole guests, with the disks of all their volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import MIGRATION_URI, GuestOrder, PowerState
from host_agent.shared.contract.ports import Disk, PortError
from host_agent.shared.platform.text import one_line
from host_agent.verbs.cinder_flow import flow_of
from host_agent.verbs.context import RunContext, final, refuse_other_sources
from host_agent.verbs.disk import connect, forget_former
from host_agent.verbs.disks import disk_for


def guest_spawn(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Define the guest with the disks of these lanes, and no others; run it if wanted.

    What an earlier run has connected is connected again: the host may have been restarted.
    """
    if order.definition is None:
        raise final(
            "no_definition",
            f"Guest {order.server_id} cannot be defined: the ledger has no definition of it.",
        )
    refuse_other_sources(ctx, order.server_id)
    disks = [_disk(ctx, lane) for lane in order.lanes]
    power = ctx.guests.spawn(order.server_id, order.definition, disks, running=order.running)
    for lane in order.lanes:
        forget_former(ctx, lane)
    return {"power_state": power.value}


def guest_start(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Run the guest as it is defined, if it shall run.

    Its volumes are connected first: the host may have been restarted since it was stopped.  By a
    name of before its definition would have another volume then, so that follows.
    """
    if order.running:
        for lane in order.lanes:
            disk = _disk(ctx, lane)
            state = ctx.guests.disk(order.server_id, disk.serial)
            if state.live is None and state.persistent is not None:
                ctx.guests.replace(order.server_id, disk)
        return {"power_state": ctx.guests.start(order.server_id).value}
    power = ctx.guests.power(order.server_id) or PowerState.NOSTATE
    return {"power_state": power.value}


def guest_stop(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Stop it; if its volumes are to be connected anew or elsewhere then, only if they can be."""
    if any(lane.other is not None for lane in order.lanes):
        refuse_other_sources(ctx, order.server_id)
    return {"power_state": ctx.guests.stop(order.server_id, force=order.force).value}


def guest_pause(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    return _held(ctx, order, ctx.guests.pause)


def guest_resume(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    return _held(ctx, order, ctx.guests.resume)


def _held(ctx: RunContext, order: GuestOrder, act: Callable[[str], PowerState]) -> dict[str, Any]:
    """A guest that is off by now can be neither paused nor resumed: its state is the result."""
    try:
        return {"power_state": act(order.server_id).value}
    except PortError as error:
        if error.code != "guest_not_running":
            raise
        power = ctx.guests.power(order.server_id) or PowerState.NOSTATE
        return {"power_state": power.value}


def guest_remove(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Power the guest off and forget its definition; not here is success."""
    refuse_other_sources(ctx, order.server_id)
    ctx.guests.remove(order.server_id)
    return {}


def guest_migrate(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Move the running guest; its disks become what the destination has connected."""
    disks = [_disk_there(lane) for lane in order.lanes]
    refuse_other_sources(ctx, order.server_id)
    ctx.guests.migrate(order.server_id, _destination(order), disks, ctx.watch)
    return {}


def guest_stay(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Keep the guest here; or find that it has moved already."""
    stays = ctx.guests.stay(order.server_id, _destination(order))
    return {} if stays else {"passed": True}


def guest_find(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Tell whether the guest has arrived here; its source is fenced, so none comes any more."""
    return {"passed": True} if ctx.guests.arrived(order.server_id) else {}


def _disk(ctx: RunContext, lane: Lane) -> Disk:
    return disk_for(lane, connect(ctx, lane, flow_of(ctx, lane).info()))


def _disk_there(lane: Lane) -> Disk:
    if lane.disk is None:
        raise final(
            "not_connected_there",
            f"The destination has not reported its connection of volume {lane.volume_id}.",
        )
    return disk_for(lane, lane.disk)


def _destination(order: GuestOrder) -> dict[str, Any]:
    if order.destination is None:
        raise final("no_destination", f"The command for guest {order.server_id} names no host.")
    uri = str(order.destination.get("uri"))
    if not MIGRATION_URI.match(uri):  # it is that host's own word
        raise final("bad_destination", f"Guests are not moved to {one_line(uri)[:200]}.")
    return order.destination
