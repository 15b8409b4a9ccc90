"""What the kernel shows of host storage, read from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from host_agent.storage import device_mapper
from host_agent.storage.kernel import DISCOVERY_NQN, KernelStorage, KernelView
from host_agent.storage.port import StorageThing
from tests.agent.kernel_tree import Kernel

IQN, NQN = "iqn.2010-10.org.openstack:volume-1", "nqn.2014-08.org.example:volume-1"
WWID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
NAA = "naa.6001405aaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def view(kernel: Kernel) -> KernelView:
    return KernelStorage(kernel.root).look()


def only(kernel: Kernel) -> StorageThing:
    [thing] = view(kernel).things
    return thing


def test_a_host_without_any_of_it_shows_nothing(kernel: Kernel) -> None:
    assert view(kernel).things == ()


def test_a_session_is_called_by_its_target_and_reaches_its_disks(kernel: Kernel) -> None:
    kernel.disk("sdb", state="running")
    kernel.partition("sdb", "sdb1")
    kernel.session(1, IQN, "sdb")
    assert only(kernel) == StorageThing(
        kind="iscsi_session", name=IQN, places=frozenset({"/dev/sdb", "/dev/sdb1"})
    )


@pytest.mark.parametrize(
    ("state", "disks", "faulty"),
    [
        ("LOGGED_IN", ["running"], False),
        ("LOGGED_IN", [], False),
        ("LOGGED_IN", ["offline", "running"], False),
        ("LOGGED_IN", ["offline", "transport-offline"], True),
        ("FAILED", ["running"], True),
        ("FREE", [], True),
    ],
)
def test_a_session_is_faulty_without_a_working_disk(
    kernel: Kernel,
    state: str,
    disks: list[str],
    faulty: bool,
) -> None:
    names = [f"sd{letter}" for letter in "bc"[: len(disks)]]
    for name, told in zip(names, disks, strict=True):
        kernel.disk(name, state=told)
    kernel.session(1, IQN, *names, state=state)
    assert only(kernel).faulty is faulty


def test_a_map_is_called_by_its_wwid_and_faulty_without_a_working_path(kernel: Kernel) -> None:
    kernel.disk("sdb", state="running")
    kernel.disk("sdc", state="offline")
    kernel.map("dm-3", WWID, "sdb", "sdc")
    kernel.map("dm-4", "36001405b")
    kernel.over("dm-5", uuid="LVM-other")
    one, other = view(kernel).things
    assert one == StorageThing(kind="multipath_map", name=WWID, places=frozenset({"/dev/dm-3"}))
    assert (other.name, other.faulty) == ("36001405b", True)
    kernel.put("sys/class/block/sdb/device/state", "transport-offline")
    assert view(kernel).things[0].faulty


@pytest.mark.parametrize(
    ("status", "faulty"),
    [
        (b"2 0 0 0 2 1 A 0 1 2 8:16 F 1 0 1 E 0 1 2 8:32 F 1 0 1 ", True),
        (b"2 0 0 0 2 2 E 0 1 2 8:16 F 1 0 1 A 0 1 2 8:32 A 0 0 1 ", False),
        (b"2 0 0 0 1 1 A 0 2 2 8:16 A 0 0 1 8:32 F 3 0 1 ", False),
        (b"2 0 0 0 0 0 ", True),
        (None, False),
    ],
    ids=["none works", "the second group", "one of a group", "no paths", "not known"],
)
def test_a_map_is_faulty_when_the_device_mapper_has_failed_all_its_paths(
    kernel: Kernel, status: bytes | None, faulty: bool
) -> None:
    """Of a LUN that the storage has taken away SCSI still says "running"."""
    asked: list[str] = []

    def told(uuid: str) -> bytes | None:
        asked.append(uuid)
        return status

    for disk in ("sdb", "sdc"):
        kernel.disk(disk, state="running")
    kernel.map("dm-3", WWID, "sdb", "sdc")
    [thing] = KernelStorage(kernel.root, told).look().things
    assert thing.faulty is faulty
    assert asked == [f"mpath-{WWID}"]


def test_a_device_that_the_device_mapper_does_not_have_is_not_known() -> None:
    assert device_mapper.status(f"mpath-{WWID}") is None


def test_a_subsystem_of_a_fabric_is_called_by_its_nqn(kernel: Kernel) -> None:
    kernel.disk("nvme1n1")
    kernel.subsystem(1, NQN, "nvme1n1")
    kernel.subsystem(0, "nqn.of.the.hosts.own.disk", transport="pcie")
    kernel.subsystem(2, DISCOVERY_NQN)
    assert only(kernel) == StorageThing(
        kind="nvme_subsystem", name=NQN, places=frozenset({"/dev/nvme1n1"})
    )
    kernel.put("sys/class/nvme-subsystem/nvme-subsys1/nvme1/state", "connecting")
    assert only(kernel).faulty


def test_namespaces_below_their_controller_are_reached_too(kernel: Kernel) -> None:
    """As without native multipath."""
    kernel.disk("nvme1n2")
    kernel.subsystem(1, NQN)
    kernel.put("sys/class/nvme-subsystem/nvme-subsys1/nvme1/nvme1n2/nsid", "2")
    assert only(kernel).reaches(frozenset({"/dev/nvme1n2"}))


def test_a_share_reaches_what_is_below_its_mount(kernel: Kernel) -> None:
    kernel.mount(r"/mnt/with\040space", "nas:/export")
    kernel.mount("/home", "/dev/sdz1", kind="ext4", number="8:200")
    share = only(kernel)
    assert share == StorageThing(kind="mount", name="nas:/export", below="/mnt/with space")
    assert share.reaches(frozenset({"/mnt/with space/volume-1"}))
    assert not share.reaches(frozenset({"/mnt/with space more/volume-1"}))


def test_a_loop_device_is_called_by_its_file(kernel: Kernel) -> None:
    kernel.loop("loop0", "/srv/volume-1")
    kernel.loop("loop1", "/srv/volume-2 (deleted)")
    kernel.disk("loop2")
    one, two = view(kernel).things
    assert one == StorageThing(kind="loop", name="/srv/volume-1", places=frozenset({"/dev/loop0"}))
    assert (two.name, two.faulty) == ("/srv/volume-2", True)


# --- who holds it ------------------------------------------------------------------------------


def held(kernel: Kernel) -> bool:
    """Whether the session's disk is; a disk alone is not."""
    kernel.session(1, IQN, "sdb")
    seen = view(kernel)
    session = next(thing for thing in seen.things if thing.kind == "iscsi_session")
    assert seen.held("/dev/sdb") is session.held
    return session.held


