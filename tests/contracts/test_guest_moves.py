"""The Guests port, live migration: one behaviour, simulated and between two real hosts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from host_agent.libvirt.domain_xml import for_destination
from host_agent.libvirt.guests import HypervisorGuests
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, PortError
from tests.contracts.machines import Following, Machine, RealMachine, disk, moved

RUNNING, PAUSED, SHUTDOWN = PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN
WAIT_S = 60.0


@pytest.fixture
def there(machine: Machine) -> HypervisorGuests:
    if machine.there is None:
        pytest.skip("LAB_LIBVIRT_URI_2 names no other hypervisor")
    return machine.there


def guest_with_two_disks(machine: Machine) -> tuple[str, list[Disk], list[Disk]]:
    """Its disks, as they are here and as they are there."""
    server_id = machine.new_guest(RUNNING)
    disks = [disk(machine, "sdb"), disk(machine, "vdb")]
    for one in disks:
        machine.guests.plug(server_id, one)
    return server_id, disks, [moved(one, machine.volume_there(one.serial)) for one in disks]


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.mark.parametrize("power", [RUNNING, PAUSED])
def test_migrated_guest_is_there_with_its_disks_and_no_longer_here(
    machine: Machine, there: HypervisorGuests, power: PowerState
) -> None:
    server_id, disks, disks_there = guest_with_two_disks(machine)
    machine.power(server_id, power)
    for _ in range(2):
        machine.guests.migrate(server_id, machine.destination, disks_there, Following())
        assert machine.guests.power(server_id) is None
        assert there.power(server_id) is power
    for one, seen in zip(disks, disks_there, strict=True):
        state = there.disk(server_id, one.serial)
        assert (state.live, state.persistent) == (one.device_name, one.device_name)
        assert state.sources == (seen.source["path"],), "in both copies"
    assert machine.guests.stay(server_id, machine.destination) is False


def test_definition_moves_with_the_guest(machine: Machine, there: HypervisorGuests) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    before = {guest.server_id: guest for guest in machine.guests.inventory()}[server_id]
    machine.guests.migrate(server_id, machine.destination, disks_there, Following())
    after = {guest.server_id: guest for guest in there.inventory()}[server_id]
    assert after == before


def test_guest_is_defined_and_run_on_another_host_by_its_definition(
    machine: Machine, there: HypervisorGuests
) -> None:
    server_id, disks, disks_there = guest_with_two_disks(machine)
    before = {guest.server_id: guest for guest in machine.guests.inventory()}[server_id]
    assert before.definition is not None
    machine.guests.remove(server_id)
    assert there.spawn(server_id, before.definition, disks_there, running=True) is RUNNING
    assert [there.disk(server_id, one.serial).live for one in disks] == ["sdb", "vdb"]
    after = {guest.server_id: guest for guest in there.inventory()}[server_id]
    assert after.definition == kept(before.definition).definition


def test_volume_that_is_not_there_keeps_the_guest_here(
    machine: Machine, there: HypervisorGuests
) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    disks_there[1] = moved(disks_there[1], "/nowhere/at-all")
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(server_id, machine.destination, disks_there, Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "migration_failed")
    assert (machine.guests.power(server_id), there.power(server_id)) == (RUNNING, None)


def test_guest_does_not_leave_a_disk_behind(machine: Machine, there: HypervisorGuests) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    with pytest.raises(PortError, match="as vdb") as raised:
        machine.guests.migrate(server_id, machine.destination, disks_there[:1], Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "migration_failed")


def test_guest_that_is_off_does_not_migrate(machine: Machine, there: HypervisorGuests) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    machine.power(server_id, SHUTDOWN)
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(server_id, machine.destination, disks_there, Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_not_running")
    assert machine.guests.stay(server_id, machine.destination) is True


@pytest.mark.parametrize("question", [1, 2])
def test_migration_that_is_called_off_keeps_the_guest_here(
    machine: Machine, there: HypervisorGuests, question: int
) -> None:
    server_id, disks, disks_there = guest_with_two_disks(machine)
    machine.slow(server_id)
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(
            server_id, machine.destination, disks_there, Following(cancelled_at=question)
        )
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "cancelled")
    assert (machine.guests.power(server_id), there.power(server_id)) == (RUNNING, None)
    machine.guests.unplug(server_id, disks[0].serial)


def set_out(machine: Machine, server_id: str, disks_there: list[Disk]) -> threading.Thread:
    """A migration under way, of an agent that will not hear of its end."""

    def migrate() -> None:
        with pytest.raises(PortError):
            machine.guests.migrate(server_id, machine.destination, disks_there, Following())

    thread = threading.Thread(target=migrate, daemon=True)
    thread.start()
    until(lambda: machine.hypervisor.migration(server_id) is not None, "the migration to begin")
    return thread


def test_staying_ends_a_migration_under_way(machine: Machine, there: HypervisorGuests) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    machine.slow(server_id)
    thread = set_out(machine, server_id, disks_there)
    assert machine.guests.stay(server_id, machine.destination) is True
    assert machine.hypervisor.migration(server_id) is None
    assert (machine.guests.power(server_id), there.power(server_id)) == (RUNNING, None)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_migration_under_way_is_followed(machine: Machine, there: HypervisorGuests) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    machine.slow(server_id)
    set_out(machine, server_id, disks_there)
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(
            server_id, machine.destination, disks_there, Following(cancelled_at=1)
        )
    assert raised.value.code == "cancelled"
    assert machine.guests.power(server_id) is RUNNING


def test_destination_that_does_not_answer_fails_the_migration(machine: Machine) -> None:
    server_id, _, disks_there = guest_with_two_disks(machine)
    nobody = {"host": "nobody", "uri": "qemu+tcp://127.0.0.1:1/system", "address": None}
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(server_id, nobody, disks_there, Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "migration_failed")
    assert machine.guests.stay(server_id, nobody) is True


def test_guest_that_is_nowhere_is_unknown(machine: Machine, there: HypervisorGuests) -> None:
    nobody = str(uuid.uuid4())
    with pytest.raises(PortError) as raised:
        machine.guests.migrate(nobody, machine.destination, [], Following())
    assert raised.value.kind is ErrorKind.UNKNOWN
    with pytest.raises(PortError) as raised:
        machine.guests.stay(nobody, machine.destination)
    assert raised.value.kind is ErrorKind.UNKNOWN


@pytest.mark.lab
def test_real_guest_is_changed_on_its_new_host(real: RealMachine) -> None:
    machine: Machine = real
    if machine.there is None:
        pytest.skip("LAB_LIBVIRT_URI_2 names no other hypervisor")
    server_id, disks, disks_there = guest_with_two_disks(machine)
    machine.guests.migrate(server_id, machine.destination, disks_there, Following())
    machine.there.unplug(server_id, disks[0].serial)
    machine.there.remove(server_id)
    assert machine.there.power(server_id) is None


BEGIN = """
import json, sys
from host_agent.libvirt.hypervisor import MigrationRoute
from host_agent.libvirt.driver import Libvirt
uri, server_id, route, live, persistent = json.loads(sys.argv[1])
Libvirt(uri).migrate(server_id, MigrationRoute(**route), live, persistent)
"""


@pytest.mark.lab
def test_real_migration_outlives_the_agent_that_began_it(real: RealMachine) -> None:
    if real.there is None:
        pytest.skip("LAB_LIBVIRT_URI_2 names no other hypervisor")
    server_id, _, disks_there = guest_with_two_disks(real)
    real.slow(server_id)
    xmls = real.hypervisor.migratable(server_id)
    live, persistent = (for_destination(xml or "", disks_there) for xml in xmls)
    way = {"uri": real.destination["uri"], "address": real.destination["address"], "shared": True}
    order = json.dumps([real.connection.getURI(), server_id, way, live, persistent])
    with subprocess.Popen([sys.executable, "-c", BEGIN, order]) as agent:
        until(lambda: real.hypervisor.migration(server_id) is not None, "the migration to begin")
        agent.kill()
    assert real.hypervisor.migration(server_id) is not None
    real.domain(server_id).migrateSetMaxSpeed(1000)
    real.guests.migrate(server_id, real.destination, disks_there, Following())
    assert (real.guests.power(server_id), real.there.power(server_id)) == (None, RUNNING)
