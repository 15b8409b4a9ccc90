"""Hypervisors that contract tests make throw-away guests on: simulated, and real libvirt."""

from __future__ import annotations

import subprocess
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from host_agent.libvirt.disk_xml import NOVA_NS
from host_agent.libvirt.domain_xml import HostCapabilities
from host_agent.libvirt.guests import HypervisorGuests, Patience
from host_agent.libvirt.hypervisor import Hypervisor
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import Disk
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedGuests
from host_agent.simulated.host_state import HOSTS, SCHEME, HostState, guest_state, set_power

QEMU_NS = "http://libvirt.org/schemas/domain/qemu/1.0"
VOLUME_BYTES = 1 << 20
#: Of a slow guest's 160 MiB: beyond what its firmware uses.  Minutes, longer than any test waits.
FULL_FROM, FULL_MIB = 16 << 20, 128


class Machine(Protocol):
    """A hypervisor that tests can make guests on, and perhaps another to migrate them to."""

    guests: HypervisorGuests
    hypervisor: Hypervisor
    there: HypervisorGuests | None
    destination: dict[str, Any]

    def new_guest(self, power: PowerState, *, ports: int = 4, transient: bool = False) -> str: ...
    def power(self, server_id: str, power: PowerState) -> None: ...
    def volume(self, volume_id: str) -> str: ...
    def volume_there(self, volume_id: str) -> str: ...
    def file_above(self, path: str, name: str) -> str: ...
    def stubborn(self, server_id: str) -> None: ...
    def slow(self, server_id: str) -> None: ...


def disk(machine: Machine, name: str = "sdb", volume_id: str | None = None, **over: Any) -> Disk:
    """A disk of a volume that is connected."""
    volume_id = volume_id or str(uuid.uuid4())
    bus = "scsi" if name.startswith("sd") else "virtio"
    source = {"type": "file", "path": machine.volume(volume_id)}
    return Disk(serial=volume_id, source=source, device_name=name, bus=bus, **over)


def moved(one: Disk, path: str) -> Disk:
    """The same disk with its data elsewhere."""
    return replace(one, source={"type": "file", "path": path})


