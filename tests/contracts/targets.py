"""Real targets in this machine's kernel: LIO for iSCSI, nvmet for NVMe over TCP, by configfs alone.

Their volumes are logical volumes of the group `fab`, as Cinder's LVM driver has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
ADDRESSES = ["10.90.0.1", "10.90.0.2"]
CONFIG = Path("/sys/kernel/config")
BLOCK = Path("/sys/class/block")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def until(condition: Callable[[], object], what: str, deadline_s: float = 300) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.1)


def sessions() -> list[str]:
    """The target of each session of iSCSI."""
    found = Path("/sys/class/iscsi_session").glob("*/targetname")
    return sorted(path.read_text().strip() for path in found)


def disks() -> list[str]:
    """What the kernel has of SCSI, of multipath, of NVMe."""
    maps = {path.parts[4] for path in BLOCK.glob("dm-*/dm/uuid") if "mpath" in path.read_text()}
    plain = {path.name for path in BLOCK.iterdir() if path.name.startswith(("sd", "nvme"))}
    return sorted(maps | plain)


@contextlib.contextmanager
def unreachable() -> Iterator[None]:
    """No path to any target, whatever the host knows of it so far."""
    for address in ADDRESSES:
        run("ip", "address", "del", f"{address}/32", "dev", "lo")
    try:
        yield
    finally:
        for address in ADDRESSES:
            run("ip", "address", "replace", f"{address}/32", "dev", "lo")


@contextlib.contextmanager
def udev_hangs() -> Iterator[None]:
    """What the kernel shows gets no names, and multipathd is not told of it."""
    run("pkill", "-STOP", "systemd-udevd")
    try:
        yield
    finally:
        run("pkill", "-CONT", "systemd-udevd")


def beginning(path: str) -> str:
    """What the volume says of itself (`Backing.make`), past all caches."""
    command = ["dd", f"if={path}", "bs=512", "count=1", "iflag=direct", "status=none"]
    read = subprocess.run(command, check=True, capture_output=True).stdout
    return read.rstrip(b"\0").decode()


class Backing:
    """Logical volumes that begin with their own name."""

    @staticmethod
    def make(name: str, mib: int) -> str:
        run("lvcreate", "-q", "-Wn", "-n", name, "-L", f"{mib}M", "fab")
        path = f"/dev/fab/{name}"
        command = ["dd", f"of={path}", "bs=512", "conv=sync,fsync", "oflag=direct", "status=none"]
        subprocess.run(command, check=True, input=name.encode())
        return path

    @staticmethod
    def grow(name: str, mib: int) -> None:
        run("lvextend", "-q", "-L", f"{mib}M", f"fab/{name}")

    @staticmethod
    def drop(name: str) -> None:
        run("lvremove", "-q", "-f", f"fab/{name}")


class IscsiTarget:
    """One target of LIO at two portals, with a LUN for each of its volumes."""

    kind = "iscsi"

    def __init__(self) -> None:
        self.iqn = f"iqn.2010-10.org.example:{uuid.uuid4()}"
        self._at = CONFIG / "target/iscsi" / self.iqn / "tpgt_1"
        self._volumes: dict[str, tuple[Path, Path]] = {}
        self._at.parent.parent.mkdir(exist_ok=True)
        self._at.parent.mkdir()
        self._at.mkdir()
        chosen = {"authentication": 0, "generate_node_acls": 1, "demo_mode_write_protect": 0}
        for name, value in ({**chosen, "cache_dynamic_acls": 1}).items():
            (self._at / "attrib" / name).write_text(str(value))
        for address in ADDRESSES:
            (self._at / f"np/{address}:3260").mkdir()
        (self._at / "enable").write_text("1")

    def add(self, name: str, number: int, mib: int = 64) -> dict[str, Any]:
        """A new volume at this LUN; its connection information, as Cinder's LVM driver gives it."""
        store = CONFIG / "target/core" / f"iblock_{100 + number}" / name
        store.parent.mkdir(exist_ok=True)
        store.mkdir()
        (store / "control").write_text(f"udev_path={Backing.make(name, mib)}")
        serial = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        (store / "wwn/vpd_unit_serial").write_text(serial)
        (store / "enable").write_text("1")
        place = self._at / f"lun/lun_{number}"
        place.mkdir()
        self._volumes[name] = (store, place)
        self.show(name)
        return {
            "driver_volume_type": "iscsi",
            "target_discovered": False,
            "target_iqn": self.iqn,
            "target_portal": f"{ADDRESSES[0]}:3260",
            "target_lun": number,
            "target_iqns": [self.iqn] * 2,
            "target_portals": [f"{address}:3260" for address in ADDRESSES],
            "target_luns": [number] * 2,
            "volume_id": name,
            "access_mode": "rw",
            "encrypted": False,
        }

    def allow(self, every: bool) -> None:
        """Whether who has no ACL of its own may log in."""
        (self._at / "attrib/generate_node_acls").write_text(str(int(every)))

    def show(self, name: str) -> None:
        store, place = self._volumes[name]
        (place / name).symlink_to(store)

    def hide(self, name: str) -> None:
        """Take the LUN away under whoever has it."""
        (self._volumes[name][1] / name).unlink()

    def grow(self, name: str, mib: int) -> None:
        Backing.grow(name, mib)

    def take(self, name: str) -> None:
        store, place = self._volumes[name]
        if (place / name).is_symlink():
            self.hide(name)
        del self._volumes[name]
        place.rmdir()
        store.rmdir()
        store.parent.rmdir()
        Backing.drop(name)

    def remove(self) -> None:
        (self._at / "enable").write_text("0")
        for name in list(self._volumes):
            self.take(name)
        for path in [*(self._at / "np").iterdir(), *(self._at / "acls").iterdir()]:
            path.rmdir()
        self._at.rmdir()
        self._at.parent.rmdir()


