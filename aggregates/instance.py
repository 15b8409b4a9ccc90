"""A server: its host, its power state, and the device names that are in use.

Invariants: at most one live mapping per (server, volume) (LP 1937375); one device per name; no
other claim beside an exclusive one; only flows move a guest from host to host, whatever hosts show.
The server has the epoch of its host in which its guest arrived or started there: a fence covers
only guests from before it.

A server of a Nova (`origin`) is only observed until it is adopted (decision 0114).  After that no
operation may change it until its host has shown its guest with its volumes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Event
from aggregates.claimable import Claimable
from aggregates.server import (
    DEFAULT_DETAILS,
    NO_DISKS,
    RESET,
    RUNNING,
    VM_STATE_OF,
    Device,
    SeenDisks,
    ServerClaim,
    Sighting,
    VmState,
    device_from_event,
    device_with_volume,
    merge_details,
    next_name,
    serial_for,
)

__all__ = ["RUNNING", "Device", "Instance", "ServerClaim", "VmState"]


class Instance(Claimable):
    """The aggregate's id is the server id."""

    class InstanceRegistered(Event):
        """A host has shown this guest for the first time."""

        name: str
        host: str
        power_state: str
        devices: list[str]
        project_id: str | None
        user_id: str | None
        epoch: int  # of the host then
        volumes: list[str]  # as the disks' serials tell

    class InstanceObserved(Event):
        """Name, host, power state or disk targets of the guest differ from before."""

        name: str
        host: str
        power_state: str
        devices: list[str]
        epoch: int  # of the host then
        volumes: list[str]  # as the disks' serials tell
        restarted: bool = False  # it runs although its host was said to be off since

    class ServerSeen(Event):
        """A server of an observed Nova, as Nova has it now: it is there, also if it was deleted."""

        name: str
        host: str | None
        power_state: str
        vm_state: str  # as VmState
        project_id: str | None
        user_id: str | None

    class ActionsSeen(Event):
        """What was requested of the server before it was observed: its instance actions in Nova.

        Only those that Nova still has and that concern volumes, the oldest first.  An instance
        action names no volume.
        """

        actions: list[dict[str, Any]]  # as NovaTold; `event` ends with .error if it failed
        back_to: str | None  # when the oldest was that Nova told, of any kind
        whole: bool  # one of them made the server: none is missing before it

    class Adopted(Event):
        """A Nova (`came_from`) managed the server; from now on the ledger does."""

        came_from: str
        reason: str
        epoch: int  # of the host then

    class HandedBack(Event):
        """Nova manages the server again; the ledger observes it."""

        to: str
        reason: str

    class Defined(Event):
        """A user has requested this server; it is to be built on `host`."""

        name: str
        host: str
        definition: str
        project_id: str | None
        user_id: str | None
        metadata: dict[str, str] | None = None  # these three: as whoever asked wants it kept
        tags: list[str] | None = None
        description: str | None = None

    class DefinitionChanged(Event):
        """The domain definition of the guest has changed.

        `dropped`: its parts that work only on its present host, and are left out elsewhere.
        """

        definition: str
        dropped: list[str] | None = None

    class Placed(Event):
        """A flow has put the guest on this host, or changed its power state there."""

        host: str
        power_state: str
        epoch: int  # of the host then

    class GuestLeft(Event):
        """A fence counts as proof of the guest's removal; a returning host may still have it."""

        host: str

    class SeenElsewhere(Event):
        """A host shows the guest, although the server is not on that host."""

        host: str
        power_state: str
        volumes: list[str]  # as the disks' serials tell
        epoch: int  # of the host then

    class GoneElsewhere(Event):
        """That host no longer shows the guest."""

        host: str

    class Resized(Event):
        """The guest is moved or resized; `source` keeps the guest of before for a revert."""

        source: str
        source_definition: str

    class ResizeSettled(Event):
        """The resize or migration is confirmed or reverted."""

    class Offloaded(Event):
        """The server is shelved and offloaded: its guest is on no host."""

    class Deleted(Event):
        """The server is deleted; the operation still releases its volumes."""

    class DeletionAwaited(Event):
        """A requested deletion waits for this running operation to end, and starts then."""

        operation_id: str
        request_id: str  # these five: as the operation's own start has them
        actor: dict[str, Any]
        fingerprint: str | None
        global_request_id: str | None
        traceparent: str | None

    class DeviceReserved(Event):
        """A volume gets a device name: from now on the server has this name and volume once."""

        bdm_id: str
        volume_id: str
        device_name: str
        serial: str | None = None

    class DeviceVolumeSet(Event):
        """The device has another volume, or none (swap; detach and attach of the root volume)."""

        bdm_id: str
        volume_id: str | None
        serial: str | None = None  # if it is another disk for the guest

    class DeviceReleased(Event):
        """The device name is free again, and the volume may be attached again."""

        bdm_id: str
        volume_id: str | None

    class Claimed(Event):
        """An operation works on this server; `exclusive`: no other may at the same time."""

        claimant: str
        exclusive: bool
        flow: str | None = None

    class ClaimReleased(Event):
        """The operation has ended."""

        claimant: str

    class Faulted(Event):
        """An operation is parked: the server shows ERROR until an operator resolves it (S1)."""

        claimant: str
        message: str

    class ClaimResumed(Event):
        """A parked operation runs again; the server's fault stays until the operation ends."""

        claimant: str

    class FaultCleared(Event):
        """The operation that was parked has ended."""

        claimant: str

    class GrowthAwaited(Event):
        """Cinder has reported an extended volume, which waits for a running operation.

        `waiting`: Cinder waits for the result.
        """

        volume_id: str
        waiting: bool
        request_id: str
        actor: dict[str, Any]

    class GrowthBegun(Event):
        """The extension has its operation now; `by_operation` None: nothing is left to do."""

        volume_id: str
        by_operation: str | None

    class Described(Event):
        """These properties of the server have changed: `name`, or those of
        `aggregates.server.DEFAULT_DETAILS`.
        """

        changed: dict[str, Any]

    class Locked(Event):
        """The server is locked: only operators may change it.

        `by`: "owner" (a user of its project), or "admin".
        """

        by: str
        reason: str | None

    class Unlocked(Event):
        """The server is unlocked."""

    class StateReset(Event):
        """An operator has reset the state of the server (`os-resetState`): "error", or "active"."""

        state: str

    # What few servers have is here, and set by its event alone: a 30th attribute of each would make
    # it take 1.3 KB more in the cache, for CPython keeps the names of 29 once for all of a class.
    source_definition: str | None = None  # while a resize can be reverted
    deletion: DeletionAwaited | None = None
    locked: Locked | None = None

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.name = ""
        self.host: str | None = None
        self.epoch = 0  # of the host, when the guest came there or began to run there
        self.project_id: str | None = None
        self.user_id: str | None = None
        self.power_state = "nostate"
        self.seen = NO_DISKS
        self.devices: dict[str, Device] = {}
        self.growth: dict[str, Instance.GrowthAwaited] = {}  # by volume: its guest has to hear it
        self.definition: str | None = None
        self.dropped: list[str] | None = None
        self.resize_source: str | None = None
        self.left_on: set[str] = set()  # hosts that may still have a guest that is not theirs
        self.elsewhere: dict[str, Sighting] = {}  # by host: it shows the guest, and is not its own
        self.named = False  # by whoever asked for it, and not by what a host calls it
        self.managed = False  # a flow has said where it is
        self.only_shown = False  # by hosts: no operation has ever had it
        self.origin: str | None = None  # whose it is, if it is only watched
        self.came_from: str | None = None  # whose it was, if it is adopted
        self.unshown = False  # adopted, and its host has not shown it yet as it is to be
        self.offloaded = False
        self.deleted = False
        self.details = DEFAULT_DETAILS
        self._vm_state = VmState.BUILDING

    def about(self) -> About:
        return About(server_id=str(self.id), host=self.host)

    def apply(self, event: Any) -> None:
        match event:
            case self.InstanceRegistered() | self.InstanceObserved():
                self._observed(event)
            case self.Defined():
                self.name, self.host, self.definition = event.name, event.host, event.definition
                self.project_id, self.user_id = event.project_id, event.user_id
                self.named = self.managed = True
                self.details = merge_details(self.details, vars(event))
            case self.Described():
                self.details = merge_details(self.details, event.changed)
                self.name = event.changed.get("name", self.name)
                self.named |= "name" in event.changed
            case self.Locked() | self.Unlocked():
                self.locked = event if isinstance(event, Instance.Locked) else None
            case self.DefinitionChanged():
                self.definition, self.dropped = event.definition, event.dropped
            case self.DeviceReserved() | self.DeviceReleased() | self.DeviceVolumeSet():
                self._device(event)
            case self.GrowthAwaited():
                self.growth[event.volume_id] = event
            case self.GrowthBegun():
                self.growth.pop(event.volume_id, None)
            case self.DeletionAwaited():
                self.deletion = event
            case _:
                self._claimed(event)
                self._moved(event)

    def _claimed(self, event: Any) -> None:
        super()._claimed(event)
        self.only_shown &= not isinstance(event, self.Claimed)
        awaited = self.deletion and self.deletion.operation_id
        if isinstance(event, self.ClaimReleased) and event.claimant == awaited:
            self.deletion = None  # it was begun, and undone

    def _moved(self, event: Event) -> None:
        match event:
            case self.GuestLeft():
                self.left_on.add(event.host)
            case self.SeenElsewhere():
                seen = Sighting(event.power_state, tuple(event.volumes), event.epoch)
                self.elsewhere[event.host] = seen
            case self.GoneElsewhere():
                self.elsewhere.pop(event.host, None)
            case self.Placed():
                self._is_at(event)
                self.offloaded, self.managed = False, True
                self.left_on.discard(event.host)
                self.faults.pop(RESET, None)
            case self.Resized():
                self.resize_source = event.source
                self.source_definition = event.source_definition
            case self.ResizeSettled():
                self.resize_source = self.source_definition = None
            case self.Offloaded():
                self.host, self.offloaded, self.seen = None, True, NO_DISKS
                self._has_power("shutdown")
            case self.Deleted():
                self.deleted, self.deletion = True, None
            case _:
                self._passed(event)

    def _passed(self, event: Event) -> None:
        """Apply an event of a server that a Nova has, or had: seen, adopted, handed back."""
        match event:
            case self.ServerSeen():
                if self.origin is None:  # what a host has shown of it before is nobody's word
                    self.seen, self.elsewhere = NO_DISKS, {}
                self.origin, self.deleted, self.only_shown = event.origin, False, False
                self.name, self.host, self.power_state = event.name, event.host, event.power_state
                self.project_id, self.user_id = event.project_id, event.user_id
                self._vm_state = VmState(event.vm_state)
            case self.Adopted():
                self.origin, self.came_from, self.epoch = None, event.came_from, event.epoch
                self.named = self.managed = self.unshown = True
            case self.HandedBack():
                self.origin, self.came_from, self.unshown = event.to, None, False
                self.devices, self.seen = {}, NO_DISKS

    def _device(self, event: DeviceReserved | DeviceReleased | DeviceVolumeSet) -> None:
        match event:
            case self.DeviceReserved():
                self.devices[event.bdm_id] = device_from_event(event)
            case self.DeviceReleased():
                released = self.devices.pop(event.bdm_id).device_name
                # Free at once, not only when the host is looked at again.
                left = tuple(name for name in self.seen.devices if name != released)
                self.seen = self.seen._replace(devices=left)
            case self.DeviceVolumeSet():
                self.devices[event.bdm_id] = device_with_volume(self.devices[event.bdm_id], event)

    def _observed(self, event: InstanceRegistered | InstanceObserved) -> None:
        self.name = event.name
        self.seen = SeenDisks(tuple(event.devices), tuple(event.volumes))
        self.unshown &= not self._is_as_adopted(event.volumes)
        self._is_at(event)
        if isinstance(event, Instance.InstanceRegistered):
            self.project_id, self.user_id = event.project_id, event.user_id
            self.only_shown = True
        elif event.restarted:
            self.epoch = event.epoch

    def _is_at(self, event: InstanceRegistered | InstanceObserved | Placed) -> None:
        begins = event.power_state in RUNNING and self.power_state not in RUNNING
        if begins or event.host != self.host:
            self.epoch = event.epoch
        self.host = event.host
        self.elsewhere.pop(event.host, None)
        self._has_power(event.power_state)

    def _is_as_adopted(self, shown: Iterable[str]) -> bool:
        """Whether these are exactly the volumes that its guest must have."""
        return set(shown) == {device.serial for device in self.devices.values()}

    def _has_power(self, power_state: str) -> None:
        self.power_state = power_state
        # A guest the hypervisor lost keeps the state it had: losing sight is no stop.
        self._vm_state = VM_STATE_OF.get(power_state, self._vm_state)

    def refuse_observed(self) -> None:
        """Raises ObservedServerError if the server is only observed."""
        if self.origin is not None:
            origin = self.origin.capitalize()
            raise errors.ObservedServerError(server_id=str(self.id), origin=origin)

    def record(self, kind: type[Event], **fields: Any) -> None:
        """Of an observed server, record only what is seen: no claim, so no operation.

        The same for an adopted server until its host has shown it: UnshownServerError.
        """
        if fields.get("seen") is None and kind is not self.Adopted:
            self.refuse_observed()
        if self.unshown and kind is self.Claimed:
            raise errors.UnshownServerError(server_id=str(self.id), host=self.host)
        super().record(kind, **fields)

    @property
    def vm_state(self) -> VmState:
        """As shown: ERROR while an operation of this server is parked, or it was never built."""
        return VmState.ERROR if self.faults and not self.deleted else self.own_state

    @property
    def own_state(self) -> VmState:
        """The state without parked operations: this and the claims say what is allowed (0054)."""
        if self.deleted:
            return VmState.DELETED
        if self.origin is not None:
            return self._vm_state
        if self.never_built:
            return VmState.ERROR
        if self.offloaded:
            return VmState.SHELVED_OFFLOADED
        return VmState.RESIZED if self.resize_source else self._vm_state

    @property
    def vacant_root(self) -> str | None:
        """The device name of the root volume, if that is detached now (S2)."""
        vacant = (d.device_name for d in self.devices.values() if d.volume_id is None)
        return next(vacant, None)

    @property
    def local_disks(self) -> tuple[str, ...]:
        """Disks of the guest that are not volumes: they cannot move with it."""
        volumes = {device.device_name for device in self.devices.values()}
        return tuple(name for name in self.seen.devices if name not in volumes)

    @property
    def bound(self) -> bool:
        """Whether a Nova has given its guest an interface, whose port Neutron has bound to its host
        and nobody binds to another one; or a device of its host.
        """
        parts = ("devices/interface", "devices/hostdev")
        dropped = any(each.startswith(parts) for each in self.dropped or ())
        return self.came_from is not None and (dropped or "<interface" in (self.definition or ""))

    def observe(
        self,
        *,
        name: str,
        host: str,
        power_state: str,
        disks: SeenDisks = NO_DISKS,
        owner: tuple[str | None, str | None] = (None, None),
        definition: tuple[str, list[str]] | None = None,
        epoch: int = 0,
    ) -> bool:
        """Take what a host shows of the guest in this epoch; no news records nothing.

        A host cannot take a guest from another host by showing it.  Only flows move guests; people
        can move those without volumes that no flow has ever placed, from a host that no longer
        shows them.  A guest that a flow is changing is not examined: the flow records the result.
        Returns False then: the guest has to be shown again.
        """
        if self.deleted or self.offloaded:
            return True
        moved_by_hand = self.power_state == "nostate" and not (self.devices or self.managed)
        if self.version and host != self.host and not moved_by_hand:
            return True
        name = self.name if self.named else name
        seen: dict[str, Any] = {"name": name, "host": host, "power_state": power_state}
        seen |= {what: list(names) for what, names in disks._asdict().items()}
        known = (self.name, self.host, self.power_state, self.seen)
        news = (name, host, power_state, disks) != known
        news |= self.unshown and self._is_as_adopted(disks.volumes)
        if any(claim.exclusive for claim in self.claims.values()):
            return not news
        if self.version == 0:
            by = {"project_id": owner[0], "user_id": owner[1]}
            self.record(self.InstanceRegistered, **seen, epoch=epoch, **by)
        elif news:
            self.record(self.InstanceObserved, **seen, epoch=epoch)
        if definition and definition != (self.definition, self.dropped or []):
            self.record(self.DefinitionChanged, definition=definition[0], dropped=definition[1])
        return True

    def runs_on(self, host: str, epoch: int) -> None:
        """Its host shows it running, though it was reported as off: it has started since, or the
        report was wrong.  So no earlier fence covers it.
        """
        if self.host == host and self.power_state in RUNNING and self.epoch < epoch:
            seen = {what: list(names) for what, names in self.seen._asdict().items()}
            what = {"name": self.name, "host": host, "power_state": self.power_state}
            self.record(self.InstanceObserved, **what, **seen, epoch=epoch, restarted=True)

    def see_elsewhere(self, host: str, seen: Sighting) -> None:
        """A host that is not the server's shows its guest; seeing nothing new records nothing."""
        if self.version and self.elsewhere.get(host) != seen:
            fields = {**seen._asdict(), "volumes": list(seen.volumes)}
            self.record(self.SeenElsewhere, host=host, **fields)

    def miss_elsewhere(self, host: str) -> None:
        """The host no longer shows it."""
        if host in self.elsewhere:
            self.record(self.GoneElsewhere, host=host)

    @property
    def places(self) -> frozenset[str]:
        """The hosts that must have its guest: two, while a resize can be reverted."""
        own = (self.host, self.resize_source)
        return frozenset(() if self.deleted else (host for host in own if host is not None))

    @property
    def is_unaccounted(self) -> bool:
        """Whether its host has lost the guest: it may be anywhere, or nowhere."""
        lost = self.power_state == "nostate" and bool(self.places) and not self.never_built
        return lost and self._vm_state is not VmState.BUILDING

    def device_of(self, volume_id: str) -> Device | None:
        """The device of a volume, also while it is being attached."""
        return next((d for d in self.devices.values() if d.volume_id == volume_id), None)

    @property
    def never_built(self) -> bool:
        """Whether its first boot failed (S1): there is no guest, and there will be none."""
        return str(self.id) in self.faults

    def reserve_device(self, bdm_id: str, volume_id: str, wanted: str | None) -> str:
        """Give `volume_id` a device name: the requested one if it is free, else the next.

        `volume_id` "": a volume that is still to be created.  Raises AlreadyAttachedError,
        DeviceInUseError, TooManyDevicesError.
        """
        if volume_id and self.device_of(volume_id):
            raise errors.AlreadyAttachedError(volume_id=volume_id)
        taken = {d.device_name for d in self.devices.values()} | set(self.seen.devices)
        if wanted is not None and wanted in taken:
            raise errors.DeviceInUseError(device=f"/dev/{wanted}")
        name = wanted or next_name(taken, self.seen.devices)
        serial = serial_for(volume_id, bdm_id, self.devices.values()) if volume_id else None
        given = {"bdm_id": bdm_id, "volume_id": volume_id, "device_name": name}
        self.record(self.DeviceReserved, **given, serial=serial)
        return name

    def release_device(self, bdm_id: str) -> None:
        """Free the device name, if it is in use."""
        if device := self.devices.get(bdm_id):
            self.record(self.DeviceReleased, bdm_id=bdm_id, volume_id=device.volume_id)

    def set_device_volume(self, bdm_id: str, volume_id: str | None) -> None:
        """Give a device another volume, or none; the present one records nothing.

        A swap keeps the disk, and so its serial; a vacant root device gets a new disk.
        """
        known = self.devices.get(bdm_id)
        if known is None or known.volume_id == volume_id:
            return
        serial = None
        if volume_id and not known.volume_id:
            serial = serial_for(volume_id, bdm_id, self.devices.values())
        self.record(self.DeviceVolumeSet, bdm_id=bdm_id, volume_id=volume_id, serial=serial)

    def place(self, host: str, power_state: str, epoch: int) -> None:
        """Record where the guest is and whether it runs; the present state records nothing."""
        known = (self.host, self.power_state, self.offloaded, RESET in self.faults)
        if known != (host, power_state, False, False):
            self.record(self.Placed, host=host, power_state=power_state, epoch=epoch)
