"""A disk of a running guest grows: simulated, and over the real libvirt and QEMU."""

from __future__ import annotations

import uuid

import pytest

from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import PortError
from tests.contracts.machines import VOLUME_BYTES, Machine, disk

MIB = 1 << 20


@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.PAUSED])
def test_a_disk_grows_by_whole_units_and_never_gets_smaller(
    machine: Machine, power: PowerState
) -> None:
    server_id, one = machine.new_guest(power), disk(machine)
    name = machine.guests.plug(server_id, one).live
    assert name is not None

    def grow(room: int) -> int | None:
        return machine.guests.grow(server_id, one.serial, room, unit=MIB)

    assert grow(VOLUME_BYTES) == VOLUME_BYTES
    assert grow(VOLUME_BYTES + 2 * MIB + 5) == VOLUME_BYTES + 2 * MIB
    assert grow(VOLUME_BYTES + 2 * MIB) == VOLUME_BYTES + 2 * MIB, "again"
    assert grow(VOLUME_BYTES) == VOLUME_BYTES + 2 * MIB, "late"
    assert machine.hypervisor.size(server_id, name) == VOLUME_BYTES + 2 * MIB
    assert machine.guests.disk(server_id, one.serial).differs == ()


def test_what_starts_anew_has_the_disk_as_it_has_grown(machine: Machine) -> None:
    server_id, one = machine.new_guest(PowerState.RUNNING), disk(machine)
    name = machine.guests.plug(server_id, one).live
    assert name is not None
    machine.guests.grow(server_id, one.serial, 3 * MIB, unit=MIB)
    machine.power(server_id, PowerState.SHUTDOWN)
    assert machine.guests.grow(server_id, one.serial, 3 * MIB, unit=MIB) is None
    machine.power(server_id, PowerState.RUNNING)
    assert machine.hypervisor.size(server_id, name) == 3 * MIB


def test_a_disk_that_is_not_there_has_nothing_to_grow(machine: Machine) -> None:
    running = machine.new_guest(PowerState.RUNNING)
    assert machine.guests.grow(running, str(uuid.uuid4()), MIB, unit=MIB) is None


def test_a_guest_that_is_not_here_keeps_its_size_where_it_is(machine: Machine) -> None:
    with pytest.raises(PortError) as raised:
        machine.guests.grow(str(uuid.uuid4()), "v", MIB, unit=MIB)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_missing")