def test_a_disk_alone_is_not_held(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.partition("sdb", "sdb1")
    assert not held(kernel)


def test_a_volume_group_holds_a_disk(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.over("dm-1", "sdb")
    assert held(kernel)


def test_a_map_alone_holds_no_disk_and_is_how_its_data_is_reached(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.map("dm-1", WWID, "sdb")
    kernel.over("dm-2", "dm-1", uuid=f"part1-mpath-{WWID}")  # kpartx's, unasked
    assert not held(kernel)
    session = next(each for each in view(kernel).things if each.kind == "iscsi_session")
    assert session.places == {"/dev/sdb", "/dev/dm-1", "/dev/dm-2"}


def test_what_dm_crypt_has_open_above_a_volume_is_shown_until_it_is_in_use(kernel: Kernel) -> None:
    """And none of what is above a disk of the host's own, nor anything that is not dm-crypt."""
    for disk in ("sda", "sdb"):
        kernel.disk(disk)
    kernel.map("dm-1", WWID, "sdb")
    kernel.over("dm-2", "dm-1", uuid="CRYPT-LUKS2-1")
    kernel.put("sys/class/block/dm-2/dm/name", "left")
    kernel.over("dm-3", "sda", uuid="CRYPT-LUKS2-2")
    kernel.over("dm-4", "dm-1")
    volume, crypt = view(kernel).things
    assert crypt == StorageThing(kind="crypt", name="left", places=frozenset({"/dev/dm-2"}))
    assert volume.held
    kernel.mount("/data", "/dev/dm-2", kind="xfs")
    assert view(kernel).things[1].held


def test_what_holds_a_map_holds_its_paths(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.map("dm-1", WWID, "sdb")
    kernel.over("dm-2", "dm-1")
    assert held(kernel)


def test_a_mount_holds_a_partition_by_number_and_by_name(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.partition("sdb", "sdb1")
    kernel.mount("/data", "whatever", kind="xfs", number=kernel.number("sdb1"))
    assert held(kernel)


def test_a_mount_holds_a_disk_by_its_name(kernel: Kernel) -> None:
    """The number of btrfs is nobody's."""
    kernel.disk("sdb")
    name = kernel.link("/dev/disk/by-path/pci-1", "sdb")
    kernel.mount("/data", name, kind="btrfs", number="0:77")
    assert held(kernel)


def test_swap_holds_a_disk(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.put("proc/swaps", "Filename Type Size Used Priority\n/dev/sdb partition 8 0 -2")
    assert held(kernel)


def test_a_loop_device_holds_its_file_its_disk_and_its_share(kernel: Kernel) -> None:
    kernel.disk("sdb")
    kernel.mount("/mnt/a", "nas:/export")
    kernel.loop("loop0", "/mnt/a/volume-1")
    kernel.loop("loop1", "/dev/sdb")
    assert held(kernel)
    seen = view(kernel)
    assert seen.held("/mnt/a/volume-1")
    assert not seen.held("/mnt/a/volume-2")
    [share] = [thing for thing in seen.things if thing.kind == "mount"]
    assert share.held


# --- what connecting returned --------------------------------------------------------------------


def test_a_device_is_one_by_all_its_names(kernel: Kernel) -> None:
    kernel.disk("sdb")
    name = kernel.link("/dev/disk/by-path/ip-192.0.2.1-lun-1", "sdb")
    seen = view(kernel)
    assert seen.place(name) == seen.place("/dev/sdb") == "/dev/sdb"
    assert seen.present({"type": "block", "path": name}, {}) is True
    assert seen.place("volumes/volume-1") == "volumes/volume-1"


def test_a_name_without_device_and_a_file_in_its_place_are_not_it(kernel: Kernel) -> None:
    name = kernel.link("/dev/disk/by-path/dangling", "gone")
    kernel.put("dev/no-device", "")
    seen = view(kernel)
    for path in (name, "/dev/gone", "/dev/no-device"):
        assert seen.present({"path": path}, {}) is False


@pytest.mark.parametrize("path", [None, 7, "volumes/image"])
def test_what_is_no_path_is_not_known(kernel: Kernel, path: Any) -> None:
    assert view(kernel).present({"path": path}, {}) is None


def test_a_number_that_another_disk_has_by_now_is_not_the_recorded_one(kernel: Kernel) -> None:
    kernel.disk("sdb", wwid=NAA)
    kernel.disk("sdc", wwid="t10.ATA")
    kernel.map("dm-1", WWID, "sdb")
    seen = view(kernel)
    other = WWID.replace("a", "b")
    assert seen.present({"path": "/dev/sdb", "scsi_wwn": WWID}, {}) is True
    assert seen.present({"path": "/dev/sdb", "scsi_wwn": other}, {}) is False
    assert seen.present({"path": "/dev/dm-1", "multipath_id": WWID}, {}) is True
    assert seen.present({"path": "/dev/dm-1", "multipath_id": other}, {}) is False
    assert seen.present({"path": "/dev/sdc", "scsi_wwn": other}, {}) is True, "not to be compared"


UUID, NGUID = "f3f7c7a1-8b8c-4a9b-9c39-0d2f0a1b2c3d", "0123456789abcdef0123456789abcdef"
TARGET = {"target_nqn": NQN}


@pytest.mark.parametrize(
    ("info", "there"),
    [
        ({**TARGET, "vol_uuid": UUID}, True),
        ({**TARGET, "vol_uuid": UUID.upper()}, True),
        ({**TARGET, "vol_uuid": UUID.replace("f", "e")}, False),
        ({**TARGET, "vol_uuid": None, "volume_nguid": NGUID}, True),
        ({**TARGET, "volume_nguid": NGUID.replace("f", "e")}, False),
        ({**TARGET, "vol_uuid": UUID, "volume_nguid": NGUID.replace("f", "e")}, True),
        ({"vol_uuid": "cinder's", "volume_replicas": [{**TARGET, "vol_uuid": UUID}]}, True),
        ({"vol_uuid": UUID, "volume_replicas": [{**TARGET, "vol_uuid": "another"}]}, False),
        ({"nqn": NQN, "vol_uuid": "not what it is found by"}, True),
    ],
)
def test_a_namespace_that_another_volume_has_by_now_is_not_the_recorded_one(
    kernel: Kernel, info: dict[str, Any], there: bool
) -> None:
    hyphenated = "01234567-89ab-cdef-0123-456789abcdef"
    path = kernel.namespace("nvme0n1", uuid=UUID, nguid=hyphenated)
    seen = view(kernel)
    assert seen.present({"path": path}, info) is there
    assert seen.is_of({"path": path}, info) in ((None, True) if there else (False,))


def test_a_namespace_without_identity_and_an_array_over_some_cannot_be_compared(
    kernel: Kernel,
) -> None:
    kernel.disk("nvme0n2")
    kernel.disk("md127")
    seen = view(kernel)
    for path in ("/dev/nvme0n2", "/dev/md127"):
        assert seen.present({"path": path}, {**TARGET, "vol_uuid": UUID}) is True


def test_a_device_is_looked_for_by_the_name_that_stays(kernel: Kernel) -> None:
    """After a reboot its number may be another's."""
    kernel.disk("nvme0n1")
    kernel.disk("nvme1n1")
    name = kernel.link(f"/dev/disk/by-id/nvme-uuid.{UUID}", "nvme1n1")
    device = {"path": "/dev/nvme0n1", "stable_path": name}
    assert view(kernel).present(device, {}) is True
    (kernel.root / name[1:]).unlink()
    assert view(kernel).present(device, {}) is False


def test_a_file_of_a_share_is_there_while_the_share_is_and_is_never_touched(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is gone would keep whoever looks."""
    device = {"path": "/mnt/a/volume-1"}
    (kernel.root / "mnt/a").mkdir(parents=True)
    assert view(kernel).present(device, {}) is False, "not mounted, and nothing is there"
    kernel.mount("/mnt/a", "nas:/export")
    seen = view(kernel)
    monkeypatch.setattr(os.path, "lexists", lambda path: pytest.fail(f"touched {path}"))
    assert seen.present(device, {}) is True
    kernel.mount("/mnt/b", "ceph@x:/", kind="ceph")
    assert view(kernel).present({"path": "/mnt/b/file"}, {}) is True


def test_a_file_of_this_machine_is_looked_for(kernel: Kernel) -> None:
    kernel.put("srv/volume-1", "")
    seen = view(kernel)
    assert seen.present({"type": "local", "path": "/srv/volume-1"}, {}) is True
    assert seen.present({"type": "local", "path": "/srv/volume-2"}, {}) is False


# --- what cannot be read -----------------------------------------------------------------------


def test_without_sysfs_or_procfs_nothing_can_be_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="class/block"):
        KernelStorage(tmp_path).look()
    (tmp_path / "sys/class/block").mkdir(parents=True)
    with pytest.raises(OSError, match="mountinfo"):
        KernelStorage(tmp_path).look()


def test_names_that_are_no_text_are_read(kernel: Kernel) -> None:
    file = kernel.root / "proc/self/mountinfo"
    file.write_bytes(file.read_bytes() + b"9 1 0:5 / /mnt/\xff rw - nfs4 nas:/\xff rw\n")
    assert only(kernel).name == "nas:/\udcff"


def test_this_machine_can_be_looked_at() -> None:
    seen = KernelStorage().look()
    assert [thing for thing in seen.things if not thing.name] == []
