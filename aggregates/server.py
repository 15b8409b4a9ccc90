"""The parts of an instance: its states, devices and claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from aggregates import errors

#: Letters a to zz; libvirt's PCI topology ends long before.
DEVICES_MAX = 26 + 26 * 26


class VmState(StrEnum):
    """Nova's vm_state; derived from completed flows, power state and faults."""

    ACTIVE = "active"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    BUILDING = "building"  # known, never seen in a known power state
    RESIZED = "resized"  # on its new host, until confirmed or reverted
    SHELVED_OFFLOADED = "shelved_offloaded"  # on no host; its volumes are reserved
    DELETED = "deleted"


#: What a power state says by itself; one that is not here (nostate) says nothing.
VM_STATE_OF = {
    "running": VmState.ACTIVE,
    "paused": VmState.PAUSED,
    "shutdown": VmState.STOPPED,
    "crashed": VmState.STOPPED,
}
#: In these a guest uses its volumes.
RUNNING = frozenset({"running", "paused"})


@dataclass(frozen=True)
class Device:
    """A device name given to a volume of this server; `volume_id` None: the root is detached."""

    bdm_id: str
    volume_id: str | None
    device_name: str
    serial: str | None  # the id by which the guest knows the disk


def device_from_event(event: Any) -> Device:
    """The device of an Instance.DeviceReserved."""
    serial = event.serial or event.volume_id
    return Device(event.bdm_id, event.volume_id, event.device_name, serial)


def device_with_volume(known: Device, event: Any) -> Device:
    """The device after an Instance.DeviceVolumeSet."""
    serial = event.serial or (known.serial if event.volume_id else None)
    return replace(known, volume_id=event.volume_id, serial=serial)


class SeenDisks(NamedTuple):
    """The disks of a guest as its host shows them: their targets, and serials that are ids."""

    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


NO_DISKS = SeenDisks()


class Sighting(NamedTuple):
    """A guest shown by a host that is not its server's; `epoch`: of that host at that time."""

    power_state: str
    volumes: tuple[str, ...]
    epoch: int


#: What is kept of a server beside its name, and shown, as it is of one of which nobody said more.
DEFAULT_DETAILS: Mapping[str, Any] = MappingProxyType(
    {
        "description": None,
        "metadata": {},
        "tags": [],
        "access_ip_v4": "",
        "access_ip_v6": "",
        "disk_config": "MANUAL",
        "hostname": None,
    }
)


def merge_details(kept: Mapping[str, Any], changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stored properties with the changed ones; null sets the default."""
    described = {name: changed[name] for name in DEFAULT_DETAILS if name in changed}
    news = {
        name: DEFAULT_DETAILS[name] if value is None else value for name, value in described.items()
    }
    return {**kept, **news}


#: Stands among a server's faults for the operator who says that it is in error.
RESET = "os-resetState"
RESET_MESSAGE = "An operator has set the state of this server to error."


def faults_after(faults: Mapping[str, str], state: str) -> dict[str, str]:
    """The errors that a server shows after os-resetState."""
    return {**faults, RESET: RESET_MESSAGE} if state == "error" else {}


@dataclass(frozen=True)
class ServerClaim:
    """An operation, running or parked, on the server; `flow` is for people."""

    exclusive: bool
    flow: str | None
    parked: bool = False


def in_the_way(
    claims: Mapping[str, ServerClaim], *, exclusive: bool, beside_parked: bool
) -> Iterator[str]:
    """The operations that exclude another one; see Instance.refuse_claimed."""
    for claimant, claim in claims.items():
        passed = beside_parked and claim.parked and not claim.exclusive
        if (claim.exclusive or exclusive) and not passed:
            yield claimant


def next_name(taken: Collection[str], seen: Iterable[str]) -> str:
    """A free device name, on the bus of the disks in `seen`.  Raises TooManyDevicesError."""
    prefix = "sd" if any(name.startswith("sd") for name in seen) else "vd"
    for name in (prefix + each for each in _letters()):
        # "a" is the root device's, whether or not the guest has one now (S2).
        if name not in taken and name != prefix + "a":
            return name
    raise errors.TooManyDevicesError(maximum=DEVICES_MAX)


def serial_for(volume_id: str, bdm_id: str, devices: Iterable[Device]) -> str:
    """The id by which the guest will know a new disk: the volume's, as in Nova.

    After a swap, a disk of another volume may still have that id; then it is the mapping's.
    """
    taken = {device.serial for device in devices if device.bdm_id != bdm_id}
    return bdm_id if volume_id in taken else volume_id


def _letters() -> Iterator[str]:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    yield from alphabet
    yield from (first + second for first in alphabet for second in alphabet)
