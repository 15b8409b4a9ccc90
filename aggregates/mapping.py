"""One block device mapping: a volume as a device of a server, from attach to detach.

A mapping is complete from its first event: `MappingCreated` has the attachment id, so no reader
sees a mapping without one (LP 2160224).  The only exception is S2's: a root mapping stays when its
volume is detached, so that another root volume can take its place.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event
from aggregates.volume import Volume
from host_agent.shared.contract.lane import Lane


class MappingState(StrEnum):
    """Where a mapping stands."""

    BOUND = "bound"  # recorded, not known in the guest -> plugged, unplugged, ended
    PLUGGED = "plugged"  # in the guest -> unplugged
    UNPLUGGED = "unplugged"  # out of the guest -> plugged, vacant, ended
    VACANT = "vacant"  # a root mapping without volume (S2) -> bound, ended
    ENDED = "ended"


class BlockDeviceMapping(Aggregate):
    """The aggregate's id is the `bdm_uuid` of the API.

    `serial` is the id by which the guest knows the disk: the volume's when it was attached.  It
    stays when a swap replaces the volume, because a guest's `/dev/disk/by-id` must not change under
    it (LP 1625660, LP 1661016).

    `access_mode` is "ro" or "rw"; None: attached before it was stored.  It never widens: a
    read-only disk stays read-only through each move, swap and start, until it is detached.
    """

    class MappingCreated(Event):
        """The server has this volume as this device, by this attachment."""

        server_id: str
        volume_id: str
        attachment_id: str
        device_name: str | None
        tag: str | None
        boot_index: int | None
        delete_on_termination: bool
        multiattach: bool
        legacy: bool = False
        serial: str | None = None
        access_mode: str | None = None

    class AccessModeLearned(Event):
        """The access mode that Cinder returned when a host connected the volume: "ro" or "rw"."""

        access_mode: str

    class DevicePlugged(Event):
        """The guest has the disk."""

        device_name: str
        bus: str | None = None

    class DeviceUnplugged(Event):
        """The guest has released the disk.

        `waived`: the operator's reason to accept this without proof.
        """

        waived: str | None = None

    class AttachmentSwitched(Event):
        """The mapping has another attachment: the server has moved, or the volume was swapped.

        `kept`: the attachment before, or the one that has replaced it since, if it stays until a
        resize is confirmed or reverted.
        """

        volume_id: str
        attachment_id: str
        kept: str | None = None
        legacy: bool = False

    class RootDetached(Event):
        """This root volume is detached; its place, boot_index 0, stays (S2)."""

        volume_id: str
        attachment_id: str

    class RootAttached(Event):
        """A root volume is attached in the vacant place (S2, `is_root`)."""

        volume_id: str
        attachment_id: str
        multiattach: bool
        delete_on_termination: bool
        legacy: bool = False
        serial: str | None = None
        access_mode: str | None = None
        tag: str | None = None  # None: the place keeps the one it has

    class DeleteOnTerminationSet(Event):
        """Whether the volume is deleted with the server."""

        delete_on_termination: bool

    class Adopted(Event):
        """Nova managed the mapping; from now on the ledger does (decision 0114).

        The guest knows the disk by the volume's id.  `is_root`, `multiattach`: what the look at the
        adoption saw, for an earlier look may have seen a server that was still being built; False
        changes nothing.
        """

        is_root: bool = False
        multiattach: bool = False

    class HandedBack(Event):
        """Nova manages the mapping again."""

        to: str

    class MappingEnded(Event):
        """The server no longer has this volume."""

    class DeletedRowSeen(Event):
        """A mapping that ended before the ledger observed it: a soft-deleted row of Nova's database
        (decision 0137).  Nothing is attached or freed by it.  What the log has from the mapping's
        life is not repeated, but of Cinder's old calls: these have another id here.

        It is in a stream of its own, so that no file can change an object of the ledger's.
        `volume_id`, `attachment_id`: the last ones, because Nova overwrites both.  Times are by the
        clocks of Nova and its database; ISO 8601.
        """

        mapping_id: str
        server_id: str
        volume_id: str
        attachment_id: str | None
        device_name: str | None
        tag: str | None
        boot_index: int | None  # -1: not in the boot order
        bus: str | None
        delete_on_termination: bool
        created_at: str
        deleted_at: str
        revision: str  # of the schema: Nova's alembic revision
        read_at: str

    S = MappingState
    TRANSITIONS: ClassVar = {
        MappingCreated: (frozenset({None}), S.BOUND),
        DevicePlugged: (frozenset({S.BOUND, S.PLUGGED, S.UNPLUGGED}), S.PLUGGED),
        DeviceUnplugged: (frozenset({S.BOUND, S.PLUGGED, S.UNPLUGGED}), S.UNPLUGGED),
        RootDetached: (frozenset({S.BOUND, S.UNPLUGGED}), S.VACANT),
        RootAttached: (frozenset({S.VACANT}), S.BOUND),
        MappingEnded: (frozenset({S.BOUND, S.UNPLUGGED, S.VACANT}), S.ENDED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.server_id: str | None = None
        self.volume_id: str | None = None
        self.attachment_id: str | None = None
        self.kept: str | None = None
        self.kept_legacy = False  # whether that one was made by Cinder's old calls
        self.serial: str | None = None
        self.device_name: str | None = None
        self.tag: str | None = None
        self.boot_index: int | None = None
        self.delete_on_termination = False
        self.multiattach = False
        self.access_mode: str | None = None
        self.legacy = False
        self.origin: str | None = None  # whose it is, if it is only watched
        #: The volume and attachment that the event just applied has taken away.
        self._left: tuple[str | None, str | None] | None = None

    def about(self) -> About:
        volume_id, attachment_id = self._left or (self.volume_id, self.attachment_id)
        return About(attachment_id=attachment_id, volume_id=volume_id, server_id=self.server_id)

    def detach_root(self) -> None:
        """Detach the root volume; its place stays."""
        self.record(self.RootDetached, volume_id=self.volume_id, attachment_id=self.attachment_id)

    def apply(self, event: Any) -> None:
        gone = isinstance(event, self.RootDetached)
        self._left = (event.volume_id, event.attachment_id) if gone else None
        match event:
            case self.MappingCreated():
                self.server_id, self.tag = event.server_id, event.tag
                self.boot_index, self.device_name = event.boot_index, event.device_name
                self.origin = event.origin
                self._take(event)
            case self.RootAttached():
                self.tag = event.tag or self.tag
                self._take(event)
            case self.RootDetached():
                self.volume_id = self.attachment_id = self.serial = None
            case self.AttachmentSwitched():
                flows = {self.attachment_id: self.legacy, self.kept: self.kept_legacy}
                self.kept_legacy = event.kept is not None and flows.get(event.kept, False)
                self.volume_id, self.attachment_id = event.volume_id, event.attachment_id
                self.kept, self.legacy = event.kept, event.legacy
            case self.DevicePlugged():
                self.device_name = event.device_name
            case self.AccessModeLearned():
                self.access_mode = event.access_mode
            case self.DeleteOnTerminationSet():
                self.delete_on_termination = event.delete_on_termination
            case _:
                self._passed(event)

    def _passed(self, event: Event) -> None:
        """Apply an event of a mapping that a Nova has, or had."""
        match event:
            case self.Adopted():
                self.origin, self.serial = None, self.volume_id
                self.boot_index = 0 if event.is_root else self.boot_index
                self.multiattach |= event.multiattach
            case self.HandedBack():
                self.origin = event.to
            case self.DeletedRowSeen():
                self.server_id, self.volume_id = event.server_id, event.volume_id
                self.attachment_id = event.attachment_id

    def _take(self, event: MappingCreated | RootAttached) -> None:
        self.volume_id, self.serial = event.volume_id, event.serial or event.volume_id
        self.attachment_id, self.legacy = event.attachment_id, event.legacy
        self.multiattach, self.access_mode = event.multiattach, event.access_mode
        self.delete_on_termination = event.delete_on_termination

    @property
    def live(self) -> bool:
        """Whether the server still has this mapping."""
        return self.state not in {None, MappingState.ENDED}

    def lane(self, volume: Volume, host: str | None) -> Lane:
        """As a lane of a plan; `volume` is the mapping's, and `host` has its attachment."""
        assert self.server_id is not None, "a live mapping has a server"
        assert self.volume_id is not None, "only a mapping with a volume is a lane"
        return Lane(
            server_id=self.server_id,
            volume_id=self.volume_id,
            bdm_id=str(self.id),
            attachment_id=self.attachment_id,
            device_name=self.device_name,
            multiattach=self.multiattach,
            tag=self.tag,
            boot_index=self.boot_index,
            delete_on_termination=self.delete_on_termination,
            serial=self.serial,
            access_mode=self.access_mode or "rw",
            host=host,
            legacy=self.legacy,
            bare=self.state is MappingState.UNPLUGGED and not self.legacy,
            known=volume.held_by(self.server_id),
        )

    def learn_access_mode(self, reported: str | None) -> None:
        """Take the mode that a host reports; a known mode, or a wider one, records nothing."""
        if self.live and reported is not None and self.access_mode not in {reported, "ro"}:
            self.record(self.AccessModeLearned, access_mode=reported)

    def set_delete_on_termination(self, value: bool) -> None:
        """Change the flag; the same value again records nothing.  Raises ObservedServerError."""
        if self.origin is not None:
            origin = self.origin.capitalize()
            raise errors.ObservedServerError(server_id=str(self.server_id), origin=origin)
        if value != self.delete_on_termination:
            self.record(self.DeleteOnTerminationSet, delete_on_termination=value)
