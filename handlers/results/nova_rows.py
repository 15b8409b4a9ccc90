"""What Nova's database lacks about an adopted server that is to be handed back (decision 0114).

No API of Nova's writes a mapping without attaching something.  So the changes become SQL
(ledger.nova_beside.script), which a person reads and executes.  Each statement has Nova's present
state as its condition, so it changes its one row or none.  The statements have no secrets, so
connections are left empty.  Nova makes them anew when it unshelves the server.  A hard reboot does
not: it leaves such a volume out (Nova 34, ComputeManager._get_instance_block_device_info).

The columns are those of Nova's model BlockDeviceMapping: `deleted` is 0, or the row's own id.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.server import DEFAULT_DETAILS
from handlers.drift.seen import SeenMapping, SeenServer, SeenVolume
from handlers.results.adopt import AT_REST, ServerFacts

#: Nova's numbers of power states (its class InstancePowerState), by its states of a server.
_POWER = {"active": 1, "paused": 3, "stopped": 4}
_BUS = {"vd": "virtio", "sd": "scsi"}
_MAPPINGS = "block_device_mapping"
#: Stands for the id of the row itself.
OWN_ID = object()
#: What stands in a literal as it is, whichever database reads it.
PLAIN = re.compile(r"[\w .:/-]*", re.ASCII)

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowChange:
    """A row to change from `old` to `new`; with `unless`, a row to insert if its server is `old`
    and no row is like `unless`.
    """

    table: str
    new: Row
    old: Row
    unless: Row | None = None


@dataclass(frozen=True, kw_only=True)
class Return:
    """`why`: the reasons against handing back now; `changes`: the necessary changes of Nova's
    database.
    """

    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[RowChange, ...] = ()


def compared(
    server: ServerFacts,
    instance: Instance,
    mappings: Sequence[BlockDeviceMapping],
    host: str,
    now: datetime,
) -> Return:
    """Compare what Nova has of the server with what the ledger has.  `now`: UTC, for new rows."""
    if why := tuple(_in_the_way(server, instance, mappings, host)):
        return Return(why=why)
    changes = tuple(_changes(server, instance, mappings, f"{now:%Y-%m-%d %H:%M:%S}"))
    if changes:
        return Return(why=(_DIFFERS,), changes=changes)
    notes = [_STALE] if mappings else []
    if (instance.name, instance.details) != (server.seen.name or "", DEFAULT_DETAILS):
        notes.append(_DESCRIBED)
    return Return(notes=tuple(notes))


NEVER_NOVAS = "It was never Nova's, though Nova has a server of this id."
_DIFFERS = "Nova's database has other mappings or states of it: see the SQL."
_STALE = (
    "If its volumes changed or were connected anew since it was adopted, have Nova shelve and "
    "unshelve it before anything else. Nova keeps a connection as it was, and its hard reboot "
    "leaves out a volume that it has none of."
)
_DESCRIBED = (
    "Its name, description, metadata, tags or addresses were set here, and Nova has its own: set "
    "them in Nova, too."
)


def _in_the_way(
    server: ServerFacts, instance: Instance, mappings: Iterable[BlockDeviceMapping], host: str
) -> Iterator[str]:
    seen = server.seen
    if instance.came_from is None:
        yield NEVER_NOVAS
    if instance.deleted:
        yield "The ledger has deleted it: delete it in Nova, too."
        return
    yield from _unfinished(instance)
    if instance.host != host:
        yield f"It is on host {instance.host}, and Nova has it here: move it back first."
    if instance.own_state.value not in AT_REST or instance.vacant_root:
        yield f"Its state is {instance.own_state.value}, and none that Nova can take it up in."
    if seen.task_state is not None or seen.mappings is None:
        yield "Nova is at it, or did not tell its mappings."
    old = set(seen.volumes) - {each.volume_id for each in seen.mappings or ()}
    holding = {(id_, each.server_id) for id_, of in server.volumes.items() for each in of.holders}
    for each in mappings:
        if each.legacy and each.volume_id not in old:
            yield f"Volume {each.volume_id} was attached by Cinder's old calls: convert it first."
        elif each.legacy and (each.volume_id, seen.id) not in holding:
            yield f"Cinder did not tell by what row it has volume {each.volume_id}."
        if each.tag is not None and not PLAIN.fullmatch(each.tag):
            yield f"The tag of volume {each.volume_id} cannot be written as SQL: {each.tag!r}."


def _unfinished(instance: Instance) -> Iterator[str]:
    if instance.claims or instance.faults:
        yield f"Operations are at work on it, or parked: {', '.join(instance.claims) or 'a fault'}."
    if instance.deletion is not None:
        yield "It is deleted as soon as what is at work on a volume of it has ended."


def _changes(
    server: ServerFacts, instance: Instance, mappings: Sequence[BlockDeviceMapping], now: str
) -> Iterator[RowChange]:
    """In this order: deleted rows, changed rows, new rows, the server itself."""
    seen, server_id = server.seen, str(instance.id)
    pairs = list(_pairs(mappings, seen.mappings or ()))
    kept = {row.id for _, row in pairs if row is not None}
    old = set(seen.volumes) - {each.volume_id for each in seen.mappings or ()}
    for each in seen.mappings or ():
        if each.id not in kept:
            yield _end(_named(each, server_id), now)
    for volume_id in sorted(old - {str(mapping.volume_id) for mapping in mappings}):
        yield _end(_unnamed(volume_id, server_id), now)
    for mapping, row in pairs:
        if mapping.legacy:
            continue
        if row is not None:
            yield from _changed(mapping, row, server_id, now)
        elif mapping.volume_id in old:  # it was converted since
            through = {"attachment_id": mapping.attachment_id, "connection_info": None}
            yield _update(through, _unnamed(mapping.volume_id, server_id), now)
        else:
            yield _insert(mapping, server, now)
    yield from _state(seen, instance, now)


def _pairs(
    mappings: Sequence[BlockDeviceMapping], rows: Sequence[SeenMapping]
) -> Iterator[tuple[BlockDeviceMapping, SeenMapping | None]]:
    """Each mapping with Nova's row: the one with the same id; or the one of the same volume, whose
    id is another one if the old calls made it, or if the volume was attached anew.
    """
    by_id = {row.id: row for row in rows}
    ids = {str(mapping.id) for mapping in mappings}
    by_volume = {row.volume_id: row for row in rows if row.id not in ids}
    for mapping in mappings:
        yield mapping, by_id.get(str(mapping.id)) or by_volume.get(mapping.volume_id or "")


def _named(shown: SeenMapping, server_id: str) -> Row:
    return {
        "uuid": shown.id,
        "instance_uuid": server_id,
        "volume_id": shown.volume_id,
        "attachment_id": shown.attachment_id,
        "deleted": 0,
    }


def _unnamed(volume_id: str, server_id: str) -> Row:
    """Attached by Cinder's old calls: Nova shows no uuid, and there is no attachment."""
    return {
        "instance_uuid": server_id,
        "volume_id": volume_id,
        "attachment_id": None,
        "deleted": 0,
    }


