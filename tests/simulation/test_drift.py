"""Each class of drift, planted in a cloud at rest, is found, and nothing else is."""

from __future__ import annotations

import copy
import itertools
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest

from handlers.drift.rows import About
from host_agent.libvirt import disk_xml
from host_agent.shared.cinder.client import MADE_FOR
from host_agent.storage.records import Record
from tests.simulation import drift
from tests.simulation.cloud import Cloud
from tests.simulation.storm import Storm

#: One storm in some dozens leaves something of everything: attached volumes, free ones, deleted
#: servers.  It is looked for from where one was found last.
TICKS = 250
SEEDS = range(48, 108)

Plant = Callable[[Cloud], Counter[str]]


def attached(cloud: Cloud) -> Iterator[Any]:
    """Cinder's rows that a host uses, each alone with its volume."""
    rows = sorted(cloud.cinder.attachments.values(), key=lambda row: row.id)
    alone = Counter(row.volume_id for row in rows)
    return (row for row in rows if row.status == "attached" and alone[row.volume_id] == 1)


def free(cloud: Cloud) -> list[str]:
    """Volumes that a server has had, and nobody has."""
    had = {row["volume_id"] for row in cloud.rows("attachments")}
    volumes = sorted(cloud.cinder.volumes.values(), key=lambda volume: volume.id)
    return [v.id for v in volumes if v.id in had and v.status == "available"]


def servers(cloud: Cloud, *, deleted: bool) -> list[str]:
    rows = cloud.rows("instances")
    return sorted(str(row["server_id"]) for row in rows if row["deleted"] is deleted)


def has_something_of_everything(cloud: Cloud) -> bool:
    """For two plants at once."""
    gone, there = servers(cloud, deleted=True), servers(cloud, deleted=False)
    disks = {
        server_id
        for state in cloud.states.values()
        for server_id, found in state.read()["guests"].items()
        if found["live"] and volume_disk(found)
    }
    enough = len(free(cloud)) > 1 and len(list(attached(cloud))) > 1 and len(disks) > 1
    return enough and bool(gone and there)


def reservation_unknown(cloud: Cloud) -> Counter[str]:
    """A request that came when its sender had gone."""
    cloud.direct.attachment_create(free(cloud)[0], servers(cloud, deleted=False)[0])
    return Counter(["reservation_unknown"])


def attachment_unknown(cloud: Cloud) -> Counter[str]:
    connector = {"host": "compute-1", "initiator": "iqn.planted"}
    cloud.direct.attachment_create(free(cloud)[0], servers(cloud, deleted=False)[0], connector)
    return Counter(["attachment_unknown", "volume_status_differs"])  # which is "attaching"


def owner_gone(cloud: Cloud) -> Counter[str]:
    cloud.direct.attachment_create(free(cloud)[0], servers(cloud, deleted=True)[0])
    return Counter(["owner_gone"])


def attachment_lost(cloud: Cloud) -> Counter[str]:
    """Somebody deletes it with a service token; Cinder then calls its volume available."""
    row = next(attached(cloud))
    cloud.cinder.drop_attachment(row.id)
    cloud.cinder.recompute(cloud.cinder.volume(row.volume_id))
    return Counter(["attachment_lost"])


def attachment_status_differs(cloud: Cloud) -> Counter[str]:
    """A late update."""
    next(attached(cloud)).status = "attaching"
    return Counter(["attachment_status_differs"])


def attachment_host_differs(cloud: Cloud) -> Counter[str]:
    next(attached(cloud)).host = "elsewhere"
    return Counter(["attachment_host_differs"])


def attachment_mode_differs(cloud: Cloud) -> Counter[str]:
    known = {r["attachment_id"]: r.get("access_mode") for r in cloud.rows("attachments")}
    row = next(row for row in attached(cloud) if known[row.id] is not None)
    row.mode = "ro" if known[row.id] == "rw" else "rw"
    return Counter(["attachment_mode_differs"])


def volume_gone(cloud: Cloud) -> Counter[str]:
    del cloud.cinder.volumes[next(attached(cloud)).volume_id]
    return Counter(["volume_gone"])


def volume_status_differs(cloud: Cloud) -> Counter[str]:
    """Somebody calls begin_detaching, and goes home."""
    cloud.cinder.volume(next(attached(cloud)).volume_id).status = "detaching"
    return Counter(["volume_status_differs"])


def volume_of_nobody(cloud: Cloud) -> Counter[str]:
    new = str(uuid5(NAMESPACE_OID, "made for nobody"))
    volume = cloud.cinder.add_volume(volume_id=new)
    volume.metadata[MADE_FOR] = "an operation"
    return Counter(["volume_of_nobody"])


# --- on hosts -----------------------------------------------------------------------------------


