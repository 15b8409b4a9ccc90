"""What must be so (decision 0026): after every save, after every step, and when all is at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate, Event
from aggregates.finding import Finding
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance, VmState
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation, OperationState
from aggregates.remnant import Remnant
from aggregates.volume import Volume
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.wire import plain
from host_agent.storage import connection
from projections.base import Row
from tests.doubles.host_checks import misplugged, seen_sizes
from tests.simulation import drift
from tests.simulation.hostile import unshowable

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

_ON_A_HOST = frozenset({"connecting", "connected", "attached"})

# --- after every save -------------------------------------------------------------------


def broken_by(events: Sequence[Event], cloud: Cloud) -> Iterator[str]:
    """What these events should never have made true."""
    mapped = Counter(
        (row["server_id"], row["volume_id"]) for row in cloud.rows("mappings") if row["volume_id"]
    )
    yield from (f"{pair} is mapped {n} times" for pair, n in mapped.items() if n > 1)
    for event in events:
        id_ = event.originator_id
        error = getattr(event, "error", None)
        if error is not None and error["code"] == "internal":
            yield f"{event} is of an unexpected error"
        if isinstance(event, Attachment.ConnectorUpdated):
            yield from _widened(cloud.store.load(Attachment, id_), cloud)
        if getattr(event, "occurred", None) is not None:
            yield from _at_another_time(event, cloud)
        yield from unshowable(event)
        if isinstance(event, Volume.Held):
            yield from _held_twice(cloud.store.load(Volume, id_), cloud)
        if isinstance(event, Attachment.ConnectorUpdated):
            yield from _connected_twice(cloud.store.load(Attachment, id_), cloud)
        if isinstance(event, Instance.DeviceReserved | Instance.DeviceVolumeSet):
            devices = cloud.store.load(Instance, id_).devices.values()
            given = Counter(device.volume_id for device in devices if device.volume_id)
            yield from (f"{id_} has {v} as {n} devices" for v, n in given.items() if n > 1)


def _widened(attachment: Attachment, cloud: Cloud) -> Iterator[str]:
    """What a server has read-only, no host gets writable."""
    if attachment.access_mode != "ro" and _reads_only(cloud, attachment):
        yield f"attachment {attachment.id} is {attachment.access_mode} on {attachment.host}"


def _reads_only(cloud: Cloud, attachment: Attachment) -> bool:
    """Whether its server has a mapping of its volume that is read-only."""
    pair = (attachment.volume_id, attachment.server_id, "ro")
    rows = cloud.rows("mappings")
    return any((row["volume_id"], row["server_id"], row["access_mode"]) == pair for row in rows)


def _at_another_time(event: Any, cloud: Cloud) -> Iterator[str]:
    """Whatever the host's clock says: what it says less its offset is when it was."""
    said, key = event.occurred, (str(event.originator_id), event.run, event.step)
    wrong_s = abs(said["at"] - said["offset_s"] - cloud.ended[key])
    if wrong_s > said["error_s"] + 1e-3 and not cloud.database_was_set:
        yield f"{event} was {wrong_s:g} s from then"


def _held_twice(volume: Volume, cloud: Cloud) -> Iterator[str]:
    servers = set(volume.holders.values())
    if len(servers) > 1 and not cloud.is_shared(str(volume.id)):
        yield f"volume {volume.id} is held by {sorted(servers)}"


def _connected_twice(attachment: Attachment, cloud: Cloud) -> Iterator[str]:
    pair = (attachment.volume_id, attachment.server_id)
    rows = [
        row
        for row in cloud.rows("attachments")
        if (row["volume_id"], row["server_id"]) == pair and row["state"] in _ON_A_HOST
    ]
    instance = cloud.store.load(Instance, UUID(attachment.server_id or ""))
    claims = instance.claims.values()
    moves = any(claim.exclusive or claim.flow == "replace_attachment" for claim in claims)
    moves = moves or instance.resize_source is not None
    if len(rows) > 1 and not moves:
        yield f"{pair} is connected by {[row['attachment_id'] for row in rows]} outside a move"


