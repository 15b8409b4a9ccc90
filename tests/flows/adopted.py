"""Worlds whose server Nova had: the same cloud, with a log that begins with what was seen there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aggregates.base import Seen
from aggregates.host import Host
from aggregates.mapping import BlockDeviceMapping
from handlers.drift.seen import SeenAttachment, SeenMapping, SeenServer, SeenVolume
from handlers.results.adopt import (
    AdoptionVerdict,
    Holder,
    HostFacts,
    ServerFacts,
    VolumeFacts,
    groups,
    judge,
)
from handlers.results.adopted import adopt
from handlers.results.observed import ServerSeen, record
from ledger.log.unit import Unit
from tests.memory import MemoryStore
from tests.world import CONTEXT, HOST, OTHER, World

SEEN = Seen(origin="nova", after=None, before="2026-11-27T12:00:00.000+00:00")
#: Nova's numbers of power states.
_POWERS = {"running": 1, "paused": 3, "shutdown": 4}
Earlier = Callable[[ServerSeen], ServerSeen]


def _alike(sight: ServerSeen) -> ServerSeen:
    return sight


def can_be_adopted(world: World) -> bool:
    """Whether Nova could have had its server so, and hand it over."""
    instance = world.instance
    at_rest = instance.own_state in {"active", "paused", "stopped"} and not instance.vacant_root
    fenced = any(world._host(name).fenced for name in world.hosts)
    return instance.host == HOST and at_rest and not instance.claims and not fenced


def seen_at_nova(world: World) -> HostFacts:
    """What Nova and Cinder would show of the server that the world has."""
    instance, mappings = world.instance, world.mappings()
    new = [m for m in mappings if not m.legacy]
    server = SeenServer(
        id=world.server_id,
        name="theirs",
        host=HOST,
        vm_state=instance.own_state.value,
        power_state=_POWERS[instance.power_state],
        project_id="p",
        user_id="u",
        root_device=next((m.device_name for m in mappings if m.boot_index == 0), None),
        volumes=tuple(str(m.volume_id) for m in mappings),
        mappings=tuple(map(_mapping, new)),
    )
    volumes = {str(m.volume_id): _volume(world, str(m.volume_id)) for m in mappings}
    facts = ServerFacts(
        seen=server,
        locked=False,
        local_disks=False,
        networks=False,
        attachments=tuple(_attachments(world)),
        volumes=volumes,
        ending=frozenset(str(m.volume_id) for m in mappings if m.delete_on_termination),
    )
    return HostFacts(name=HOST, disabled=True, up=False, moving={}, servers=(facts,))


def _mapping(mapping: BlockDeviceMapping) -> SeenMapping:
    return SeenMapping(
        id=str(mapping.id),
        volume_id=str(mapping.volume_id),
        attachment_id=mapping.attachment_id,
        device=mapping.device_name,
        tag=mapping.tag,
        delete_on_termination=mapping.delete_on_termination,
    )


def _volume(world: World, volume_id: str) -> VolumeFacts:
    volume = world.cinder.volume(volume_id)
    rows = world.cinder.attachments_of(volume_id)
    return VolumeFacts(
        seen=SeenVolume(id=volume_id, status=volume.status, multiattach=volume.multiattach),
        holders=tuple(
            Holder(
                attachment_id=row.id,
                server_id=row.instance or "",
                host=row.host,
                device=(row.mountpoint or "").removeprefix("/dev/") or None,
            )
            for row in rows
        ),
    )


def _attachments(world: World) -> Sequence[SeenAttachment]:
    return [
        SeenAttachment(
            id=row.id, volume_id=v, server_id=row.instance, status=row.status, host=row.host
        )
        for v in world.known_volumes()
        for row in world.cinder.attachments_of(v)
        if row.instance == world.server_id
    ]


def was_novas(world: World, earlier: Earlier = _alike) -> tuple[World, AdoptionVerdict]:
    """The same cloud, whose server was Nova's until now; what the preflight says of it.

    `earlier`: what an earlier look has seen, made of what the last one saw.
    """
    facts = seen_at_nova(world)
    world.store = MemoryStore(lambda: world.trouble)
    for records in world.records.values():
        records.clear()
    world.boot()
    world.register(OTHER)
    [server] = facts.servers
    shared = frozenset(v for v, each in server.volumes.items() if _is_shared(each))
    sight = ServerSeen(
        server_id=world.server_id,
        server=server.seen,
        attachments=[replace(each) for each in server.attachments],
        shared=shared,
        seen=SEEN,
        asked=SEEN,
    )
    for each in (earlier(sight), sight):
        unit = Unit(world.store)
        assert record(each, unit)
        unit.save(CONTEXT)
    [verdict] = judge(facts, closed=True)
    return world, verdict


def _is_shared(volume: VolumeFacts) -> bool:
    return isinstance(volume.seen, SeenVolume) and volume.seen.multiattach


def adopted(world: World, *, agent: bool = True, earlier: Earlier = _alike) -> World:
    """The same cloud, handed over; its agent has come, and no host has a record of ours."""
    world, verdict = was_novas(world, earlier)
    assert verdict.refusals == (), verdict
    [[one]] = groups([verdict])
    unit = Unit(world.store)
    unit.get(Host, HOST).adopt("it goes over")
    adopt(one, HOST, "it goes over", SEEN, unit)
    unit.save(CONTEXT)
    if agent:
        world.register(HOST)
    return world


def rows_of_old_calls(world: World) -> dict[str, str]:
    """By volume, Cinder's rows of what the server has."""
    return {
        volume_id: row.id
        for volume_id in world.known_volumes()
        for row in world.cinder.attachments_of(volume_id)
        if row.instance == world.server_id
    }
