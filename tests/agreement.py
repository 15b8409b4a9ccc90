"""Whether ledger, Cinder and hosts of a small world say the same, when it is at rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aggregates.operation import Operation
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.ports import GIB
from tests.doubles.host_checks import misplugged, seen_sizes

if TYPE_CHECKING:
    from tests.world import World

#: States in which Cinder lets nobody else have a volume.
_TAKEN = frozenset({"reserved", "attaching", "in-use", "detaching"})
#: States that a volume is not in while a server has it.
_FREE = frozenset({"available", "detaching"})


def disagreements(world: World) -> Iterator[str]:
    """What is said differently, in words (decision 0026)."""
    yield from _of_cinder(world)
    bound = [m.volume_id for m in world.mappings()]
    if len(set(bound)) != len(bound):
        yield f"volumes bound twice: {bound}"
    yield from _unnamed(world)
    yield from _not_grown(world)
    yield from _misnamed(world)
    given = {d.volume_id for d in world.instance.devices.values()}
    if given != set(bound):
        yield f"device names are given to {given}, mappings are of {bound}"
    yield from misrecorded(world)


def misrecorded(world: World) -> Iterator[str]:
    """A host has a record of each attachment that is there, and of no other (decision 0081)."""
    attachments = world.attachments()
    for name in set(world.records) - world.dead:
        records = world.records[name]
        here = {str(a.id) for a in attachments if a.host == name and a.may_be_connected}
        if set(records) != here:
            yield f"{name} has records of {sorted(records)}, attachments there are {sorted(here)}"


def _of_cinder(world: World) -> Iterator[str]:
    """Cinder has the attachments of the ledger; and of what the old calls attached, the volume."""
    attachments = world.attachments()
    ledger = {str(a.id) for a in attachments if not a.legacy}
    old = {a.volume_id for a in attachments if a.legacy}  # of these Cinder has rows of its own
    known = set(world.known_volumes()) - old
    cinder = {row.id for v in known for row in world.cinder.attachments_of(v)}
    if ledger != cinder:
        yield f"attachments: ledger has {sorted(ledger)}, Cinder has {sorted(cinder)}"
    held = {a.volume_id for a in attachments}
    for volume_id in world.known_volumes():
        status = world.cinder.volume(volume_id).status
        if status in (_FREE if volume_id in held else _TAKEN):
            whose = "a server's" if volume_id in held else "nobody's"
            yield f"volume {volume_id} is {whose}, and {status} in Cinder"


def _not_grown(world: World) -> Iterator[str]:
    """A guest has all of a volume that Cinder shows; after a swap as much as it had."""
    begun = [e.flow for e, _ in world.store.log if isinstance(e, Operation.OperationStarted)]
    if not {"swap", "migrate_volume"}.isdisjoint(begun):
        return
    host = world.hosts.get(world.instance.host or "")
    sizes = seen_sizes(host).get(world.server_id, {}) if host else {}
    for mapping in world.mappings():
        has, volume_id = sizes.get(mapping.serial or ""), mapping.volume_id
        if has is not None and volume_id in world.known_volumes():
            volume = world.cinder.volume(volume_id)
            if has != volume.size * GIB and volume.status != "error_extending":
                yield f"volume {volume_id} is of {volume.size} GiB, its guest has {has} bytes"


def _unnamed(world: World) -> Iterator[str]:
    """Each attachment of the server is one that a mapping names, of the mapping's volume."""
    mine = [m for m in world.mappings() if m.server_id == world.server_id]
    yield from misplugged(mine, world.hosts.get(world.instance.host or ""))
    named = {id_: m.volume_id for m in mine for id_ in (m.attachment_id, m.kept) if id_}
    had = {str(a.id): a.volume_id for a in world.attachments() if a.server_id == world.server_id}
    if had != named:
        yield f"attachments are of {had}, mappings name {named}"


def _misnamed(world: World) -> Iterator[str]:
    """Whoever connects a volume anew gets the file that its guest writes to."""
    for volume in world.cinder.volumes.values():
        if volume.driver != "nfs":
            continue
        for row in world.cinder.attachments_of(volume.id):
            host = world.hosts.get(row.host or "")
            guest = host.read()["guests"].get(row.instance or "") if host else None
            for copy in ("live", "persistent"):
                domain = guest and guest[copy]
                disk = disk_xml.parse(domain).disk_of(volume.id) if domain else None
                if disk is None or disk.place is None:
                    continue
                name = Path(str(disk.place[0])).name
                if name != row.connection_info.get("name"):
                    told = row.connection_info.get("name")
                    yield f"{copy} disk of {volume.id} is on {name}, Cinder tells {told}"
