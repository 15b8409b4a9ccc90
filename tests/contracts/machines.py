"""Hypervisors that contract tests make throw-away guests on: simulated, and real libvirt."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from host_agent.contract import PowerState
from host_agent.disk_xml import NOVA_NS
from host_agent.faults import Faults
from host_agent.guests import HypervisorGuests, Patience
from host_agent.simulated import SimulatedGuests
from host_agent.simulated_state import Store, guest_state, set_power

WAIT_S = 30.0


class Machine(Protocol):
    """A hypervisor that tests can make guests on."""

    guests: HypervisorGuests

    def new_guest(self, power: PowerState, *, ports: int = 4, transient: bool = False) -> str: ...
    def power(self, server_id: str, power: PowerState) -> None: ...
    def volume(self, volume_id: str) -> str: ...
    def stubborn(self, server_id: str) -> None: ...


class SimulatedMachine:
    def __init__(self) -> None:
        self.store, self.faults = Store(), Faults()
        self.guests: HypervisorGuests = SimulatedGuests(self.store, self.faults, "h")

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
        path = f"/simulated/{volume_id}"
        with self.store.edit() as state:
            state["connected"][volume_id] = {"driver": "local", "path": path}
        return path

    def stubborn(self, server_id: str) -> None:
        rule = {"call": "guests.unplug", "do": "lie", "code": "ignored", "count": None}
        self.faults.replace([{**rule, "match": {"server_id": server_id}}])


class RealMachine:
    def __init__(self, uri: str, path: Path) -> None:
        import libvirt

        from host_agent.libvirt_driver import Libvirt

        self.driver = Libvirt(uri)
        patience = Patience(detach_attempts=2, detach_timeout_s=2.0)
        self.guests = HypervisorGuests(self.driver, patience)
        self.path = path
        self.connection: Any = libvirt.open(uri)
        self.made: list[str] = []

    def close(self) -> None:
        import libvirt

        for server_id in self.made:
            for act in ("destroy", "undefine"):
                with suppress(libvirt.libvirtError):
                    getattr(self.connection.lookupByUUIDString(server_id), act)()
        self.connection.close()

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
            path.write_bytes(b"\0" * (1 << 20))
        return str(path)

    def stubborn(self, server_id: str) -> None:
        """A guest without a system never lets go of a virtio-blk disk."""