@contextmanager
def guest(cloud: Cloud, *, with_disk: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """A running guest that is where its server is: its host, and it, to be changed."""
    for row in sorted(cloud.rows("instances"), key=lambda row: str(row["server_id"])):
        name = row["host"]
        if row["deleted"] or name is None or row["power_state"] != "running":
            continue
        with cloud.states[name].edit() as state:
            found = state["guests"].get(row["server_id"])
            if found and (not with_disk or volume_disk(found)):
                yield name, found
                return
    raise AssertionError("the storm has left no such guest")


def volume_disk(found: dict[str, Any]) -> Any:
    disks = disk_xml.parse(found["live"]).disks
    return next((disk for disk in disks if disk.is_volume), None)


def guest_missing(cloud: Cloud) -> Counter[str]:
    """Somebody undefines it."""
    with guest(cloud) as (name, found):
        pass
    with cloud.states[name].edit() as state:
        state["guests"] = {k: v for k, v in state["guests"].items() if v["name"] != found["name"]}
    return Counter(["guest_missing"])


def elsewhere(cloud: Cloud, *, running: bool) -> None:
    with guest(cloud) as (name, found):
        copied = copy.deepcopy(found)
    server_id = next(k for k, v in cloud.states[name].read()["guests"].items() if v == copied)
    if not running:
        copied.update(live=None, power_state="shutdown")
    other = next(each for each in sorted(cloud.states) if each != name)
    with cloud.states[other].edit() as state:
        state["guests"][server_id] = copied


def guest_elsewhere(cloud: Cloud) -> Counter[str]:
    elsewhere(cloud, running=False)
    return Counter(["guest_elsewhere"])


def guest_twice(cloud: Cloud) -> Counter[str]:
    elsewhere(cloud, running=True)
    return Counter(["guest_twice", "guest_elsewhere"])


def guest_of_deleted(cloud: Cloud) -> Counter[str]:
    with guest(cloud) as (name, found):
        copied = {**found, "live": None, "power_state": "shutdown"}
    with cloud.states[name].edit() as state:
        state["guests"][servers(cloud, deleted=True)[0]] = copied
    return Counter(["guest_of_deleted"])


def power_differs(cloud: Cloud) -> Counter[str]:
    with guest(cloud) as (_, found):
        found["power_state"] = "paused"
    return Counter(["power_differs"])


def disk_missing(cloud: Cloud) -> Counter[str]:
    """Pulled by hand, and from the definition, too."""
    with guest(cloud, with_disk=True) as (_, found):
        target = volume_disk(found).target
        for each in ("live", "persistent"):
            found[each] = disk_xml.without_disk(found[each], target)
    return Counter(["disk_missing"])


def disk_definition_differs(cloud: Cloud) -> Counter[str]:
    with guest(cloud, with_disk=True) as (_, found):
        target = volume_disk(found).target
        found["persistent"] = disk_xml.without_disk(found["persistent"], target)
    return Counter(["disk_definition_differs"])


def disk_unknown(cloud: Cloud) -> Counter[str]:
    with guest(cloud, with_disk=True) as (_, found):
        disk = volume_disk(found)
        foreign = disk.xml.replace(disk.serial, str(uuid5(NAMESPACE_OID, "a disk of nobody")))
        foreign = foreign.replace(f'"{disk.target}"', '"vdz"')
        for each in ("live", "persistent"):
            found[each] = disk_xml.with_disk(found[each], foreign)
    return Counter(["disk_unknown"])


def disk_device_differs(cloud: Cloud) -> Counter[str]:
    with guest(cloud, with_disk=True) as (_, found):
        target = volume_disk(found).target
        for each in ("live", "persistent"):
            found[each] = (
                found[each].replace(f'"{target}"', '"vdz"').replace(f"'{target}'", "'vdz'")
            )
    return Counter(["disk_device_differs"])


def disk_readonly_differs(cloud: Cloud) -> Counter[str]:
    with guest(cloud, with_disk=True) as (_, found):
        disk = volume_disk(found)
        for each in ("live", "persistent"):
            root = ET.fromstring(found[each])
            for element in root.iterfind("devices/disk"):
                if element.findtext("serial") == disk.serial:
                    flag = element.find("readonly")
                    ET.SubElement(element, "readonly") if flag is None else element.remove(flag)
            found[each] = ET.tostring(root, encoding="unicode")
    return Counter(["disk_readonly_differs"])


def a_record(cloud: Cloud) -> tuple[str, Record]:
    """A host, and its record of a connection that it needs."""
    return next((n, r) for n in sorted(cloud.records) for _, r in sorted(cloud.records[n].items()))


def connection_missing(cloud: Cloud) -> Counter[str]:
    name, record = a_record(cloud)
    del cloud.records[name][record.attachment_id]
    return Counter(["connection_missing"])


def connection_left(cloud: Cloud) -> Counter[str]:
    """The host was told of an attachment that was given up, and never of its end."""
    name, record = a_record(cloud)
    gone = str(uuid5(NAMESPACE_OID, "an attachment of before"))
    cloud.records[name][gone] = replace(record, attachment_id=gone)
    return Counter(["connection_left"])


def record_left(cloud: Cloud) -> Counter[str]:
    name, record = a_record(cloud)
    gone = str(uuid5(NAMESPACE_OID, "an attachment of before"))
    device = {"type": "block", "path": "/dev/simulated/gone"}
    devices = dict.fromkeys(record.devices or {"digest": device}, device)
    cloud.records[name][gone] = replace(record, attachment_id=gone, devices=devices)
    return Counter(["record_left"])


def connected(driver: str, path: str) -> Plant:
    def plant(cloud: Cloud) -> Counter[str]:
        name = min(cloud.states)
        with cloud.states[name].edit() as state:
            state["connected"][f"digest of {path}"] = {"driver": driver, "path": path}
        return Counter(["mount_unused" if driver == "nfs" else "storage_left"])

    plant.__name__ = "mount_unused" if driver == "nfs" else "storage_left"
    return plant


def secret_left(cloud: Cloud) -> Counter[str]:
    with cloud.states[min(cloud.states)].edit() as state:
        state["secrets"][str(uuid5(NAMESPACE_OID, "a volume of before"))] = "digest"
    return Counter(["secret_left"])


IN_CINDER: tuple[Plant, ...] = (
    reservation_unknown,
    attachment_unknown,
    owner_gone,
    attachment_lost,
    attachment_status_differs,
    attachment_host_differs,
    attachment_mode_differs,
    volume_gone,
    volume_status_differs,
    volume_of_nobody,
)
ON_HOSTS: tuple[Plant, ...] = (
    guest_missing,
    guest_elsewhere,
    guest_twice,
    guest_of_deleted,
    power_differs,
    disk_missing,
    disk_definition_differs,
    disk_unknown,
    disk_device_differs,
    disk_readonly_differs,
    connection_missing,
    connection_left,
    record_left,
    connected("iscsi", "/dev/simulated/nobodys"),
    connected("nfs", "/simulated/mnt/nobodys"),
    secret_left,
)


@pytest.fixture(scope="module")
def rested() -> Cloud:
    for seed in SEEDS:
        storm = Storm(seed, ticks=TICKS)
        storm.blow_over()
        if has_something_of_everything(storm.cloud):
            return storm.cloud
    raise AssertionError("no storm leaves something of everything")


@pytest.fixture
def cloud(rested: Cloud) -> Iterator[Cloud]:
    """As the storm has left it; what a test plants there goes with the test."""
    told = vars(rested.cinder)
    before = copy.deepcopy({name: told[name] for name in ("volumes", "attachments", "_by_volume")})
    hosts = {name: state.read() for name, state in rested.states.items()}
    records = {name: dict(known) for name, known in rested.records.items()}
    yield rested
    told.update(before)
    rested.records.update(records)
    for name, state in rested.states.items():
        with state.edit() as changed:
            changed.clear()
            changed.update(hosts[name])


def name_of(plant: Plant) -> str:
    return plant.__name__


@pytest.mark.parametrize("plant", IN_CINDER + ON_HOSTS, ids=name_of)
def test_what_is_planted_is_found_and_nothing_else(plant: Plant, cloud: Cloud) -> None:
    assert not list(drift.found(cloud))
    planted = plant(cloud)
    assert Counter(each.name for _, each in drift.cases(cloud)) == planted


@pytest.mark.parametrize(
    "plants",
    list(itertools.combinations(IN_CINDER + ON_HOSTS, 2)),
    ids=lambda pair: "-".join(map(name_of, pair)),
)
@pytest.mark.deep
def test_two_at_once_do_not_hide_each_other(plants: tuple[Plant, Plant], cloud: Cloud) -> None:
    """On subjects of their own: what the first has touched is out of the second one's sight."""
    first = plants[0](cloud)
    touched = {row.about for row, _ in drift.cases(cloud)}
    with out_of_sight(cloud, touched):
        second = plants[1](cloud)
    assert Counter(each.name for _, each in drift.cases(cloud)) == first + second


@contextmanager
def out_of_sight(cloud: Cloud, touched: set[About]) -> Iterator[None]:
    """Cinder without these attachments and volumes, hosts without these guests and what is recorded
    for them, for a while.
    """
    servers = {about.server_id for about in touched if about.server_id is not None}
    guests, records = {}, {}
    for name, state in cloud.states.items():
        with state.edit() as changed:
            shown = changed["guests"]
            guests[name] = {id_: shown.pop(id_) for id_ in servers & shown.keys()}
        known = cloud.records[name]
        mine = [id_ for id_, record in known.items() if record.server_id in servers]
        records[name] = {id_: known.pop(id_) for id_ in mine}
    ids = {about.volume_id for about in touched if about.volume_id is not None}
    volumes, rows = cloud.cinder.volumes, cloud.cinder.attachments
    hidden = {id_: volumes.pop(id_) for id_ in ids & volumes.keys()}
    of_them = {row.id: rows.pop(row.id) for row in list(rows.values()) if row.volume_id in ids}
    yield
    volumes.update(hidden)
    rows.update(of_them)
    for name, state in cloud.states.items():
        cloud.records[name].update(records[name])
        with state.edit() as changed:
            changed["guests"].update(guests[name])
