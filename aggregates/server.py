"""What an instance is made of: its states, devices and claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: Letters a to zz; libvirt's PCI topology ends long before.
DEVICES_MAX = 26 + 26 * 26


class VmState(StrEnum):
    """Nova's vm_state; derived from what flows did, power state and faults."""

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


class SeenDisks(NamedTuple):
    """The disks of a guest as its host shows them: their targets, and serials that are ids."""

    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


NO_DISKS = SeenDisks()


@dataclass(frozen=True)
class Claim:
    """An operation at work on the server, or parked; `flow` tells people which."""

    exclusive: bool
    flow: str | None
    parked: bool = False


def letters() -> Iterator[str]:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    yield from alphabet
    yield from (first + second for first in alphabet for second in alphabet)
