"""The parts of a guest's definition that one host may set for another: an allow-list.

A definition comes from the host that has the guest, and is used by the next one.  If the first host
is compromised, it could make the other run an emulator, open a file, pass through a device, or run
without a label.  So the ledger, when it stores a definition, and the host that defines the guest
keep only the elements and attributes of `RULES`; an unknown element is dropped with its content.

The list has what describes the machine and means the same on any host: CPU, memory, firmware,
clock, consoles that the host makes, displays, and network devices of a network by name.  The only
paths are those of firmware where distributions install it, and of kernels in the receiving host's
directory for them.

The grammar is libvirt's: https://libvirt.org/formatdomain.html.  Pure.
"""

from __future__ import annotations

import posixpath
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from host_agent.shared.contract.definition import NOVA_NS, parse

#: How many dropped parts are named.
DROPPED_MAX = 32

_WORDS = r"[\w .,:;+^*()-]{0,255}"  # no slash: never a path
_TEXT = r"[^\0]{0,4096}"  # for people only
_NUMBER = r"-?[0-9]{1,20}"
_FLAG = "yes|no|on|off"
#: Where distributions install firmware (Debian, Fedora, SUSE).
_FIRMWARE = (
    r"(?!.*\.\.)/usr/share/(OVMF|ovmf|AAVMF|edk2|edk2-ovmf|qemu|qemu-efi-aarch64|seabios)/[\w.+/-]+"
)
_KERNEL = r"/[\w.+@/-]{1,1023}"
#: Listen addresses that mean the same on every host.
_EVERYWHERE = r"0\.0\.0\.0|::|127\.0\.0\.1|::1"


@dataclass(frozen=True)
class ElementRule:
    """What an element may contain.  Patterns match whole values.

    `attributes`: others are dropped, and so is one that does not match.  `must`: attributes that
    change the element's meaning; if one does not match, or the text does not, the element is
    dropped.  `deep`: the pattern of all attributes and texts below it.
    """

    attributes: Mapping[str, str] = field(default_factory=dict)
    must: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    deep: str | None = None


def _words(names: str = "", text: str = "", **must: str) -> ElementRule:
    """A rule with these attributes, whose values match _WORDS."""
    return ElementRule(dict.fromkeys(names.split(), _WORDS), must, text)


_PTY = _words(type="pty")
_SIZE = _words("unit", text=_NUMBER)
_DRIVER = _words(
    "name queues iommu ats packed event_idx ioeventfd iothread page_per_vq rx_queue_size "
    "tx_queue_size txmode max_sectors cmd_per_lun"
)

