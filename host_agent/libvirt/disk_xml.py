"""A disk in libvirt's XML: building it, and reading a domain's disks.

Pure.  Reading is tolerant: a device without alias, serial, target or source is not the ledger's,
and must not cause errors (LP 2074219).
"""

from __future__ import annotations

import copy
import posixpath
import string
import uuid

# Domain XML comes from libvirt itself, or from our own simulation of it.
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from host_agent.shared.contract.ports import BLOCK_SIZES, Disk
from host_agent.shared.contract.wire import WireError, Word, read

NOVA_NS = "http://openstack.org/xmlns/libvirt/nova/1.1"
#: libvirt lets users name aliases if they begin with this.
ALIAS_PREFIX = "ua-"


@dataclass(frozen=True)
class Layer:
    """A file of a disk, and libvirt's index of it in the running guest."""

    path: str | None
    index: str | None

    @property
    def name(self) -> str | None:
        return posixpath.basename(self.path) if self.path else None


@dataclass(frozen=True)
class DiskSeen:
    """A disk of a domain; `element` is its part of the XML."""

    target: str
    bus: str | None
    serial: str | None
    alias: str | None
    element: ET.Element = field(repr=False)

    @property
    def xml(self) -> str:
        """Without the backing files, which QEMU finds by itself."""
        return ET.tostring(_without(self.element, "backingStore"), encoding="unicode")

    @property
    def chain(self) -> tuple[Layer, ...]:
        """The files of the running disk, from the top one, which is written to, to the lowest."""
        found: list[Layer] = []
        layer: ET.Element | None = self.element
        while layer is not None and (source := layer.find("source")) is not None:
            index = source.get("index") or layer.get("index")
            found.append(Layer(source.get("file"), index))
            layer = layer.find("backingStore")
        return tuple(found)

    @property
    def place(self) -> Place | None:
        return _place_of(self.element)

    @property
    def mirror(self) -> Mirror | None:
        return _mirror_of(self.element)

    @property
    def places(self) -> tuple[Place, ...]:
        """Its source, and the target of a copy in progress."""
        found = self.place, self.mirror and self.mirror.place
        return tuple(place for place in found if place)

    @property
    def readonly(self) -> bool:
        return self.element.find("readonly") is not None

    @property
    def blockio(self) -> dict[str, int]:
        """Its block sizes, in bytes, as far as they are given."""
        sizes = self.element.find("blockio")
        given = {} if sizes is None else sizes.attrib
        return {name: int(given[name]) for name in BLOCK_SIZES if name in given}

    @property
    def facts(self) -> dict[str, Any]:
        """What must be equal in a running guest and in its definition."""
        return {
            "target": self.target,
            "bus": self.bus,
            "source": self.place,
            "readonly": self.readonly,
            "shareable": self.element.find("shareable") is not None,
        }

    def is_of(self, serial: str) -> bool:
        return serial == self.serial or self.alias == ALIAS_PREFIX + serial

    @property
    def volume(self) -> str | None:
        """Its serial, if that is an id: then it may be a volume's, whoever attached it."""
        return self.serial if self.serial and _is_uuid(self.serial) else None

    @property
    def is_volume(self) -> bool:
        """Whether it is a volume's disk, and not a local one."""
        return self.serial is not None and (
            self.alias == ALIAS_PREFIX + self.serial or _is_uuid(self.serial)
        )


class DomainXml:
    """A domain's XML, live or persistent, read on demand."""

    def __init__(self, root: ET.Element) -> None:
        self._root = root

    @cached_property
    def disks(self) -> tuple[DiskSeen, ...]:
        found = (seen(element) for element in self._root.iterfind("./devices/disk"))
        return tuple(disk for disk in found if disk)

    @property
    def project_id(self) -> str | None:
        return self._owner("project")

    @property
    def user_id(self) -> str | None:
        return self._owner("user")

    @property
    def has_virtio_scsi(self) -> bool:
        return any(
            element.get("type") == "scsi" and (element.get("model") or "").startswith("virtio")
            for element in self._root.iterfind("./devices/controller")
        )

    @property
    def boots_by_order(self) -> bool:
        """Whether the firmware chooses a boot disk by the disks' boot orders."""
        return self._root.find("./os/kernel") is None and self._root.find("./os/boot") is None

    @property
    def boot_orders(self) -> frozenset[str]:
        return frozenset(e.get("order", "") for e in self._root.iterfind("./devices/*/boot"))

    def disk_of(self, serial: str) -> DiskSeen | None:
        return next((disk for disk in self.disks if disk.is_of(serial)), None)

    def targets(self) -> tuple[str, ...]:
        return tuple(disk.target for disk in self.disks)

    def volumes(self) -> tuple[str, ...]:
        """The serials that are ids."""
        return tuple(disk.volume for disk in self.disks if disk.volume)

    def _owner(self, kind: str) -> str | None:
        """Metadata may contain anything; None if it is not an id of Keystone's form."""
        path = f"./metadata/{{{NOVA_NS}}}instance/{{{NOVA_NS}}}owner/{{{NOVA_NS}}}{kind}"
        element = self._root.find(path)
        try:
            return None if element is None else read(element.get("uuid"), Word)
        except WireError:
            return None


