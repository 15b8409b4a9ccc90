"""Worlds in which something has drifted, found and confirmed: what repairs start from.

Each plants one drift by hand, as somebody else, a lost request or a crash would have left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from aggregates.attachment import Attachment
from aggregates.base import About
from aggregates.finding import Finding
from aggregates.volume import Volume
from handlers.drift import judge, rows
from handlers.drift.classes import BY_NAME
from handlers.drift.rows import UNKNOWN, CinderAttachment, Row
from handlers.requests.repair import RepairDrift
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.survey import ConnectionShown, DiskShown, StorageShown
from host_agent.shared.faults import Faults
from host_agent.simulated import host_state
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests
from host_agent.simulated.host_state import guest_state
from ledger.log.unit import Unit
from tests.world import CONTEXT, HOST, OTHER, World, events


def found(world: World, name: str, row: Row, *, looks: int = 2) -> World:
    """So many looks see it; two confirm it."""
    for number in range(looks):
        unit = Unit(world.store)
        finding = unit.get(Finding, judge.id_of(BY_NAME[name], row))
        sight = judge.Sight(look_id=f"look-{number}", position=len(world.store.log))
        judge.see(finding, BY_NAME[name], row, sight)
        unit.save(CONTEXT)
    return world


def finding(world: World) -> Finding:
    """The one that was found last."""
    last = events(world, Finding.DriftFound)[-1]
    return world.store.load(Finding, last.originator_id)


def repair(world: World, **more: Any) -> str:
    """Have it repaired; the operation."""
    request = RepairDrift(finding_id=str(finding(world).id), reason="found by a look", **more)
    fleet = replace(world.fleet, had=lambda server: hosts_of(world, server))
    key = f"repair {len(world.store.log)}"
    return world._ask(lambda: world.requests.repair(request, CONTEXT, fleet, key))


def hosts_of(world: World, server_id: str) -> set[str]:
    """The hosts that have had a volume of the server, as the projection of attachments knows."""
    told = events(world, Attachment.ConnectorUpdated)
    return {event.host for event in told if event.about.server_id == server_id}


def attached(volumes: int = 1, **more: Any) -> World:
    world = World(volumes=volumes, **more)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    return world


def _about(world: World, volume_id: str | None = None, **more: str | None) -> About:
    return About(server_id=world.server_id, volume_id=volume_id or world.volumes[0], **more)


# --- in Cinder ----------------------------------------------------------------------------


def _raw(world: World, volume_id: str, host: str | None = None, *, complete: bool = False) -> str:
    """An attachment that nobody tells the ledger of."""
    connector = {"host": host} if host else None
    row = world.cinder.attachment_create(volume_id, world.server_id, connector, "rw")
    if complete:
        world.cinder.attachment_complete(row.id)
    return row.id


def _unknown(
    name: str, host: str | None, server: str = "live", status: str | None = None
) -> Callable[[World, str], World]:
    shown_as = status or ("attached" if host else "reserved")

    def find(world: World, attachment_id: str) -> World:
        row = rows.AttachmentRow(
            id=attachment_id,
            about=_about(world, world.volumes[-1], attachment_id=attachment_id),
            server=server,
            ledger=None,
            cinder=CinderAttachment(status=shown_as, host=host),
        )
        return found(world, name, row)

    return find


def reservation_unknown() -> World:
    world = World(volumes=2)
    world.done(world.attach(world.volumes[0]))
    made = _raw(world, world.volumes[1])
    return _unknown("reservation_unknown", None)(world, made)


def attachment_unknown(*, multiattach: bool = False) -> World:
    """By a host where the server never was; the server's own has to be asked, too."""
    world = World(volumes=2, multiattach=multiattach)
    world.done(world.attach(world.volumes[0]))
    made = _raw(world, world.volumes[1], OTHER, complete=True)
    return _unknown("attachment_unknown", OTHER)(world, made)


def attachment_unknown_beside(host: str = OTHER, *, complete: bool = True) -> World:
    """Of a volume that the server has by an attachment of its own, where it is."""
    world = attached()
    made = _raw(world, world.volumes[0], host, complete=complete)
    status, told = ("attached", host) if complete else ("attaching", None)
    return _unknown("attachment_unknown", told, status=status)(world, made)


def owner_gone() -> World:
    world = World()
    world.done(world.attach())
    world.done(world.delete())
    made = _raw(world, world.volumes[0], HOST, complete=True)
    return _unknown("owner_gone", HOST, "deleted")(world, made)