#: By path below <domain>.  A path that is not here, or below a deep rule, is dropped.
RULES: dict[str, ElementRule] = {
    # ---- the guest
    "name": ElementRule(text=_TEXT),
    "uuid": ElementRule(text=_WORDS),
    "genid": ElementRule(text=_WORDS),
    "title": ElementRule(text=_TEXT),
    "description": ElementRule(text=_TEXT),
    "metadata": ElementRule(),
    f"metadata/{{{NOVA_NS}}}instance": ElementRule(deep=_TEXT),
    # ---- its size
    "memory": _SIZE,
    "currentMemory": _SIZE,
    "maxMemory": _words("unit slots", text=_NUMBER),
    "vcpu": _words("placement current", text=_NUMBER),
    "vcpus": ElementRule(deep=_WORDS),
    "iothreads": ElementRule(text=_NUMBER),
    "cputune": ElementRule(),
    **dict.fromkeys(
        (f"cputune/{name}" for name in ("shares", "period", "quota")), ElementRule(text=_NUMBER)
    ),
    "memoryBacking": ElementRule(),
    "memoryBacking/hugepages": ElementRule(),
    "memoryBacking/hugepages/page": _words("size unit"),
    "memoryBacking/nosharepages": ElementRule(),
    "memoryBacking/source": _words(type="anonymous|memfd"),
    "memoryBacking/access": _words(mode="shared|private"),
    # ---- the machine
    "os": ElementRule({"firmware": "efi|bios"}),
    "os/type": _words("arch machine", text="hvm"),
    "os/firmware": ElementRule(deep=_WORDS),
    "os/loader": ElementRule(
        {"readonly": _FLAG, "type": "pflash|rom", "secure": _FLAG, "stateless": _FLAG,
         "format": "raw|qcow2"},
        text=_FIRMWARE,
    ),
    "os/nvram": ElementRule({"template": _FIRMWARE}),
    "os/boot": _words("dev"),
    "os/bootmenu": _words("enable timeout"),
    "os/bios": _words("useserial rebootTimeout"),
    "os/smbios": _words(mode="emulate|sysinfo"),
    "os/kernel": ElementRule(text=_KERNEL),
    "os/initrd": ElementRule(text=_KERNEL),
    "os/cmdline": ElementRule(text=r"[\x20-\x7e]{0,2048}"),
    "sysinfo": _words(type="smbios"),
    **dict.fromkeys(
        (f"sysinfo/{name}" for name in ("bios", "system", "baseBoard", "chassis", "oemStrings")),
        ElementRule(),
    ),
    **dict.fromkeys(
        (
            f"sysinfo/{name}/entry"
            for name in ("bios", "system", "baseBoard", "chassis", "oemStrings")
        ),
        _words("name", text=_TEXT),
    ),
    "features": ElementRule(deep=_WORDS),
    "cpu": ElementRule(deep=_WORDS),
    "clock": ElementRule({"timezone": r"[\w/+-]{1,64}"}, deep=_WORDS),
    **dict.fromkeys(
        ("on_poweroff", "on_reboot", "on_crash", "on_lockfailure"),
        ElementRule(text="destroy|restart|preserve|rename-restart|poweroff|pause|ignore"),
    ),
    "pm": ElementRule(deep=_WORDS),
    "launchSecurity": ElementRule(must={"type": "sev|sev-snp"}, deep=_WORDS),
    # ---- devices
    "devices": ElementRule(),
    "devices/controller": _words("type index model ports vectors maxGrants"),
    "devices/controller/model": _words("name"),
    "devices/controller/target": _words("chassis chassisNr port busNr index hotplug"),
    "devices/controller/driver": _DRIVER,
    "devices/controller/pcihole64": _SIZE,
    "devices/serial": _PTY,
    "devices/serial/target": _words("type port"),
    "devices/serial/target/model": _words("name"),
    "devices/console": _PTY,
    "devices/console/target": _words("type port"),
    "devices/parallel": _PTY,
    "devices/parallel/target": _words("port"),
    "devices/channel": _words(type="unix|spicevmc|qemu-vdagent"),
    "devices/channel/target": _words("type name"),
    "devices/channel/source": ElementRule(),
    "devices/channel/source/clipboard": _words("copypaste"),
    "devices/channel/source/mouse": _words("mode"),
    "devices/input": _words("bus model", type="tablet|mouse|keyboard"),
    "devices/graphics": ElementRule(
        {
            "port": _NUMBER,
            "tlsPort": _NUMBER,
            "autoport": _FLAG,
            "listen": _EVERYWHERE,
            "keymap": _WORDS,
            "sharePolicy": _WORDS,
            "defaultMode": _WORDS,
        },
        {"type": "vnc|spice"},
    ),
    "devices/graphics/listen": ElementRule({"address": _EVERYWHERE}, {"type": "address|none"}),
    "devices/graphics/image": _words("compression"),
    "devices/graphics/streaming": _words("mode"),
    "devices/graphics/clipboard": _words("copypaste"),
    "devices/graphics/mouse": _words("mode"),
    "devices/video": ElementRule(),
    "devices/video/model": _words("type ram vram vram64 vgamem heads primary blob"),
    "devices/video/model/acceleration": _words("accel3d accel2d"),
    "devices/video/model/resolution": _words("x y"),
    "devices/video/driver": _words("vgaconf iommu ats packed", name="qemu"),
    "devices/audio": _words("id", type="none|spice"),
    "devices/sound": _words("model"),
    "devices/sound/codec": _words("type"),
    "devices/sound/audio": _words("id"),
    "devices/rng": _words("model"),
    "devices/rng/rate": _words("bytes period"),
    "devices/rng/backend": ElementRule({"model": "random"}, {"model": "random"}, "/dev/u?random"),
    "devices/rng/driver": _DRIVER,
    "devices/memballoon": _words("model autodeflate freePageReporting"),
    "devices/memballoon/stats": _words("period"),
    "devices/memballoon/driver": _DRIVER,
    "devices/watchdog": ElementRule(
        {"model": _WORDS, "action": "reset|shutdown|poweroff|pause|none|inject-nmi"}
    ),
    "devices/panic": _words("model"),
    "devices/iommu": _words("model"),
    "devices/iommu/driver": _words("intremap caching_mode eim iotlb aw_bits"),
    "devices/tpm": _words("model"),
    "devices/tpm/backend": _words("version persistent_state", type="emulator"),
    # ---- empty drives only: volumes' disks come from the ledger, other disks are local to a host
    "devices/disk": _words("type", device="cdrom|floppy"),
    "devices/disk/driver": _words("name type"),
    "devices/disk/target": _words("dev bus tray"),
    "devices/disk/readonly": ElementRule(),
    # ---- only networks by name, never a device of the host
    "devices/interface": _words(type="network|bridge|ethernet"),
    "devices/interface/mac": _words("address"),
    "devices/interface/source": _words("network bridge portgroup"),
    "devices/interface/model": _words("type"),
    "devices/interface/mtu": _words("size"),
    "devices/interface/target": ElementRule({"dev": "tap[0-9a-f-]{1,12}"}),
    "devices/interface/virtualport": _words(type="openvswitch"),
    "devices/interface/virtualport/parameters": _words("interfaceid profileid"),
    "devices/interface/driver": _DRIVER,
    "devices/interface/link": _words("state"),
    "devices/interface/boot": _words("order"),
    "devices/interface/bandwidth": ElementRule(deep=_WORDS),
    "devices/interface/filterref": ElementRule(
        {"filter": _WORDS}, {"filter": r"(nova|clean-traffic)[\w-]{0,64}"}
    ),
    "devices/interface/filterref/parameter": _words("name value"),
    "devices/interface/port": _words("isolated"),
}  # fmt: skip

