"""Drift that somebody plants by hand: each class, as what others do past the ledger leaves it.

Each is planted on some ground: anything of a cloud, or what one group of a test's own has.
"""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from aggregates.attachment import Attachment
from aggregates.volume import Volume
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.simulated import host_state
from host_agent.storage import connection
from host_agent.storage.records import Record
from ledger.log.unit import Unit
from tests.simulation.cloud import Cloud
from tests.world import CONTEXT


class NotNowError(Exception):
    """Nothing here is as it has to be for this plant; it may be later."""


@dataclass(frozen=True)
class Ground:
    """Where something is planted.  `servers`: only on what these have; None: on anything.

    `new`: the ids of what was put there that is nobody's.
    """

    cloud: Cloud
    servers: frozenset[str] | None = None
    new: set[str] = field(default_factory=set)

    def has(self, server_id: str | None) -> bool:
        return self.servers is None or server_id in self.servers

    def new_id(self, what: str) -> str:
        """Of something that is nobody's; of its own on each ground."""
        made = str(uuid5(NAMESPACE_OID, f"{what} {sorted(self.servers or ())}"))
        self.new.add(made)
        return made


#: What does it, and as what it is found as things are.
Plant = Callable[[Ground], Counter[str]]


def attached(ground: Ground) -> Iterator[Any]:
    """Cinder's rows that a host uses, each alone with its volume."""
    rows = sorted(ground.cloud.cinder.attachments.values(), key=lambda row: row.id)
    alone = Counter(row.volume_id for row in rows)
    mine = (row for row in rows if ground.has(row.instance))
    return (row for row in mine if row.status == "attached" and alone[row.volume_id] == 1)


def free(ground: Ground) -> list[str]:
    """Volumes that a server has had, and nobody has."""
    rows = ground.cloud.rows("attachments")
    had = {row["volume_id"] for row in rows if ground.has(row["server_id"])}
    volumes = sorted(ground.cloud.cinder.volumes.values(), key=lambda volume: volume.id)
    return [v.id for v in volumes if v.id in had and v.status == "available"]


def servers(ground: Ground, *, deleted: bool) -> list[str]:
    rows = (row for row in ground.cloud.rows("instances") if ground.has(row["server_id"]))
    return sorted(str(row["server_id"]) for row in rows if row["deleted"] is deleted)


def reservation_unknown(ground: Ground) -> Counter[str]:
    """A request that came when its sender had gone."""
    ground.cloud.direct.attachment_create(free(ground)[0], servers(ground, deleted=False)[0])
    return Counter(["reservation_unknown"])


def attachment_unknown(ground: Ground) -> Counter[str]:
    connector = {"host": "compute-1", "initiator": "iqn.planted"}
    server_id = servers(ground, deleted=False)[0]
    ground.cloud.direct.attachment_create(free(ground)[0], server_id, connector)
    return Counter(["attachment_unknown", "volume_status_differs"])  # which is "attaching"


def owner_unknown(ground: Ground) -> Counter[str]:
    """After a reset of its state another cloud's server could have it, which may have one only."""
    volumes = ground.cloud.cinder.volumes
    row = next(row for row in attached(ground) if not volumes[row.volume_id].multiattach)
    ground.cloud.cinder.put_attachment(
        replace(row, id=ground.new_id("a stranger's"), instance=ground.new_id("a stranger"))
    )
    return Counter(["owner_unknown"])


def owner_gone(ground: Ground) -> Counter[str]:
    ground.cloud.direct.attachment_create(free(ground)[0], servers(ground, deleted=True)[0])
    return Counter(["owner_gone"])


def attachment_lost(ground: Ground) -> Counter[str]:
    """Somebody deletes it with a service token; Cinder then calls its volume available."""
    row = next(attached(ground))
    ground.cloud.cinder.drop_attachment(row.id)
    ground.cloud.cinder.recompute(ground.cloud.cinder.volume(row.volume_id))
    return Counter(["attachment_lost"])


def attachment_status_differs(ground: Ground) -> Counter[str]:
    """A late update."""
    next(attached(ground)).status = "attaching"
    return Counter(["attachment_status_differs"])


