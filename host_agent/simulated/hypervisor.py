"""A simulated hypervisor: each guest's domain XML, with libvirt's behaviour and faults.

A lie is a misleading answer to the requests of one call of the Guests port, by its code:

    lost            (the default) returns success without an effect, once; the next request works,
                    as with a detach during the guest's boot
    ignored         the same for all requests of the call
    device_missing  detach: has its effect, and fails because the device is missing
    deaf            shutdown: the guest ignores it; it can be powered off
    hold            migrate, copy, unsnapshot, merge: stays in progress until it is aborted, or
                    released (`host_state.release`)
    answer_lost     migrate: has its effect, but the connection breaks before the answer
"""

from __future__ import annotations

import copy
import hashlib
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from host_agent.libvirt import disk_xml
from host_agent.libvirt.hypervisor import Domain, HypervisorError, Job, MigrationRoute, Trouble
from host_agent.shared.contract.messages import PowerState
from host_agent.simulated import host_state
from host_agent.simulated.host_state import HostState

#: Hot-pluggable virtio ports of a simulated guest, as root ports of a q35 machine.
PORTS_MAX = 16
HELD_POLL_S = 0.005

#: The lie of the present call, in any thread with its context.
_LIE: ContextVar[str | None] = ContextVar("lie", default=None)