class Following:
    """A Watch that is cancelled at its n-th question, or not at all."""

    def __init__(self, cancelled_at: int | None = None) -> None:
        self._left = cancelled_at
        self.told: list[tuple[int, int]] = []

    def cancelled(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._left is not None and self._left <= 0

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        self.told.append((done_bytes, total_bytes))


class SimulatedMachine:
    def __init__(self) -> None:
        self.store, self.faults, other = HostState(), Faults(), HostState()
        simulated = SimulatedGuests(self.store, self.faults, "h")
        self.guests: HypervisorGuests = simulated
        self.hypervisor: Hypervisor = simulated.hypervisor
        self.there: HypervisorGuests | None = SimulatedGuests(other, Faults(), "there")
        name = f"there-{uuid.uuid4()}"
        HOSTS[name] = self.other = other
        self.destination = {"host": "there", "uri": SCHEME + name, "address": None}

    def new_guest(self, power: PowerState, *, ports: int = 4, transient: bool = False) -> str:
        server_id = str(uuid.uuid4())
        own = [f"vd{chr(122 - number)}" for number in range(16 - ports)]
        with self.store.edit() as state:
            state["guests"][server_id] = guest_state(
                server_id=server_id,
                power_state=power.value,
                project_id="p-1",
                user_id="u-1",
                transient=transient,
                devices=own,
            )
        return server_id

    def power(self, server_id: str, power: PowerState) -> None:
        set_power(self.store, server_id, power)

    def volume(self, volume_id: str) -> str:
        return _connected(self.store, volume_id, f"/simulated/{volume_id}")

    def volume_there(self, volume_id: str) -> str:
        return _connected(self.other, volume_id, f"/simulated-there/{volume_id}")

    def file_above(self, path: str, name: str) -> str:
        """Simulated files are there when somebody writes to them."""
        return str(Path(path).parent / name)

    def stubborn(self, server_id: str) -> None:
        rule = {"call": "guests.unplug", "do": "lie", "code": "ignored", "count": None}
        self.faults.replace([{**rule, "match": {"server_id": server_id}}])

    def slow(self, server_id: str) -> None:
        """Its migrations are under way until they are aborted."""
        rule = {"call": "guests.migrate", "do": "lie", "code": "hold", "count": None}
        self.faults.replace([{**rule, "match": {"server_id": server_id}}])


def _connected(store: HostState, volume_id: str, path: str) -> str:
    with store.edit() as state:
        state["connected"][volume_id] = {"driver": "local", "path": path, "bytes": VOLUME_BYTES}
    return path


#: Guests without a system do not hear that they should shut down.
PATIENCE = Patience(
    detach_attempts=2, detach_timeout_s=2.0, shutdown_timeout_s=1.0, end_timeout_s=30.0, poll_s=0.1
)


class RealMachine:
    def __init__(self, uri: str, uri_there: str | None, address: str | None, path: Path) -> None:
        import libvirt

        from host_agent.libvirt.driver import Libvirt

        self.driver = Libvirt(uri)
        self.hypervisor: Hypervisor = self.driver
        self.guests = HypervisorGuests(self.driver, PATIENCE, HostCapabilities("qemu"))
        self.there: HypervisorGuests | None = None
        self.connections: list[Any] = [libvirt.open(uri)]
        if uri_there:
            self.there = HypervisorGuests(Libvirt(uri_there), PATIENCE, HostCapabilities("qemu"))
            self.connections.append(libvirt.open(uri_there))
        self.destination = {"host": "there", "uri": uri_there, "address": address}
        self.path = path
        self.connection = self.connections[0]
        self.made: list[str] = []

    def close(self) -> None:
        import libvirt

        for connection in self.connections:
            for server_id in self.made:
                for act in ("destroy", "undefine"):
                    with suppress(libvirt.libvirtError):
                        getattr(connection.lookupByUUIDString(server_id), act)()
            connection.close()

    def domain(self, server_id: str) -> Any:
        return self.connection.lookupByUUIDString(server_id)

    def new_guest(
        self,
        power: PowerState,
        *,
        ports: int = 4,
        transient: bool = False,
        system: str = "",
        scsi: bool = True,
    ) -> str:
        server_id = str(uuid.uuid4())
        controllers = "<controller type='pci' model='pcie-root-port'/>" * ports
        if scsi:
            controllers += "<controller type='scsi' index='0' model='virtio-scsi'/>"
        log = self.path / f"{server_id}.console"
        xml = f"""<domain type='qemu'><name>contract-{server_id}</name><uuid>{server_id}</uuid>
          <metadata><n:instance xmlns:n='{NOVA_NS}'><n:owner><n:user uuid='u-1'>u</n:user>
            <n:project uuid='p-1'>p</n:project></n:owner></n:instance></metadata>
          <memory unit='MiB'>160</memory><vcpu>1</vcpu>
          <os><type arch='x86_64' machine='q35'>hvm</type>{system}</os>
          <features><acpi/></features>
          <devices><controller type='pci' model='pcie-root'/>{controllers}
            <controller type='usb' model='none'/><memballoon model='none'/>
            <serial type='pty'><log file='{log}' append='off'/><target port='0'/></serial>
          </devices></domain>"""
        self.made.append(server_id)
        if transient:
            self.connection.createXML(xml)
        else:
            self.connection.defineXML(xml)
            self.power(server_id, power)
        return server_id

    def power(self, server_id: str, power: PowerState) -> None:
        domain = self.domain(server_id)
        if power is PowerState.SHUTDOWN:
            if domain.isActive():
                domain.destroy()
            return
        if not domain.isActive():
            domain.create()
        if power is PowerState.PAUSED:
            domain.suspend()
        elif domain.state()[0] == 3:
            domain.resume()

    def volume(self, volume_id: str) -> str:
        path = self.path / volume_id
        if not path.exists():
            path.write_bytes(b"\0" * VOLUME_BYTES)
        return str(path)

    def volume_there(self, volume_id: str) -> str:
        """The same volume, by another path, as where each host mounts for itself."""
        path = self.path / "there" / volume_id
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.hardlink_to(self.volume(volume_id))
        return str(path)

    def file_above(self, path: str, name: str) -> str:
        """An empty file above this one, which it names as Cinder does: by its bare name."""
        lower, made = Path(path), Path(path).parent / name
        kind = "qcow2" if lower.read_bytes()[:4] == b"QFI\xfb" else "raw"
        names = ("-b", lower.name, "-F", kind)
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", *names, made.name],
            check=True,
            cwd=lower.parent,
        )
        return str(made)

    def slow(self, server_id: str) -> None:
        """Its memory is full of what is no zero, and goes over at a MiB in a second.

        A guest without a system has used next to none, and pages of zeros are not sent.
        """
        memory = self.path / "memory"
        memory.write_bytes(b"\xa5" * (FULL_MIB << 20))
        load = f"loader,file={memory},addr={FULL_FROM:#x},force-raw=on"
        domain = self.domain(server_id)
        xml = domain.XMLDesc(2)  # as it is defined
        self.power(server_id, PowerState.SHUTDOWN)
        self.connection.defineXML(
            xml.replace(
                "</domain>",
                f"<q:commandline xmlns:q='{QEMU_NS}'><q:arg value='-device'/>"
                f"<q:arg value='{load}'/></q:commandline></domain>",
            )
        )
        self.power(server_id, PowerState.RUNNING)
        domain.migrateSetMaxSpeed(1)

    def stubborn(self, server_id: str) -> None:
        """A guest without a system never lets go of a virtio-blk disk."""