# --- after every step of a host ------------------------------------------------------------


def broken_on_hosts(cloud: Cloud) -> Iterator[str]:
    """No guest runs twice, and none on a volume that Cinder has given up (CVE-2023-2088)."""
    running: dict[str, list[str]] = {}
    for name, state in cloud.states.items():
        seen, cut_off = state.seen(), cloud.isolated.get(name, set())
        for server_id, guest in seen["guests"].items():
            if guest["live"] is None or server_id in cut_off | cloud.apart:
                continue
            running.setdefault(server_id, []).append(name)
            if server_id in cloud.by_hand:  # with disks that only its former host has connected
                continue
            if paths := _volume_paths(guest["live"]) - _given(cloud, server_id, name, seen):
                yield f"{server_id} on {name} has {paths}, attached to nothing in Cinder"
    yield from (f"{s} runs on {names}" for s, names in running.items() if len(names) > 1)
    yield from cloud.files.broken()


@lru_cache(maxsize=1000)
def _volume_paths(domain: str) -> set[str | None]:
    disks = disk_xml.parse(domain).disks
    return {disk_xml.short(disk.place) for disk in disks if disk.is_volume}


def _given(cloud: Cloud, server_id: str, host: str, seen: dict[str, Any]) -> set[str]:
    """What Cinder lets this server use on this host: of files any of the volume's."""
    rows = [
        row
        for row in cloud.cinder.attachments.values()
        if row.instance == server_id and row.host == host and row.connection_info
    ]
    digests = {connection.target_digest(row.connection_info) for row in rows}
    theirs = {seen["connected"].get(digest, {}).get("path") for digest in digests}
    volumes = {row.volume_id for row in rows}
    return theirs | cloud.files.connected(volumes, seen["connected"].values())


# --- at rest -----------------------------------------------------------------------------


def broken_at_rest(cloud: Cloud) -> Iterator[str]:
    """What is not as it should be when nothing is under way, and nothing can fail."""
    yield from _unfinished(cloud)
    yield from _ledger(cloud)
    yield from drift.found(cloud)
    yield from _hosts(cloud)
    yield from _plugged(cloud)
    yield from _sizes(cloud)
    yield from broken_on_hosts(cloud)
    yield from cloud.files.broken_at_rest()
    yield from _projections(cloud)
    yield from _streams(cloud)
    yield from (str(each) for each in cloud.replay.rest() if each.about not in cloud.planted)


def _unfinished(cloud: Cloud) -> Iterator[str]:
    for operation in cloud.operations():
        if operation.state is not OperationState.FINISHED:
            yield f"operation {operation.id} is {operation.state}"
    for instance in cloud.instances(deleted=True):
        if instance.claims:
            yield f"server {instance.id} is claimed by {sorted(instance.claims)}"
        if instance.deletion:
            yield f"server {instance.id} waits to be deleted"
        if set(instance.faults) - {str(instance.id)}:
            yield f"server {instance.id} has faults {instance.faults}"
    for volume_id in _known_volumes(cloud):
        if claims := cloud.volume(volume_id).claims:
            yield f"volume {volume_id} is claimed by {sorted(claims)}"


def _known_volumes(cloud: Cloud) -> list[str]:
    held = {e.originator_id for e, _ in cloud.store.log if isinstance(e, Volume.Claimed)}
    return sorted(str(id_) for id_ in held)


