"""What the kernel shows of host storage: sessions, subsystems, maps, mounts, loops, dm-crypt.

A look reads sysfs, procfs, the names in /dev, and the device mapper's status of maps.  It forks
nothing, asks no daemon, takes no lock, and touches no file of a share, because that would block if
the share's server is gone.  So a file on a share counts as present while its share is mounted.
Only `others` sends something to storage (identity.py).

A session stays "logged in" while the kernel retries (democratic-csi #536), and the numbers of LUNs,
namespaces and device mapper devices are reused (kubernetes #59946, lxd #18332).  So a path must be
of the same disk, by its WWID or UUID, if both sides have one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from host_agent.shared.contract.ports import ConnectionInfo
from host_agent.storage import device_mapper, identity
from host_agent.storage.names import path_of
from host_agent.storage.port import StorageThing

#: The file systems that os-brick mounts for volumes that are files.
SHARES = frozenset({"nfs", "nfs4", "fuse.glusterfs", "fuse.quobyte", "fuse.vstorage"})
#: The kernel's states of a working path: SCSI, and NVMe.
WORKING = frozenset({"running", "live"})
LOGGED_IN = "LOGGED_IN"
SECTOR_BYTES = 512  # the unit of sizes in sysfs, whatever the device's sector size is
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
#: UUIDs of multipath maps, and of partitions of one, by multipath-tools and kpartx.
_MAP = "mpath-"
_OF_A_MAP = re.compile(r"(part\d+-)?mpath-")
#: UUIDs of dm-crypt mappings, by cryptsetup.
_CRYPT = "CRYPT-"
_NAMESPACE = re.compile(r"nvme\d+n\d+\Z")
_CONTROLLER = re.compile(r"nvme\d+\Z")
_DELETED = " (deleted)"
_OCTAL = re.compile(r"\\([0-7]{3})")
#: The prefix of an NAA WWID by udev's scsi_id, and by the kernel.
_NAA_UDEV, _NAA_KERNEL = "3", "naa."


#: The device mapper's status of the device with a UUID (device_mapper.status).
Status = Callable[[str], bytes | None]


class Mount(NamedTuple):
    """A line of mountinfo."""

    number: str  # of the device, major:minor
    at: str
    kind: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether another server has the files, so that touching one may block."""
        network = ":" in self.source or self.source.startswith("//")
        return network or self.kind.startswith("fuse") or self.kind in SHARES