def mine(world: World) -> Attachment:
    return next(a for a in world.attachments() if a.volume_id == world.volumes[0])


def _held(attachment: Attachment) -> rows.LedgerAttachment:
    return rows.LedgerAttachment(
        state=attachment.state,
        host=attachment.host,
        access_mode=attachment.access_mode,
        legacy=attachment.legacy,
        mapped=True,
        device="vdb",
    )


def attachment_row(
    world: World, attachment: Attachment, cinder: CinderAttachment | None
) -> rows.AttachmentRow:
    return rows.AttachmentRow(
        id=str(attachment.id),
        about=_about(world, attachment_id=str(attachment.id), host=attachment.host),
        server="live",
        ledger=_held(attachment),
        cinder=cinder,
        connected=True if attachment.host else UNKNOWN,
    )


def attachment_lost(world: World | None = None) -> World:
    """The guest goes on writing."""
    world = world or attached()
    attachment = mine(world)
    world.cinder.drop_attachment(str(attachment.id))
    return found(world, "attachment_lost", attachment_row(world, attachment, None))


def attachment_lost_encrypted() -> World:
    return attachment_lost(attached(encrypted=True))


def attachment_lost_everywhere() -> World:
    """Nor has the guest its disk."""
    world = attached()
    _guests(world).unplug(world.server_id, world.volumes[0])
    return attachment_lost(world)


def reservation_lost() -> World:
    world = attached()
    world.done(world.act("shelve"))
    return attachment_lost(world)


def attachment_taken_back() -> World:
    """A late update of Cinder's (decision 0034)."""
    world = attached()
    attachment = mine(world)
    row = world.cinder.attachment(str(attachment.id))
    row.status = world.cinder.volume(world.volumes[0]).status = "attaching"
    cinder = CinderAttachment(status="attaching")
    return found(world, "attachment_status_differs", attachment_row(world, attachment, cinder))


def _volume_row(world: World, status: str, **more: Any) -> rows.VolumeRow:
    volume = world.store.load(Volume, UUID(world.volumes[0]))
    listed = [r for r in world.cinder.attachments_of(world.volumes[0]) if r.status == "attached"]
    shown = {"attachments": len(listed) or len(volume.holders), **more}
    return rows.VolumeRow(
        id=world.volumes[0],
        about=About(volume_id=world.volumes[0]),
        mappings=len(volume.holders),
        had=volume.had,
        cinder=rows.CinderVolume(status=status, **shown),
        projects=("p",) if volume.holders else (),
    )


def volume_detaching() -> World:
    world = attached()
    world.cinder.volume(world.volumes[0]).status = "detaching"
    return found(world, "volume_status_differs", _volume_row(world, "detaching"))


def volume_of_nobody() -> World:
    """The log has it as made, and what was made of that step was given up."""
    world = World()
    unit = Unit(world.store)
    mark = str(world.store.log[0][0].originator_id)
    unit.get(Volume, world.volumes[0]).made(world.server_id, mark)
    world.cinder.volume(world.volumes[0]).metadata[MADE_FOR] = mark
    unit.save(CONTEXT)
    return found(world, "volume_of_nobody", _volume_row(world, "available", made=True))


# --- on hosts -----------------------------------------------------------------------------


def _guests(world: World, host: str = HOST) -> SimulatedGuests:
    """Its hypervisor, as an administrator there has it."""
    return SimulatedGuests(world.hosts[host], Faults(), host)


def connection_left(multiattach: bool = False) -> World:
    """The host went on having it: its disconnect said yes and did nothing."""
    world = attached(encrypted=False, multiattach=multiattach)
    [attachment] = world.attachments()
    record, connected = world.records[HOST][str(attachment.id)], world.host.read()["connected"]
    world.done(world.detach())
    world.records[HOST][str(attachment.id)] = record
    with world.host.edit() as state:
        state["connected"] = connected
    return _left(world, str(attachment.id))


def _left(world: World, attachment_id: str) -> World:
    record = world.records[HOST][attachment_id]
    about = _about(world, record.volume_id, attachment_id=attachment_id, host=HOST)
    shown = ConnectionShown(
        attachment_id=attachment_id,
        volume_id=record.volume_id,
        server_id=record.server_id,
        serial=record.serial,
        present=True,
    )
    row = rows.ConnectionRow(id=attachment_id, about=about, ledger=None, shown=shown)
    return found(world, "connection_left", row)


