"""The Guests port, encrypted disks: one behaviour, simulated and over real libvirt and QEMU."""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from host_agent.libvirt.guests import HypervisorGuests
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, DiskState, PortError
from host_agent.simulated.host_state import LUKS_HEAD
from tests.contracts.machines import Following, Machine, RealMachine, SimulatedMachine, disk

RUNNING, SHUTDOWN = PowerState.RUNNING, PowerState.SHUTDOWN
PASSPHRASE = "5ec2e7" * 8
SIZE = str(1 << 20)  # that of plain volumes
#: QEMU measures how fast it can hash, by a clock that may not tick meanwhile: then it gives up.
FORMAT_ATTEMPTS = 10


@pytest.fixture
def locked(machine: Machine) -> Iterator[Callable[..., Disk]]:
    """Makes disks of encrypted volumes, whose secrets are not kept yet."""
    made: list[str] = []

    def make(name: str = "sdb", kind: str = "luks", **over: Any) -> Disk:
        volume_id = str(uuid.uuid4())
        made.append(volume_id)
        path = _path_of(machine, volume_id, kind)
        encryption = {"format": "luks", "secret_uuid": volume_id}
        return Disk(
            serial=volume_id,
            source={"type": "file", "path": path, "encryption": encryption},
            device_name=name,
            bus="scsi" if name.startswith("sd") else "virtio",
            format="raw" if kind == "luks" else kind,
            **over,
        )

    yield make
    for guests in filter(None, (machine.guests, machine.there)):
        for volume_id in made:
            guests.drop_secret(volume_id)


def _path_of(machine: Machine, volume_id: str, kind: str) -> str:
    if isinstance(machine, SimulatedMachine):
        made = machine.volume(volume_id)
        with machine.store.edit() as state:  # as qemu-img does: the head comes on top
            state["connected"][volume_id]["bytes"] += LUKS_HEAD
        return made
    assert isinstance(machine, RealMachine)
    path = machine.path / volume_id
    path.write_bytes(_blank(kind))
    return str(path)


