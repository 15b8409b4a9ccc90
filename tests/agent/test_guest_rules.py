"""What `guests.py` makes of a hypervisor whose guests move, and of each kind of refusal."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from host_agent.libvirt import disk_xml
from host_agent.libvirt.guests import HypervisorGuests, Patience
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, DiskState, PortError
from host_agent.shared.faults import Faults
from host_agent.simulated import host_state
from host_agent.simulated.adapters import SimulatedBrick
from host_agent.simulated.host_state import HostState, guest_state, set_power
from host_agent.simulated.hypervisor import SimulatedHypervisor
from host_agent.verbs.context import Unwatched

SERVER = "11111111-1111-1111-1111-111111111111"


class Scripted(SimulatedHypervisor):
    """Does `before` ahead of each change, once per entry: the world between look and act."""

    def __init__(self, store: HostState) -> None:
        super().__init__(store)
        self.before: list[Callable[[], Any]] = []
        self.asked: list[tuple[str, bool, bool]] = []

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        self._step("attach", live, persistent)
        super().attach(server_id, disk, live=live, persistent=persistent)

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        self._step("detach", live, persistent)
        super().detach(server_id, disk, live=live, persistent=persistent)

    def _step(self, call: str, live: bool, persistent: bool) -> None:
        self.asked.append((call, live, persistent))
        if self.before:
            self.before.pop(0)()


class World:
    def __init__(self, power: PowerState) -> None:
        self.store = HostState()
        with self.store.edit() as state:
            entry = guest_state(server_id=SERVER, power_state=power.value)
            state["guests"][SERVER] = entry
        info = {"driver_volume_type": "local", "device_path": "/dev/v"}
        source = SimulatedBrick(self.store, Faults(), "h").connect(info)
        source = {"type": source["type"], "path": source["path"]}
        self.disk = Disk(serial=str(uuid.uuid4()), source=source, device_name="vdb", bus="virtio")
        self.hypervisor = Scripted(self.store)
        patience = Patience(detach_attempts=3, detach_timeout_s=0)
        self.guests = HypervisorGuests(self.hypervisor, patience)

    def power(self, power: PowerState) -> Callable[[], None]:
        return lambda: set_power(self.store, SERVER, power)

    def trouble(self, trouble: Trouble) -> Callable[[], None]:
        def fail() -> None:
            raise HypervisorError(trouble, f"libvirt says {trouble}")

        return fail

    def state(self) -> DiskState:
        return self.guests.disk(SERVER, self.disk.serial)


def test_guest_that_stops_between_look_and_plug_gets_the_disk_in_its_definition() -> None:
    world = World(PowerState.RUNNING)
    world.hypervisor.before = [world.power(PowerState.SHUTDOWN)]
    state = world.guests.plug(SERVER, world.disk)
    assert state == DiskState(live=None, persistent="vdb", running=False)


def test_guest_that_starts_between_look_and_plug_gets_the_disk_live_too() -> None:
    world = World(PowerState.SHUTDOWN)
    world.hypervisor.before = [world.power(PowerState.RUNNING)]
    state = world.guests.plug(SERVER, world.disk)
    assert state == DiskState(live="vdb", persistent="vdb", running=True)


def test_guest_that_stops_between_look_and_unplug_loses_the_disk() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    world.hypervisor.before = [world.power(PowerState.SHUTDOWN)]
    assert world.guests.unplug(SERVER, world.disk.serial).persistent is None


def test_guest_that_starts_between_look_and_unplug_loses_both_copies() -> None:
    world = World(PowerState.SHUTDOWN)
    world.guests.plug(SERVER, world.disk)
    world.hypervisor.before = [world.power(PowerState.RUNNING)]
    world.guests.unplug(SERVER, world.disk.serial)
    assert world.state() == DiskState(live=None, persistent=None, running=True)


def test_guest_that_vanishes_during_an_unplug_is_success() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)

    def vanish() -> None:
        with world.store.edit() as state:
            del state["guests"][SERVER]

    world.hypervisor.before = [vanish]
    state = world.guests.unplug(SERVER, world.disk.serial)
    assert state == DiskState(live=None, persistent=None, running=False)


def test_guest_that_never_comes_to_rest_is_unknown() -> None:
    world = World(PowerState.RUNNING)
    world.hypervisor.before = [world.trouble(Trouble.DOMAIN_INACTIVE)] * 99
    with pytest.raises(PortError) as raised:
        world.guests.plug(SERVER, world.disk)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.UNKNOWN, "guest_unsettled")


def test_both_copies_are_changed_by_one_request_when_plugging() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    assert world.hypervisor.asked == [("attach", True, True)]


def test_live_disk_goes_first_so_that_a_refusal_leaves_the_definition() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    world.hypervisor.asked.clear()
    world.guests.unplug(SERVER, world.disk.serial)
    assert world.hypervisor.asked == [("detach", True, False), ("detach", False, True)]


def test_unplug_already_under_way_counts_as_an_attempt_and_is_waited_for() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    world.hypervisor.asked.clear()
    world.hypervisor.before = [world.trouble(Trouble.UNPLUGGING)] * 3
    with pytest.raises(PortError) as raised:
        world.guests.unplug(SERVER, world.disk.serial)
    assert raised.value.code == "guest_refused"
    assert len(world.hypervisor.asked) == 3
    assert world.state() == DiskState(live="vdb", persistent="vdb", running=True)


@pytest.mark.parametrize(
    ("trouble", "kind", "code"),
    [
        (Trouble.BUSY, ErrorKind.RETRYABLE, "guest_busy"),
        (Trouble.UNREACHABLE, ErrorKind.RETRYABLE, "hypervisor_unreachable"),
        (Trouble.LOST, ErrorKind.UNKNOWN, "hypervisor_lost"),
        (Trouble.NO_FREE_PORT, ErrorKind.FINAL, "no_free_pci_port"),
        (Trouble.TARGET_TAKEN, ErrorKind.FINAL, "device_name_taken"),
        (Trouble.OTHER, ErrorKind.FINAL, "hypervisor_error"),
    ],
)
def test_each_refusal_says_what_it_means(trouble: Trouble, kind: ErrorKind, code: str) -> None:
    world = World(PowerState.RUNNING)
    world.hypervisor.before = [world.trouble(trouble)]
    with pytest.raises(PortError) as raised:
        world.guests.plug(SERVER, world.disk)
    assert (raised.value.kind, raised.value.code) == (kind, code)


def test_after_a_first_request_nothing_can_be_said_not_to_have_happened() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    unplugging, busy = world.trouble(Trouble.UNPLUGGING), world.trouble(Trouble.BUSY)
    world.hypervisor.before = [unplugging, busy]
    with pytest.raises(PortError) as raised:
        world.guests.unplug(SERVER, world.disk.serial)
    assert raised.value.kind is ErrorKind.UNKNOWN


def test_definition_that_cannot_be_given_back_is_told_as_such() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    world.hypervisor.detach(SERVER, _xml(world), live=False, persistent=True)
    unplugging = world.trouble(Trouble.UNPLUGGING)
    world.hypervisor.before = [unplugging] * 3 + [world.trouble(Trouble.OTHER)]
    with pytest.raises(PortError) as raised:
        world.guests.unplug(SERVER, world.disk.serial)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.UNKNOWN, "guest_copies_differ")


def _xml(world: World) -> str:

    return disk_xml.build(world.disk)


def _changed(world: World, copy: str, change: Callable[[str], str]) -> None:
    with world.store.edit() as state:
        guest = state["guests"][SERVER]
        guest[copy] = change(guest[copy])


def _writable(domain: str) -> str:
    return domain.replace("<readonly />", "")


def test_a_look_says_in_what_the_running_guest_and_its_definition_differ() -> None:
    world = World(PowerState.RUNNING)
    world.disk = replace(world.disk, readonly=True)
    assert world.guests.plug(SERVER, world.disk).differs == ()
    _changed(world, "persistent", _writable)
    assert world.state().differs == ("readonly",)
    _changed(world, "persistent", lambda domain: host_state.without_disk(domain, "vdb"))
    assert world.state().differs == ("presence",)
    world.power(PowerState.SHUTDOWN)()
    assert world.state().differs == (), "there is nothing to differ from"


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("readonly", _writable),
        ("source", lambda domain: domain.replace("/dev/v", "/dev/w")),
        ("target", lambda domain: domain.replace('dev="vdb"', 'dev="vdc"')),
    ],
    ids=["readonly", "source", "target"],
)
def test_a_definition_that_differs_follows_the_disk_that_the_guest_has(
    fact: str, change: Callable[[str], str]
) -> None:
    world = World(PowerState.RUNNING)
    world.disk = replace(world.disk, readonly=True)
    world.guests.plug(SERVER, world.disk)
    _changed(world, "persistent", change)
    assert fact in world.state().differs
    assert world.guests.plug(SERVER, world.disk).differs == ()
    live, persistent = world.guests._look_here(SERVER).disk(world.disk.serial)
    assert live is not None
    assert persistent is not None
    assert live.facts == persistent.facts


def test_a_disk_that_runs_writable_is_never_said_to_be_plugged_read_only() -> None:
    world = World(PowerState.RUNNING)
    world.guests.plug(SERVER, world.disk)
    with pytest.raises(PortError) as raised:
        world.guests.plug(SERVER, replace(world.disk, readonly=True))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "disk_writable")


def test_the_next_start_of_a_guest_may_write_to_less_and_never_to_more() -> None:
    world = World(PowerState.SHUTDOWN)
    for readonly in (False, True, False):
        world.guests.plug(SERVER, replace(world.disk, readonly=readonly))
    assert world.state().readonly == (None, True)


@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_a_read_only_disk_stays_so_when_something_else_is_put_behind_it(power: PowerState) -> None:
    """Of an attachment of before modes were kept only the guest knows it."""
    world = World(power)
    world.guests.plug(SERVER, replace(world.disk, readonly=True))
    info = {"driver_volume_type": "local", "device_path": "/dev/w"}
    source = SimulatedBrick(world.store, Faults(), "h").connect(info)
    other = replace(world.disk, source={"type": source["type"], "path": source["path"]})
    if power is PowerState.RUNNING:
        world.guests.copy(SERVER, other, Unwatched())
    else:
        world.guests.replace(SERVER, other)
    for found in world.guests._look_here(SERVER).disk(world.disk.serial):
        assert found is None or found.readonly
    assert world.state().differs == ()
