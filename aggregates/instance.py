"""A server: where it is, whether it runs, which device names it has given away.

Invariants: at most one live mapping per (server, volume) (LP 1937375); a device
name is given away once; an exclusive claim stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event

#: Letters a to zz; libvirt's PCI topology ends long before.
DEVICES_MAX = 26 + 26 * 26


class VmState(StrEnum):
    """Nova's vm_state; derived from power state and faults."""

    ACTIVE = "active"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    BUILDING = "building"  # registered, never seen in a known power state


#: What a power state says by itself; one that is not here (nostate) says nothing.
VM_STATE_OF = {
    "running": VmState.ACTIVE,
    "paused": VmState.PAUSED,
    "shutdown": VmState.STOPPED,
    "crashed": VmState.STOPPED,
}


@dataclass(frozen=True)
class Device:
    """A device name given to a volume of this server."""

    bdm_id: str
    volume_id: str
    device_name: str


class Instance(Aggregate):
    """The aggregate's id is the server id."""

    @dataclass(frozen=True, kw_only=True)
    class InstanceRegistered(Event):
        """A host showed this guest for the first time."""

        name: str
        host: str
        power_state: str
        devices: list[str]
        project_id: str | None
        user_id: str | None

    @dataclass(frozen=True, kw_only=True)
    class InstanceObserved(Event):
        """Name, host, power state or disk targets differ from what was known."""

        name: str
        host: str
        power_state: str
        devices: list[str]

    @dataclass(frozen=True, kw_only=True)
    class DeviceReserved(Event):
        """A device name is given to a volume; from now on the pair exists once."""

        bdm_id: str
        volume_id: str
        device_name: str

    @dataclass(frozen=True, kw_only=True)
    class DeviceReleased(Event):
        """The device name, and the pair, are free again."""

        bdm_id: str
        volume_id: str

    @dataclass(frozen=True, kw_only=True)
    class Claimed(Event):
        """An operation works on this server; `exclusive` lets no other in."""

        claimant: str
        exclusive: bool

    @dataclass(frozen=True, kw_only=True)
    class ClaimReleased(Event):
        """The operation is over."""

        claimant: str

    @dataclass(frozen=True, kw_only=True)
    class Faulted(Event):
        """An operation parked: the server shows ERROR until an operator solved it (S1)."""

        claimant: str
        message: str

    @dataclass(frozen=True, kw_only=True)
    class FaultCleared(Event):
        """The operation that had parked is over."""

        claimant: str

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.name = ""
        self.host: str | None = None
        self.project_id: str | None = None
        self.user_id: str | None = None
        self.power_state = "nostate"
        self.seen_devices: tuple[str, ...] = ()
        self.devices: dict[str, Device] = {}
        self.claims: dict[str, bool] = {}
        self.faults: dict[str, str] = {}
        self._vm_state = VmState.BUILDING

    def about(self) -> About:
        return About(server_id=str(self.id), host=self.host)

    def apply(self, event: Any) -> None:
        match event:
            case self.InstanceRegistered() | self.InstanceObserved():
                self._observed(event)
            case self.DeviceReserved():
                self.devices[event.bdm_id] = Device(
                    event.bdm_id, event.volume_id, event.device_name
                )
            case self.DeviceReleased():
                released = self.devices.pop(event.bdm_id).device_name
                # Free at once, not only when the host is looked at again.
                self.seen_devices = tuple(d for d in self.seen_devices if d != released)
            case self.Claimed():
                self.claims[event.claimant] = event.exclusive
            case self.ClaimReleased():
                self.claims.pop(event.claimant, None)
            case self.Faulted():
                self.faults[event.claimant] = event.message
            case self.FaultCleared():
                self.faults.pop(event.claimant, None)

    def _observed(self, event: InstanceRegistered | InstanceObserved) -> None:
        self.name, self.host = event.name, event.host
        self.power_state, self.seen_devices = event.power_state, tuple(event.devices)
        # A guest the hypervisor lost keeps the state it had: losing sight is no stop.
        self._vm_state = VM_STATE_OF.get(event.power_state, self._vm_state)
        if isinstance(event, Instance.InstanceRegistered):
            self.project_id, self.user_id = event.project_id, event.user_id

    @property
    def vm_state(self) -> VmState:
        """ERROR while an operation of this server is parked."""
        return VmState.ERROR if self.faults else self._vm_state

    def observe(
        self,
        *,
        name: str,
        host: str,
        power_state: str,
        devices: tuple[str, ...],
        project_id: str | None,
        user_id: str | None,
    ) -> None:
        """Take what a host shows; seeing nothing new records nothing.

        A host cannot take a guest from another one by showing it: only flows move
        guests, or a host that has lost its own.
        """
        if self.version and host != self.host and self.power_state != "nostate":
            return
        seen = {"name": name, "host": host, "power_state": power_state, "devices": list(devices)}
        if self.version == 0:
            self.record(self.InstanceRegistered, **seen, project_id=project_id, user_id=user_id)
        elif (name, host, power_state, devices) != (
            self.name,
            self.host,
            self.power_state,
            self.seen_devices,
        ):
            self.record(self.InstanceObserved, **seen)

    def device_of(self, volume_id: str) -> Device | None:
        """The device of a volume, bound or being bound."""
        return next((d for d in self.devices.values() if d.volume_id == volume_id), None)

    def reserve_device(self, bdm_id: str, volume_id: str, wanted: str | None) -> str:
        """Give `volume_id` a device name: the one wanted if it is free, else the next.

        Raises AlreadyAttachedError, DeviceInUseError, TooManyDevicesError.
        """
        if self.device_of(volume_id):
            raise errors.AlreadyAttachedError(volume_id=volume_id)
        taken = {d.device_name for d in self.devices.values()} | set(self.seen_devices)
        if wanted is not None and wanted in taken:
            raise errors.DeviceInUseError(device=f"/dev/{wanted}")
        name = wanted or self._next_name(taken)
        self.record(self.DeviceReserved, bdm_id=bdm_id, volume_id=volume_id, device_name=name)
        return name

    def release_device(self, bdm_id: str) -> None:
        """Take the device name back, if it is given away."""
        if bdm_id in self.devices:
            volume_id = self.devices[bdm_id].volume_id
            self.record(self.DeviceReleased, bdm_id=bdm_id, volume_id=volume_id)

    def _next_name(self, taken: set[str]) -> str:
        prefix = "sd" if any(name.startswith("sd") for name in self.seen_devices) else "vd"
        for name in (prefix + letters for letters in _letters()):
            # "a" is the root device's, whether or not the guest has one now (S2).
            if name not in taken and name != prefix + "a":
                return name
        raise errors.TooManyDevicesError(maximum=DEVICES_MAX)

    def claim(self, operation_id: str, *, exclusive: bool) -> None:
        """Raises ClaimedError naming the operation in the way."""
        for claimant, alone in self.claims.items():
            if alone or exclusive:
                raise errors.ClaimedError(what="Instance", id=str(self.id), operation_id=claimant)
        self.record(self.Claimed, claimant=operation_id, exclusive=exclusive)

    def release(self, operation_id: str) -> None:
        """End the operation's claim and the fault it may have left."""
        if operation_id in self.faults:
            self.record(self.FaultCleared, claimant=operation_id)
        if operation_id in self.claims:
            self.record(self.ClaimReleased, claimant=operation_id)


def _letters() -> Iterator[str]:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    yield from alphabet
    yield from (first + second for first in alphabet for second in alphabet)
