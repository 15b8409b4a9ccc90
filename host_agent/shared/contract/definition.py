"""The definition of a guest without its volumes, as libvirt domain XML: creating and resizing it.

It has nothing that only a host can know (hypervisor type, emulator, addresses); the agent adds
that, and the disks.  Pure.
"""

from __future__ import annotations

# The XML is our own, or what our agents read from their hypervisors.
import xml.etree.ElementTree as ET
from dataclasses import dataclass

NOVA_NS = "http://openstack.org/xmlns/libvirt/nova/1.1"
#: PCI ports for virtio disks: q35 can plug only into ports that are there from the start.
PORTS = 24
#: libvirt's own definitions have a depth of about a dozen; with a bound, recursion is safe.
DEPTH_MAX = 64
#: The limit of vCPUs, and of MiB of memory.
SIZE_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a user requests of a new server, beside its disks.

    `kernel` and `initrd` (paths on the host) and `cmdline` are for a guest that does not boot from
    its disks; else `firmware` ("bios" or "uefi") looks for a boot disk.
    """

    vcpus: int = 1
    memory_mb: int = 512
    firmware: str = "bios"
    kernel: str | None = None
    initrd: str | None = None
    cmdline: str | None = None


def render(
    server_id: str, name: str, machine: Machine, project_id: str | None, user_id: str | None
) -> str:
    """The definition of a new server."""
    ET.register_namespace("nova", NOVA_NS)
    domain = ET.Element("domain")
    _text(domain, "name", f"instance-{server_id[:8]}")
    _text(domain, "uuid", server_id)
    _metadata(domain, name, project_id, user_id)
    _text(domain, "memory", str(machine.memory_mb), unit="MiB")
    _text(domain, "vcpu", str(machine.vcpus))
    _os(domain, machine)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(domain, "clock", offset="utc")
    devices = ET.SubElement(domain, "devices")
    ET.SubElement(devices, "controller", type="pci", index="0", model="pcie-root")
    for index in range(1, PORTS + 1):
        ET.SubElement(devices, "controller", type="pci", index=str(index), model="pcie-root-port")
    ET.SubElement(devices, "controller", type="scsi", index="0", model="virtio-scsi")
    ET.SubElement(ET.SubElement(devices, "serial", type="pty"), "target", port="0")
    return ET.tostring(domain, encoding="unicode")


def resized(definition: str, vcpus: int | None, memory_mb: int | None) -> str:
    """The same guest with other vCPUs and memory; None leaves them as they are."""
    root = ET.fromstring(definition)  # noqa: S314
    if memory_mb is not None:
        for name in ("memory", "currentMemory"):
            if (node := root.find(name)) is not None:
                node.text = str(memory_mb)
                node.set("unit", "MiB")
    if vcpus is not None and (node := root.find("vcpu")) is not None:
        node.text = str(vcpus)
        node.attrib.pop("current", None)
    return ET.tostring(root, encoding="unicode")


def parse(definition: str) -> ET.Element:
    """The definition's element.  Raises ParseError if it is not XML; ValueError if it has a
    document type, which could make reading it expensive, or is deeper than DEPTH_MAX.
    """
    if "<!" in definition:
        raise ValueError("a definition has no document type")
    root = ET.fromstring(definition)  # noqa: S314 - without a document type
    level = [root]
    for _ in range(DEPTH_MAX):
        level = [child for element in level for child in element]
        if not level:
            return root
    raise ValueError(f"a definition is at most {DEPTH_MAX} elements deep")


def is_readable(definition: str) -> bool:
    """Whether it is XML with a valid size, or without one."""
    try:
        _size(definition)
    except (ET.ParseError, ValueError):
        return False
    return True


def name_of(definition: str | None) -> str | None:
    """libvirt's name of the guest; None if it is missing or unreadable."""
    return parse(definition).findtext("name") if definition and is_readable(definition) else None


def size_of(definition: str | None) -> tuple[int, int]:
    """vCPUs, and memory in MiB; zeros if they are missing or unreadable."""
    return _size(definition) if definition and is_readable(definition) else (0, 0)


def _size(definition: str) -> tuple[int, int]:
    root = parse(definition)
    memory = root.find("memory")
    factor = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
    mib = 0
    if memory is not None:
        unit = (memory.get("unit") or "KiB")[0].lower()
        mib = int(memory.text or 0) * factor.get(unit, 2**10) // 2**20
    vcpus = int(root.findtext("vcpu") or 0)
    if not (0 <= vcpus <= SIZE_MAX and 0 <= mib <= SIZE_MAX):
        raise ValueError("no guest is of such a size")
    return vcpus, mib


def _metadata(domain: ET.Element, name: str, project_id: str | None, user_id: str | None) -> None:
    """The owner, in Nova's metadata, which stays on the host without the ledger."""
    instance = ET.SubElement(ET.SubElement(domain, "metadata"), f"{{{NOVA_NS}}}instance")
    _text(instance, f"{{{NOVA_NS}}}name", name)
    owner = ET.SubElement(instance, f"{{{NOVA_NS}}}owner")
    if user_id:
        ET.SubElement(owner, f"{{{NOVA_NS}}}user", uuid=user_id)
    if project_id:
        ET.SubElement(owner, f"{{{NOVA_NS}}}project", uuid=project_id)


def _os(domain: ET.Element, machine: Machine) -> None:
    os = ET.SubElement(domain, "os")
    if machine.firmware == "uefi":
        os.set("firmware", "efi")
    _text(os, "type", "hvm", machine="q35")
    for name in ("kernel", "initrd", "cmdline"):
        if (value := getattr(machine, name)) is not None:
            _text(os, name, value)


def _text(parent: ET.Element, name: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, name, attributes).text = text