class KernelStorage:
    """The Storage port over the kernel of this machine.

    Tests replace `root`, the device mapper's `status`, and `ask`, which reads a disk's identity.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        status: Status = device_mapper.status,
        ask: identity.Ask = identity.asked,
    ) -> None:
        self._root = root
        self._status = status
        self._ask = ask

    def look(self) -> KernelView:
        """Raises OSError if sysfs or procfs cannot be read."""
        return KernelView(self._root, self._status)

    def others(self, paths: Iterable[str]) -> frozenset[str]:
        devices = {path for path in paths if path.startswith("/dev/")}  # no file of a share
        asked = (path for path in devices if identity.other_volumes(path, self._root, self._ask))
        return frozenset(asked)


class KernelView:
    """All objects and how they depend on each other, read once."""

    def __init__(self, root: Path, status: Status) -> None:
        self._root = Path(os.path.realpath(root))
        self._status = status
        self._sys = self._root / "sys"
        self._blocks = {path.name: path for path in (self._sys / "class/block").iterdir()}
        mounts = (self._root / "proc/self/mountinfo").read_bytes()
        self._mounts = list(_mounts(_decoded(mounts)))
        self._loops = dict(self._backing_files())
        self._numbers = {mount.number for mount in self._mounts}
        self._sources = {self.place(mount.source) for mount in self._mounts}
        self._sources.update(map(self.place, self._swaps()))
        self._targets: dict[str, str] = {}  # of iSCSI, by disk
        found = (*self._sessions(), *self._subsystems(), *self._maps(), *self._shares())
        of_storage = frozenset[str]().union(*(thing.places for thing in found))
        more = (*self._loop_devices(), *self._crypts(of_storage))
        self.things: tuple[StorageThing, ...] = (*found, *more)

    # --- places -----------------------------------------------------------------------------

    def place(self, path: str) -> str:
        """The kernel's name of a device, from any of its names in /dev."""
        if not path.startswith("/dev/"):
            return path
        real = os.path.realpath(self._root / path[1:])
        return f"/{os.path.relpath(real, self._root)}"

    def names(self, path: str) -> frozenset[str]:
        """Of a device also its WWID, its paths, the maps over it; of a file its share's name."""
        if path.startswith("/dev/"):
            name = Path(self.place(path)).name
            return frozenset(self._told_by(name)) if name in self._blocks else frozenset()
        if not path.startswith("/"):
            return frozenset() if path.startswith("pool ") else frozenset({path})
        mount = self._mount_of(path)
        if mount is None or not mount.is_remote:
            return frozenset({path})
        return frozenset({path, mount.source + path.removeprefix(mount.at)})

    def _told_by(self, name: str) -> Iterator[str]:
        below = self._children(name, "slaves") if self._is_map(name) else []
        for each in (name, *below, *filter(self._is_map, self._children(name, "holders"))):
            yield f"/dev/{each}"
            if wwid := self._text(each, "device/wwid") or self._text(each, "wwid"):
                yield wwid

    def is_shared(self, path: str) -> bool:
        mount = self._mount_of(path)
        return not path.startswith("/") or (mount is not None and mount.kind in SHARES)

    def is_of(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        path = path_of(device) or ""
        name = Path(self.place(path)).name
        if not path.startswith("/dev/") or name not in self._blocks:
            return None
        if not self._is_same(name, device, info):
            return False
        wanted = {info.get("target_iqn"), *(info.get("target_iqns") or ())} - {None}
        target = self._targets.get(name)  # a map may also have paths of other, discovered targets
        return None if target is None or not wanted else target in wanted

    def size(self, path: str) -> int | None:
        name = Path(self.place(path)).name
        sectors = self._text(name, "size") if path.startswith("/dev/") else ""
        return int(sectors) * SECTOR_BYTES if sectors.isdecimal() else None

    def present(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether the device that connecting returned is there, and still the same disk."""
        path = path_of(device)
        if path is None or not path.startswith("/"):
            return None
        if path.startswith("/dev/"):
            name = Path(self.place(path)).name
            return name in self._blocks and self._is_same(name, device, info)
        return self._is_file(path)

    def _is_same(self, name: str, device: Mapping[str, Any], info: ConnectionInfo) -> bool:
        """False only if both have a WWID or UUID of the same kind, and they differ."""
        uuid, map_id = self._uuid(name), device.get("multipath_id")
        if uuid.startswith(_MAP) and map_id:
            return uuid == f"{_MAP}{map_id}"
        wwn, shown = str(device.get("scsi_wwn") or ""), self._text(name, "device/wwid")
        if wwn.startswith(_NAA_UDEV) and shown.startswith(_NAA_KERNEL):
            return wwn.removeprefix(_NAA_UDEV) == shown.removeprefix(_NAA_KERNEL)
        return _NAMESPACE.match(name) is None or self._is_namespace(name, info)

    def _is_namespace(self, name: str, info: ConnectionInfo) -> bool:
        """Compares what os-brick finds the namespace of a target, or of a replica, by.

        Not `vol_uuid` beside `nqn`, the older form, where os-brick does not use it.
        """
        each_target = info.get("volume_replicas") or [info]
        targets = [each for each in each_target if "target_nqn" in each]
        for told, attribute in (("vol_uuid", "uuid"), ("volume_nguid", "nguid")):
            wanted = {_hexadecimal(each[told]) for each in targets if each.get(told)}
            shown = self._text(name, attribute)
            if wanted and shown:
                return _hexadecimal(shown) in wanted
        return True

    def _is_file(self, path: str) -> bool:
        """On a share: whether that is mounted; else whether the file exists."""
        mount = self._mount_of(path)
        return (mount is not None and mount.is_remote) or os.path.lexists(self._root / path[1:])

    def _mount_of(self, path: str) -> Mount | None:
        over = [each for each in self._mounts if path.startswith(f"{each.at.rstrip('/')}/")]
        return max(over, key=lambda mount: len(mount.at), default=None)

    def held(self, place: str) -> bool:
        """By a mount, swap, a loop device, or a device above it; a multipath map does not count."""
        if place in self._loops.values():
            return True
        name = place.removeprefix("/dev/")
        return place.startswith("/dev/") and name in self._blocks and self._is_held(name)

    def _is_held(self, name: str) -> bool:
        for part in (name, *self._partitions(name)):
            mounted = self._text(part, "dev") in self._numbers or f"/dev/{part}" in self._sources
            if mounted or f"/dev/{part}" in self._loops.values():
                return True
            for holder in self._children(part, "holders"):
                if not self._is_map(holder) or self._is_held(holder):
                    return True
        return False

    def _above(self, name: str) -> Iterator[str]:
        """All devices with its data: itself, partitions, and maps over them."""
        for part in (name, *self._partitions(name)):
            yield part
            for holder in self._children(part, "holders"):
                if self._is_map(holder):
                    yield from self._above(holder)

    # --- things -------------------------------------------------------------------------------

    def _sessions(self) -> Iterator[StorageThing]:
        for session in _entries(self._sys / "class/iscsi_session"):
            disks = list(_disks_of(session))
            self._targets |= dict.fromkeys(disks, _read(session / "targetname"))
            in_use = _read(session / "state") == LOGGED_IN
            working = in_use and (not disks or any(map(self._works, disks)))
            yield self._thing(
                "iscsi_session", _read(session / "targetname"), disks, working=working
            )

    def _subsystems(self) -> Iterator[StorageThing]:
        """NVMe over fabrics only."""
        for subsystem in _entries(self._sys / "class/nvme-subsystem"):
            name, inside = _read(subsystem / "subsysnqn"), _entries(subsystem)
            controllers = [path for path in inside if _CONTROLLER.match(path.name)]
            fabric = any(_read(path / "transport") not in ("", "pcie") for path in controllers)
            if not fabric or name == DISCOVERY_NQN:
                continue
            spaces = [*inside, *(path for each in controllers for path in _entries(each))]
            disks = sorted({path.name for path in spaces if _NAMESPACE.match(path.name)})
            working = any(_read(path / "state") in WORKING for path in controllers)
            yield self._thing("nvme_subsystem", name, disks, working=working)

    def _maps(self) -> Iterator[StorageThing]:
        for name in sorted(self._blocks):
            uuid = self._uuid(name)
            if uuid.startswith(_MAP):
                by_mapper = device_mapper.has_path(self._status(uuid))
                working = by_mapper and any(map(self._works, self._children(name, "slaves")))
                yield self._thing("multipath_map", uuid.removeprefix(_MAP), [name], working=working)

    def _shares(self) -> Iterator[StorageThing]:
        """A mount is held if a loop device is on it."""
        for mount in self._mounts:
            if mount.kind in SHARES:
                files = [path for path in self._loops.values() if path.startswith(f"{mount.at}/")]
                yield StorageThing(
                    kind="mount", name=mount.source, below=mount.at, held=bool(files)
                )

    def _loop_devices(self) -> Iterator[StorageThing]:
        for name, file in sorted(self._loops.items()):
            yield StorageThing(
                kind="loop",
                name=file.removesuffix(_DELETED),
                places=frozenset(f"/dev/{each}" for each in self._above(name)),
                held=self._is_held(name),
                faulty=file.endswith(_DELETED),
            )

    def _crypts(self, of_storage: frozenset[str]) -> Iterator[StorageThing]:
        """Those above devices of sessions, subsystems and maps.  The agent never opens one, because
        QEMU decrypts; those above the host's own disks are the host's.
        """
        for name in sorted(self._blocks):
            below = {f"/dev/{each}" for each in self._children(name, "slaves")}
            if self._uuid(name).startswith(_CRYPT) and not below.isdisjoint(of_storage):
                yield self._thing("crypt", self._text(name, "dm/name"), [name], working=True)

    def _thing(self, kind: str, name: str, disks: list[str], *, working: bool) -> StorageThing:
        places = {f"/dev/{each}" for disk in disks for each in self._above(disk)}
        return StorageThing(
            kind=kind,
            name=name,
            places=frozenset(places),
            held=any(map(self._is_held, disks)),
            faulty=not working,
        )

    # --- attributes ---------------------------------------------------------------------------

    def _backing_files(self) -> Iterator[tuple[str, str]]:
        for name, path in self._blocks.items():
            if file := _read(path / "loop/backing_file"):
                yield name, file

    def _swaps(self) -> list[str]:
        lines = _read(self._root / "proc/swaps").splitlines()[1:]
        return [line.split()[0] for line in lines if line.split()]

    def _works(self, name: str) -> bool:
        """Whether the kernel sends requests to it; True if it has no state."""
        return self._text(name, "device/state") in (*WORKING, "")

    def _is_map(self, name: str) -> bool:
        """A multipath map, or a partition of one."""
        return _OF_A_MAP.match(self._uuid(name)) is not None

    def _uuid(self, name: str) -> str:
        return self._text(name, "dm/uuid")

    def _text(self, name: str, attribute: str) -> str:
        return _read(self._blocks[name] / attribute) if name in self._blocks else ""

    def _children(self, name: str, kind: str) -> list[str]:
        return _names(self._blocks[name] / kind) if name in self._blocks else []

    def _partitions(self, name: str) -> list[str]:
        inside = (each for each in self._children(name, "") if each.startswith(name))
        return [each for each in inside if _read(self._blocks[name] / each / "partition")]


def _disks_of(session: Path) -> Iterator[str]:
    """The disks (LUNs) of an iSCSI session."""
    for target in _entries(session / "device"):
        for lun in _entries(target) if target.name.startswith("target") else ():
            yield from (path.name for path in _entries(lun / "block"))


def _mounts(text: str) -> Iterator[Mount]:
    """See proc_pid_mountinfo(5)."""
    for line in text.splitlines():
        own, _, other = line.partition(" - ")
        fields, more = own.split(" "), other.split(" ")
        if len(fields) > 4 and len(more) > 1:  # noqa: PLR2004
            yield Mount(fields[2], _unescaped(fields[4]), more[0], _unescaped(more[1]))


def _hexadecimal(text: object) -> str:
    return str(text).replace("-", "").lower()


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _read(path: Path) -> str:
    """An attribute; "" if there is none, or the device has disappeared meanwhile."""
    with suppress(OSError):
        return _decoded(path.read_bytes()).strip()
    return ""


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _entries(path: Path) -> list[Path]:
    """The entries of a directory, by name; none if it is missing (a kernel module not loaded)."""
    return [path / name for name in _names(path)]


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - a Path for each would double the cost
    except OSError:
        return []
