"""Disks whose number the storage has given to another volume, in made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from host_agent.storage import identity
from host_agent.storage.kernel import KernelStorage
from tests.agent.kernel_tree import Kernel

ONE, OTHER = bytes.fromhex("6001405a" * 4), bytes.fromhex("6001405b" * 4)
NAA, VENDOR, GROUP = (0x01, 3), (0x02, 1), (0x01, 5)
PORT = 0x10


def page(*named: tuple[tuple[int, int], bytes], whose: int = 0) -> bytes:
    """As SPC-4 has it: each a code set, whose it is and of what kind, and the name."""
    each = (bytes((code, whose | kind, 0, len(name))) + name for (code, kind), name in named)
    body = b"".join(each)
    return bytes((0, 0x83)) + len(body).to_bytes(2, "big") + body


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def keep(kernel: Kernel, name: str, kept: bytes) -> None:
    (kernel.root / f"sys/class/block/{name}/device").mkdir(parents=True, exist_ok=True)
    (kernel.root / f"sys/class/block/{name}/device/vpd_pg83").write_bytes(kept)
    kernel.put(f"sys/class/block/{name}/device/state", "running")


def others(kernel: Kernel, path: str, **now: bytes | None) -> list[str]:
    return identity.other_volumes(path, kernel.root, lambda disk: now[disk.removeprefix("/dev/")])


def test_a_disk_that_answers_as_another_volume_is_named(kernel: Kernel) -> None:
    path = kernel.disk("sdb")
    keep(kernel, "sdb", page((NAA, ONE)))
    assert others(kernel, path, sdb=page((NAA, OTHER))) == [path]
    assert others(kernel, path, sdb=page((NAA, ONE))) == []
    # Its buffer is longer than the page, and a part of a name is none.
    assert others(kernel, path, sdb=page((NAA, ONE)) + bytes(200)) == []


def test_of_a_map_each_path_is_asked(kernel: Kernel) -> None:
    for name in ("sdb", "sdc"):
        kernel.disk(name)
        keep(kernel, name, page((NAA, ONE)))
    kernel.over("dm-0", "sdb", "sdc", uuid="mpath-3")
    path = kernel.link("/dev/disk/by-id/dm-uuid-mpath-3", "dm-0")
    now = {"sdb": page((NAA, ONE)), "sdc": page((NAA, OTHER))}
    assert others(kernel, path, **now) == ["/dev/sdc"]


def test_one_name_in_common_is_enough_and_only_the_volumes_own_count(kernel: Kernel) -> None:
    path = kernel.disk("sdb")
    keep(kernel, "sdb", page((NAA, ONE), (VENDOR, b"LIO-ORG"), (GROUP, bytes(4))))
    assert others(kernel, path, sdb=page((NAA, OTHER), (NAA, ONE))) == []
    assert others(kernel, path, sdb=page((NAA, OTHER), (VENDOR, b"LIO-ORG"))) == [path]
    # Not of the port by which it was asked, which may be another one.
    assert others(kernel, path, sdb=page((NAA, OTHER), whose=PORT)) == []


def test_a_name_that_was_cut_off_is_no_other_one(kernel: Kernel) -> None:
    path, long = kernel.disk("sdb"), (VENDOR, b"LIO-ORG".ljust(230))
    keep(kernel, "sdb", page(long, (NAA, ONE)))
    assert others(kernel, path, sdb=page(long, (NAA, ONE))[:252]) == []
    assert others(kernel, path, sdb=page(long, (NAA, OTHER))) == [path]


@pytest.mark.parametrize("now", [None, b"", bytes(252), page((VENDOR, b"LIO-ORG"))])
def test_one_that_says_nothing_of_itself_is_believed(kernel: Kernel, now: bytes | None) -> None:
    path = kernel.disk("sdb")
    keep(kernel, "sdb", page((NAA, ONE)))
    assert others(kernel, path, sdb=now) == []


def test_one_of_which_the_kernel_keeps_nothing_is_believed(kernel: Kernel) -> None:
    """As of NVMe, and of disks that are too old for such a page."""
    path = kernel.disk("nvme0n1")
    assert others(kernel, path, nvme0n1=page((NAA, OTHER))) == []


@pytest.mark.parametrize("state", ["blocked", "transport-offline", "offline"])
def test_one_by_which_nothing_is_sent_is_not_asked(kernel: Kernel, state: str) -> None:
    path = kernel.disk("sdb")
    keep(kernel, "sdb", page((NAA, ONE)))
    kernel.put("sys/class/block/sdb/device/state", state)
    assert others(kernel, path) == []


def test_a_survey_asks_the_recorded_devices_and_no_file_of_a_share(kernel: Kernel) -> None:
    for name in ("sdb", "sdc"):
        keep(kernel, name, page((NAA, ONE)))
    paths = [kernel.disk("sdb"), kernel.disk("sdc"), "/mnt/share/sdb", "/dev/gone"]
    now = {"/dev/sdb": page((NAA, OTHER)), "/dev/sdc": page((NAA, ONE))}
    asked = KernelStorage(kernel.root, ask=now.__getitem__).others(paths)
    assert asked == {"/dev/sdb"}


def test_what_is_no_disk_answers_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(512))
    assert identity.asked(str(file)) is None
    assert identity.asked(str(tmp_path / "none")) is None