def parse(text: str) -> DomainXml:
    return DomainXml(ET.fromstring(text))  # noqa: S314 - from libvirt


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def seen(element: ET.Element) -> DiskSeen | None:
    """A `<disk>`, read; None for one without a target."""
    target = element.find("target")
    name = target.get("dev") if target is not None else None
    if target is None or name is None:
        return None
    alias, serial = element.find("alias"), (element.findtext("serial") or "").strip()
    return DiskSeen(
        target=name,
        bus=target.get("bus"),
        serial=(serial.lower() if _is_uuid(serial) else serial) or None,  # ids are in lower case
        alias=alias.get("name") if alias is not None else None,
        element=element,
    )


def build(disk: Disk, *, boot: bool = False) -> str:
    """The `<disk>` element, with Nova's settings for a volume; `boot`: with its boot order."""
    root = ET.Element("disk", type=str(disk.source["type"]), device="disk")
    driver = ET.SubElement(root, "driver", name="qemu", type=disk.format, cache=disk.cache)
    if disk.source["type"] != "network" and disk.cache == "none":
        driver.set("io", "native")
    if disk.discard:
        driver.set("discard", "unmap")
    root.append(_source(disk.source))
    ET.SubElement(root, "target", dev=disk.device_name, bus=disk.bus)
    set_iotune(root, disk.iotune)
    if disk.blockio:
        ET.SubElement(root, "blockio", {name: str(size) for name, size in disk.blockio.items()})
    if boot and is_bootable(disk):
        ET.SubElement(root, "boot", order=boot_order(disk))
    if disk.readonly:
        ET.SubElement(root, "readonly")
    if disk.shareable:  # S3: no exclusive lock for any guest of the volume
        ET.SubElement(root, "shareable")
    ET.SubElement(root, "serial").text = disk.serial
    ET.SubElement(root, "alias", name=ALIAS_PREFIX + disk.serial)
    if disk.bus == "scsi":
        # Else libvirt derives the controller from the name; beyond sdg that does not exist.
        unit = str(unit_of(disk.device_name))
        ET.SubElement(root, "address", type="drive", controller="0", bus="0", target="0", unit=unit)
    return ET.tostring(root, encoding="unicode")


def snapshot_of(domain: str, target: str, path: str) -> str:
    """The `<domainsnapshot>` that puts this qcow2 file above one disk, and leaves the others."""
    root = ET.Element("domainsnapshot")
    disks = ET.SubElement(root, "disks")
    for name in parse(domain).targets():
        disk = ET.SubElement(disks, "disk", name=name, snapshot="no")
        if name == target:
            disk.attrib.update(snapshot="external", type="file")
            ET.SubElement(disk, "driver", type="qcow2")
            ET.SubElement(disk, "source", file=path)
    return ET.tostring(root, encoding="unicode")


def following(disk: Disk, found: DiskSeen | None) -> Disk:
    """The disk with the name and bus that it has in the guest already; and read-only if it is so
    there, which only a detach ends, as it does its block sizes.
    """
    if found is None:
        return disk
    named = replace(disk, device_name=found.target, bus=found.bus or disk.bus)
    return replace(with_blocks(named, found), readonly=disk.readonly or found.readonly)


def with_blocks(disk: Disk, found: DiskSeen | None) -> Disk:
    """The disk with the block sizes that it has already: what is on it was written with them."""
    return disk if found is None else replace(disk, blockio=found.blockio)


def differences(live: DiskSeen | None, persistent: DiskSeen | None) -> tuple[str, ...]:
    """The facts that differ between both copies of a disk; "presence": one lacks it."""
    if live is None or persistent is None:
        return () if live is persistent else ("presence",)
    one, other = live.facts, persistent.facts
    return tuple(name for name in one if one[name] != other[name])


def is_bootable(disk: Disk) -> bool:
    return disk.boot_index is not None and disk.boot_index >= 0


def boot_order(disk: Disk) -> str:
    assert disk.boot_index is not None, "asked of a bootable disk"
    return str(disk.boot_index + 1)


def _source(source: dict[str, Any]) -> ET.Element:
    element = ET.Element("source")
    if source["type"] == "network":
        element.attrib.update(protocol=source["protocol"], name=source["name"])
        for host, port in source["hosts"]:
            ET.SubElement(element, "host", name=str(host), port=str(port))
    else:
        element.set("dev" if source["type"] == "block" else "file", str(source["path"]))
    if auth := source.get("auth"):
        node = ET.SubElement(element, "auth", username=str(auth["user"]))
        ET.SubElement(node, "secret", type="ceph", uuid=str(auth["secret_uuid"]))
    if encryption := source.get("encryption"):
        node = ET.SubElement(element, "encryption", format=str(encryption["format"]))
        ET.SubElement(node, "secret", type="passphrase", uuid=str(encryption["secret_uuid"]))
    return element


def unit_of(device_name: str) -> int:
    """The number of a device name: sda 0, sdb 1, ..., sdz 25, sdaa 26."""
    number = 0
    for letter in device_name[2:]:
        number = number * 26 + string.ascii_lowercase.index(letter) + 1
    return number - 1


