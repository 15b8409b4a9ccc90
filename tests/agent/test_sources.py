"""What a guest's disk is, whatever its label says: held against what this host has connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from host_agent.libvirt import disk_xml
from host_agent.storage import connection
from host_agent.storage.kernel import KernelStorage, KernelView
from host_agent.storage.records import Record
from host_agent.storage.sources import by_name, certain, elsewhere, is_recorded, volume_behind
from tests.agent.kernel_tree import Kernel

VOLUME, OTHER = str(uuid4()), str(uuid4())
WWID, ANOTHER = "6001405aaaaaaaaaaaaaaaaaaaaaaaaa", "6001405bbbbbbbbbbbbbbbbbbbbbbbbb"
ISCSI = {"driver_volume_type": "iscsi", "target_iqn": "iqn.a", "target_lun": 1}
NFS = {"driver_volume_type": "nfs", "export": "nfs:/cinder", "name": f"volume-{VOLUME}"}
SHARE = "/var/lib/mnt/abc"
FILE = f"{SHARE}/volume-{VOLUME}"
IMAGE = f"volumes/volume-{VOLUME}"
RBD = {"driver_volume_type": "rbd", "name": IMAGE}


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path / "root")
    made.disk("sda", state="running", wwid=f"naa.{WWID}")
    made.disk("sdb", state="running", wwid=f"naa.{ANOTHER}")
    made.session(1, "iqn.a", "sda")
    made.session(2, "iqn.b", "sdb")
    made.mount(SHARE, "nfs:/cinder")
    return made


def view(kernel: Kernel) -> KernelView:
    return KernelStorage(kernel.root).look()


def record(info: dict[str, Any], path: str | None = None, **device: Any) -> Record:
    digest = connection.target_digest(info)
    devices = {digest: {"path": path, **device}} if path else {}
    ids: dict[str, Any] = {
        "attachment_id": "a",
        "server_id": "s",
        "serial": VOLUME,
        "volume_id": VOLUME,
    }
    return Record(**ids, infos=(info,), devices=devices)


SDA = record(ISCSI, "/dev/sda", scsi_wwn=f"3{WWID}")
A_FILE, AN_IMAGE = record(NFS, FILE), record(RBD)


# --- the same data ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "source"),
    [(SDA, "/dev/sda"), (A_FILE, FILE), (AN_IMAGE, IMAGE)],
    ids=["device", "file", "image"],
)
def test_a_disk_on_what_is_connected_is_its_volumes(
    kernel: Kernel, known: Record, source: str
) -> None:
    assert is_recorded([source], [known], view(kernel)) is True


def test_a_device_is_the_same_by_any_of_its_names_paths_and_maps(kernel: Kernel) -> None:
    kernel.disk("sdc", state="running", wwid=f"naa.{WWID}")
    kernel.map("dm-0", f"3{WWID}", "sda", "sdc")
    by_id = kernel.link("/dev/disk/by-id/wwn-0x" + WWID, "sda")
    mapped = kernel.link("/dev/mapper/mpatha", "dm-0")
    for source in ("/dev/sda", "/dev/sdc", by_id, "/dev/dm-0", mapped):
        assert is_recorded([source], [SDA], view(kernel)) is True, source
    of_map = record(ISCSI, "/dev/dm-0", multipath_id=f"3{WWID}")
    assert is_recorded(["/dev/sdc"], [of_map], view(kernel)) is True


def test_a_file_is_the_same_by_another_mount_of_its_share(kernel: Kernel) -> None:
    kernel.mount("/var/lib/nova/mnt/abc", "nfs:/cinder")
    other = FILE.replace(SHARE, "/var/lib/nova/mnt/abc")
    assert is_recorded([other], [A_FILE], view(kernel)) is True


def test_after_a_swap_and_while_storage_moves_all_that_is_connected_counts(kernel: Kernel) -> None:
    assert is_recorded(["/dev/sda", FILE], [SDA, A_FILE], view(kernel)) is True


# --- another's --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "source"),
    [
        (SDA, "/dev/sdb"),
        (SDA, f"{SHARE}/stray.qcow2"),
        (A_FILE, f"{SHARE}/volume-{OTHER}"),
        (A_FILE, f"{FILE}.snap"),  # `virsh snapshot-create --disk-only` calls it so
        (AN_IMAGE, f"volumes/volume-{OTHER}"),
    ],
    ids=["device", "a file above", "another file", "a snapshot", "another image"],
)
def test_a_disk_on_anything_else_is_not(kernel: Kernel, known: Record, source: str) -> None:
    assert elsewhere([source], [known], view(kernel)) is True
    assert is_recorded([source], [known], view(kernel)) is False


def test_a_copy_to_what_nobody_connected_is_seen(kernel: Kernel) -> None:
    assert is_recorded([FILE, "/tmp/copy.raw"], [A_FILE], view(kernel)) is False


@pytest.mark.parametrize("told", [{"scsi_wwn": f"3{ANOTHER}"}, {}], ids=["by WWID", "by target"])
def test_a_name_that_another_disk_has_by_now_is_not_the_volume(
    kernel: Kernel, told: dict[str, str]
) -> None:
    info = {**ISCSI, "target_iqn": "iqn.a" if told else "iqn.c"}
    known = record(info, "/dev/sda", **told)
    assert is_recorded(["/dev/sda"], [known], view(kernel)) is False
    assert elsewhere(["/dev/sda"], [known], view(kernel)) is False, "the disk is where it was put"


# --- what cannot be said ----------------------------------------------------------------------


def test_what_is_not_certain_is_not_said(kernel: Kernel) -> None:
    seen, unwritten = view(kernel), record(ISCSI)  # it died before it wrote the device
    assert is_recorded(["/dev/sda"], [], seen) is None
    assert is_recorded([], [SDA], seen) is None
    assert is_recorded(["/dev/sdb"], [unwritten], seen) is None
    assert is_recorded(["/dev/sdb"], [SDA, unwritten], seen) is None
    assert is_recorded(["/dev/sdz"], [SDA], seen) is None, "it is not there"
    gone = record(ISCSI, "/dev/sdz")
    assert is_recorded(["/dev/sdb"], [gone], seen) is None, "nothing to compare it with"
    assert is_recorded(["pool default: volume-1"], [A_FILE], seen) is None
    cinders = f"{FILE}.{uuid4()}"  # of a snapshot that a fence has cut off
    assert is_recorded([cinders], [A_FILE], seen) is None
    assert is_recorded([f"{SHARE}/volume-{OTHER}.{uuid4()}"], [A_FILE], seen) is False
    moved = FILE.replace("abc", "def")  # the share's server has another address
    assert is_recorded([moved], [A_FILE], seen) is None


def test_by_a_definition_alone_no_device_can_be_told() -> None:
    """The next life of the host may give its name to another disk."""
    assert certain(["/dev/sda", FILE], live=False) == (FILE,)
    assert certain(["/dev/sda", FILE], live=True) == ("/dev/sda", FILE)


# --- what has no label ------------------------------------------------------------------------


def test_the_volume_behind_a_source_is_found_by_records_and_by_cinders_names(
    kernel: Kernel,
) -> None:
    seen = view(kernel)
    by_id = kernel.link("/dev/disk/by-id/x", "sda")
    volumes = by_name([SDA], seen)
    found = {
        source: volume_behind(source, volumes, view(kernel))
        for source in (
            by_id,
            "/dev/sdb",
            f"{SHARE}/volume-{OTHER}",
            f"{SHARE}/volume-{OTHER}.{uuid4()}",
            f"pool/volume-{OTHER}",
            f"pool/{OTHER}_disk",  # Nova's own
            f"/root/volume-{OTHER}",  # of no share
        )
    }
    assert [*found.values()] == [VOLUME, None, OTHER, OTHER, OTHER, None, None]


# --- libvirt's own XML ------------------------------------------------------------------------

XML = {
    "block": ("<source dev='/dev/sda' index='1'/><backingStore/>", "/dev/sda"),
    "file": (
        (
            f"<source file='{FILE}.snap' index='2'/><backingStore type='file' index='1'>"
            f"<format type='raw'/><source file='{FILE}'/><backingStore/></backingStore>"
        ),
        f"{FILE}.snap",
    ),
    "network": (
        (
            f"<auth username='cinder'><secret type='ceph' uuid='{uuid4()}'/></auth>"
            f"<source protocol='rbd' name='{IMAGE}' index='1'>"
            "<host name='mon' port='6789'/></source>"
        ),
        IMAGE,
    ),
    "volume": (
        "<source pool='default' volume='volume-1' mode='host' index='1'/>",
        "pool default: volume-1",
    ),
}


@pytest.mark.parametrize("kind", XML)
def test_each_form_of_libvirts_tells_the_first_file_alone(kind: str) -> None:
    inside, source = XML[kind]
    disk = f"<disk type='{kind}' device='disk'>{inside}<target dev='vdb' bus='virtio'/></disk>"
    [found] = disk_xml.parse(f"<domain><devices>{disk}</devices></domain>").disks
    assert (disk_xml.short(found.place), found.volume) == (source, None)


def test_a_copy_under_way_has_two_places() -> None:
    mirror = f"<mirror type='file' job='copy'><source file='{FILE}.copy'/></mirror>"
    disk = f"<disk type='file'><source file='{FILE}'/>{mirror}<target dev='vdb'/></disk>"
    [found] = disk_xml.parse(f"<domain><devices>{disk}</devices></domain>").disks
    assert [disk_xml.short(place) for place in found.places] == [FILE, f"{FILE}.copy"]