def _ledger(cloud: Cloud) -> Iterator[str]:
    """Mappings, attachments and servers fit together."""
    servers = {str(instance.id): instance for instance in cloud.instances()}
    mappings = cloud.mappings()
    for server_id, instance in servers.items():
        own = {str(m.id): m.volume_id for m in mappings if m.server_id == server_id}
        given = {id_: device.volume_id for id_, device in instance.devices.items()}
        if own != given:
            yield f"server {server_id} has devices {given}, mappings {own}"
    wanted: dict[str, tuple[str | None, str]] = {}
    for mapping in mappings:
        if mapping.server_id not in servers:
            yield f"mapping {mapping.id} is of server {mapping.server_id}, which is deleted"
        elif mapping.attachment_id is not None:
            wanted |= _attachments_of(mapping, servers[mapping.server_id], cloud)
    planted = cloud.planted - wanted.keys()  # a reservation may have been adopted
    found = {
        str(a.id): (a.host if a.may_be_connected else None, a.state)
        for a in _open(cloud)
        if str(a.id) not in planted
    }
    if wanted != found:
        yield f"attachments should be {wanted}, are {found}"
    holders = {id_ for v in _known_volumes(cloud) for id_ in cloud.volume(v).holders}
    if holders - planted != set(found):
        yield f"volumes are held by {holders}, attachments are {set(found)}"


def _plugged(cloud: Cloud) -> Iterator[str]:
    for instance in cloud.instances():
        own = [m for m in cloud.mappings() if m.server_id == str(instance.id)]
        if str(instance.id) in cloud.apart | cloud.vanished:
            continue
        if instance.vm_state is VmState.STOPPED:  # what a fence cut off was done, or not: its start
            own = [m for m in own if m.state is not MappingState.UNPLUGGED]
        yield from misplugged(own, cloud.states.get(instance.host or ""))


def _sizes(cloud: Cloud) -> Iterator[str]:
    """A guest that runs has all of a volume that has grown; and nothing of that is waited for."""
    uneven = drift.uneven(cloud)
    for instance in cloud.instances():
        if str(instance.id) in cloud.apart | cloud.vanished:
            continue
        if instance.growth and not instance.claims:
            yield f"{instance.id} waits for the growth of {sorted(instance.growth)}"
        state = cloud.states.get(instance.host or "")
        sizes = seen_sizes(state).get(str(instance.id), {}) if state else {}
        for device in instance.devices.values():
            volume = cloud.cinder.volumes.get(device.volume_id or "")
            has = sizes.get(device.serial or "")
            if volume and volume.id not in uneven and has not in {None, volume.size * GIB}:
                yield f"{instance.id} has {has} bytes of {volume.id}, of {volume.size} GiB"


def _attachments_of(
    mapping: BlockDeviceMapping, instance: Instance, cloud: Cloud
) -> dict[str, tuple[str | None, str]]:
    """The attachments that explain a mapping: where, and in which state."""
    bare = instance.offloaded or str(instance.id) in instance.faults  # never built
    if mapping.state is MappingState.UNPLUGGED and not mapping.legacy:
        # By a fence in the middle of an image for its root, before or after Cinder had the host's
        # connector: whoever starts it connects it (0083).
        known = cloud.store.load(Attachment, UUID(mapping.attachment_id or ""))
        bare |= known.state is AttachmentState.RESERVED
    mine = (None, "reserved") if bare else (instance.host, "attached")
    wanted = {str(mapping.attachment_id): mine}
    if mapping.kept is not None:
        wanted[mapping.kept] = (instance.resize_source, "attached")
    return wanted


def _open(cloud: Cloud) -> list[Attachment]:
    return [a for a in cloud.attachments() if a.state != "deleted"]


def _hosts(cloud: Cloud) -> Iterator[str]:
    """What a survey does not tell: whether what is connected is what Cinder has given."""
    for name, state in cloud.states.items():
        seen = state.seen()
        yield from _connections(cloud, name, seen)
        for instance in cloud.instances():
            former = seen["guests"].get(str(instance.id), {})  # none, if a hand lost it before
            if instance.resize_source == name and former.get("live"):
                yield f"{instance.id} is resized, and runs on its source {name}"


