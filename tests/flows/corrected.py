"""Worlds in which Cinder has an attachment wrong, or a guest its disk, found and confirmed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from handlers.drift.rows import CinderAttachment
from host_agent.shared.contract.survey import DiskShown
from tests.flows.drifted import attached, attachment_row, disk_row, found, mine
from tests.world import OTHER, World


def host_differs(world: World | None = None, host: str = OTHER) -> World:
    """Somebody gave Cinder another host's connector, and completed it."""
    world = world or attached()
    attachment = mine(world)
    row = world.cinder.attachment(str(attachment.id))
    row.host = row.connector["host"] = host
    cinder = CinderAttachment(status="attached", host=host, mountpoint="vdb")
    return found(world, "attachment_host_differs", attachment_row(world, attachment, cinder))


def mountpoint_differs(world: World | None = None) -> World:
    world = world or attached()
    attachment = mine(world)
    row = world.cinder.attachment(str(attachment.id))
    row.mountpoint = "/dev/vdz"
    cinder = CinderAttachment(status="attached", host=row.host, mountpoint="vdz")
    return found(world, "attachment_mountpoint_differs", attachment_row(world, attachment, cinder))


def _made(world: World, copy: str, *, readonly: bool) -> None:
    """Somebody edits a copy of the guest."""
    with world.host.edit() as state:
        guest = state["guests"][world.server_id]
        root = ET.fromstring(guest[copy])
        disks = root.iterfind("devices/disk")
        disk = next(each for each in disks if each.findtext("serial") == world.volumes[0])
        flag = disk.find("readonly")
        if readonly and flag is None:
            ET.SubElement(disk, "readonly")
        if not readonly and flag is not None:
            disk.remove(flag)
        guest[copy] = ET.tostring(root, encoding="unicode")


def readonly_differs(*copies: str, mode: str = "rw", stopped: bool = False) -> World:
    """These copies of the guest are not as its server has the volume."""
    world = World(encrypted=False)
    world.cinder.volumes[world.volumes[0]].readonly = True if mode == "ro" else None
    world.done(world.attach())
    if stopped:
        world.done(world.act("stop"))
    for copy in copies:
        _made(world, copy, readonly=mode == "rw")
    [mapping] = world.mappings()
    name, now = mapping.device_name, dict.fromkeys(copies, mode == "rw")
    shown = DiskShown(
        serial=world.volumes[0],
        live=None if stopped else name,
        persistent=name,
        readonly_live=None if stopped else now.get("live", mode == "ro"),
        readonly_persistent=now.get("persistent", mode == "ro"),
    )
    row = replace(disk_row(world, shown), running=not stopped)
    return found(world, "disk_readonly_differs", row)


def readonly_defined() -> World:
    """The guest writes, and would not after its next start."""
    return readonly_differs("persistent")


def writable_defined() -> World:
    """The next start of the guest would write to what it may only read."""
    return readonly_differs("persistent", mode="ro", stopped=True)