#: By element: the child that it needs; without it the element is dropped.
_LACKING = {"devices/tpm": "backend", "devices/rng": "backend"}


@dataclass(frozen=True)
class AllowedDefinition:
    """The allowed part of a definition; `dropped`: the paths of the other parts."""

    definition: str
    dropped: tuple[str, ...]


def kept(definition: str, kernel_dir: str | None = None) -> AllowedDefinition:
    """The definition by the rules; `kernel_dir`: where kernels must be (None: not checked).

    Idempotent.  Raises as `parse`.
    """
    root = parse(definition)
    paths = dict.fromkeys(_sift(root, "", ElementRule({"type": _WORDS})))
    if kernel_dir is not None:
        paths |= dict.fromkeys(_foreign_kernels(root, kernel_dir))
    if not paths:
        return AllowedDefinition(definition, ())
    text = ET.canonicalize(ET.tostring(root, encoding="unicode"), strip_text=True)
    return AllowedDefinition(text, tuple(paths)[:DROPPED_MAX])


def _sift(element: ET.Element, path: str, rule: ElementRule) -> Iterator[str]:
    """Drop what is not allowed from an element; the paths of that."""
    for name, value in list(element.attrib.items()):
        pattern = rule.must.get(name) or rule.attributes.get(name) or rule.deep
        if pattern is None or not re.fullmatch(pattern, value):
            del element.attrib[name]
            yield _name(f"{path}@{name}")
    for child in list(element):
        below = f"{path}/{child.tag}" if path else child.tag
        allowed = ElementRule(deep=rule.deep, text=rule.deep) if rule.deep else RULES.get(below)
        if allowed is None or not _is(child, allowed):
            element.remove(child)
            yield _name(below)
            continue
        had = len(child.attrib)
        yield from _sift(child, below, allowed)
        # An element that has lost all attributes is meaningless; `<features>` never had any.
        bare = had and not (child.attrib or len(child) or (child.text or "").strip())
        if bare or (below in _LACKING and child.find(_LACKING[below]) is None):
            element.remove(child)
            yield _name(below)


def _is(element: ET.Element, rule: ElementRule) -> bool:
    """Whether the rule applies, by `must` and the text."""
    text = (element.text or "").strip()
    known = all(re.fullmatch(pattern, element.get(name, "")) for name, pattern in rule.must.items())
    return known and (not text or re.fullmatch(rule.text or rule.deep or "", text) is not None)


def _foreign_kernels(root: ET.Element, kernel_dir: str) -> Iterator[str]:
    """Drop a kernel and an initrd that are not in the host's directory for them."""
    for os in root.findall("os"):
        for name in ("kernel", "initrd"):
            for element in os.findall(name):
                path = posixpath.normpath((element.text or "").strip())
                if posixpath.dirname(path) != posixpath.normpath(kernel_dir):
                    os.remove(element)
                    yield f"os/{name}"


def _name(path: str) -> str:
    """The path without namespaces and unusual characters, bounded."""
    return re.sub(r"[^\w/@.-]", "?", re.sub(r"\{[^}]*\}", "", path), flags=re.ASCII)[:100]