def _connections(cloud: Cloud, name: str, seen: dict[str, Any]) -> Iterator[str]:
    here = {str(a.id) for a in _open(cloud) if a.host == name and a.may_be_connected}
    wanted, connected = _targets(cloud, here), set(seen["connected"])
    records, behind = cloud.records[name], cloud.files.behind(name)
    former = {
        connection.target_digest(info)
        for id_ in behind & records.keys()
        for info in records[id_].infos
    }
    if extra := connected - wanted - former - cloud.planted_on(name):
        yield f"{name} has connected what nobody has: {[seen['connected'][d] for d in extra]}"
    # A fence may end a refresh in between: then the next start connects (decision 0081).
    unconnected = behind | {id_ for id_, record in records.items() if not record.infos}
    if missing := _targets(cloud, here - unconnected) - connected - cloud.lost[name]:
        yield f"{name} lacks connections {missing}"


def _targets(cloud: Cloud, ids: set[str]) -> set[str]:
    rows = cloud.cinder.attachments
    return {connection.target_digest(rows[id_].connection_info) for id_ in ids & rows.keys()}


def _projections(cloud: Cloud) -> Iterator[str]:
    """What people read is what the aggregates say, and the tables can take it."""
    yield from cloud.folded.misfits()
    shown = cloud.folded.row
    for instance in cloud.instances(deleted=True):
        row = shown("instances", str(instance.id))
        names = ("vm_state", "power_state", "host", "resize_source", "deleted")
        yield from _differ(row, instance, *names)
    for mapping in cloud.mappings():
        row = shown("mappings", str(mapping.id))
        yield from _differ(row, mapping, "state", "volume_id", "attachment_id", "kept")
        yield from _differ(row, mapping, "device_name", "serial", "access_mode", "tag")
    for attachment in cloud.attachments():
        row = shown("attachments", str(attachment.id)) or {}
        yield from _differ(row, attachment, "state", "volume_id", "host", "access_mode")
        spans = {span["host"] for span in row["spans"] if span["to_position"] is None}
        if spans != ({attachment.host} if attachment.may_be_connected else set()):
            yield f"attachment {attachment.id} is shown on {spans}"
    for name in cloud.states:
        host = cloud.store.load(Host, host_uuid(name))
        yield from _differ(shown("hosts", name), host, "epoch", "fenced", "suspect")
    for operation in cloud.operations():
        row = shown("operations", str(operation.id))
        yield from _differ(row, operation, "state", "outcome")
        if row and row["lanes"] != plain(operation.lanes):
            yield f"operation {operation.id} shows other lanes"


def _differ(row: Row | None, aggregate: Aggregate, *names: str) -> Iterator[str]:
    for name in names:
        said, is_ = (row or {}).get(name), getattr(aggregate, name)
        if said != is_:
            yield f"{type(aggregate).__name__} {aggregate.id} shows {name} {said}, it is {is_}"


_KINDS: list[Any] = [
    *(Attachment, BlockDeviceMapping, Finding, Host, Instance, Look, Operation, Remnant, Volume),
]


def _streams(cloud: Cloud) -> Iterator[str]:
    """What is stored makes the same of an aggregate as what was recorded."""
    for event, _ in cloud.store.log[cloud.refolded :]:
        fresh = cloud.fresh.get(event.originator_id)
        if fresh is None:
            kind = next(k for k in _KINDS if type(event).TOPIC.startswith(f"{k.__name__}."))
            fresh = cloud.fresh[event.originator_id] = kind(event.originator_id)
        fresh.follow([event])
    cloud.refolded = len(cloud.store.log)
    for id_, fresh in cloud.fresh.items():
        stored = cloud.look_at(type(fresh), id_)
        if _plain(vars(stored)) != _plain(vars(fresh)):
            yield f"{type(fresh).__name__} {id_} is not what its events say"


#: Whole events, which as stored do not say whom they are about: that is in the log's columns.
_EVENTS = frozenset({"started", "found", "left", "_last", "_pending"})


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in state.items() if name not in _EVENTS}
    if growth := plain.get("growth"):  # events, too
        plain["growth"] = {id_: (told.waiting, told.actor) for id_, told in growth.items()}
    return plain