def attachment_unmapped(ground: Ground) -> Counter[str]:
    """No flow of the ledger's does so."""
    volume_id, server_id = free(ground)[0], servers(ground, deleted=False)[0]
    row = ground.cloud.direct.attachment_create(volume_id, server_id)
    ground.new.add(row.id)
    unit = Unit(ground.cloud.store)
    told = {"volume_id": volume_id, "server_id": server_id}
    unit.get(Attachment, row.id).record(Attachment.AttachmentCreated, **told)
    unit.get(Volume, volume_id).record(Volume.Held, server_id=server_id, attachment_id=row.id)
    unit.save(CONTEXT)
    return Counter(["attachment_unmapped"])


def legacy_mapping(ground: Ground) -> Counter[str]:
    """Its ground has it (`planting.PlantingStorm`): a volume from before there were new calls."""
    rows = ground.cloud.rows("attachments")
    mine = (row for row in rows if ground.has(row["server_id"]) and row["state"] != "deleted")
    assert [row["legacy"] for row in mine] == [True]
    return Counter(["legacy_mapping"])


def attachment_host_differs(ground: Ground) -> Counter[str]:
    """Another host's connector, by a raw call."""
    row = next(attached(ground))
    row.host = next(name for name in sorted(ground.cloud.states) if name != row.host)
    return Counter(["attachment_host_differs"])


def attachment_mountpoint_differs(ground: Ground) -> Counter[str]:
    next(row for row in attached(ground) if row.mountpoint not in {None, "na"}).mountpoint = "vdz"
    return Counter(["attachment_mountpoint_differs"])


def attachment_mode_differs(ground: Ground) -> Counter[str]:
    known = {r["attachment_id"]: r.get("access_mode") for r in ground.cloud.rows("attachments")}
    row = next(row for row in attached(ground) if known[row.id] is not None)
    row.mode = "ro" if known[row.id] == "rw" else "rw"
    return Counter(["attachment_mode_differs"])


def volume_gone(ground: Ground) -> Counter[str]:
    del ground.cloud.cinder.volumes[next(attached(ground)).volume_id]
    return Counter(["volume_gone"])


def volume_status_differs(ground: Ground) -> Counter[str]:
    """Somebody calls begin_detaching, and goes home."""
    ground.cloud.cinder.volume(next(attached(ground)).volume_id).status = "detaching"
    return Counter(["volume_status_differs"])


def _has_status(status: str, name: str, *, in_use: bool = True) -> Plant:
    def plant(ground: Ground) -> Counter[str]:
        id_ = next(attached(ground)).volume_id if in_use else free(ground)[0]
        ground.cloud.cinder.volume(id_).status = status
        return Counter([name])

    plant.__name__ = f"{name} {status}"
    return plant


#: Somebody resets its state; its backend fails; Cinder dies while it is at it.
volume_reset = _has_status("available", "volume_status_differs")
volume_failed = _has_status("error", "volume_status_differs")
volume_stuck = _has_status("extending", "volume_stuck")
volume_deleting = _has_status("deleting", "volume_stuck", in_use=False)


def volume_project_differs(ground: Ground) -> Counter[str]:
    """Its state was reset, and it was given away."""
    ground.cloud.cinder.volume(next(attached(ground)).volume_id).project_id = "another"
    return Counter(["volume_project_differs"])


def volume_of_nobody(ground: Ground) -> Counter[str]:
    """Its operation was given up."""
    new, mark = ground.new_id("made for nobody"), "an operation"
    ground.cloud.cinder.add_volume(volume_id=new).metadata[MADE_FOR] = mark
    unit = Unit(ground.cloud.store)
    unit.get(Volume, new).made(servers(ground, deleted=False)[0], mark)
    unit.save(CONTEXT)
    return Counter(["volume_of_nobody"])


# --- on hosts -----------------------------------------------------------------------------------


