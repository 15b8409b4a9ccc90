"""What the kernel shows of host storage: sessions, subsystems, maps, mounts, loops, dm-crypt.

A look reads sysfs and procfs, names from /dev, and of a map's paths the device mapper: nothing is
forked, no daemon is asked, no lock is taken, and no file of a share is touched, for a share whose
server is gone would keep whoever does that.  So a file on a share counts as there while its share
is mounted.  Only `others` sends something to storage (identity.py).

A session says "logged in" for as long as the kernel tries (democratic-csi #536), and the numbers of
LUNs, namespaces and device mapper devices are used again for others (kubernetes #59946, lxd
#18332): so a path has to be that of the same disk, by its WWID or UUID, where both sides have one.
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
#: What the kernel says of a path that works: of SCSI, and of NVMe.
WORKING = frozenset({"running", "live"})
LOGGED_IN = "LOGGED_IN"
SECTOR_BYTES = 512  # in which sysfs tells sizes, whatever the device's own are
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
#: Of a multipath map, and of a partition of one, as multipath-tools and kpartx name them.
_MAP = "mpath-"
_OF_A_MAP = re.compile(r"(part\d+-)?mpath-")
#: Of a mapping of dm-crypt, as cryptsetup names it.
_CRYPT = "CRYPT-"
_NAMESPACE = re.compile(r"nvme\d+n\d+\Z")
_CONTROLLER = re.compile(r"nvme\d+\Z")
_DELETED = " (deleted)"
_OCTAL = re.compile(r"\\([0-7]{3})")
#: How udev's scsi_id writes a WWID of the NAA kind, and how the kernel does.
_NAA_UDEV, _NAA_KERNEL = "3", "naa."


#: What the device mapper says of the device with a UUID (device_mapper.status).
Status = Callable[[str], bytes | None]


class Mount(NamedTuple):
    """A line of mountinfo."""

    number: str  # of the device, major:minor
    at: str
    kind: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether a server elsewhere has the files, and may keep whoever touches one."""
        network = ":" in self.source or self.source.startswith("//")
        return network or self.kind.startswith("fuse") or self.kind in SHARES


class KernelStorage:
    """The Storage port over the kernel of this machine.

    In tests `root` is another one's, `status` of its device mapper, and `ask` asks its disks.
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
        """Raises OSError where sysfs or procfs cannot be read."""
        return KernelView(self._root, self._status)

    def others(self, paths: Iterable[str]) -> frozenset[str]:
        devices = {path for path in paths if path.startswith("/dev/")}  # no file of a share
        asked = (path for path in devices if identity.other_volumes(path, self._root, self._ask))
        return frozenset(asked)


class KernelView:
    """What there is of each kind, and how it hangs together, read once."""

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
        """The kernel's name of a device, whichever of its names in /dev this is."""
        if not path.startswith("/dev/"):
            return path
        real = os.path.realpath(self._root / path[1:])
        return f"/{os.path.relpath(real, self._root)}"

    def names(self, path: str) -> frozenset[str]:
        """Of a device also its WWID, its paths and the maps over it; of a file also its share's."""
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
        target = self._targets.get(name)  # a map's paths may lead to others that were discovered
        return None if target is None or not wanted else target in wanted

    def size(self, path: str) -> int | None:
        name = Path(self.place(path)).name
        sectors = self._text(name, "size") if path.startswith("/dev/") else ""
        return int(sectors) * SECTOR_BYTES if sectors.isdecimal() else None

    def present(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether what connecting returned is there, and is the same disk as then."""
        path = path_of(device)
        if path is None or not path.startswith("/"):
            return None
        if path.startswith("/dev/"):
            name = Path(self.place(path)).name
            return name in self._blocks and self._is_same(name, device, info)
        return self._is_file(path)

    def _is_same(self, name: str, device: Mapping[str, Any], info: ConnectionInfo) -> bool:
        """No other disk, as far as both have a WWID or a UUID that can be compared."""
        uuid, map_id = self._uuid(name), device.get("multipath_id")
        if uuid.startswith(_MAP) and map_id:
            return uuid == f"{_MAP}{map_id}"
        wwn, shown = str(device.get("scsi_wwn") or ""), self._text(name, "device/wwid")
        if wwn.startswith(_NAA_UDEV) and shown.startswith(_NAA_KERNEL):
            return wwn.removeprefix(_NAA_UDEV) == shown.removeprefix(_NAA_KERNEL)
        return _NAMESPACE.match(name) is None or self._is_namespace(name, info)

    def _is_namespace(self, name: str, info: ConnectionInfo) -> bool:
        """By that of these two by which os-brick finds the namespace of a target, or of a replica.

        Not by `vol_uuid` beside `nqn`, the older form: there os-brick does not go by it.
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
        """Below a share: so it is while that is mounted; else it is looked for."""
        mount = self._mount_of(path)
        return (mount is not None and mount.is_remote) or os.path.lexists(self._root / path[1:])

    def _mount_of(self, path: str) -> Mount | None:
        over = [each for each in self._mounts if path.startswith(f"{each.at.rstrip('/')}/")]
        return max(over, key=lambda mount: len(mount.at), default=None)

    def held(self, place: str) -> bool:
        """By a mount, swap, a loop device, or a device above it; a map alone holds nothing."""
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
        """The devices by which its data is reached: itself, partitions, and maps over them."""
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
        """Those of a fabric."""
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
        """A mount with nothing of a guest's, and no loop device on it, is held by nobody."""
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
        """Those above what sessions, subsystems and maps reach: nothing of ours opens one, as QEMU
        decrypts.  What is above a disk of the host's own is the host's.
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
        """Whether the kernel sends requests by it; one that tells no state is believed to work."""
        return self._text(name, "device/state") in (*WORKING, "")

    def _is_map(self, name: str) -> bool:
        """A multipath map, or a partition of one, which nobody asked for."""
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
    """The disks that a session of iSCSI shows: LUNs of its targets."""
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
    """An attribute; "" if there is none, or the device has gone meanwhile."""
    with suppress(OSError):
        return _decoded(path.read_bytes()).strip()
    return ""


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _entries(path: Path) -> list[Path]:
    """What is in a directory, by name; nothing if there is none, as without a kernel module."""
    return [path / name for name in _names(path)]


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - a Path for each costs as much again
    except OSError:
        return []