# --- where a disk's data is -------------------------------------------------------------------


@dataclass(frozen=True)
class Mirror:
    """The target of a copy in progress; `ready`: it has all data, and gets all writes."""

    place: Place
    ready: bool


#: The parts of a source that identify the data and how it is reached.  libvirt adds others.
Place = tuple[Any, ...]


def place_of(disk: str) -> Place | None:
    """The place of a `<disk>`'s data; None: it has no source, like an empty drive."""
    return _place_of(ET.fromstring(disk))  # noqa: S314 - libvirt's or our own


def _place_of(disk: ET.Element) -> Place | None:
    return _place(disk.find("source"), disk)


def same_by_definition(one: str, other: str) -> bool:
    """Whether two `<disk>` have the same data and limits."""
    found = (ET.fromstring(disk) for disk in (one, other))  # noqa: S314 - libvirt's or our own
    first, second = ((_place_of(disk), _limits(disk)) for disk in found)
    return first == second


def _limits(disk: ET.Element) -> dict[str, str | None]:
    return {node.tag: node.text for node in disk.iterfind("iotune/*")}


def place(source: dict[str, Any]) -> Place:
    """The place of a ports.Disk's source, comparable with `place_of`."""
    found = _place(_source(source))
    assert found is not None, "a source was given"
    return found


def is_same_data(one: Place | None, other: Place) -> bool:
    """Whether they differ at most in the secret's uuid: libvirtd forgets that of an adopted guest
    (secrets.keep), and the next one has another.
    """
    return one is not None and (*one[:-1], one[-1] is None) == (*other[:-1], other[-1] is None)


def _mirror_of(disk: ET.Element) -> Mirror | None:
    mirror = disk.find("mirror")
    if mirror is None:
        return None
    where = _place(mirror.find("source")) or ()
    return Mirror(where, ready=mirror.get("ready") == "yes")


def secret_of(disk: str) -> str | None:
    """The uuid of the hypervisor's secret for this `<disk>`."""
    found = place_of(disk)
    return found[-1] if found else None


def _place(source: ET.Element | None, disk: ET.Element | None = None) -> Place | None:
    """`disk`: what names the secrets, if the source does not, as in Nova's XML."""
    if source is None:
        return None
    auth, secret, key = (_first(name, source, disk) for name in ("auth", "auth/secret", _KEY))
    return (
        source.get("dev") or source.get("file"),
        source.get("protocol"),
        source.get("name") or _in_pool(source),
        tuple(sorted((h.get("name", ""), h.get("port", "")) for h in source.iterfind("host"))),
        auth.get("username") if auth is not None else None,
        secret.get("uuid") if secret is not None else None,
        key.get("uuid") if key is not None else None,
    )


_KEY = "encryption/secret"


def _first(name: str, *nodes: ET.Element | None) -> ET.Element | None:
    found = (node.find(name) for node in nodes if node is not None)
    return next((each for each in found if each is not None), None)


def _in_pool(source: ET.Element) -> str | None:
    """A volume of a libvirt storage pool; only libvirt knows where that is."""
    pool, name = source.get("pool"), source.get("volume")
    return f"pool {pool}: {name}" if pool and name else None


def short(where: Place | None) -> str | None:
    """The path, or pool/image."""
    return where[0] or where[2] if where else None


def set_source(disk: ET.Element, source: dict[str, Any]) -> None:
    """Point a `<disk>` to the same data as another host sees it."""
    for name in ("auth", "encryption", "backingStore"):  # libvirt takes a secret in one place alone
        for node in disk.findall(name):
            disk.remove(node)
    old = disk.find("source")
    at = 0 if old is None else list(disk).index(old)
    if old is not None:
        disk.remove(old)
    disk.insert(at, _source(source))
    disk.set("type", str(source["type"]))


def set_iotune(disk: ET.Element, limits: dict[str, int]) -> None:
    """Limit a `<disk>`; without limits it stays as it is."""
    if limits:
        for node in disk.findall("iotune"):
            disk.remove(node)
        node = ET.SubElement(disk, "iotune")
        for name, limit in limits.items():
            ET.SubElement(node, name).text = str(limit)


def _without(disk: ET.Element, name: str) -> ET.Element:
    if disk.find(name) is None:
        return disk
    bare = copy.copy(disk)
    for node in bare.findall(name):
        bare.remove(node)
    return bare


def read_only(disk: str) -> str:
    """The same disk, to be read only."""
    element = ET.fromstring(disk)  # noqa: S314 - libvirt's or our own
    if element.find("readonly") is None:
        ET.SubElement(element, "readonly")
    return ET.tostring(element, encoding="unicode")


def in_place_of(old: str, new: str) -> str:
    """The disk `new` with the address and the boot order of `old`."""
    was, element = ET.fromstring(old), ET.fromstring(new)  # noqa: S314 - libvirt's or our own
    for name in ("address", "boot"):
        for node in element.findall(name):
            element.remove(node)
    element.extend(node for name in ("address", "boot") for node in was.findall(name))
    return ET.tostring(element, encoding="unicode")
