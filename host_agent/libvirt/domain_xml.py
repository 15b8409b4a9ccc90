"""A whole guest in libvirt's XML: its definition without volumes, and the way back.

Pure.  A *definition* is what the ledger stores of a guest, to define it on any host: the inactive
XML without the volumes' disks, and without what only the host can know (hypervisor type, emulator,
addresses, aliases, labels, terminals).  It has one canonical form, so that reading a guest again
never looks like a change.

A definition may also come from an operator, from the ledger for a server that was created through
its API, or from a compromised host.  So nothing is assumed but that it is a `<domain>`, and only
what `guest_xml` allows is used.
"""

from __future__ import annotations

# From libvirt, from the ledger, or from our own simulation.
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from host_agent.libvirt import disk_xml
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.ports import Disk

#: Cached, because each inventory reads all guests and few have changed; one takes some 10 KB.
DEFINITIONS_MAX = 512

#: Listen addresses that mean the same on every host.
_EVERYWHERE = frozenset({None, "0.0.0.0", "::", "127.0.0.1", "::1"})  # noqa: S104 - compared only

# Else the namespaces of Nova's metadata would become ns0, ns1 in every definition.
ET.register_namespace("nova", disk_xml.NOVA_NS)
ET.register_namespace("qemu", "http://libvirt.org/schemas/domain/qemu/1.0")


class DomainXmlError(ValueError):
    """The definition is not one of this guest."""


@lru_cache(DEFINITIONS_MAX)
def definition_of(domain: str) -> str:
    """The definition from a domain's XML (see above)."""
    root = ET.fromstring(domain)  # noqa: S314 - from libvirt
    for name in ("type", "id"):
        root.attrib.pop(name, None)
    _drop(root, "seclabel")
    devices = root.find("devices")
    if devices is not None:
        _drop(devices, "emulator")
        _drop_volumes(devices)
        for device in devices:
            _drop(device, "address", "alias", "seclabel")
            _forget_terminal(device)
    _unbind_displays(root)
    return ET.canonicalize(ET.tostring(root, encoding="unicode"), strip_text=True)


@dataclass(frozen=True)
class HostCapabilities:
    """A host's settings for guests: the domain type, and the directory of kernels."""

    virt_type: str = "kvm"
    kernel_dir: str = "/var/lib/attachment-ledger/kernels"


@dataclass(frozen=True)
class CleanedDefinition:
    """A domain to define; `dropped`: the parts of the definition that were not allowed."""

    xml: str
    dropped: tuple[str, ...] = ()


def domain_of(
    definition: str,
    server_id: str,
    disks: Sequence[Disk],
    host: HostCapabilities,
    own: str | None = None,
) -> CleanedDefinition:
    """The domain for this host: the definition with exactly these volumes' disks.

    Only what `guest_xml` allows is used.  `own`: the domain as defined on this host, if it is: then
    that is the base, with all that is local to the host (files, devices, labels), in the
    definition's size.
    """
    root, dropped = _root_of(definition, server_id, host)
    if own is not None:
        root, dropped = _resized_as(ET.fromstring(definition_of(own)), root), ()  # noqa: S314 - ours
        had = disk_xml.parse(own)
        disks = [disk_xml.with_blocks(disk, had.disk_of(disk.serial)) for disk in disks]
    root.set("type", host.virt_type)
    devices = root.find("devices")
    if devices is None:
        devices = ET.SubElement(root, "devices")
    _drop_volumes(devices)
    ordered = {disk_xml.boot_order(d) for d in disks if disk_xml.is_bootable(d)}
    by_order = bool(ordered) and root.find("./os/kernel") is None
    if by_order:
        _make_room(root, ordered)
    for disk in disks:
        devices.append(ET.fromstring(disk_xml.build(disk, boot=by_order)))  # noqa: S314 - ours
    return CleanedDefinition(ET.tostring(root, encoding="unicode"), dropped)


def _root_of(
    definition: str, server_id: str, host: HostCapabilities
) -> tuple[ET.Element, tuple[str, ...]]:
    """The allowed part of the definition, and what was dropped.  Raises DomainXmlError."""
    try:
        sifted = kept(definition, host.kernel_dir)
    except ValueError as error:  # a ParseError is a SyntaxError
        raise DomainXmlError(f"The definition of guest {server_id}: {error}.") from error
    except ET.ParseError as error:
        raise DomainXmlError(f"The definition of guest {server_id} is not XML: {error}.") from error
    root = ET.fromstring(sifted.definition)  # noqa: S314 - by the allow-list
    _check_identity(root, server_id)
    return root, sifted.dropped


