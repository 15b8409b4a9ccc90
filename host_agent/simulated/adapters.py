"""Simulated os-brick and guests, over the state of `host_state.py`.

The rules of `guests.py` are the real ones; only the hypervisor below them is simulated
(`hypervisor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from host_agent.libvirt.domain_xml import HostCapabilities
from host_agent.libvirt.guests import HypervisorGuests, Patience
from host_agent.shared.contract.messages import ErrorKind, Guest, PowerState
from host_agent.shared.contract.ports import (
    GIB,
    ConnectionInfo,
    Disk,
    DiskState,
    Encryption,
    Merge,
    PortError,
    Watch,
)
from host_agent.shared.contract.survey import GuestsShown
from host_agent.shared.faults import Faults
from host_agent.simulated import host_state
from host_agent.simulated.host_state import HostState
from host_agent.simulated.hypervisor import SimulatedHypervisor
from host_agent.storage import connection
from host_agent.storage.port import StorageThing

Shown = Callable[[Sequence[Any]], list[Any]]

#: A simulated guest answers at once or never.
PATIENCE = Patience(
    detach_timeout_s=0.0,
    shutdown_timeout_s=0.05,
    shutdown_again_s=0.05,
    end_timeout_s=5.0,
    poll_s=0.005,
)


# --- os-brick -------------------------------------------------------------------------


class SimulatedBrick:
    """The Brick port.  Faults: `brick.connector`, `brick.connect`, `brick.format_luks`,
    `brick.extend`, `brick.disconnect`.

    A `lie` of disconnect returns success and leaves the volume connected.  The simulated Cinder
    puts the volume's size into `host_state.SIZE`.
    """

    def __init__(self, store: HostState, faults: Faults, host: str) -> None:
        self._store = store
        self._faults = faults
        self._host = host

    def connector(self) -> dict[str, Any]:
        with self._faults.around("brick.connector", host=self._host):
            return {
                "host": self._host,
                "ip": "192.0.2.1",
                "initiator": f"iqn.2026-01.example:{self._host}",
                "multipath": False,
                "platform": "x86_64",
                "os_type": "linux",
            }

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        with self._faults.around("brick.connect", **self._ids(info)) as fault:
            source = _source(info)
            if not (fault and fault.lies):
                with self._store.edit() as state:
                    path = connection.device_path(source)
                    digest = connection.target_digest(info)
                    entry: dict[str, Any] = {"driver": connection.driver(info), "path": path}
                    if info.get("encrypted"):
                        entry["encrypted"] = True
                    known = state["connected"].get(digest)
                    # A second connect does not rescan the device.
                    entry["bytes"] = (
                        known.get("bytes", _bytes(info))
                        if known and source["type"] == "block"
                        else _bytes(info)
                    )
                    state["connected"][digest] = entry
            described = {**source, "format": connection.image_format(info)}
            if source["type"] != "network":
                described["device"] = _device(source)
            return described

    def format_luks(self, source: dict[str, Any], passphrase: str, encryption: Encryption) -> None:
        """Simulated volumes are LUKS if they are encrypted."""
        del source, passphrase, encryption
        with self._faults.around("brick.format_luks", host=self._host):
            pass

    def size(self, source: dict[str, Any]) -> int | None:
        entries = self._store.read()["connected"].values()
        found = (entry["bytes"] for entry in entries if entry["path"] == source.get("path"))
        return next(found, None) if source["type"] == "block" else None

    def extend(self, info: ConnectionInfo, source: dict[str, Any]) -> int | None:
        with self._faults.around("brick.extend", **self._ids(info)):
            with self._store.edit() as state:
                entry = state["connected"].get(connection.target_digest(info))
                if entry is None:
                    text = f"{connection.device_path(source)} is not connected"
                    raise PortError(ErrorKind.RETRYABLE, "extend_failed", text)
                entry["bytes"] = _bytes(info)
            head = host_state.LUKS_HEAD if info.get("encrypted") else 0
            return entry["bytes"] - head if source["type"] == "block" else None

    def disconnect(self, info: ConnectionInfo, device: dict[str, Any] | None = None) -> None:
        ids = self._ids(info)
        if device is not None and device != _device(_source(info)):
            text = f"{device} is not what was connected"
            raise PortError(ErrorKind.UNKNOWN, "flush_failed", text)
        with (
            self._faults.around("brick.disconnect", **ids) as fault,
            self._store.edit() as state,
        ):
            if not (fault and fault.lies):
                state["connected"].pop(connection.target_digest(info), None)

    def _ids(self, info: ConnectionInfo) -> dict[str, str | None]:
        return {
            "host": self._host,
            "driver": info.get("driver_volume_type"),
            "volume_id": info.get("volume_id"),
            "attachment_id": info.get("attachment_id"),
        }


def _bytes(info: ConnectionInfo) -> int:
    """The volume's size on storage; 1 GiB if the connection does not have it."""
    return int(info.get(host_state.SIZE, GIB))