def _changed(
    mapping: BlockDeviceMapping, shown: SeenMapping, server_id: str, now: str
) -> Iterator[RowChange]:
    now_so = {
        "volume_id": mapping.volume_id,
        "attachment_id": mapping.attachment_id,
        "delete_on_termination": mapping.delete_on_termination,
    }
    differs = {name: value for name, value in now_so.items() if getattr(shown, name) != value}
    if mapping.device_name != shown.device:
        differs["device_name"] = f"/dev/{mapping.device_name}"
    if mapping.tag not in {None, shown.tag}:  # None: the ledger may not know it
        differs["tag"] = mapping.tag
    if differs.keys() & {"volume_id", "attachment_id"}:
        differs["connection_info"] = None
    if differs:
        yield _update(differs, _named(shown, server_id), now)


def _end(where: Row, now: str) -> RowChange:
    return RowChange(table=_MAPPINGS, new={"deleted": OWN_ID, "deleted_at": now}, old=where)


def _update(changed: Row, where: Row, now: str) -> RowChange:
    return RowChange(table=_MAPPINGS, new={**changed, "updated_at": now}, old=where)


def _insert(mapping: BlockDeviceMapping, server: ServerFacts, now: str) -> RowChange:
    device, server_id = str(mapping.device_name), str(mapping.server_id)
    facts = server.volumes.get(str(mapping.volume_id))
    size_gb = facts.seen.size_gb if facts and isinstance(facts.seen, SeenVolume) else None
    row: Row = {
        "created_at": now,
        "deleted": 0,
        "uuid": str(mapping.id),
        "instance_uuid": server_id,
        "volume_id": mapping.volume_id,
        "volume_size": size_gb,
        "attachment_id": mapping.attachment_id,
        "device_name": f"/dev/{device}",
        "source_type": "volume",
        "destination_type": "volume",
        "device_type": "disk",
        "disk_bus": _BUS.get(device[:2]),
        "boot_index": mapping.boot_index,
        "delete_on_termination": mapping.delete_on_termination,
        "no_device": False,
        "tag": mapping.tag,
    }
    taken = {"instance_uuid": server_id, "volume_id": mapping.volume_id, "deleted": 0}
    there = {"uuid": server_id, "host": server.seen.host, "deleted": 0}
    return RowChange(table=_MAPPINGS, new=row, old=there, unless=taken)


def _state(seen: SeenServer, instance: Instance, now: str) -> Iterator[RowChange]:
    """Nova stops a running guest if its row says stopped."""
    state = instance.own_state.value
    if state == seen.vm_state:
        return
    where: Row = {"uuid": seen.id, "host": seen.host, "vm_state": seen.vm_state}
    where |= {"task_state": None, "deleted": 0}
    new = {"vm_state": state, "power_state": _POWER[state], "updated_at": now}
    yield RowChange(table="instances", new=new, old=where)