class SimulatedHypervisor:
    """Domains as XML.  The port around it uses `lying`."""

    def __init__(self, store: HostState) -> None:
        self._store = store

    @contextmanager
    def lying(self, code: str | None) -> Iterator[None]:
        """Answer the requests in the block with this lie."""
        token = _LIE.set("lost" if code == "injected_fault" else code)
        try:
            yield
        finally:
            _LIE.reset(token)

    # --- looking --------------------------------------------------------------------------

    def domains(self) -> list[Domain]:
        guests = self._store.read()["guests"]
        return [_domain(server_id, guest) for server_id, guest in guests.items()]

    def domain(self, server_id: str) -> Domain | None:
        guest = self._store.read()["guests"].get(server_id)
        return _domain(server_id, guest) if guest else None

    def process(self, server_id: str) -> bool:
        state = self._store.read()
        guest = state["guests"].get(server_id)
        return bool(guest and guest["live"]) or server_id in state.get("processes", ())

    def domain_at(self, uri: str, server_id: str) -> Domain | None:
        there = host_state.store_at(uri)
        if there is None:
            raise HypervisorError(Trouble.UNREACHABLE, f"There is no simulated host at {uri}.")
        return SimulatedHypervisor(there).domain(server_id)

    def migration(self, server_id: str) -> Job | None:
        return Job(0, 1 << 20) if self._moves(server_id) else None

    def copying(self, server_id: str, target: str) -> Job | None:
        domain = self.domain(server_id)
        disks = disk_xml.parse(domain.live_xml).disks if domain and domain.live_xml else ()
        copied = any(disk.mirror for disk in disks if disk.target == target)
        merged = self._store.read()["guests"].get(server_id, {}).get("merges", {})
        return Job(0, 1 << 20) if copied or target in merged else None

    def subscribe(self, callback: Callable[[], None]) -> None:
        """No events: only tests start or stop simulated guests; the periodic read finds that."""

    # --- disks ----------------------------------------------------------------------------

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        if live and _swallowed():
            return
        with self._store.edit() as state:
            guest = _free(_guest(state, server_id, live=live))
            for key in [k for k, wanted in (("live", live), ("persistent", persistent)) if wanted]:
                guest[key] = _attached(state, guest[key], disk, live=key == "live")
            host_state.measure(state, guest)

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        if live and _swallowed():
            return
        missing = live and _lie("device_missing")
        with self._store.edit() as state:
            guest = _free(_guest(state, server_id, live=live))
            for key in [k for k, wanted in (("live", live), ("persistent", persistent)) if wanted]:
                guest[key] = _detached(guest[key], disk)
            host_state.measure(state, guest)
        if missing:
            raise HypervisorError(Trouble.DEVICE_MISSING, "device not found: simulated late answer")

    @contextmanager
    def removal(self, server_id: str, alias: str | None) -> Iterator[SimulatedRemoval]:  # noqa: ARG002
        yield SimulatedRemoval()

    def update(self, server_id: str, disk: str) -> None:
        if _swallowed():
            return
        with self._store.edit() as state:
            guest = _free(_guest(state, server_id))
            without = _detached(guest["persistent"], disk)
            guest["persistent"] = host_state.with_disk(without, disk)

    def size(self, server_id: str, target: str) -> int:
        guest = _guest(self._store.read(), server_id, live=True)
        if target not in guest.get("sizes", {}):
            raise HypervisorError(Trouble.DEVICE_MISSING, f"invalid path {target}: not found")
        # After a copy QEMU knows the new volume's size, but its guest was not told.
        return int(guest.get("behind", {}).get(target, guest["sizes"][target]))

    def sizes(self) -> dict[tuple[str, str], int]:
        guests = self._store.read()["guests"]
        live = {id_: guest for id_, guest in guests.items() if guest["live"]}
        return {
            (id_, target): int(size)
            for id_, guest in live.items()
            for target, size in {**guest.get("sizes", {}), **guest.get("behind", {})}.items()
        }

    def resize(self, server_id: str, target: str, size: int) -> None:
        """As QEMU: a device keeps its size, a file or an image gets this one."""
        if _swallowed():
            return
        with self._live_disk(server_id, target) as (state, element):
            disk = ET.tostring(element, encoding="unicode")
            entry, guest = host_state.entry_of(state, disk), state["guests"][server_id]
            assert entry is not None, "a disk that runs is connected"
            head = host_state.LUKS_HEAD if disk_xml.secret_of(disk) is not None else 0
            if element.get("type") != "block":
                entry["bytes"] = size + head
            elif size + head > entry["bytes"]:
                raise HypervisorError(Trouble.OTHER, "Cannot grow device files")
            guest["sizes"][target] = size
            guest.get("behind", {}).pop(target, None)

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        with self._store.edit() as state:
            state["secrets"][volume_id] = hashlib.sha256(passphrase.encode()).hexdigest()
        return volume_id

    def drop_secret(self, volume_id: str) -> None:
        with self._store.edit() as state:
            state["secrets"].pop(volume_id, None)

    def secrets(self) -> list[str]:
        return list(self._store.read()["secrets"])

    # --- guests ---------------------------------------------------------------------------

    def define(self, domain: str) -> None:
        if _swallowed():
            return
        root = ET.fromstring(domain)  # noqa: S314 - our own
        server_id, name = root.findtext("uuid"), root.findtext("name")
        if not server_id or not name:
            raise HypervisorError(Trouble.OTHER, "XML error: the domain has no name or uuid")
        with self._store.edit() as state:
            new = {"power_state": PowerState.SHUTDOWN.value, "live": None}
            guest = state["guests"].setdefault(server_id, new)
            guest.update(name=name, persistent=domain)

    def undefine(self, server_id: str) -> None:
        if _swallowed():
            return
        with self._store.edit() as state:
            guest = _guest(state, server_id)
            guest["persistent"] = None
            if guest["live"] is None:
                del state["guests"][server_id]

    def start(self, server_id: str) -> None:
        if _swallowed():
            return
        with self._store.edit() as state:
            guest = _guest(state, server_id)
            if guest["live"] is not None:
                raise HypervisorError(Trouble.DOMAIN_ACTIVE, "domain is already running")
            for disk in disk_xml.parse(guest["persistent"]).disks:
                if disk.is_volume:
                    _open(state, disk.xml)
            guest.update(power_state=PowerState.RUNNING.value)
            host_state.switch_on(guest)
            host_state.measure(state, guest)

    def shutdown(self, server_id: str) -> None:
        if not (_lie("deaf", once=False) or _swallowed()):
            self._power(server_id, PowerState.SHUTDOWN)

    def destroy(self, server_id: str) -> None:
        if not _swallowed():
            self._power(server_id, PowerState.SHUTDOWN)

    def suspend(self, server_id: str) -> None:
        if not _swallowed():
            self._power(server_id, PowerState.PAUSED)

    def resume(self, server_id: str) -> None:
        if not _swallowed():
            self._power(server_id, PowerState.RUNNING)

    def _power(self, server_id: str, wanted: PowerState) -> None:
        _guest(self._store.read(), server_id, live=True)
        host_state.set_power(self._store, server_id, wanted)

    # --- migration --------------------------------------------------------------------------

    def migratable(self, server_id: str) -> tuple[str, str | None]:
        guest = _guest(self._store.read(), server_id, live=True)
        return guest["live"], guest["persistent"]

    def migrate(
        self, server_id: str, route: MigrationRoute, live: str, persistent: str | None
    ) -> None:
        if _swallowed():
            return
        held, answer_lost = _lie("hold"), _lie("answer_lost")
        with self._store.edit() as state:
            guest = _free(_guest(state, server_id, live=True))
            if any(disk.mirror for disk in disk_xml.parse(guest["live"]).disks):
                raise HypervisorError(Trouble.BUSY, "domain has an active block job")
            guest["job"] = {"uri": route.uri, "live": live, "persistent": persistent}
        failed = None if held else host_state.finish_move(self._store, server_id)
        while self._moves(server_id):
            time.sleep(HELD_POLL_S)
        if answer_lost:
            raise HypervisorError(Trouble.LOST, "the connection broke: simulated")
        if self.domain(server_id) is not None:
            raise HypervisorError(Trouble.OTHER, failed or "operation aborted: migration job")

    def _moves(self, server_id: str) -> bool:
        return "job" in self._store.read()["guests"].get(server_id, {})

    def abort_migration(self, server_id: str) -> None:
        if _swallowed():
            return
        with self._store.edit() as state:
            if not _guest(state, server_id).pop("job", None):
                raise HypervisorError(Trouble.OTHER, "no job is active on the domain")

    # --- copies -------------------------------------------------------------------------------

    def copy(self, server_id: str, target: str, disk: str) -> None:
        if _swallowed():
            return
        ready = not _lie("hold")
        with self._live_disk(server_id, target) as (state, element):
            if element.find("mirror") is not None:
                raise HypervisorError(Trouble.BUSY, f"disk {target} already in active block job")
            _open(state, disk)
            guest = state["guests"][server_id]
            if host_state.size_of(state, disk) < guest.get("sizes", {}).get(target, 0):
                raise HypervisorError(Trouble.OTHER, "No space left on device")
            source = ET.fromstring(disk)  # noqa: S314 - our own
            mirror = ET.SubElement(element, "mirror", type=source.get("type", ""), job="copy")
            if ready:
                mirror.set("ready", "yes")
            mirror.append(_child(source, "source"))

    def end_copy(self, server_id: str, target: str, *, switch: bool) -> None:
        if _swallowed():
            return
        with self._live_disk(server_id, target) as (state, element):
            mirror = element.find("mirror")
            merges = state["guests"][server_id].get("merges", {})
            if not switch and merges.pop(target, None):
                return
            if mirror is None:
                raise HypervisorError(Trouble.OTHER, f"disk {target} has no active block job")
            if switch and mirror.get("ready") != "yes":
                raise HypervisorError(Trouble.OTHER, f"the copy of {target} is not ready yet")
            element.remove(mirror)
            if switch and mirror.get("job") == "active-commit":
                below = _child(mirror, "source").get("file")
                del state["files"][_child(element, "source").get("file")]
                host_state.switch_file(state, state["guests"][server_id], element, str(below))
            elif switch:
                element.remove(_child(element, "source"))
                element.append(_child(mirror, "source"))
                element.set("type", mirror.get("type", ""))
                disk = ET.tostring(element, encoding="unicode")
                behind = state["guests"][server_id].setdefault("behind", {})
                behind[target] = host_state.size_of(state, disk)

    # --- files of a disk -----------------------------------------------------------------------

    def snapshot(self, server_id: str, target: str, path: str) -> None:
        if _swallowed():
            return
        with self._live_disk(server_id, target) as (state, element):
            state["files"][path] = _child(element, "source").get("file")
            host_state.switch_file(state, state["guests"][server_id], element, path)

    def pull(self, server_id: str, target: str, base: str | None) -> None:
        self._merge(server_id, target, 0, int(base) if base else None)

    def commit(self, server_id: str, target: str, top: str | None, base: str) -> None:
        if top is not None:
            self._merge(server_id, target, int(top) - 1, int(base))
            return
        if _swallowed():
            return
        ready = not _lie("hold")
        with self._live_disk(server_id, target) as (_, element):
            mirror = ET.SubElement(element, "mirror", type="file", job="active-commit")
            if ready:
                mirror.set("ready", "yes")
            mirror.append(copy.copy(_child(_child(element, "backingStore"), "source")))

    def _merge(self, server_id: str, target: str, upper: int, lower: int | None) -> None:
        """Remove the files between `upper` and `lower` from the chain."""
        if _swallowed():
            return
        held = _lie("hold")
        with self._live_disk(server_id, target) as (state, element):
            seen = disk_xml.seen(element)
            assert seen is not None, "it has a name"
            chain = [layer.path for layer in seen.chain]
            job = {"upper": chain[upper], "lower": None if lower is None else chain[lower]}
            if held:
                state["guests"][server_id].setdefault("merges", {})[target] = job
            else:
                host_state.merge_files(state, job)

    @contextmanager
    def _live_disk(
        self, server_id: str, target: str
    ) -> Iterator[tuple[dict[str, Any], ET.Element]]:
        with self._store.edit() as state:
            guest = _free(_guest(state, server_id, live=True))
            root = ET.fromstring(guest["live"])  # noqa: S314 - our own
            element = _named(root, target)
            if element is None:
                raise HypervisorError(Trouble.DEVICE_MISSING, f"disk {target} not found")
            yield state, element
            guest["live"] = ET.tostring(root, encoding="unicode")
            host_state.open_chains(state, guest)


