"""libvirt's domain XML: building a disk, and reading what a domain has.

Pure.  Reading is forgiving: a device without alias, serial, target or source is not
ours and must not be in the way of others (LP 2074219).
"""

from __future__ import annotations

import string

# Domain XML comes from libvirt itself, or from our own simulation of it.
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from host_agent.ports import Disk

NOVA_NS = "http://openstack.org/xmlns/libvirt/nova/1.1"
#: libvirt lets users name aliases if they begin with this.
ALIAS_PREFIX = "ua-"


@dataclass(frozen=True)
class DiskSeen:
    """A disk of a domain; `xml` is the element as it stands there."""

    target: str
    bus: str | None
    serial: str | None
    alias: str | None
    xml: str

    def is_of(self, volume_id: str) -> bool:
        return volume_id == self.serial or self.alias == ALIAS_PREFIX + volume_id


@dataclass(frozen=True)
class DomainXml:
    """What we read of a domain's XML."""

    disks: tuple[DiskSeen, ...]
    project_id: str | None
    user_id: str | None
    has_virtio_scsi: bool

    def disk_of(self, volume_id: str) -> DiskSeen | None:
        return next((disk for disk in self.disks if disk.is_of(volume_id)), None)

    def targets(self) -> tuple[str, ...]:
        return tuple(disk.target for disk in self.disks)


def parse(text: str) -> DomainXml:
    """Read a domain's XML, live or persistent."""
    root = ET.fromstring(text)  # noqa: S314 - from libvirt
    disks = [seen for element in root.iterfind("./devices/disk") if (seen := _disk(element))]
    owner = f"./metadata/{{{NOVA_NS}}}instance/{{{NOVA_NS}}}owner/{{{NOVA_NS}}}"
    return DomainXml(
        disks=tuple(disks),
        project_id=_uuid_of(root.find(owner + "project")),
        user_id=_uuid_of(root.find(owner + "user")),
        has_virtio_scsi=any(
            element.get("type") == "scsi" and (element.get("model") or "").startswith("virtio")
            for element in root.iterfind("./devices/controller")
        ),
    )


def _uuid_of(element: ET.Element | None) -> str | None:
    return element.get("uuid") if element is not None else None


def _disk(element: ET.Element) -> DiskSeen | None:
    target = element.find("target")
    name = target.get("dev") if target is not None else None
    if target is None or name is None:
        return None
    alias = element.find("alias")
    return DiskSeen(
        target=name,
        bus=target.get("bus"),
        serial=(element.findtext("serial") or "").strip() or None,
        alias=alias.get("name") if alias is not None else None,
        xml=ET.tostring(element, encoding="unicode"),
    )


def build(disk: Disk) -> str:
    """The `<disk>` element, with the settings Nova gives a volume."""
    root = ET.Element("disk", type=str(disk.source["type"]), device="disk")
    driver = ET.SubElement(root, "driver", name="qemu", type=disk.format, cache=disk.cache)
    if disk.source["type"] != "network" and disk.cache == "none":
        driver.set("io", "native")
    if disk.discard:
        driver.set("discard", "unmap")
    _add_source(root, disk)
    ET.SubElement(root, "target", dev=disk.device_name, bus=disk.bus)
    if disk.readonly:
        ET.SubElement(root, "readonly")
    if disk.shareable:  # S3: no exclusive lock, for every guest of the volume
        ET.SubElement(root, "shareable")
    ET.SubElement(root, "serial").text = disk.volume_id
    ET.SubElement(root, "alias", name=ALIAS_PREFIX + disk.volume_id)
    if disk.bus == "scsi":
        # Else libvirt derives a controller from the name: beyond sdg one that is not there.
        unit = str(unit_of(disk.device_name))
        ET.SubElement(root, "address", type="drive", controller="0", bus="0", target="0", unit=unit)
    return ET.tostring(root, encoding="unicode")


def _add_source(root: ET.Element, disk: Disk) -> None:
    source = disk.source
    if source["type"] == "block":
        ET.SubElement(root, "source", dev=str(source["path"]))
    elif source["type"] == "file":
        ET.SubElement(root, "source", file=str(source["path"]))
    else:
        element = ET.SubElement(root, "source", protocol=source["protocol"], name=source["name"])
        for host, port in source["hosts"]:
            ET.SubElement(element, "host", name=str(host), port=str(port))
        if auth := source.get("auth"):
            node = ET.SubElement(element, "auth", username=str(auth["user"]))
            ET.SubElement(node, "secret", type="ceph", uuid=str(auth["secret_uuid"]))


def unit_of(device_name: str) -> int:
    """The place of a name in its series: sda 0, sdb 1, ..., sdz 25, sdaa 26."""
    number = 0
    for letter in device_name[2:]:
        number = number * 26 + string.ascii_lowercase.index(letter) + 1
    return number - 1


def with_disk(domain: str, disk: str) -> str:
    """A domain's XML with one more disk (the simulated hypervisor's hot-plug)."""
    root = ET.fromstring(domain)  # noqa: S314 - our own
    devices = root.find("./devices")
    if devices is None:
        devices = ET.SubElement(root, "devices")
    devices.append(ET.fromstring(disk))  # noqa: S314 - our own
    return ET.tostring(root, encoding="unicode")


def without_disk(domain: str, target: str) -> str:
    """A domain's XML without the disk of that target name."""
    root = ET.fromstring(domain)  # noqa: S314 - our own
    devices = root.find("./devices")
    for disk in [] if devices is None else devices.findall("disk"):
        node = disk.find("target")
        if devices is not None and node is not None and node.get("dev") == target:
            devices.remove(disk)
    return ET.tostring(root, encoding="unicode")


def source_of(disk: str) -> str | None:
    """Where a disk's data is: its path, or pool/image."""
    source = ET.fromstring(disk).find("source")  # noqa: S314 - libvirt's or our own
    if source is None:
        return None
    return source.get("dev") or source.get("file") or source.get("name")