def _source(info: ConnectionInfo) -> dict[str, Any]:
    kind = connection.driver(info)
    if kind == "rbd":
        return connection.network_source(info, secret_uuid="simulated")  # noqa: S106 - no secret
    if kind == "local" and info.get("device_path"):
        return {"type": "block", "path": info["device_path"]}
    if info.get("export") and info.get("name"):
        return {"type": "file", "path": f"/simulated/mnt/{info['name']}"}
    return {"type": "block", "path": f"/dev/simulated/{connection.target_digest(info)[:16]}"}


def _device(source: dict[str, Any]) -> dict[str, Any]:
    """The device that `disconnect` gets."""
    return {"type": source["type"], "path": source["path"], "use_multipath": False}


# --- what storage shows -----------------------------------------------------------------

#: By driver: the kind of storage object; RBD has none.
KINDS = {
    "iscsi": "iscsi_session",
    "nvmeof": "nvme_subsystem",
    "nfs": "mount",
    "glusterfs": "mount",
    "local": "loop",
}


class SimulatedStorage:
    """The Storage port.  Fault: `storage.look`.

    Every connection is shown, with its path as its name.
    """

    def __init__(self, store: HostState, faults: Faults, host: str) -> None:
        self._store = store
        self._faults = faults
        self._host = host

    def look(self) -> SimulatedView:
        with self._faults.around("storage.look", host=self._host) as fault:
            store = self._store.as_of(fault.changes_ago) if fault else self._store
            connected = store.read()["connected"]
            return SimulatedView(dict(fault.shown([*connected.items()])) if fault else connected)

    def others(self, paths: Iterable[str]) -> frozenset[str]:
        """Those of connections marked `other`, until they are connected again."""
        connected = self._store.read()["connected"].values()
        return frozenset(entry["path"] for entry in connected if entry.get("other")) & {*paths}