class SimulatedRemoval:
    """No event: a simulated guest releases a disk at once or never."""

    def wait(self, timeout_s: float) -> bool | None:  # noqa: ARG002 - the port's
        return None


def _lie(code: str, *, once: bool = True) -> bool:
    if _LIE.get() != code:
        return False
    if once:
        _LIE.set(None)
    return True


def _swallowed() -> bool:
    """Whether this request returns success without an effect."""
    return _lie("lost") or _lie("ignored", once=False)


def _domain(server_id: str, guest: dict[str, Any]) -> Domain:
    return Domain(
        server_id=server_id,
        name=guest["name"],
        power_state=PowerState(guest["power_state"]),
        live_xml=guest["live"],
        persistent_xml=guest["persistent"],
        stranded=guest.get("stranded", False),
    )


def _guest(state: dict[str, Any], server_id: str, *, live: bool = False) -> dict[str, Any]:
    guest: dict[str, Any] | None = state["guests"].get(server_id)
    if guest is None:
        raise HypervisorError(Trouble.DOMAIN_MISSING, f"Domain {server_id} not found.")
    if live and guest["live"] is None:
        raise HypervisorError(Trouble.DOMAIN_INACTIVE, "Domain is not running.")
    return guest


def _free(guest: dict[str, Any]) -> dict[str, Any]:
    """Raises BUSY for a guest in a migration."""
    if guest.get("job"):
        raise HypervisorError(Trouble.BUSY, "a migration has the domain")
    return guest


