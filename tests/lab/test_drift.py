"""What is changed behind the ledger's back, on real Cinder, hosts and guests: found, and mended."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import libvirt
import pytest

from handlers.drift.judge import APART_S, BRAKE_COUNT
from host_agent.shared.contract.origin import MADE_FOR
from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_until
from tests.lab.moving import HERE, THERE
from tests.lab.settings import LAB_DIR, SETTLE_S
from tests.lab.shares import can_mount, mounted
from tests.lab.world import CLI_S

pytestmark = pytest.mark.lab

BACKEND = "nfs"
#: Of each guest, and the ports that it takes.
ATTACHED, PORTS = 6, 8
RECORDS = LAB_DIR / "locks-1" / "connections"
#: What has a repair that is tried here.
MENDED = {
    "attachment_lost",
    "attachment_mountpoint_differs",
    "attachment_status_differs",
    "connection_left",
    "disk_definition_differs",
    "disk_missing",
    "disk_readonly_differs",
    "guest_missing",
    "owner_gone",
    "reservation_unknown",
    "volume_status_differs",
}
_LIVE, _DEFINITION = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG


class Behind:
    """Does what nobody should; `planted`: the classes of drift that it is, and of what."""

    def __init__(self, lab: Lab, guests: list[LabGuest], new_volume: Callable[[str], str]) -> None:
        self.lab, self.guests = lab, guests
        self._new_volume = new_volume
        self.planted: dict[str, str] = {}
        self._volumes = {new_volume(BACKEND): guest for guest in guests for _ in range(ATTACHED)}
        for volume, guest in self._volumes.items():
            self._attach(guest, volume)
        self._unchanged = list(self._volumes)

    def _attach(self, guest: LabGuest, volume: str) -> None:
        self.lab.ledger.attach(guest.id, volume).raise_for_status()
        self.lab.cloud.wait_status(volume, "in-use")

    def _attached(self) -> str:
        """Another of the volumes that the server was given while all was well."""
        return self._unchanged.pop()

    def _attachment(self, volume: str) -> str:
        [found] = self.lab.cloud.attachments(volume)
        return str(found.id)

    def reserve_for(self, drift_class: str, server_id: str) -> None:
        """A raw call to Cinder, or one that came when its sender was gone."""
        volume = self._new_volume(BACKEND)
        self.lab.cloud.as_service.attachments.create(volume, None, server_id)
        self.planted[drift_class] = self._attachment(volume)

    def delete_attachment(self) -> None:
        """With a service token, which Cinder lets do everything (CVE-2023-2088)."""
        attachment = self._attachment(self._attached())
        self.lab.cloud.as_service.attachments.delete(attachment)
        self.planted["attachment_lost"] = attachment

    def reset_state(self) -> None:
        volume = self._attached()
        self.lab.cloud.as_service.volumes.reset_state(volume, "detaching")
        self.planted["volume_status_differs"] = volume

    def carry_out_late(self) -> None:
        """An update whose sender had given up, and asked again (decision 0034)."""
        attachment = self._attachment(self._attached())
        database = sqlite3.connect(LAB_DIR / "cinder/cinder.sqlite", timeout=CLI_S)
        with contextlib.closing(database):
            asked = "SELECT connector FROM volume_attachment WHERE id = ?"
            [[connector]] = database.execute(asked, [attachment]).fetchall()
        self.lab.cloud.as_service.attachments.update(attachment, json.loads(connector))
        self.planted["attachment_status_differs"] = attachment

    def delete_volume(self) -> None:
        """Past all that keeps one from it."""
        volume, volumes = self._attached(), self.lab.cloud.as_service.volumes
        volumes.reset_state(volume, "available", attach_status="detached")
        volumes.delete(volume)
        self.lab.cloud.wait_gone(volume)
        self.planted["volume_gone"] = volume

    def lose_guest(self, guest: LabGuest) -> str:
        """With a volume, which is returned."""
        volume = self._new_volume(BACKEND)
        self._attach(guest, volume)
        domain = guest.domain
        domain.destroy()
        domain.undefine()
        # What happens to a server during a look is nothing that the look finds.
        wait_until(lambda: self.lab.ledger.has_no_guest(guest.id), "its host to tell", SETTLE_S)
        self.planted["guest_missing"] = guest.id
        return volume

    def pull_disk(self) -> None:
        volume = self._attached()
        self._take_out(volume, _LIVE | _DEFINITION)
        self.planted["disk_missing"] = f"{self._volumes[volume].id}/{volume}"

    def edit_definition(self) -> None:
        volume = self._attached()
        self._take_out(volume, _DEFINITION)
        self.planted["disk_definition_differs"] = f"{self._volumes[volume].id}/{volume}"

    def let_it_read_only(self) -> None:
        """In its definition: as it is started next."""
        volume = self._attached()
        disk = self._disk(volume, libvirt.VIR_DOMAIN_XML_INACTIVE)
        ET.SubElement(disk, "readonly")
        self._volumes[volume].domain.updateDeviceFlags(
            ET.tostring(disk, encoding="unicode"), _DEFINITION
        )
        self.planted["disk_readonly_differs"] = f"{self._volumes[volume].id}/{volume}"

    def remove_record(self) -> None:
        attachment = self._attachment(self._attached())
        (RECORDS / f"{attachment}.json").unlink()
        self.planted["connection_missing"] = attachment

    def leave_record(self) -> None:
        """As if the agent had died before it removed it."""
        volume = self._attached()
        attachment = self._attachment(volume)
        file = RECORDS / f"{attachment}.json"
        record = file.read_bytes()
        self.lab.cloud.detach(self._volumes[volume].id, volume)
        assert not file.exists()
        file.write_bytes(record)
        self.planted["connection_left"] = attachment

    def name_another_host(self) -> None:
        """As if a request of that host's had come late."""
        self.planted["attachment_host_differs"] = self._told("attached_host", THERE)

    def name_another_disk(self) -> None:
        self.planted["attachment_mountpoint_differs"] = self._told("mountpoint", "/dev/vdz")

    def _told(self, column: str, value: str) -> str:
        """What Cinder has of an attachment from now on; which one."""
        attachment = self._attachment(self._attached())
        database = sqlite3.connect(LAB_DIR / "cinder/cinder.sqlite", timeout=CLI_S)
        with contextlib.closing(database), database:
            change = f"UPDATE volume_attachment SET {column} = ? WHERE id = ?"
            database.execute(change, [value, attachment])
        return attachment

    def told(self) -> list[tuple[str, str]]:
        """What Cinder shows now of the attachments of which it was told something: host, device."""
        classes = ("attachment_host_differs", "attachment_mountpoint_differs")
        service = self.lab.cloud.as_service
        volumes = [service.attachments.show(self.planted[name]).volume_id for name in classes]
        rows = [service.volumes.get(volume).attachments[0] for volume in volumes]
        return [(row["host_name"], row["device"]) for row in rows]

    def make_for_nobody(self) -> None:
        volume = self.lab.cloud.cinder.volumes.create(
            1, volume_type=BACKEND, metadata={MADE_FOR: str(uuid4())}
        )
        self.lab.cloud.wait_status(volume.id, "available")
        self.planted["volume_of_nobody"] = str(volume.id)

    def keep_loop_device(self) -> str:
        """A loop device over our own file, which no record explains."""
        file = LAB_DIR / "run" / "nobodys.img"
        file.write_bytes(bytes(1024 * 1024))
        done = subprocess.run(
            ["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True
        )
        self.planted["storage_left"] = f"loop/{file}"
        return done.stdout.strip()

    def _disk(self, volume: str, flags: int = 0) -> ET.Element:
        tree = ET.fromstring(self._volumes[volume].domain.XMLDesc(flags))
        disks = tree.iterfind("devices/disk")
        return next(disk for disk in disks if disk.findtext("serial") == volume)

    def _take_out(self, volume: str, flags: int) -> None:
        xml = ET.tostring(self._disk(volume), encoding="unicode")
        guest = self._volumes[volume]
        guest.domain.detachDeviceFlags(xml, flags)
        if flags & _LIVE:
            wait_until(lambda: guest.disk(volume) is None, f"{volume} to be out", SETTLE_S)


@pytest.fixture
def unused_share() -> Iterator[str | None]:
    """What stays mounted when its last volume is gone, as os-brick leaves it; None: it cannot be
    made here.
    """
    if not can_mount():
        yield None
        return
    share = "127.0.0.1:/nobodys"
    with mounted(share, LAB_DIR / "run" / "nobodys"):
        yield f"mount/{share}"


@pytest.fixture
def loop_devices() -> Iterator[list[str]]:
    made: list[str] = []
    yield made
    for device in made:
        subprocess.run(["losetup", "--detach", device], check=False)


def test_what_is_changed_behind_our_back_is_found_and_mended(
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    new_volume: Callable[[str], str],
    loop_devices: list[str],
    unused_share: str | None,
) -> None:
    guest, other = (new_guest(name, root_ports=PORTS) for name in ("guest", "other"))
    gone, lost = (new_guest(name, with_system=False) for name in ("gone", "lost"))
    delete(lab, gone.id)
    behind = Behind(lab, [guest, other], new_volume)
    # A bare one: no host has to prove anything, and this guest will have a disk without a record.
    behind.reserve_for("reservation_unknown", guest.id)
    behind.reserve_for("owner_gone", gone.id)
    behind.delete_attachment()
    behind.reset_state()
    behind.carry_out_late()
    behind.delete_volume()
    kept = behind.lose_guest(lost)
    if unused_share is not None:
        behind.planted["mount_unused"] = unused_share
    behind.pull_disk()
    behind.edit_definition()
    behind.let_it_read_only()
    behind.remove_record()
    behind.leave_record()
    behind.name_another_host()
    behind.name_another_disk()
    behind.make_for_nobody()
    loop_devices.append(behind.keep_loop_device())

    look = looked(lab)
    first = time.monotonic()
    suspected = lab.ledger.drift("open")
    missed = behind.planted.items() - {(name, key) for name, key, _ in suspected}
    assert not missed, (missed, look)
    wait_until(lambda: time.monotonic() - first > APART_S, "the time between looks", 2 * APART_S)
    look = lab.ledger.look()
    assert not look["braked"], look
    confirmed = lab.ledger.drift("confirmed")
    missed = behind.planted.items() - {(name, key) for name, key, _ in confirmed}
    assert not missed, (missed, look)
    mine = {name for name, _, found in confirmed if found["server_id"] in {guest.id, other.id}}
    assert mine <= behind.planted.keys()

    mended = [
        found
        for name, key, found in confirmed
        if behind.planted.get(name) == key and name in MENDED - {"guest_missing"}
    ]
    outcomes = {found["drift_class"]: lab.ledger.repair(found["finding_id"]) for found in mended}
    assert outcomes == dict.fromkeys(MENDED - {"guest_missing"}, "completed")
    keep_host(lab, behind, confirmed)
    forget(lab, lost, kept)
    look = lab.ledger.look()
    left = {name for name, key, _ in lab.ledger.drift("open") if behind.planted.get(name) == key}
    assert left == behind.planted.keys() - MENDED, look
    for each in (guest, other):
        delete(lab, each.id)


def keep_host(lab: Lab, behind: Behind, confirmed: list[tuple[str, str, Any]]) -> None:
    """The lab's hosts share one list of processes: the guest seems to run on both."""
    [moved] = [each for name, _, each in confirmed if name == "attachment_host_differs"]
    assert "runs a process of the guest" in lab.ledger.repair(moved["finding_id"])
    told = [(host, device == "/dev/vdz") for host, device in behind.told()]
    assert told == [(THERE, False), (HERE, False)]


def looked(lab: Lab) -> Any:
    """A look of which all is believed.  Earlier tests destroy their guests behind the ledger's
    back: those may be too many for one look, which then holds them back until it is told better.
    """
    look = lab.ledger.look()
    if not look["braked"]:
        return look
    for name, count in look["braked"].items():
        assert count > BRAKE_COUNT, look
        assert name not in look["found"], look
        assert any(f"--accept-many {name}" in text for text in look["held_back"]), look
    told = lab.ledger.look(*look["braked"])
    assert not told["braked"], told
    assert look["braked"].keys() <= told["found"].keys(), (look, told)
    return told


def forget(lab: Lab, guest: LabGuest, volume: str) -> None:
    """With all of its host whose guests have vanished, if it is the only one."""
    vanished = lab.ledger.forgettable(guest.host)
    assert vanished[guest.id] is None, vanished
    which = (guest.id,) if len(vanished) > 1 else ("--host", guest.host)
    words = ("server", "forget", *which, "--reason", "undefined by a test")
    lab.ledger.command(*words)
    assert lab.ledger.server_status(guest.id) is not None, "it was a dry run"
    lab.ledger.command(*words, "--apply", "--wait")
    assert lab.ledger.server_status(guest.id) is None
    assert lab.cloud.volume_status(volume) == "available"
    assert not lab.cloud.attachments(volume)


def delete(lab: Lab, server_id: str) -> None:
    lab.cloud.openstack("server", "delete", server_id)
    wait_until(lambda: lab.ledger.server_status(server_id) is None, "its deletion", SETTLE_S)