@cache
def _blank(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return _formatted(kind, Path(directory) / "volume").read_bytes()


def _formatted(kind: str, path: Path) -> Path:
    prefix = "" if kind == "luks" else "encrypt."
    options = f"{prefix}key-secret=key,{prefix}iter-time=10"  # ms to unlock it
    options += "" if kind == "luks" else ",encrypt.format=luks"
    command = ["qemu-img", "create", "-q", "-f", kind, "-o", options]
    command += ["--object", f"secret,id=key,data={PASSPHRASE}", str(path), SIZE]
    for _ in range(FORMAT_ATTEMPTS):
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return path
    raise AssertionError(f"qemu-img cannot make {path}")


def there_of(machine: Machine) -> HypervisorGuests:
    if machine.there is None:
        pytest.skip("LAB_LIBVIRT_URI_2 names no other hypervisor")
    return machine.there


def refused(code: str, call: Callable[[], object]) -> PortError:
    with pytest.raises(PortError) as raised:
        call()
    assert raised.value.code == code
    assert PASSPHRASE not in raised.value.message
    return raised.value


def sources(machine: Machine, server_id: str, one: Disk) -> tuple[str, ...]:
    return machine.guests.disk(server_id, one.serial).sources


@pytest.mark.parametrize("kind", ["luks", "qcow2"])
def test_encrypted_disk_is_plugged_with_its_secret_and_not_without(
    machine: Machine, locked: Callable[..., Disk], kind: str
) -> None:
    server_id, one = machine.new_guest(RUNNING), locked(kind=kind)
    nowhere = DiskState(live=None, persistent=None, running=True)
    error = refused("secret_missing", lambda: machine.guests.plug(server_id, one))
    assert error.kind is ErrorKind.RETRYABLE, "whoever tries again keeps it first"
    assert machine.guests.disk(server_id, one.serial) == nowhere

    assert machine.guests.keep_secret(one.serial, PASSPHRASE) == one.serial
    plugged = DiskState(live="sdb", persistent="sdb", running=True)
    assert machine.guests.plug(server_id, one) == plugged
    assert machine.guests.keep_secret(one.serial, PASSPHRASE) == one.serial, "again"
    assert machine.guests.plug(server_id, one) == plugged, "again"
    assert machine.guests.unplug(server_id, one.serial) == nowhere


def test_dropping_a_secret_twice_is_success(machine: Machine, locked: Callable[..., Disk]) -> None:
    one = locked()
    machine.guests.keep_secret(one.serial, PASSPHRASE)
    machine.guests.drop_secret(one.serial)
    machine.guests.drop_secret(one.serial)
    server_id = machine.new_guest(RUNNING)
    refused("secret_missing", lambda: machine.guests.plug(server_id, one))


def test_guest_outlives_its_secret_and_starts_again_only_with_it(
    machine: Machine, locked: Callable[..., Disk]
) -> None:
    """As when the hypervisor's daemon was started anew; the guest's definition has its uuid."""
    server_id, one = machine.new_guest(RUNNING), locked()
    machine.guests.keep_secret(one.serial, PASSPHRASE)
    machine.guests.plug(server_id, one)
    machine.guests.drop_secret(one.serial)
    assert machine.guests.power(server_id) is RUNNING
    assert machine.guests.disk(server_id, one.serial).live == "sdb"
    machine.guests.stop(server_id, force=True)
    refused("secret_missing", lambda: machine.guests.start(server_id))
    assert machine.guests.power(server_id) is SHUTDOWN
    machine.guests.keep_secret(one.serial, PASSPHRASE)
    assert machine.guests.start(server_id) is RUNNING


def test_two_guests_of_a_host_share_an_encrypted_volume(
    machine: Machine, locked: Callable[..., Disk]
) -> None:
    one = locked(shareable=True)
    machine.guests.keep_secret(one.serial, PASSPHRASE)
    first, second = machine.new_guest(RUNNING), machine.new_guest(RUNNING)
    for server_id in (first, second):
        assert machine.guests.plug(server_id, one).live == "sdb"
    machine.guests.unplug(first, one.serial)
    assert machine.guests.disk(second, one.serial).live == "sdb"


def test_migration_needs_the_secret_at_the_destination(
    machine: Machine, locked: Callable[..., Disk]
) -> None:
    there = there_of(machine)
    server_id, one = machine.new_guest(RUNNING), locked()
    machine.guests.keep_secret(one.serial, PASSPHRASE)
    machine.guests.plug(server_id, one)
    source = {**one.source, "path": machine.volume_there(one.serial)}
    disks = [Disk(**{**vars(one), "source": source})]

    def migrate() -> None:
        machine.guests.migrate(server_id, machine.destination, disks, Following())

    with pytest.raises(PortError, match=r"[Ss]ecret"):
        migrate()
    assert machine.guests.power(server_id) is RUNNING
    assert there.power(server_id) is None

    there.keep_secret(one.serial, PASSPHRASE)
    migrate()
    assert there.power(server_id) is RUNNING
    assert there.disk(server_id, one.serial).sources == (source["path"],)
    machine.guests.drop_secret(one.serial)
    assert there.disk(server_id, one.serial).live == "sdb"


@pytest.mark.parametrize("kinds", [("plain", "luks"), ("luks", "plain"), ("luks", "qcow2")])
def test_copy_goes_from_and_to_encrypted_volumes(
    machine: Machine, locked: Callable[..., Disk], kinds: tuple[str, str]
) -> None:
    """Each with its own encryption, or none."""

    def make(kind: str) -> Disk:
        return disk(machine) if kind == "plain" else locked(kind=kind)

    server_id, old, other = machine.new_guest(RUNNING), *map(make, kinds)
    new = Disk(**{**vars(other), "serial": old.serial})
    if "encryption" in old.source:
        machine.guests.keep_secret(old.serial, PASSPHRASE)
    machine.guests.plug(server_id, old)
    if "encryption" in new.source:
        refused("secret_missing", lambda: machine.guests.copy(server_id, new, Following()))
        assert sources(machine, server_id, old) == (old.source["path"],)
        machine.guests.keep_secret(other.serial, PASSPHRASE)
    machine.guests.copy(server_id, new, Following())
    assert sources(machine, server_id, old) == (new.source["path"],)
    machine.guests.drop_secret(old.serial)
    machine.guests.stop(server_id, force=True)
    assert machine.guests.start(server_id) is RUNNING


def novas_secret(machine: Machine, volume_id: str) -> str:
    """Define one by a uuid of its own, as Nova does."""
    novas = str(uuid.uuid4())
    if not isinstance(machine, RealMachine):
        return machine.guests.keep_secret(novas, PASSPHRASE)
    usage = f"<usage type='volume'><volume>{volume_id}</volume></usage>"
    secret = machine.connection.secretDefineXML(f"<secret><uuid>{novas}</uuid>{usage}</secret>")
    secret.setValue(PASSPHRASE.encode())
    return novas


def test_adopted_guest_keeps_its_disk_though_its_secret_is_another_one(
    machine: Machine, locked: Callable[..., Disk]
) -> None:
    """libvirtd forgot the one that the guest names: the agent's has the volume's id."""
    server_id, one = machine.new_guest(RUNNING), locked()
    novas = novas_secret(machine, one.serial)
    locked_by_nova = {**one.source, "encryption": {"format": "luks", "secret_uuid": novas}}
    machine.guests.plug(server_id, replace(one, source=locked_by_nova))
    for forgotten in (one.serial, novas):
        machine.guests.drop_secret(forgotten)
    assert machine.guests.keep_secret(one.serial, PASSPHRASE) == one.serial

    machine.guests.replace(server_id, one)
    plain = {key: value for key, value in one.source.items() if key != "encryption"}
    refused(
        "refresh_needs_stop",
        lambda: machine.guests.replace(server_id, replace(one, source=plain)),
    )
    assert machine.guests.disk(server_id, one.serial).differs == ()
    machine.guests.stop(server_id, force=True)
    machine.guests.replace(server_id, one)
    assert machine.guests.start(server_id) is RUNNING


# --- what only the real one can show ------------------------------------------------------------


@pytest.mark.lab
def test_nobody_can_read_a_secret_and_it_is_never_on_a_disk(real: RealMachine) -> None:
    import libvirt

    name = str(uuid.uuid4())
    real.guests.keep_secret(name, PASSPHRASE)
    try:
        kept = real.connection.secretLookupByUUIDString(name)
        definition = kept.XMLDesc()
        assert ("ephemeral='yes'" in definition, "private='yes'" in definition) == (True, True)
        with pytest.raises(libvirt.libvirtError, match="private"):
            kept.value()
    finally:
        real.guests.drop_secret(name)
    with pytest.raises(libvirt.libvirtError):
        real.connection.secretLookupByUUIDString(name)


@pytest.fixture
def novas(real: RealMachine) -> Iterator[Any]:
    """The secret of a volume as Nova 34 defines it: by a uuid of its own, and in files."""
    usage = f"<usage type='volume'><volume>{uuid.uuid4()}</volume></usage>"
    xml = f"<secret ephemeral='no' private='no'>{usage}</secret>"
    secret = real.connection.secretDefineXML(xml)
    secret.setValue(PASSPHRASE.encode())
    yield secret
    real.guests.drop_secret(secret.usageID())


def is_there(real: RealMachine, volume_id: str) -> bool:
    return volume_id in {secret.usageID() for secret in real.connection.listAllSecrets()}


@pytest.mark.lab
def test_secret_of_novas_becomes_ours_under_its_uuid(real: RealMachine, novas: Any) -> None:
    """By which its guest is defined, and can start again."""
    import libvirt

    volume_id, theirs = novas.usageID(), novas.UUIDString()
    encryption = {"format": "luks", "secret_uuid": theirs}
    source = {"type": "file", "path": _path_of(real, volume_id, "luks"), "encryption": encryption}
    one = Disk(serial=volume_id, source=source, device_name="sdb", bus="scsi")
    server_id = real.new_guest(RUNNING)
    real.guests.plug(server_id, one)
    assert volume_id not in real.guests.secrets()
    for _ in range(2):
        assert real.guests.keep_secret(volume_id, PASSPHRASE) == theirs
        assert volume_id in real.guests.secrets()
    kept = real.connection.secretLookupByUUIDString(theirs)
    assert "ephemeral='yes' private='yes'" in kept.XMLDesc()
    with pytest.raises(libvirt.libvirtError, match="private"):
        kept.value()
    real.guests.stop(server_id, force=True)
    assert real.guests.start(server_id) is RUNNING
    real.guests.drop_secret(volume_id)
    assert not is_there(real, volume_id)


@pytest.mark.lab
def test_secret_of_novas_is_dropped_with_its_volume(real: RealMachine, novas: Any) -> None:
    """Also if the volume was never connected by us."""
    volume_id = novas.usageID()
    real.guests.drop_secret(volume_id)
    assert not is_there(real, volume_id)


@pytest.mark.lab
def test_wrong_passphrase_is_final_and_not_told(real: RealMachine) -> None:
    path = _path_of(real, name := str(uuid.uuid4()), "luks")
    source = {"type": "file", "path": path}
    encryption = {"format": "luks", "secret_uuid": name}
    one = Disk(
        serial=name, source={**source, "encryption": encryption}, device_name="sdb", bus="scsi"
    )
    real.guests.keep_secret(name, "another passphrase")
    try:
        server_id = real.new_guest(RUNNING)
        error = refused("hypervisor_error", lambda: real.guests.plug(server_id, one))
        assert error.kind is ErrorKind.FINAL
        assert "another passphrase" not in error.message
    finally:
        real.guests.drop_secret(name)