class SimulatedView:
    """The connections at one moment; a path is its own place, and only guests use it.

    `faulty` in a connection: it has no working path, until it is connected again.
    """

    def __init__(self, connected: dict[str, Any]) -> None:
        shown = {e["path"]: e for e in connected.values() if e["driver"] != "rbd"}
        self._paths = frozenset(shown)
        self._connected = connected
        self.things = [
            StorageThing(
                kind=KINDS.get(entry["driver"], "multipath_map"),
                name=path,
                places=frozenset({path}),
                faulty=entry.get("faulty", False),
            )
            for path, entry in shown.items()
        ]

    def place(self, path: str) -> str:
        return path

    def names(self, path: str) -> frozenset[str]:
        there = path in self._paths or not path.startswith("/dev/")
        return frozenset({path} if there else ())

    def is_shared(self, path: str) -> bool:
        return not path.startswith("/dev/")

    def is_of(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        if device.get("type") != "block" or device["path"] not in self._paths:
            return None
        entry = self._connected.get(connection.target_digest(info))
        return entry is not None and entry["path"] == device["path"]

    def size(self, path: str) -> int | None:
        of_path = (entry for entry in self._connected.values() if entry["path"] == path)
        found = (entry.get("bytes") for entry in of_path)
        return next(found, None) if path.startswith("/dev/") else None

    def present(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        del info
        return device.get("path") in self._paths

    def held(self, place: str) -> bool:
        del place
        return False


# --- guests -----------------------------------------------------------------------------


class SimulatedGuests(HypervisorGuests):
    """The Guests port.  Faults: `guests.inventory`, `.survey`, `.secrets`, `.power`, `.disk`,
    `.plug`, `.unplug`, `.keep_secret`, `.drop_secret`, `.replace`, `.spawn`, `.start`, `.stop`,
    `.pause`, `.resume`, `.remove`, `.migrate`, `.stay`, `.arrived`, `.copy`, `.stay_on`,
    `.grow`, `.snapshot`, `.unsnapshot`, `.merge`, `.end_merge`.

    A `lie` is one of libvirt's misleading answers, chosen by `code` (hypervisor.py).  The first
    three may be `stale`, `cut` or reordered.
    """

    def __init__(
        self, store: HostState, faults: Faults, host: str, patience: Patience = PATIENCE
    ) -> None:
        self._store, self.hypervisor = store, SimulatedHypervisor(store)
        super().__init__(self.hypervisor, patience, HostCapabilities("qemu"))
        self._faults = faults
        self._host = host

    @contextmanager
    def _around(self, call: str, server_id: str, serial: str | None = None) -> Iterator[None]:
        ids = {"server_id": server_id, "volume_id": serial, "host": self._host}
        around = self._faults.around(f"guests.{call}", **ids)
        with around as fault, self.hypervisor.lying(fault.code if fault and fault.lies else None):
            yield

    @contextmanager
    def _looking_around(self, call: str) -> Iterator[tuple[HypervisorGuests, Shown]]:
        """The guests of now or of an older state, and the function for the list's fault."""
        around = self._faults.around(f"guests.{call}", host=self._host)
        with around as fault:
            store = self._store.as_of(fault.changes_ago if fault else 0)
            found = HypervisorGuests(SimulatedHypervisor(store), self._patience)
            yield found, fault.shown if fault else list

    def inventory(self) -> list[Guest]:
        with self._looking_around("inventory") as (guests, shown):
            return shown(guests.inventory())

    def guest(self, server_id: str) -> Guest | None:
        with self._looking_around("inventory") as (guests, shown):
            found = guests.guest(server_id)
            return next(iter(shown([found] if found else [])), None)

    def survey(self) -> GuestsShown:
        with self._looking_around("survey") as (guests, shown):
            found = guests.survey()
            return replace(found, guests=tuple(shown(found.guests)))

    def secrets(self) -> list[str]:
        with self._looking_around("secrets") as (guests, shown):
            return shown(guests.secrets())

    def power(self, server_id: str) -> PowerState | None:
        with self._around("power", server_id):
            return super().power(server_id)

    def disk(self, server_id: str, serial: str) -> DiskState:
        with self._around("disk", server_id, serial):
            return super().disk(server_id, serial)

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        with self._around("plug", server_id, disk.serial):
            return super().plug(server_id, disk)

    def unplug(self, server_id: str, serial: str) -> DiskState:
        with self._around("unplug", server_id, serial):
            return super().unplug(server_id, serial)

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        ids = {"volume_id": volume_id, "host": self._host}
        with self._faults.around("guests.keep_secret", **ids):
            return super().keep_secret(volume_id, passphrase)

    def drop_secret(self, volume_id: str) -> None:
        ids = {"volume_id": volume_id, "host": self._host}
        with self._faults.around("guests.drop_secret", **ids):
            super().drop_secret(volume_id)

    def replace(self, server_id: str, disk: Disk) -> None:
        with self._around("replace", server_id, disk.serial):
            super().replace(server_id, disk)

    def grow(self, server_id: str, serial: str, room: int, *, unit: int) -> int | None:
        with self._around("grow", server_id, serial):
            return super().grow(server_id, serial, room, unit=unit)

    def spawn(
        self, server_id: str, definition: str, disks: Sequence[Disk], *, running: bool
    ) -> PowerState:
        with self._around("spawn", server_id):
            return super().spawn(server_id, definition, disks, running=running)

    def start(self, server_id: str) -> PowerState:
        with self._around("start", server_id):
            return super().start(server_id)

    def stop(self, server_id: str, *, force: bool) -> PowerState:
        with self._around("stop", server_id):
            return super().stop(server_id, force=force)

    def pause(self, server_id: str) -> PowerState:
        with self._around("pause", server_id):
            return super().pause(server_id)

    def resume(self, server_id: str) -> PowerState:
        with self._around("resume", server_id):
            return super().resume(server_id)

    def remove(self, server_id: str) -> None:
        with self._around("remove", server_id):
            super().remove(server_id)

    def migrate(
        self, server_id: str, destination: dict[str, Any], disks: Sequence[Disk], watch: Watch
    ) -> None:
        with self._around("migrate", server_id):
            super().migrate(server_id, destination, disks, watch)

    def stay(self, server_id: str, destination: dict[str, Any]) -> bool:
        with self._around("stay", server_id):
            return super().stay(server_id, destination)

    def arrived(self, server_id: str) -> bool:
        with self._around("arrived", server_id):
            return super().arrived(server_id)

    def copy(self, server_id: str, disk: Disk, watch: Watch) -> None:
        with self._around("copy", server_id, disk.serial):
            super().copy(server_id, disk, watch)

    def stay_on(self, server_id: str, disk: Disk) -> bool:
        with self._around("stay_on", server_id, disk.serial):
            return super().stay_on(server_id, disk)

    def snapshot(self, server_id: str, serial: str, file: str) -> None:
        with self._around("snapshot", server_id, serial):
            super().snapshot(server_id, serial, file)

    def unsnapshot(self, server_id: str, serial: str, file: str, watch: Watch) -> None:
        with self._around("unsnapshot", server_id, serial):
            super().unsnapshot(server_id, serial, file, watch)

    def merge(self, server_id: str, serial: str, merge: Merge, watch: Watch) -> None:
        with self._around("merge", server_id, serial):
            super().merge(server_id, serial, merge, watch)

    def end_merge(self, server_id: str, serial: str, merge: Merge) -> bool:
        with self._around("end_merge", server_id, serial):
            return super().end_merge(server_id, serial, merge)
