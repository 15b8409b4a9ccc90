"""A guest with a volume, whose hypervisor does and says what a test wants."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from host_agent.libvirt.guests import HypervisorGuests
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, PortError
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import PATIENCE, SimulatedGuests
from host_agent.simulated.host_state import HOSTS, SCHEME, HostState, guest_state
from host_agent.simulated.hypervisor import SimulatedHypervisor
from tests.contracts.machines import Following

SERVER = "11111111-1111-1111-1111-111111111111"
RUNNING, PAUSED, SHUTDOWN = PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN
CHANGES = (
    "define", "undefine", "start", "shutdown", "destroy", "resume", "update", "copy", "end_copy",
    "migrate", "migration", "copying",
)  # fmt: skip


class Scripted(SimulatedHypervisor):
    """Does `before[name]` ahead of the calls of that name, once per entry."""

    def __init__(self, store: HostState) -> None:
        super().__init__(store)
        self.before: dict[str, list[Callable[[], Any]]] = {}
        self.asked: list[str] = []


def _scripted(name: str) -> Callable[..., Any]:
    def call(self: Scripted, *args: Any, **named: Any) -> Any:
        self.asked.append(name)
        if self.before.get(name):
            self.before[name].pop(0)()
        return getattr(SimulatedHypervisor, name)(self, *args, **named)

    return call


for _name in CHANGES:
    setattr(Scripted, _name, _scripted(_name))


class World:
    """A guest with one volume, which another host sees as well, and a second volume."""

    def __init__(self, power: PowerState = RUNNING) -> None:
        self.store, self.other, self.faults = HostState(), HostState(), Faults()
        name = f"other-{uuid.uuid4()}"
        HOSTS[name] = self.other
        self.destination = {"host": "other", "uri": SCHEME + name}
        for store, path in ((self.store, "/old"), (self.store, "/new"), (self.other, "/there")):
            with store.edit() as state:
                state["connected"][path] = {"driver": "local", "path": path}
        with self.store.edit() as state:
            state["guests"][SERVER] = guest_state(server_id=SERVER, power_state=power.value)
        self.hypervisor = Scripted(self.store)
        patience = replace(PATIENCE, end_timeout_s=0.05)
        self.guests = SimulatedGuests(self.store, self.faults, "h", patience)
        self.guests._hypervisor = self.guests.hypervisor = self.hypervisor
        self.there = HypervisorGuests(SimulatedHypervisor(self.other), patience)
        self.old = Disk(
            serial=str(uuid.uuid4()), source=_file("/old"), device_name="vdb", bus="virtio"
        )
        self.new = replace(self.old, source=_file("/new"))
        self.guests.plug(SERVER, self.old)
        self.disks_there = [replace(self.old, source=_file("/there"))]
        self.hypervisor.asked.clear()

    def lie(self, call: str, code: str) -> None:
        rule = {"call": f"guests.{call}", "do": "lie", "code": code, "count": None}
        self.faults.replace([rule])

    def migrate(self, watch: Following | None = None) -> None:
        self.guests.migrate(SERVER, self.destination, self.disks_there, watch or Following())

    def copy(self, watch: Following | None = None) -> None:
        self.guests.copy(SERVER, self.new, watch or Following())

    def entry(self, store: HostState, **values: Any) -> None:
        with store.edit() as state:
            state["guests"][SERVER].update(values)

    def arrive(self, **values: Any) -> None:
        """The guest is at the other host as well, as in the middle of a migration."""
        with self.other.edit() as state:
            state["guests"][SERVER] = {**self.store.read()["guests"][SERVER], **values}

    def where(self) -> tuple[PowerState | None, PowerState | None]:
        return self.guests.power(SERVER), self.there.power(SERVER)

    def sources(self) -> tuple[str, ...]:
        return self.guests.disk(SERVER, self.old.serial).sources


def _file(path: str) -> dict[str, Any]:
    return {"type": "file", "path": path}


def fails(trouble: Trouble) -> Callable[[], None]:
    def fail() -> None:
        raise HypervisorError(trouble, f"libvirt says {trouble}")

    return fail


def raised(kind: ErrorKind, code: str, call: Callable[[], Any]) -> PortError:
    with pytest.raises(PortError) as error:
        call()
    assert (error.value.kind, error.value.code) == (kind, code)
    return error.value
