"""The Guests port, whole guests: definitions, power, and what stands behind a disk."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from host_agent.libvirt import disk_xml
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, PortError
from tests.contracts.machines import Following, Machine, RealMachine, disk, moved

RUNNING, PAUSED, SHUTDOWN = PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN


def definition(machine: Machine, server_id: str) -> str:
    found = {guest.server_id: guest.definition for guest in machine.guests.inventory()}
    text = found[server_id]
    assert text is not None
    return text


def sources(machine: Machine, server_id: str, one: Disk) -> tuple[str, ...]:
    return machine.guests.disk(server_id, one.serial).sources


def path(one: Disk) -> str:
    return str(one.source["path"])


# --- definitions --------------------------------------------------------------------------------


def test_definition_is_the_same_whatever_is_plugged_and_however_it_runs(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    first = definition(machine, server_id)
    machine.power(server_id, RUNNING)
    assert definition(machine, server_id) == first
    one, two = disk(machine), disk(machine, "vdb")
    machine.guests.plug(server_id, one)
    machine.guests.plug(server_id, two)
    assert definition(machine, server_id) == first
    machine.guests.unplug(server_id, one.serial)
    assert definition(machine, server_id) == first
    machine.power(server_id, SHUTDOWN)
    assert definition(machine, server_id) == first
    assert "p-1" in first, "who owns it"
    assert "virtio-scsi" in first


def test_guest_defined_anew_from_its_definition_has_the_same(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    first = definition(machine, server_id)
    machine.guests.remove(server_id)
    assert machine.guests.power(server_id) is None
    assert machine.guests.spawn(server_id, first, [one], running=False) is SHUTDOWN
    # But not the file for its console's log, if it has one: its former host may have forged that.
    assert definition(machine, server_id) == kept(first).definition
    assert machine.guests.disk(server_id, one.serial).persistent == "sdb"


# --- spawn --------------------------------------------------------------------------------------


def test_spawned_guest_runs_with_just_its_disks_and_is_left_as_it_is(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    old, one, two = disk(machine), disk(machine, boot_index=0), disk(machine, "vdb")
    machine.guests.plug(server_id, old)
    first = definition(machine, server_id)
    assert machine.guests.spawn(server_id, first, [one, two], running=True) is RUNNING
    assert machine.guests.disk(server_id, one.serial).live == "sdb"
    assert machine.guests.disk(server_id, two.serial).live == "vdb"
    assert machine.guests.disk(server_id, old.serial).persistent is None
    assert machine.guests.spawn(server_id, first, [], running=True) is RUNNING
    assert machine.guests.disk(server_id, one.serial).live == "sdb", "it runs already"


def test_running_guest_is_not_defined_anew(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    with pytest.raises(PortError) as raised:
        machine.guests.spawn(server_id, definition(machine, server_id), [], running=False)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_running")


@pytest.mark.parametrize("text", ["no xml", "<domain><uuid>somebody-else</uuid></domain>"])
def test_definition_that_is_not_this_guests_is_refused(machine: Machine, text: str) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    with pytest.raises(PortError) as raised:
        machine.guests.spawn(server_id, text, [], running=True)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "bad_definition")
    assert machine.guests.power(server_id) is SHUTDOWN


def test_guest_whose_disk_is_not_there_does_not_start(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    one = moved(disk(machine), "/nowhere/at-all")
    first = definition(machine, server_id)
    with pytest.raises(PortError) as raised:
        machine.guests.spawn(server_id, first, [one], running=True)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_start_failed")
    assert machine.guests.power(server_id) is SHUTDOWN


def test_few_words_are_enough_for_a_guest(machine: Machine) -> None:
    server_id = str(uuid.uuid4())
    if isinstance(machine, RealMachine):
        machine.made.append(server_id)
    text = f"""<domain><name>contract-{server_id}</name><uuid>{server_id}</uuid>
      <memory unit='MiB'>64</memory><vcpu>1</vcpu>
      <os><type arch='x86_64' machine='q35'>hvm</type></os>
      <devices><controller type='scsi' index='0' model='virtio-scsi'/>
        <controller type='pci' model='pcie-root'/><controller type='pci' model='pcie-root-port'/>
        <controller type='pci' model='pcie-root-port'/><serial type='pty'/></devices></domain>"""
    root = disk(machine, "vda", boot_index=0)
    assert machine.guests.spawn(server_id, text, [root], running=True) is RUNNING
    assert machine.guests.disk(server_id, root.serial).live == "vda"
    # What libvirt made of it is kept by the ledger from now on.
    made = definition(machine, server_id)
    machine.guests.stop(server_id, force=True)
    machine.guests.spawn(server_id, made, [root], running=False)
    assert definition(machine, server_id) == made


# --- power --------------------------------------------------------------------------------------


def test_guest_is_stopped_and_started_with_its_definition_kept(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    for _ in range(2):
        assert machine.guests.stop(server_id, force=True) is SHUTDOWN
    assert machine.guests.power(server_id) is SHUTDOWN
    assert machine.guests.disk(server_id, one.serial).persistent == "sdb"
    for _ in range(2):
        assert machine.guests.start(server_id) is RUNNING
    assert machine.guests.disk(server_id, one.serial).live == "sdb"


def test_a_transient_guest_is_defined_before_it_is_stopped(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING, transient=True)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    assert machine.guests.stop(server_id, force=True) is SHUTDOWN
    assert machine.guests.power(server_id) is SHUTDOWN
    assert machine.guests.start(server_id) is RUNNING
    assert machine.guests.disk(server_id, one.serial).live == "sdb"


def test_guest_that_does_not_hear_is_powered_off(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)  # a real one without a system hears nothing
    assert machine.guests.stop(server_id, force=False) is SHUTDOWN


def test_guest_is_paused_and_resumed(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    for _ in range(2):
        assert machine.guests.pause(server_id) is PAUSED
    assert machine.guests.power(server_id) is PAUSED
    for _ in range(2):
        assert machine.guests.resume(server_id) is RUNNING
    machine.guests.pause(server_id)
    assert machine.guests.stop(server_id, force=False) is SHUTDOWN, "without waiting for it"
    with pytest.raises(PortError) as raised:
        machine.guests.pause(server_id)
    assert raised.value.code == "guest_not_running"


def test_guest_that_is_not_here_is_stopped_and_removed_but_cannot_start(machine: Machine) -> None:
    nobody = str(uuid.uuid4())
    assert machine.guests.stop(nobody, force=False) is PowerState.NOSTATE
    machine.guests.remove(nobody)
    with pytest.raises(PortError) as raised:
        machine.guests.start(nobody)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_missing")


def test_removed_guest_is_gone_though_it_ran(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    machine.guests.remove(server_id)
    assert machine.guests.power(server_id) is None
    machine.guests.remove(server_id)


def test_a_guest_has_a_process_while_it_runs(machine: Machine) -> None:
    server_id = machine.new_guest(PAUSED)
    assert machine.guests.process(server_id)
    machine.guests.remove(server_id)
    assert not machine.guests.process(server_id)


# --- what stands behind a disk ------------------------------------------------------------------


def test_definition_of_a_stopped_guest_follows_a_refreshed_connection(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    fresh = moved(one, machine.volume("fresh"))
    for _ in range(2):
        machine.guests.replace(server_id, fresh)
        assert sources(machine, server_id, one) == (path(fresh),)
    assert machine.guests.disk(server_id, one.serial).persistent == "sdb"


def test_running_guest_keeps_its_connection_until_it_is_stopped(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    machine.guests.replace(server_id, one)
    with pytest.raises(PortError) as raised:
        machine.guests.replace(server_id, moved(one, machine.volume("fresh")))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "refresh_needs_stop")
    assert sources(machine, server_id, one) == (path(one),)
    with pytest.raises(PortError) as raised:
        machine.guests.replace(server_id, disk(machine))
    assert raised.value.code == "disk_not_plugged"


@pytest.mark.parametrize("name", ["sdb", "vdb"])
def test_copied_disk_is_on_the_new_volume_in_both_copies(machine: Machine, name: str) -> None:
    server_id = machine.new_guest(RUNNING)
    one = disk(machine, name)
    machine.guests.plug(server_id, one)
    new = moved(one, machine.volume(str(uuid.uuid4())))
    for _ in range(2):
        machine.guests.copy(server_id, new, Following())
        assert sources(machine, server_id, one) == (path(new),)
    both = machine.guests.disk(server_id, one.serial)
    assert (both.live, both.persistent) == (name, name)
    assert machine.guests.stay_on(server_id, new) is False
    machine.guests.stop(server_id, force=True)
    machine.guests.start(server_id)
    assert sources(machine, server_id, one) == (path(new),)
    machine.guests.copy(server_id, one, Following())
    assert sources(machine, server_id, one) == (path(one),), "and back"


@pytest.mark.parametrize("question", [1, 2])
def test_copy_that_is_called_off_leaves_the_old_volume(machine: Machine, question: int) -> None:
    server_id = machine.new_guest(RUNNING)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    new = moved(one, machine.volume(str(uuid.uuid4())))
    with pytest.raises(PortError) as raised:
        machine.guests.copy(server_id, new, Following(cancelled_at=question))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "cancelled")
    assert sources(machine, server_id, one) == (path(one),)
    assert machine.guests.stay_on(server_id, new) is True
    machine.guests.unplug(server_id, one.serial)


def begin_copy(machine: Machine) -> tuple[str, Disk, Disk]:
    """A copy under way that this agent knows nothing of: it was started again."""
    server_id = machine.new_guest(RUNNING)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    new = moved(one, machine.volume(str(uuid.uuid4())))
    machine.hypervisor.copy(server_id, "sdb", disk_xml.build(new))
    return server_id, one, new


def test_copy_under_way_is_followed_and_seen(machine: Machine) -> None:
    server_id, one, new = begin_copy(machine)
    assert sources(machine, server_id, one) == (path(one), path(new))
    machine.guests.copy(server_id, new, Following())
    assert sources(machine, server_id, one) == (path(new),)


def test_copy_under_way_is_ended_by_staying(machine: Machine) -> None:
    server_id, one, new = begin_copy(machine)
    for _ in range(2):
        assert machine.guests.stay_on(server_id, new) is True
        assert sources(machine, server_id, one) == (path(one),)


def test_disk_that_is_being_copied_is_busy(machine: Machine) -> None:
    server_id, one, new = begin_copy(machine)
    with pytest.raises(PortError) as raised:
        machine.guests.unplug(server_id, one.serial)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "guest_busy")
    elsewhere = moved(one, machine.volume(str(uuid.uuid4())))
    with pytest.raises(PortError) as raised:
        machine.guests.copy(server_id, elsewhere, Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "guest_busy")
    assert machine.guests.stay_on(server_id, new) is True


def test_copy_to_nowhere_fails_and_changes_nothing(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    with pytest.raises(PortError) as raised:
        machine.guests.copy(server_id, moved(one, "/nowhere/at-all"), Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "copy_failed")
    assert sources(machine, server_id, one) == (path(one),)


def test_guest_that_is_off_has_no_disk_copied(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    new = moved(one, machine.volume(str(uuid.uuid4())))
    with pytest.raises(PortError) as raised:
        machine.guests.copy(server_id, new, Following())
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_not_running")
    assert machine.guests.stay_on(server_id, new) is True


def test_transient_guest_has_its_live_disk_copied(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING, transient=True)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    new = moved(one, machine.volume(str(uuid.uuid4())))
    machine.guests.copy(server_id, new, Following())
    assert sources(machine, server_id, one) == (path(new),)


def test_disks_are_booted_from_in_their_order_and_each_number_is_taken_once(
    machine: Machine,
) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    root, second, again = (
        replace(disk(machine, f"vd{letter}"), boot_index=index)
        for letter, index in (("a", 0), ("b", 1), ("c", 0))
    )
    machine.guests.spawn(server_id, definition(machine, server_id), [root], running=False)
    machine.guests.plug(server_id, second)
    machine.guests.plug(server_id, again)
    domain = machine.hypervisor.domain(server_id)
    assert domain is not None
    assert domain.persistent_xml is not None
    assert disk_xml.parse(domain.persistent_xml).boot_orders == {"1", "2"}
    assert domain.persistent_xml.count("<boot order=") == 2
    assert machine.guests.start(server_id) is RUNNING
