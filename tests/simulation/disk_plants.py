"""Drift of what disks are, planted by hand: whatever their labels say (see plants)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

from host_agent.libvirt import disk_xml
from host_agent.simulated import host_state
from tests.simulation.plants import Ground, Plant, guest, volume_disk

#: A size that no disk has, in bytes.
TOO_SMALL = 1 << 29
#: The name of the disk without a label, as its guest's XML has it.
UNLABELLED = "vdy"


def disk_source_differs(ground: Ground) -> Counter[str]:
    """`virsh snapshot-create --disk-only`: the guest writes to a file that nobody knows."""
    new = ground.new_id("a file above a disk")
    path = f"/simulated/mnt/{new}"
    with guest(ground, with_disk=True) as (name, found):
        disk = volume_disk(found)
        for each in ("live", "persistent"):
            root = ET.fromstring(found[each])
            for element in root.iterfind("devices/disk"):
                if element.findtext("serial") == disk.serial:
                    disk_xml.set_source(element, {"type": "file", "path": path})
            found[each] = ET.tostring(root, encoding="unicode")
        size = found["sizes"][disk.target]
    with ground.cloud.states[name].edit() as state:
        state["connected"][new] = {"driver": "rbd", "path": path, "bytes": size}
    return Counter(["disk_source_differs"])


def disk_size_differs(ground: Ground) -> Counter[str]:
    """Cinder's event that the volume has grown was lost, or it is another one."""
    with guest(ground, with_disk=True) as (_, found):
        serial, target = volume_disk(found).serial, volume_disk(found).target
        found["sizes"][target] = TOO_SMALL
        found.get("behind", {}).pop(target, None)
    for row in ground.cloud.rows("mappings"):
        if serial in {row["volume_id"], row.get("serial")}:
            ground.cloud.cinder.volume(row["volume_id"]).size = 2
    return Counter(["disk_size_differs"])


def disk_unlabelled(ground: Ground) -> Counter[str]:
    """`virsh attach-disk`, of what the host has connected for another disk."""
    with guest(ground, with_disk=True) as (_, found):
        disk = volume_disk(found)
        bare = ET.fromstring(disk.xml)
        for name in ("serial", "alias"):
            for node in bare.findall(name):
                bare.remove(node)
        target = bare.find("target")
        assert target is not None, "each disk has one"
        target.set("dev", UNLABELLED)
        for each in ("live", "persistent"):
            found[each] = host_state.with_disk(found[each], ET.tostring(bare, encoding="unicode"))
    return Counter(["disk_unlabelled"])


ON_DISKS: tuple[Plant, ...] = (disk_source_differs, disk_size_differs, disk_unlabelled)
