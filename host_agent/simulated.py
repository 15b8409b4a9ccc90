"""Simulated os-brick and hypervisor, over the state of `simulated_state.py`.

The hypervisor is simulated below the rules of `guests.py`, which are the same for
real guests, and keeps each guest's domain XML.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from host_agent import connection, disk_xml
from host_agent.contract import ErrorKind, Guest, PowerState
from host_agent.faults import Fault, Faults
from host_agent.guests import HypervisorGuests, Patience
from host_agent.hypervisor import Domain, HypervisorError, Trouble
from host_agent.ports import ConnectionInfo, Disk, DiskState, PortError
from host_agent.simulated_state import Store

#: A simulated guest answers at once or never.
PATIENCE = Patience(detach_attempts=8, detach_timeout_s=0.0)
#: Hot-pluggable virtio ports of a simulated guest, as root ports of a q35 machine.
PORTS_MAX = 16


# --- os-brick -------------------------------------------------------------------------


class SimulatedBrick:
    """The Brick port.  Faults: `brick.connector`, `brick.connect`, `brick.disconnect`.

    A `lie` of disconnect says yes and leaves the volume connected.
    """

    def __init__(self, store: Store, faults: Faults, host: str) -> None:
        self._store = store
        self._faults = faults
        self._host = host

    def connector(self) -> dict[str, Any]:
        with self._faults.around("brick.connector", error=port_error, host=self._host):
            return {
                "host": self._host,
                "ip": "192.0.2.1",
                "initiator": f"iqn.2026-01.example:{self._host}",
                "multipath": False,
                "platform": "x86_64",
                "os_type": "linux",
            }

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        with self._faults.around("brick.connect", error=port_error, **self._ids(info)) as fault:
            source = _source(info)
            if not (fault and fault.lies):
                with self._store.edit() as state:
                    path = connection.device_path(source)
                    digest = connection.target_digest(info)
                    state["connected"][digest] = {"driver": connection.driver(info), "path": path}
            return {**source, "format": connection.image_format(info)}

    def disconnect(self, info: ConnectionInfo) -> None:
        ids = self._ids(info)
        with (
            self._faults.around("brick.disconnect", error=port_error, **ids) as fault,
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


def _source(info: ConnectionInfo) -> dict[str, Any]:
    kind = connection.driver(info)
    if kind == "rbd":
        return connection.network_source(info, secret_uuid="simulated")  # noqa: S106 - no secret
    if kind == "local" and info.get("device_path"):
        return {"type": "block", "path": info["device_path"]}
    if info.get("export") and info.get("name"):
        return {"type": "file", "path": f"/simulated/mnt/{info['name']}"}
    return {"type": "block", "path": f"/dev/simulated/{connection.target_digest(info)[:16]}"}


def port_error(fault: Fault) -> PortError:
    """What a scripted fault looks like to the verbs."""
    kind = ErrorKind.UNKNOWN if fault.is_timeout else ErrorKind(fault.kind)
    return PortError(kind, fault.code, fault.message)


# --- hypervisor -----------------------------------------------------------------------


class SimulatedHypervisor:
    """Domains as XML, with libvirt's manners.  `lie` is set by the port around it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lies = threading.local()

    @contextmanager
    def lying(self, code: str | None) -> Iterator[None]:
        """Answer this thread's requests awkwardly; see SimulatedGuests for the codes."""
        self._lies.code = code
        try:
            yield
        finally:
            self._lies.code = None

    def _lie(self, *codes: str, once: bool = True) -> bool:
        code = getattr(self._lies, "code", None)
        if code not in codes:
            return False
        if once:
            self._lies.code = None
        return True

    def domains(self) -> list[Domain]:
        guests = self._store.read()["guests"]
        return [_domain(server_id, guest) for server_id, guest in guests.items()]

    def domain(self, server_id: str) -> Domain | None:
        guest = self._store.read()["guests"].get(server_id)
        return _domain(server_id, guest) if guest else None

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        if live and (self._lie("lost", "injected_fault") or self._lie("ignored", once=False)):
            return
        with self._store.edit() as state:
            guest = _guest(state, server_id, live=live)
            for key in [k for k, wanted in (("live", live), ("persistent", persistent)) if wanted]:
                guest[key] = _attached(state, guest[key], disk, live=key == "live")

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        if live and self._lie("ignored", once=False):
            return
        if live and self._lie("lost", "injected_fault"):
            return
        missing = live and self._lie("device_missing")
        with self._store.edit() as state:
            guest = _guest(state, server_id, live=live)
            for key in [k for k, wanted in (("live", live), ("persistent", persistent)) if wanted]:
                guest[key] = _detached(guest[key], disk)
        if missing:
            raise HypervisorError(Trouble.DEVICE_MISSING, "device not found: simulated late answer")

    @contextmanager
    def removal(self, server_id: str, alias: str | None) -> Iterator[SimulatedRemoval]:  # noqa: ARG002
        yield SimulatedRemoval()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Nobody starts or stops simulated guests but tests, which the re-read finds."""


class SimulatedRemoval:
    """No event is needed: a simulated guest has let go at once or will not."""

    def wait(self, timeout_s: float) -> bool | None:  # noqa: ARG002 - the port's
        return None


def _domain(server_id: str, guest: dict[str, Any]) -> Domain:
    return Domain(
        server_id=server_id,
        name=guest["name"],
        power_state=PowerState(guest["power_state"]),
        live_xml=guest["live"],
        persistent_xml=guest["persistent"],
    )


def _guest(state: dict[str, Any], server_id: str, *, live: bool) -> dict[str, Any]:
    guest: dict[str, Any] | None = state["guests"].get(server_id)
    if guest is None:
        raise HypervisorError(Trouble.DOMAIN_MISSING, f"Domain {server_id} not found.")
    if live and guest["live"] is None:
        raise HypervisorError(Trouble.DOMAIN_INACTIVE, "Domain is not running.")
    return guest


def _attached(state: dict[str, Any], domain: str, disk: str, *, live: bool) -> str:
    seen = disk_xml.parse(domain)
    added = disk_xml.parse(disk_xml.with_disk("<domain/>", disk)).disks[0]
    if added.target in seen.targets():
        raise HypervisorError(Trouble.TARGET_TAKEN, f"target {added.target} already exists")
    on_bus = [d for d in seen.disks if d.bus == "virtio"]
    if live and added.bus == "virtio" and len(on_bus) >= PORTS_MAX:
        raise HypervisorError(Trouble.NO_FREE_PORT, "No more available PCI slots")
    if live:
        _open(state, added)
    return disk_xml.with_disk(domain, disk)


def _open(state: dict[str, Any], disk: disk_xml.DiskSeen) -> None:
    """QEMU opens a disk when it is plugged: what is not connected is not there."""
    path = disk_xml.source_of(disk.xml)
    if not any(entry["path"] == path for entry in state["connected"].values()):
        raise HypervisorError(Trouble.OTHER, f"Could not open {path}: No such file or directory")


def _detached(domain: str, disk: str) -> str:
    target = disk_xml.parse(disk_xml.with_disk("<domain/>", disk)).disks[0].target
    if target not in disk_xml.parse(domain).targets():
        raise HypervisorError(Trouble.DEVICE_MISSING, f"disk {target} not found")
    return disk_xml.without_disk(domain, target)


class SimulatedGuests(HypervisorGuests):
    """The Guests port.  Faults: `guests.inventory`, `.disk`, `.users`, `.plug`, `.unplug`.

    A `lie` of plug or unplug is one of libvirt's awkward answers, chosen by `code`:
    "lost" (the default): the request returns, nothing happens, the next attempt works,
    as during a guest's boot; "ignored": so do all attempts of this call;
    "device_missing" (unplug): an error says it is missing, and it is.
    """

    def __init__(
        self, store: Store, faults: Faults, host: str, patience: Patience = PATIENCE
    ) -> None:
        self._simulated = SimulatedHypervisor(store)
        super().__init__(self._simulated, patience)
        self._faults = faults
        self._host = host

    @contextmanager
    def _around(self, call: str, **ids: str) -> Iterator[None]:
        around = self._faults.around(f"guests.{call}", error=port_error, host=self._host, **ids)
        with around as fault, self._simulated.lying(fault.code if fault and fault.lies else None):
            yield

    def inventory(self) -> list[Guest]:
        with self._around("inventory"):
            return super().inventory()

    def users(self, volume_id: str) -> list[str]:
        with self._around("users", volume_id=volume_id):
            return super().users(volume_id)

    def disk(self, server_id: str, volume_id: str) -> DiskState:
        with self._around("disk", server_id=server_id, volume_id=volume_id):
            return super().disk(server_id, volume_id)

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        with self._around("plug", server_id=server_id, volume_id=disk.volume_id):
            return super().plug(server_id, disk)

    def unplug(self, server_id: str, volume_id: str) -> DiskState:
        with self._around("unplug", server_id=server_id, volume_id=volume_id):
            return super().unplug(server_id, volume_id)
