"""The Guests port, disks: one behaviour, simulated and over the real libvirt and QEMU.

The real one is of the lab (conftest.py).  Guests without an operating system let go of
virtio-scsi disks and never of virtio-blk ones, which is what a stubborn guest is here.
With LEDGER_LAB_GUEST, a directory with `vmlinux` and `initramfs.cpio`, a real one boots.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.libvirt.guests import HypervisorGuests, Patience
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, DiskState, PortError
from host_agent.storage import connection
from tests.agent.test_limits import SPECS
from tests.contracts.machines import Following, Machine, RealMachine, disk, moved

WAIT_S = 90.0  # a system boots in 4 s on an idle machine


NOWHERE = DiskState(live=None, persistent=None, running=False)


@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN])
def test_plugged_disk_is_in_both_copies_and_unplugged_from_both(
    machine: Machine, power: PowerState
) -> None:
    server_id = machine.new_guest(power)
    one, running = disk(machine), power is not PowerState.SHUTDOWN
    expected = DiskState(live="sdb" if running else None, persistent="sdb", running=running)

    assert machine.guests.plug(server_id, one) == expected
    assert machine.guests.disk(server_id, one.serial) == expected
    assert machine.guests.plug(server_id, one) == expected, "again"
    if power is PowerState.PAUSED:
        machine.power(server_id, PowerState.RUNNING)  # only a running guest can let go

    gone = DiskState(live=None, persistent=None, running=running)
    assert machine.guests.unplug(server_id, one.serial) == gone
    assert machine.guests.unplug(server_id, one.serial) == gone, "again"
    assert machine.guests.disk(server_id, one.serial) == gone


def test_transient_guest_has_only_a_live_copy(machine: Machine) -> None:
    server_id = machine.new_guest(PowerState.RUNNING, transient=True)
    one = disk(machine)
    state = machine.guests.plug(server_id, one)
    assert state == DiskState(live="sdb", persistent=None, running=True)
    machine.guests.unplug(server_id, one.serial)
    assert machine.guests.disk(server_id, one.serial).live is None


def test_unplug_from_a_guest_that_is_not_there_is_success(machine: Machine) -> None:
    assert machine.guests.unplug(str(uuid.uuid4()), "v") == NOWHERE
    assert machine.guests.disk("no-uuid-at-all", "v") == NOWHERE


def test_plug_into_a_guest_that_is_not_there_is_final(machine: Machine) -> None:
    with pytest.raises(PortError) as raised:
        machine.guests.plug(str(uuid.uuid4()), disk(machine))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_missing")


def test_name_that_another_disk_has_is_refused_and_changes_nothing(machine: Machine) -> None:
    server_id = machine.new_guest(PowerState.RUNNING)
    machine.guests.plug(server_id, disk(machine))
    other = disk(machine)
    with pytest.raises(PortError) as raised:
        machine.guests.plug(server_id, other)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "device_name_taken")
    assert machine.guests.disk(server_id, other.serial).persistent is None


def test_stubborn_guest_keeps_the_disk_in_both_copies(machine: Machine) -> None:
    server_id = machine.new_guest(PowerState.RUNNING)
    one = disk(machine, "vdb")
    machine.guests.plug(server_id, one)
    machine.stubborn(server_id)
    with pytest.raises(PortError) as raised:
        machine.guests.unplug(server_id, one.serial)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_refused")
    both = DiskState(live="vdb", persistent="vdb", running=True)
    assert machine.guests.disk(server_id, one.serial) == both


def test_guest_that_is_stopped_while_it_refuses_loses_the_disk_at_last(machine: Machine) -> None:
    server_id = machine.new_guest(PowerState.RUNNING)
    one = disk(machine, "vdb")
    machine.guests.plug(server_id, one)
    machine.stubborn(server_id)
    with pytest.raises(PortError):
        machine.guests.unplug(server_id, one.serial)
    machine.power(server_id, PowerState.SHUTDOWN)
    machine.guests.unplug(server_id, one.serial)
    assert machine.guests.disk(server_id, one.serial) == NOWHERE


def test_no_free_port_is_final_says_so_and_changes_nothing(machine: Machine) -> None:
    # One port is the scsi controller's in the real machine.
    server_id = machine.new_guest(PowerState.RUNNING, ports=2)
    full: PortError | None = None
    for letter in "bcd":
        one = disk(machine, f"vd{letter}")
        try:
            machine.guests.plug(server_id, one)
        except PortError as error:
            full = error
            break
    assert full is not None
    assert (full.kind, full.code) == (ErrorKind.FINAL, "no_free_pci_port")
    assert machine.guests.disk(server_id, one.serial) == DiskState(
        live=None, persistent=None, running=True
    )


def test_multiattach_disk_is_shared_by_two_guests(machine: Machine) -> None:
    first, second = (machine.new_guest(PowerState.RUNNING) for _ in range(2))
    one = disk(machine, shareable=True)
    machine.guests.plug(first, one)
    machine.guests.plug(second, one)
    machine.guests.unplug(first, one.serial)
    assert machine.guests.disk(first, one.serial).live is None
    assert machine.guests.disk(second, one.serial).live == "sdb"


def test_disk_left_in_one_copy_is_completed_under_the_same_name(machine: Machine) -> None:
    server_id = machine.new_guest(PowerState.SHUTDOWN)
    one = disk(machine)
    machine.guests.plug(server_id, one)
    machine.power(server_id, PowerState.RUNNING)
    again = disk(machine, "sdc", one.serial)
    assert machine.guests.plug(server_id, again).live == "sdb"


def test_inventory_shows_name_owner_power_and_disks(machine: Machine) -> None:
    running = machine.new_guest(PowerState.RUNNING, ports=4)
    stopped = machine.new_guest(PowerState.SHUTDOWN)
    machine.guests.plug(running, disk(machine))
    found = {guest.server_id: guest for guest in machine.guests.inventory()}
    assert found[running].power_state is PowerState.RUNNING
    assert found[stopped].power_state is PowerState.SHUTDOWN
    assert "sdb" in found[running].devices
    assert (found[running].project_id, found[running].user_id) == ("p-1", "u-1")
    assert found[running].name
    assert machine.guests.guest(running) == found[running]
    assert machine.guests.guest(str(uuid.uuid4())) is None


# --- what only the real one can show ------------------------------------------------------------


def system() -> str:
    guest = os.environ.get("LEDGER_LAB_GUEST")
    if not guest:
        pytest.skip("LEDGER_LAB_GUEST names no directory with vmlinux and initramfs.cpio")
    return (
        f"<kernel>{guest}/vmlinux</kernel><initrd>{guest}/initramfs.cpio</initrd>"
        "<cmdline>console=ttyS0 quiet nokaslr mitigations=off no_timer_check panic=-1</cmdline>"
    )


def until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def patient(real: RealMachine, detach_timeout_s: float = 3.0) -> HypervisorGuests:
    """For guests that will let go, whenever their emulated processor gets to it."""
    return HypervisorGuests(
        real.driver, Patience(detach_attempts=30, detach_timeout_s=detach_timeout_s)
    )


def booted(real: RealMachine, server_id: str) -> bool:
    log = real.path / f"{server_id}.console"
    return log.exists() and b"GUEST-READY" in log.read_bytes()


@pytest.mark.lab
def test_real_guest_lets_go_of_a_virtio_disk(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING, system=system())
    until(lambda: booted(real, server_id), "the guest to boot")
    one = disk(real, "vdb")
    real.guests.plug(server_id, one)
    patient(real).unplug(server_id, one.serial)
    gone = DiskState(live=None, persistent=None, running=True)
    assert real.guests.disk(server_id, one.serial) == gone


@pytest.mark.lab
def test_unplug_that_is_lost_while_the_guest_boots_is_tried_again(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING, system=system())
    one = disk(real, "vdb")
    real.guests.plug(server_id, one)
    assert not booted(real, server_id)
    patient(real).unplug(server_id, one.serial)
    assert real.guests.disk(server_id, one.serial).live is None


@pytest.mark.lab
def test_paused_guest_refuses_is_told_so_and_lets_go_later(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING, system=system())
    until(lambda: booted(real, server_id), "the guest to boot")
    one = disk(real, "vdb")
    real.guests.plug(server_id, one)
    real.power(server_id, PowerState.PAUSED)
    with pytest.raises(PortError, match="paused") as raised:
        real.guests.unplug(server_id, one.serial)
    assert raised.value.code == "guest_refused"
    real.power(server_id, PowerState.RUNNING)
    patient(real).unplug(server_id, one.serial)
    assert real.guests.disk(server_id, one.serial).persistent is None


@pytest.mark.lab
def test_guest_that_stops_during_the_unplug_ends_the_wait(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING)
    one = disk(real, "vdb")
    real.guests.plug(server_id, one)
    done = threading.Event()

    def unplug() -> None:
        patient(real, detach_timeout_s=600.0).unplug(server_id, one.serial)
        done.set()

    threading.Thread(target=unplug, daemon=True).start()
    until(lambda: real.driver._watchers, "the unplug to wait")
    real.power(server_id, PowerState.SHUTDOWN)
    assert done.wait(WAIT_S)
    assert real.guests.disk(server_id, one.serial) == NOWHERE


@pytest.mark.lab
def test_changes_of_guests_wake_the_subscriber(real: RealMachine) -> None:
    woken = threading.Event()
    real.guests.subscribe(woken.set)
    real.guests.inventory()
    real.new_guest(PowerState.RUNNING)
    assert woken.wait(WAIT_S)


@pytest.mark.lab
def test_broken_connection_is_opened_again(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.SHUTDOWN)
    before = real.driver._open()
    before.close()  # as a restart of libvirtd does to it
    with suppress(PortError):
        real.guests.inventory()
    assert server_id in {guest.server_id for guest in real.guests.inventory()}
    assert real.driver._open() is not before


@pytest.mark.lab
def test_hypervisor_that_is_not_there_is_retryable(tmp_path: Path) -> None:
    from host_agent.libvirt.driver import Libvirt

    pytest.importorskip("libvirt")
    nobody = Libvirt(f"qemu+unix:///system?socket={tmp_path}/nobody")
    with pytest.raises(PortError) as raised:
        HypervisorGuests(nobody, Patience()).inventory()
    assert (raised.value.kind, raised.value.code) == (
        ErrorKind.RETRYABLE,
        "hypervisor_unreachable",
    )


@pytest.mark.lab
def test_scsi_disk_needs_a_controller_and_says_so(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING, scsi=False)
    with pytest.raises(PortError) as raised:
        real.guests.plug(server_id, disk(real))
    assert raised.value.code == "no_scsi_controller"


@pytest.mark.lab
@pytest.mark.parametrize("name", ["sdb", "sdz", "hdb", "sdaa"])
def test_any_scsi_name_is_plugged_on_the_one_controller(real: RealMachine, name: str) -> None:
    server_id = real.new_guest(PowerState.RUNNING)
    one = Disk(
        serial=str(uuid.uuid4()),
        source={"type": "file", "path": real.volume("v")},
        device_name=name,
        bus="scsi",
    )
    both = DiskState(live=name, persistent=name, running=True)
    assert real.guests.plug(server_id, one) == both
    assert "lsilogic" not in real.domain(server_id).XMLDesc(0)
    real.guests.unplug(server_id, one.serial)
    assert real.guests.disk(server_id, one.serial).persistent is None


@pytest.mark.lab
def test_disk_is_described_as_nova_does(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.RUNNING)
    one = disk(real, discard=True, shareable=True, readonly=True)
    real.guests.plug(server_id, one)
    for flags in (0, 2):
        xml = real.domain(server_id).XMLDesc(flags)
        for part in (
            "cache='none'",
            "io='native'",
            "discard='unmap'",
            "<shareable/>",
            "<readonly/>",
            f"<serial>{one.serial}</serial>",
            f"<alias name='ua-{one.serial}'/>",
        ):
            assert part in xml, part


@pytest.mark.lab
def test_live_change_of_a_stopped_guest_is_known_as_such(real: RealMachine) -> None:
    server_id = real.new_guest(PowerState.SHUTDOWN)
    from host_agent.libvirt import disk_xml

    xml = disk_xml.build(disk(real))
    with pytest.raises(HypervisorError) as raised:
        real.driver.attach(server_id, xml, live=True, persistent=False)
    assert raised.value.trouble is Trouble.DOMAIN_INACTIVE
    with pytest.raises(HypervisorError) as raised:
        real.driver.detach(server_id, xml, live=False, persistent=True)
    assert raised.value.trouble is Trouble.DEVICE_MISSING


#: All limits that Nova knows, in two lots: a total goes with no other.
LIMITED: list[dict[str, int]] = [
    {
        **{f"{side}_{unit}_sec": 1000 for side in sides for unit in ("bytes", "iops")},
        **{f"{side}_{unit}_sec_max": 2000 for side in sides for unit in ("bytes", "iops")},
        "size_iops_sec": 4096,
    }
    for sides in (("total",), ("read", "write"))
]


@pytest.mark.lab
@pytest.mark.parametrize("limits", LIMITED, ids=["total", "both ways"])
@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_limits_and_block_sizes_are_qemus(
    real: RealMachine, power: PowerState, limits: dict[str, int]
) -> None:
    """Plugged into the running guest, or started with it."""
    server_id = real.new_guest(power)
    sizes = {"logical_block_size": 4096, "physical_block_size": 4096}
    one = disk(real, "vdb", iotune=limits, blockio=sizes)
    real.guests.plug(server_id, one)
    real.guests.start(server_id)
    found = real.domain(server_id).blockIoTune("vdb")
    assert {name: found[name] for name in limits} == limits
    assert "logical_block_size='4096'" in real.domain(server_id).XMLDesc(0)
    real.guests.stop(server_id, force=True)
    real.guests.replace(server_id, disk(real, "vdb", one.serial, iotune={"read_iops_sec": 5}))
    real.guests.start(server_id)
    found = real.domain(server_id).blockIoTune("vdb")
    assert {name for name, limit in found.items() if limit and name in connection.LIMITS} == {
        "read_iops_sec"
    }


@pytest.mark.lab
def test_a_copied_disk_has_the_limits_of_its_new_volume_from_the_next_start(
    real: RealMachine,
) -> None:
    def found() -> list[int]:
        domain = real.domain(server_id)
        return [domain.blockIoTune("sdb", flags)["total_iops_sec"] for flags in (1, 2)]

    server_id, one = real.new_guest(PowerState.RUNNING), disk(real, iotune={"total_iops_sec": 500})
    real.guests.plug(server_id, one)
    new = replace(moved(one, real.volume("new")), iotune={"total_iops_sec": 700})
    real.guests.copy(server_id, new, Following())
    assert real.guests.disk(server_id, one.serial).sources == (new.source["path"],)
    assert found() == [500, 700]
    real.guests.stop(server_id, force=True)
    real.guests.start(server_id)
    assert found() == [700, 700]


@pytest.mark.lab
@pytest.mark.parametrize("name", SPECS)
def test_a_guest_starts_with_any_qos_spec(real: RealMachine, name: str) -> None:
    server_id = real.new_guest(PowerState.SHUTDOWN)
    limits, _ = connection.iotune({"qos_specs": SPECS[name][0]})
    real.guests.plug(server_id, disk(real, iotune=limits))
    assert real.guests.start(server_id) is PowerState.RUNNING
    plugged = disk(real, "sdc", iotune=limits)
    assert real.guests.plug(server_id, plugged).live == "sdc"
    found = real.domain(server_id).blockIoTune("sdc")
    assert {name: found[name] for name in limits} == limits
