"""The names of devices that stay theirs, in made-up trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host_agent.storage import names
from tests.agent.kernel_tree import Kernel

UUID = "f3f7c7a1-8b8c-4a9b-9c39-0d2f0a1b2c3d"
WWID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def a_map(kernel: Kernel) -> str:
    kernel.map("dm-0", WWID)
    return kernel.link(f"/dev/disk/by-id/dm-uuid-mpath-{WWID}", "dm-0")


def a_namespace(kernel: Kernel) -> str:
    kernel.namespace("nvme0n1", wwid=f"uuid.{UUID}")
    return kernel.link(f"/dev/disk/by-id/nvme-uuid.{UUID}", "nvme0n1")


def a_disk(kernel: Kernel) -> str:
    kernel.disk("sdb", wwid=f"naa.{WWID[1:]}")
    return kernel.link(f"/dev/disk/by-id/wwn-0x{WWID[1:]}", "sdb")


@pytest.mark.parametrize(
    ("made", "device"), [(a_map, "dm-0"), (a_namespace, "nvme0n1"), (a_disk, "sdb")]
)
def test_a_device_has_the_name_that_udev_makes_of_its_identity(
    kernel: Kernel, made: Any, device: str
) -> None:
    name = made(kernel)
    link = kernel.link(f"/dev/disk/by-id/os-brick+dev+{device}", device)
    for path in (f"/dev/{device}", name, link):
        assert names.stable(path, kernel.root, wait_s=0) == name


def test_a_name_that_leads_to_another_device_is_not_its(kernel: Kernel) -> None:
    """As of a disk with two paths, one of which has the name."""
    a_disk(kernel)
    kernel.disk("sdc", wwid=f"naa.{WWID[1:]}")
    assert names.stable("/dev/sdc", kernel.root, wait_s=0) is None


@pytest.mark.parametrize("wwid", [None, "t10.ATA"])
def test_a_device_without_identity_has_none(kernel: Kernel, wwid: str | None) -> None:
    kernel.disk("sdb", wwid=wwid)
    assert names.stable("/dev/sdb", kernel.root, wait_s=0) is None
    assert names.stable("/dev/gone", kernel.root, wait_s=0) is None


def test_the_name_is_waited_for(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """udev makes it later than the kernel shows the device."""
    kernel.namespace("nvme0n1", wwid=f"uuid.{UUID}")
    monkeypatch.setattr("time.sleep", lambda _s: a_namespace(kernel))
    assert names.stable("/dev/nvme0n1", kernel.root) == f"/dev/disk/by-id/nvme-uuid.{UUID}"


def test_it_is_waited_for_as_long_as_a_host_under_load_takes(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 5 s, as seen in the lab's fabric; but not without end."""
    kernel.namespace("nvme0n1", wwid=f"uuid.{UUID}")
    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("time.sleep", lambda _s: None)
    assert names.stable("/dev/nvme0n1", kernel.root) is None
    assert 20 < next(clock) < 60


def test_a_disk_is_a_mere_path_below_a_map_and_until_udev_has_named_it(kernel: Kernel) -> None:
    kernel.disk("sdb", wwid=f"naa.{WWID[1:]}")
    assert names.is_mere_path("/dev/sdb", kernel.root)
    kernel.map("dm-0", WWID, "sdb")
    kernel.link(f"/dev/disk/by-id/wwn-0x{WWID[1:]}", "dm-0")
    assert names.is_mere_path("/dev/sdb", kernel.root)


def test_a_disk_of_which_no_map_is_made_is_no_mere_path(kernel: Kernel) -> None:
    """It has the name itself, or another path has it; or it has no identity."""
    a_disk(kernel)
    kernel.disk("sdc", wwid=f"naa.{WWID[1:]}")
    kernel.disk("sdd", wwid=None)
    kernel.namespace("nvme0n1", wwid=f"uuid.{UUID}")
    for device in ("sdb", "sdc", "sdd", "nvme0n1", "gone"):
        assert not names.is_mere_path(f"/dev/{device}", kernel.root)


def test_a_path_of_a_map_is_the_map(kernel: Kernel) -> None:
    kernel.disk("sda", wwid=None)
    kernel.disk("sdb", wwid=f"naa.{WWID[1:]}")
    kernel.map("dm-0", WWID, "sdb")
    link = kernel.link("/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn-lun-1", "sdb")
    found = {"/dev/sda": "/dev/sda", "/dev/dm-0": "/dev/dm-0", "/dev/gone": "/dev/gone"}
    for path, over in (found | {"/dev/sdb": "/dev/dm-0", link: "/dev/dm-0"}).items():
        assert names.map_over(path, kernel.root) == over


@pytest.mark.parametrize(
    ("device", "path"),
    [
        ({"path": "/dev/dm-0"}, "/dev/dm-0"),
        ({"path": "/dev/dm-0", "stable_path": "/dev/disk/by-id/x"}, "/dev/disk/by-id/x"),
        ({"path": 7}, None),
        ({}, None),
    ],
)
def test_where_what_connecting_returned_is(device: dict[str, Any], path: str | None) -> None:
    assert names.path_of(device) == path