class NvmeTarget:
    """One subsystem of nvmet at one port, with a namespace for each of its volumes."""

    kind = "nvmeof"

    def __init__(self, port: int = 4420) -> None:
        self.nqn = f"nqn.2014-08.org.example:{uuid.uuid4()}"
        self._at = CONFIG / "nvmet/subsystems" / self.nqn
        self._volumes: dict[str, Path] = {}
        self._at.mkdir()
        (self._at / "attr_allow_any_host").write_text("1")
        self._port = CONFIG / "nvmet/ports/1"
        self._port.mkdir()
        address = {"adrfam": "ipv4", "trtype": "tcp", "traddr": ADDRESSES[0]}
        for name, value in ({**address, "trsvcid": str(port)}).items():
            (self._port / f"addr_{name}").write_text(value)
        (self._port / "subsystems" / self.nqn).symlink_to(self._at)

    def add(self, name: str, number: int, mib: int = 64) -> dict[str, Any]:
        """A new volume with this namespace's number."""
        space, own = self._at / f"namespaces/{number}", str(uuid.uuid4())
        space.mkdir()
        (space / "device_path").write_text(Backing.make(name, mib))
        (space / "device_uuid").write_text(own)
        (space / "enable").write_text("1")
        self._volumes[name] = space
        return {
            "driver_volume_type": "nvmeof",
            "target_nqn": self.nqn,
            "portals": [[ADDRESSES[0], 4420, "tcp"]],
            "vol_uuid": own,
            "ns_id": number,
            "volume_id": name,
            "access_mode": "rw",
            "encrypted": False,
        }

    def grow(self, name: str, mib: int) -> None:
        Backing.grow(name, mib)
        (self._volumes[name] / "revalidate_size").write_text("1")

    def take(self, name: str) -> None:
        space = self._volumes.pop(name)
        (space / "enable").write_text("0")
        space.rmdir()
        Backing.drop(name)

    def remove(self) -> None:
        (self._port / "subsystems" / self.nqn).unlink()
        self._port.rmdir()
        for name in list(self._volumes):
            self.take(name)
        self._at.rmdir()