def _resized_as(root: ET.Element, sized: ET.Element) -> ET.Element:
    """The domain with the other's memory and vCPUs, where both have them."""
    for name in ("memory", "currentMemory", "vcpu"):
        mine, wanted = root.find(name), sized.find(name)
        if mine is not None and wanted is not None:
            mine.text = wanted.text
            for attribute in ("unit", "current"):
                mine.attrib.pop(attribute, None)
            mine.attrib.update({k: v for k, v in wanted.attrib.items() if k in ("unit", "current")})
    return root


def for_destination(domain: str, disks: Sequence[Disk]) -> str:
    """The same guest on another host, with the sources of its volumes there.

    Without the log of its console, which Nova has in a directory for each guest: the other host has
    no such directory, and libvirt would refuse the guest.
    """
    root = ET.fromstring(domain)  # noqa: S314 - from libvirt
    for element in root.iterfind("./devices/disk"):
        found = disk_xml.seen(element)
        if found is None or not found.is_volume:
            continue
        disk = next((disk for disk in disks if found.is_of(disk.serial)), None)
        if disk is None:
            raise DomainXmlError(
                f"The guest has volume {found.serial} as {found.target}, which is not among those "
                "made ready at the destination."
            )
        if (disk_xml.secret_of(found.xml) is None) != ("encryption" not in disk.source):
            raise DomainXmlError(
                f"Volume {found.serial} is encrypted on one side only: the guest would write over "
                "what it has, or read nothing of it."
            )
        disk_xml.set_source(element, disk.source)
        disk_xml.set_iotune(element, disk.iotune)  # no block sizes: a running guest keeps its own
    for device in root.iterfind("./devices/*"):
        for log in device.findall("log"):
            if PurePosixPath(log.get("file", "")).name == "console.log":
                device.remove(log)
    _unbind_displays(root)
    return ET.tostring(root, encoding="unicode")


def is_shared(domain: str) -> bool:
    """Whether the guest writes only to volumes, which all hosts share.

    libvirt decides by the file system, and refuses what it does not know as shared; for guests with
    local disks its decision stands.
    """
    root = ET.fromstring(domain)  # noqa: S314 - from libvirt
    return all(_is_shared(element) for element in root.iterfind("./devices/disk"))


def _is_shared(disk: ET.Element) -> bool:
    found, driver = disk_xml.seen(disk), disk.find("driver")
    if disk.find("readonly") is not None or disk.get("device") == "cdrom":
        return True
    uncached = driver is not None and driver.get("cache") in ("none", "directsync")
    return found is not None and found.is_volume and (uncached or disk.get("type") == "network")


def _check_identity(root: ET.Element, server_id: str) -> None:
    found = root.find("uuid")
    if found is None:
        ET.SubElement(root, "uuid").text = server_id
    elif (found.text or "").strip().lower() != server_id.lower():
        raise DomainXmlError(f"The definition given for {server_id} is of guest {found.text}.")


def _drop(parent: ET.Element, *names: str) -> None:
    for child in list(parent):
        if child.tag in names:
            parent.remove(child)


def _drop_volumes(devices: ET.Element) -> None:
    for element in devices.findall("disk"):
        found = disk_xml.seen(element)
        if found is not None and found.is_volume:
            devices.remove(element)


def _forget_terminal(device: ET.Element) -> None:
    """The host allocates a pseudo-terminal while the guest runs."""
    if device.get("type") == "pty":
        device.attrib.pop("tty", None)
        _drop(device, "source")


def _unbind_displays(root: ET.Element) -> None:
    """Remove a display's listen address, unless it is valid on all hosts."""
    for display in root.iterfind("./devices/graphics"):
        for node in (display, *display.findall("listen")):
            name = "listen" if node is display else "address"
            if node.get(name) not in _EVERYWHERE:
                del node.attrib[name]


def _make_room(root: ET.Element, orders: set[str]) -> None:
    """Remove conflicting boot orders: libvirt takes those of devices or `<os><boot>`, each once."""
    for element in root.findall("os"):
        _drop(element, "boot")
    for device in root.iterfind("./devices/*"):
        boot = device.find("boot")
        if boot is not None and boot.get("order") in orders:
            device.remove(boot)
