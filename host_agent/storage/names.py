"""Stable names of devices.

The kernel numbers its names (/dev/dm-0, /dev/nvme0n1, /dev/sdb) in the order in which devices
appear.  After a reboot of the host such a name may be another volume's, but a guest's definition
stays.  udev makes its names below /dev/disk/by-id from the storage's own identity of the volume.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Seconds to wait for udev, which makes its names after the kernel has shown the device: more than
#: 5 s later on a busy host.
UDEV_S_MAX, POLL_S = 30.0, 0.05

_MAP = "/dev/disk/by-id/dm-uuid-mpath-"
#: Identifying attributes in sysfs, the prefix of udev's name, and the attribute's own prefix.  Not
#: the model and serial number of an NVMe controller, which all its namespaces share.
_NAMES = (("dm/uuid", "dm-uuid-", ""), ("wwid", "nvme-", ""), ("device/wwid", "wwn-0x", "naa."))


def stable(path: str, root: Path = Path("/"), wait_s: float = UDEV_S_MAX) -> str | None:
    """The name by which the device at `path` is found after any boot; None: it has none."""
    real = os.path.realpath(root / path[1:])
    name = _by_id(root / "sys/class/block" / Path(real).name)
    end = time.monotonic() + wait_s
    while name is not None:
        if os.path.realpath(root / name[1:]) == real:
            return name
        if time.monotonic() >= end:
            break
        time.sleep(POLL_S)
    return None


def is_mere_path(path: str, root: Path = Path("/")) -> bool:
    """Whether the SCSI disk at `path` is, or may still become, a path of a multipath map.

    Either udev has not named it, so multipathd does not know it yet; or its name leads to the map
    above it.  If its name leads to another path of the volume, no map is made.
    """
    block = root / "sys/class/block" / Path(os.path.realpath(root / path[1:])).name
    if not (block / "device/wwid").exists() or (name := _by_id(block)) is None:
        return False
    leads_to = Path(os.path.realpath(root / name[1:]))
    return not leads_to.exists() or (block / "holders" / leads_to.name).exists()


def map_over(path: str, root: Path = Path("/")) -> str:
    """The multipath map over the disk at `path`, or else the disk, by the kernel's name."""
    block = root / "sys/class/block" / Path(os.path.realpath(root / path[1:])).name
    if not block.exists():
        return path
    above = [block.parent / each.name for each in block.glob("holders/*")]
    maps = [each for each in above if (_by_id(each) or "").startswith(_MAP)]
    return f"/dev/{(maps or [block])[0].name}"


def _by_id(block: Path) -> str | None:
    for attribute, prefix, kind in _NAMES:
        with suppress(OSError):
            told = (block / attribute).read_text().strip()
            if told.startswith(kind) and told:
                return f"/dev/disk/by-id/{prefix}{told.removeprefix(kind)}"
    return None


def path_of(device: Mapping[str, Any]) -> str | None:
    """The path of a device that connecting returned: its stable name, if it has one."""
    path = device.get("stable_path") or device.get("path")
    return path if isinstance(path, str) else None
