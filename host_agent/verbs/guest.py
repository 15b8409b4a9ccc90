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
    """Define the guest with exactly the disks of these lanes; start it if requested.

    Volumes are connected even if an earlier run did so: the host may have been rebooted.
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
    """Start the guest as it is defined, if it should run.

    Its volumes are connected first, and the definition gets their present names: after a reboot of
    the host the old device names may be other volumes.
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
    """Stop it.  If its volumes are connected again or elsewhere next, their sources are checked."""
    if any(lane.other is not None for lane in order.lanes):
        refuse_other_sources(ctx, order.server_id)
    return {"power_state": ctx.guests.stop(order.server_id, force=order.force).value}


def guest_pause(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    return _held(ctx, order, ctx.guests.pause)


def guest_resume(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    return _held(ctx, order, ctx.guests.resume)


def _held(ctx: RunContext, order: GuestOrder, act: Callable[[str], PowerState]) -> dict[str, Any]:
    """A guest that is off can be neither paused nor resumed: its state is the result."""
    try:
        return {"power_state": act(order.server_id).value}
    except PortError as error:
        if error.code != "guest_not_running":
            raise
        power = ctx.guests.power(order.server_id) or PowerState.NOSTATE
        return {"power_state": power.value}


def guest_remove(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Power the guest off and undefine it; a missing guest is success."""
    refuse_other_sources(ctx, order.server_id)
    ctx.guests.remove(order.server_id)
    return {}


def guest_migrate(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Migrate the running guest; its disks get the sources that the destination has connected."""
    disks = [_disk_there(lane) for lane in order.lanes]
    refuse_other_sources(ctx, order.server_id)
    ctx.guests.migrate(order.server_id, _destination(order), disks, ctx.watch)
    return {}


def guest_stay(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Abort the migration; `passed` if the guest has moved already."""
    stays = ctx.guests.stay(order.server_id, _destination(order))
    return {} if stays else {"passed": True}


def guest_find(ctx: RunContext, order: GuestOrder) -> dict[str, Any]:
    """Whether the guest has arrived here (`passed`); its source is fenced, so none can follow."""
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