def _attached(state: dict[str, Any], domain: str, disk: str, *, live: bool) -> str:
    seen = disk_xml.parse(domain)
    added = disk_xml.parse(host_state.with_disk("<domain/>", disk)).disks[0]
    if added.target in seen.targets():
        raise HypervisorError(Trouble.TARGET_TAKEN, f"target {added.target} already exists")
    on_bus = [d for d in seen.disks if d.bus == "virtio"]
    if live and added.bus == "virtio" and len(on_bus) >= PORTS_MAX:
        raise HypervisorError(Trouble.NO_FREE_PORT, "No more available PCI slots")
    if live:
        _open(state, added.xml)
    return host_state.with_disk(domain, disk)


def _open(state: dict[str, Any], disk: str) -> None:
    """QEMU opens a disk when it is attached, and an encrypted one with its secret."""
    if failed := host_state.cannot_open(state, disk):
        missing = "Secret not found" in failed
        raise HypervisorError(Trouble.SECRET_MISSING if missing else Trouble.OTHER, failed)


def _detached(domain: str, disk: str) -> str:
    target = disk_xml.parse(host_state.with_disk("<domain/>", disk)).disks[0].target
    found = next((d for d in disk_xml.parse(domain).disks if d.target == target), None)
    if found is None:
        raise HypervisorError(Trouble.DEVICE_MISSING, f"disk {target} not found")
    if found.mirror:
        raise HypervisorError(Trouble.BUSY, f"disk {target} is in an active block job")
    return host_state.without_disk(domain, target)


def _named(domain: ET.Element, target: str) -> ET.Element | None:
    for disk in domain.iterfind("./devices/disk"):
        found = disk_xml.seen(disk)
        if found is not None and found.target == target:
            return disk
    return None


def _child(element: ET.Element, name: str) -> ET.Element:
    found = element.find(name)
    assert found is not None, "a volume's disk has a source"
    return found
