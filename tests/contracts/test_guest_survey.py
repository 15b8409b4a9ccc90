"""The Guests port, surveys: one behaviour, simulated and over real libvirt and QEMU."""

from __future__ import annotations

import uuid

import pytest

from host_agent.libvirt.guests import HypervisorGuests
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.survey import DiskShown, GuestShown
from tests.contracts.machines import PATIENCE, VOLUME_BYTES, Machine, RealMachine, disk

RUNNING, PAUSED, SHUTDOWN = PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN
PASSPHRASE = "5ec2e7" * 8


def guest_of(machine: Machine, server_id: str) -> GuestShown:
    [found] = [each for each in machine.guests.survey().guests if each.server_id == server_id]
    return found


@pytest.mark.parametrize("power", [RUNNING, PAUSED, SHUTDOWN])
def test_a_volumes_disk_is_shown_in_both_copies_of_its_guest(
    machine: Machine, power: PowerState
) -> None:
    server_id, one = machine.new_guest(power), disk(machine)
    machine.guests.plug(server_id, one)
    running = power is not SHUTDOWN
    shown = DiskShown(
        serial=one.serial,
        live="sdb" if running else None,
        persistent="sdb",
        readonly_live=False if running else None,
        readonly_persistent=False,
        source=one.source["path"],
    )
    guest = guest_of(machine, server_id)
    assert guest == GuestShown(server_id=server_id, power_state=power, disks=(shown,))
    assert one.source["path"] in machine.guests.survey().sources


def test_a_transient_guest_has_no_definition(machine: Machine) -> None:
    server_id, one = machine.new_guest(RUNNING, transient=True), disk(machine)
    machine.guests.plug(server_id, one)
    guest = guest_of(machine, server_id)
    [shown] = guest.disks
    assert (guest.defined, shown.live, shown.persistent) == (False, "sdb", None)
    assert (shown.readonly_live, shown.readonly_persistent, shown.differs) == (False, None, ())


def test_a_disk_that_one_copy_lacks_is_shown_to_differ(machine: Machine) -> None:
    server_id, live, defined = machine.new_guest(RUNNING), disk(machine), disk(machine, "sdc")
    for one in (live, defined):
        machine.guests.plug(server_id, one)
    for one, in_live in ((live, False), (defined, True)):
        xml = machine.hypervisor.domain(server_id)
        assert xml is not None
        machine.hypervisor.detach(
            server_id,
            _element(xml.persistent_xml, one.serial),
            live=in_live,
            persistent=not in_live,
        )
    _settled(machine, server_id, defined.serial)
    shown = {each.serial: each for each in guest_of(machine, server_id).disks}
    assert (shown[live.serial].live, shown[live.serial].persistent) == ("sdb", None)
    assert (shown[defined.serial].live, shown[defined.serial].persistent) == (None, "sdc")
    assert {each.differs for each in shown.values()} == {("presence",)}


def _element(domain: str | None, serial: str) -> str:
    from host_agent.libvirt import disk_xml

    found = disk_xml.parse(domain or "<domain/>").disk_of(serial)
    assert found is not None
    return found.xml


def _settled(machine: Machine, server_id: str, serial: str) -> None:
    """A real guest lets go of a live disk after the request has returned."""
    if isinstance(machine, RealMachine):
        waited = machine.guests._wait_for(
            lambda: machine.guests.disk(server_id, serial).live is None, 30.0
        )
        assert waited


def test_a_read_only_disk_is_shown_as_one(machine: Machine) -> None:
    server_id, one = machine.new_guest(RUNNING), disk(machine, readonly=True)
    machine.guests.plug(server_id, one)
    [shown] = guest_of(machine, server_id).disks
    assert (shown.readonly_live, shown.readonly_persistent) == (True, True)


def test_guests_and_their_disks_come_in_order_and_the_same_twice(machine: Machine) -> None:
    servers = [machine.new_guest(SHUTDOWN) for _ in range(3)]
    for server_id in servers:
        for name in ("sdb", "sdc", "sdd"):
            machine.guests.plug(server_id, disk(machine, name))
    survey = machine.guests.survey()
    ids = [guest.server_id for guest in survey.guests]
    assert ids == sorted(ids)
    assert set(servers) <= set(ids)
    for server_id in servers:
        serials = [each.serial for each in guest_of(machine, server_id).disks]
        assert (serials, len(serials)) == (sorted(serials), 3)
    again = machine.guests.survey().guests
    own = [guest for guest in survey.guests if guest.server_id in servers]
    assert [guest for guest in again if guest.server_id in servers] == own