def connection_left_beside() -> World:
    """What an earlier attachment left, of a volume that the guest has by another one now."""
    world = attached(encrypted=False)
    [record], old = world.records[HOST].values(), str(UUID(int=11))
    world.records[HOST][old] = replace(record, attachment_id=old)
    return _left(world, old)


def connection_left_by_a_swap() -> World:
    """Of the volume that the guest's disk was on before: it is known by that one's id still."""
    world = World(volumes=2, encrypted=False)
    former, new = world.volumes
    world.done(world.attach(former))
    [record], old = world.records[HOST].values(), str(UUID(int=11))
    world.done(world.swap(former, new))
    world.records[HOST][old] = replace(record, attachment_id=old)
    return _left(world, old)


def record_left() -> World:
    """Somebody has removed the device by hand."""
    world = connection_left()
    with world.host.edit() as state:
        state["connected"] = {}
    return world


def disk_row(world: World, shown: DiskShown | None) -> rows.DiskRow:
    [mapping] = world.mappings()
    return rows.DiskRow(
        id=f"{world.server_id}/{mapping.serial}",
        about=_about(world, mapping.volume_id, host=HOST),
        ledger=rows.LedgerDisk(
            volume_id=str(mapping.volume_id),
            device_name=mapping.device_name,
            access_mode=mapping.access_mode,
            plugged=True,
        ),
        shown=shown,
        running=True,
    )


def disk_pulled() -> World:
    """By hand (virsh detach-disk)."""
    world = attached()
    _guests(world).unplug(world.server_id, world.volumes[0])
    return found(world, "disk_missing", disk_row(world, None))


def disk_undefined() -> World:
    """The definition was edited: the next start would lose the disk."""
    world = attached()
    [mapping] = world.mappings()
    with world.host.edit() as state:
        guest = state["guests"][world.server_id]
        guest["persistent"] = host_state.without_disk(guest["persistent"], str(mapping.device_name))
    shown = DiskShown(serial=world.volumes[0], live=mapping.device_name, persistent=None)
    return found(world, "disk_definition_differs", disk_row(world, shown))


def secret_left(world: World | None = None, host: str = HOST) -> World:
    world = world or attached(encrypted=True)
    world.done(world.detach())
    _guests(world, host).keep_secret(world.volumes[0], "a passphrase")
    row = rows.StorageRow(
        id=f"secret/{world.volumes[0]}",
        about=About(host=host),
        shown=StorageShown(kind="secret", name=world.volumes[0], recorded=False, used=False),
        wanted=False,
    )
    return found(world, "secret_left", row)


def guest_of_deleted(*also_on: str) -> World:
    """It was there again when its host came back."""
    world = World()
    world.done(world.delete())
    with world.host.edit() as state:
        state["guests"][world.server_id] = guest_state(server_id=world.server_id)
    ledger = rows.LedgerServer(
        hosts=(), power_state=world.instance.power_state, built=True, deleted=True
    )
    row = rows.ServerRow(
        id=world.server_id,
        about=About(server_id=world.server_id),
        ledger=ledger,
        shown=tuple((host, PowerState.RUNNING.value) for host in (HOST, *also_on)),
    )
    return found(world, "guest_of_deleted", row)


def guest_missing(volumes: int = 2, **more: Any) -> World:
    """Somebody has undefined it by hand; the host still has its volumes connected."""
    world = World(volumes=volumes, **more)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id, delete_on_termination=True))
    return guest_lost(world)


def guest_lost(world: World) -> World:
    host = str(world.instance.host)
    with world.hosts[host].edit() as state:
        del state["guests"][world.server_id]
    world.register(host)
    if host != HOST:
        world.service.lost_guest(world.server_id, host, CONTEXT)
    ledger = rows.LedgerServer(
        hosts=(host,), power_state=world.instance.power_state, built=True, deleted=False
    )
    about = About(server_id=world.server_id, host=host)
    row = rows.ServerRow(id=world.server_id, about=about, ledger=ledger, shown=())
    return found(world, "guest_missing", row)


def connect(world: World, host: str, volume_id: str) -> None:
    """Let a host have a volume connected that no record of its own explains."""
    row = world.cinder.attachments_of(volume_id)[0]
    SimulatedBrick(world.hosts[host], Faults(), host).connect(row.connection_info)