@contextmanager
def guest(ground: Ground, *, with_disk: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """A running guest that is where its server is: its host, and it, to be changed."""
    for row in sorted(ground.cloud.rows("instances"), key=lambda row: str(row["server_id"])):
        name, runs = row["host"], row["power_state"] == "running"
        if row["deleted"] or name is None or not (runs and ground.has(row["server_id"])):
            continue
        with ground.cloud.states[name].edit() as state:
            found = state["guests"].get(row["server_id"])
            if found and found["live"] and (not with_disk or volume_disk(found)):
                yield name, found
                return
    raise NotNowError


def volume_disk(found: dict[str, Any]) -> Any:
    disks = disk_xml.parse(found["live"]).disks
    return next((disk for disk in disks if disk.is_volume), None)


def guest_missing(ground: Ground) -> Counter[str]:
    """Somebody undefines it."""
    with guest(ground) as (name, found):
        pass
    with ground.cloud.states[name].edit() as state:
        state["guests"] = {k: v for k, v in state["guests"].items() if v["name"] != found["name"]}
    return Counter(["guest_missing"])


def elsewhere(ground: Ground, *, running: bool) -> None:
    with guest(ground) as (name, found):
        copied = copy.deepcopy(found)
    guests = ground.cloud.states[name].read()["guests"]
    server_id = next(id_ for id_, each in guests.items() if each == copied)
    if not running:
        copied.update(live=None, power_state="shutdown")
    other = next(each for each in sorted(ground.cloud.states) if each != name)
    with ground.cloud.states[other].edit() as state:
        state["guests"][server_id] = copied


def guest_elsewhere(ground: Ground) -> Counter[str]:
    elsewhere(ground, running=False)
    return Counter(["guest_elsewhere"])


def guest_twice(ground: Ground) -> Counter[str]:
    elsewhere(ground, running=True)
    return Counter(["guest_twice", "guest_elsewhere"])


def guest_of_deleted(ground: Ground) -> Counter[str]:
    with guest(ground) as (name, found):
        copied = {**found, "live": None, "power_state": "shutdown"}
    with ground.cloud.states[name].edit() as state:
        state["guests"][servers(ground, deleted=True)[0]] = copied
    return Counter(["guest_of_deleted"])


def guest_undefined(ground: Ground) -> Counter[str]:
    with guest(ground) as (_, found):
        found["persistent"] = None
    return Counter(["guest_undefined"])


def power_differs(ground: Ground) -> Counter[str]:
    with guest(ground) as (_, found):
        found["power_state"] = "paused"
    return Counter(["power_differs"])


def disk_missing(ground: Ground) -> Counter[str]:
    """Pulled by hand, and from the definition, too."""
    with guest(ground, with_disk=True) as (_, found):
        target = volume_disk(found).target
        for each in ("live", "persistent"):
            found[each] = host_state.without_disk(found[each], target)
    return Counter(["disk_missing"])


def disk_definition_differs(ground: Ground) -> Counter[str]:
    with guest(ground, with_disk=True) as (_, found):
        target = volume_disk(found).target
        found["persistent"] = host_state.without_disk(found["persistent"], target)
    return Counter(["disk_definition_differs"])


def disk_unknown(ground: Ground) -> Counter[str]:
    with guest(ground, with_disk=True) as (_, found):
        disk = volume_disk(found)
        foreign = disk.xml.replace(disk.serial, ground.new_id("a disk of nobody"))
        foreign = foreign.replace(f'"{disk.target}"', '"vdz"')
        found["sizes"]["vdz"] = found["sizes"][disk.target]
        for each in ("live", "persistent"):
            found[each] = host_state.with_disk(found[each], foreign)
    return Counter(["disk_unknown"])


def disk_device_differs(ground: Ground) -> Counter[str]:
    with guest(ground, with_disk=True) as (_, found):
        target = volume_disk(found).target
        for each in ("live", "persistent"):
            found[each] = (
                found[each].replace(f'"{target}"', '"vdz"').replace(f"'{target}'", "'vdz'")
            )
        found["sizes"]["vdz"] = found["sizes"].pop(target)
    return Counter(["disk_device_differs"])


def disk_readonly_differs(ground: Ground) -> Counter[str]:
    """Somebody edits the definition: the guest runs as it is to."""
    with guest(ground, with_disk=True) as (_, found):
        disk = volume_disk(found)
        root = ET.fromstring(found["persistent"])
        for element in root.iterfind("devices/disk"):
            if element.findtext("serial") == disk.serial:
                flag = element.find("readonly")
                ET.SubElement(element, "readonly") if flag is None else element.remove(flag)
        found["persistent"] = ET.tostring(root, encoding="unicode")
    return Counter(["disk_readonly_differs", "disk_definition_differs"])


def a_record(ground: Ground, *, with_device: bool = False) -> tuple[str, Record]:
    """A host, and its record of a connection that it needs; QEMU opens RBD's images itself."""
    known = sorted(ground.cloud.records.items())
    for name, record in ((name, record) for name, of in known for _, record in sorted(of.items())):
        rbd = any(info["driver_volume_type"] == "rbd" for info in record.infos)
        if ground.has(record.server_id) and not (with_device and rbd):
            return name, record
    raise NotNowError


def connection_missing(ground: Ground) -> Counter[str]:
    name, record = a_record(ground)
    del ground.cloud.records[name][record.attachment_id]
    found = Counter(["connection_missing"])
    hosts = {str(row["server_id"]): row["host"] for row in ground.cloud.rows("instances")}
    host = ground.cloud.states[name].read()
    has_disk = f">{record.volume_id}</serial>" in str(host["guests"].get(record.server_id))
    if record.volume_id in host["secrets"] and hosts[record.server_id] != name and not has_disk:
        found["secret_left"] = 1  # of the source of a resize: nothing says any more whose it is
    return found


def connection_left(ground: Ground) -> Counter[str]:
    """The host was told of an attachment that was given up, and never of its end."""
    name, record = a_record(ground)
    gone = ground.new_id("an attachment of before")
    ground.cloud.records[name][gone] = replace(record, attachment_id=gone)
    return Counter(["connection_left"])


def record_left(ground: Ground) -> Counter[str]:
    name, record = a_record(ground, with_device=True)
    gone = ground.new_id("an attachment of before")
    device = {"type": "block", "path": "/dev/simulated/gone"}
    devices = dict.fromkeys(record.devices or {"digest": device}, device)
    ground.cloud.records[name][gone] = replace(record, attachment_id=gone, devices=devices)
    return Counter(["record_left"])


def paths_faulty(ground: Ground) -> Counter[str]:
    """A fabric fails, and the host goes on with what it has connected."""
    for name, state in sorted(ground.cloud.states.items()):
        with state.edit() as changed:
            for record in ground.cloud.records[name].values():
                for digest in map(connection.target_digest, record.infos):
                    entry = changed["connected"].get(digest)
                    if entry and entry["driver"] != "rbd" and ground.has(record.server_id):
                        entry["faulty"] = True
                        ground.new.add(entry["path"].rpartition("/")[2])
                        return Counter(["paths_faulty"])
    raise NotNowError


def connected(ground: Ground, driver: str) -> None:
    new = ground.new_id(f"{driver} of nobody")
    with ground.cloud.states[min(ground.cloud.states)].edit() as state:
        state["connected"][new] = {"driver": driver, "path": f"/simulated/{new}"}


def storage_left(ground: Ground) -> Counter[str]:
    connected(ground, "iscsi")
    return Counter(["storage_left"])


def mount_unused(ground: Ground) -> Counter[str]:
    connected(ground, "nfs")
    return Counter(["mount_unused"])


def keep_secret(ground: Ground, volume_id: str) -> Counter[str]:
    with ground.cloud.states[min(ground.cloud.states)].edit() as state:
        state["secrets"][volume_id] = "digest"
    return Counter(["secret_left"])


def secret_left(ground: Ground) -> Counter[str]:
    return keep_secret(ground, free(ground)[0])


def secret_of_nobody(ground: Ground) -> Counter[str]:
    """Of a volume that the ledger has never seen."""
    return keep_secret(ground, ground.new_id("a volume of nobody"))


IN_CINDER: tuple[Plant, ...] = (
    reservation_unknown,
    attachment_unknown,
    owner_gone,
    attachment_lost,
    attachment_status_differs,
    attachment_host_differs,
    attachment_mountpoint_differs,
    attachment_mode_differs,
    volume_gone,
    volume_status_differs,
    volume_of_nobody,
    owner_unknown,
    volume_reset,
    volume_failed,
    volume_stuck,
    volume_deleting,
    volume_project_differs,
)
ON_HOSTS: tuple[Plant, ...] = (
    guest_missing,
    guest_elsewhere,
    guest_twice,
    guest_of_deleted,
    guest_undefined,
    power_differs,
    disk_missing,
    disk_definition_differs,
    disk_unknown,
    disk_device_differs,
    disk_readonly_differs,
    connection_missing,
    connection_left,
    record_left,
    storage_left,
    mount_unused,
    paths_faulty,
    secret_left,
    secret_of_nobody,
)