@pytest.mark.parametrize("power", [RUNNING, PAUSED])
def test_running_guests_tell_how_large_their_disks_are(machine: Machine, power: PowerState) -> None:
    server_id, one, other = machine.new_guest(power), disk(machine), disk(machine, "sdc")
    for each in (one, other):
        machine.guests.plug(server_id, each)
    sizes = machine.guests.sizes()
    for target in ("sdb", "sdc"):
        told = sizes[server_id, target]
        assert told == machine.hypervisor.size(server_id, target) == VOLUME_BYTES
    machine.guests.grow(server_id, one.serial, 2 * VOLUME_BYTES, unit=VOLUME_BYTES)
    assert machine.guests.sizes()[server_id, "sdb"] == 2 * VOLUME_BYTES


def test_of_a_guest_that_is_off_no_size_is_told(machine: Machine) -> None:
    server_id = machine.new_guest(SHUTDOWN)
    machine.guests.plug(server_id, disk(machine))
    assert not [id_ for id_, _ in machine.guests.sizes() if id_ == server_id]


def test_every_disk_tells_what_it_reads_and_writes_and_its_id_if_it_has_one(
    machine: Machine,
) -> None:
    server_id, one = machine.new_guest(RUNNING), disk(machine)
    machine.guests.plug(server_id, one)
    opened = [each for each in machine.guests.survey().opened if each.server_id == server_id]
    [mine] = [each for each in opened if each.serial == one.serial]
    assert (mine.target, mine.live, mine.sources) == ("sdb", True, (one.source["path"],))
    assert all(each.serial is None for each in opened if each is not mine), "its own disks"


def test_a_guests_own_disks_are_none_of_volumes(machine: Machine) -> None:
    server_id = machine.new_guest(RUNNING)
    assert guest_of(machine, server_id).disks == ()


def test_kept_secrets_are_shown_by_their_volumes_and_no_value_is(machine: Machine) -> None:
    one, two = sorted(str(uuid.uuid4()) for _ in range(2))
    try:
        for volume_id in (two, one):
            machine.guests.keep_secret(volume_id, PASSPHRASE)
        kept = [volume_id for volume_id in machine.guests.secrets() if volume_id in (one, two)]
        assert kept == [one, two]
        assert PASSPHRASE not in str(machine.guests.secrets())
    finally:
        for volume_id in (one, two):
            machine.guests.drop_secret(volume_id)
    assert not {one, two} & set(machine.guests.secrets())


@pytest.mark.lab
def test_secrets_of_others_are_left_out(real: RealMachine) -> None:
    """Nova's are in files, and whoever asks libvirt may read them."""
    volume_id = str(uuid.uuid4())
    xml = f"<secret ephemeral='no' private='no'><usage type='volume'><volume>{volume_id}</volume>"
    secret = real.connection.secretDefineXML(f"{xml}</usage></secret>")
    try:
        assert volume_id not in real.guests.secrets()
    finally:
        secret.undefine()


@pytest.mark.lab
@pytest.mark.parametrize("power", [RUNNING, SHUTDOWN])
def test_a_connection_that_only_reads_shows_the_same(real: RealMachine, power: PowerState) -> None:
    """`attachment-ledger-agent survey` has no other."""
    from host_agent.libvirt.driver import Libvirt

    server_id, one = real.new_guest(power), disk(real)
    real.guests.plug(server_id, one)
    real.guests.keep_secret(one.serial, PASSPHRASE)
    reads = HypervisorGuests(Libvirt(real.connection.getURI(), reads=True), PATIENCE)
    try:
        for tells in (HypervisorGuests.survey, HypervisorGuests.sizes, HypervisorGuests.secrets):
            assert tells(reads) == tells(real.guests)
        assert one.serial in reads.secrets()
        with pytest.raises(PortError, match="read only"):
            reads.drop_secret(one.serial)
    finally:
        real.guests.drop_secret(one.serial)
