"""One block device mapping: a volume as a device of a server, from bind to unbind.

A mapping exists only complete: `MappingCreated` already carries the attachment
id, so no reader ever sees one without (LP 2160224).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from aggregates.base import About, Aggregate, Event


class MappingState(StrEnum):
    """Where a mapping stands."""

    BOUND = "bound"  # recorded, not known in the guest -> plugged, unplugged, ended
    PLUGGED = "plugged"  # in the guest -> unplugged
    UNPLUGGED = "unplugged"  # out of the guest -> plugged, ended
    ENDED = "ended"


class BlockDeviceMapping(Aggregate):
    """The aggregate's id is the `bdm_uuid` of the API."""

    @dataclass(frozen=True, kw_only=True)
    class MappingCreated(Event):
        """The server has this volume, through this attachment, as this device."""

        server_id: str
        volume_id: str
        attachment_id: str
        device_name: str | None
        tag: str | None
        boot_index: int | None
        delete_on_termination: bool
        multiattach: bool

    @dataclass(frozen=True, kw_only=True)
    class DevicePlugged(Event):
        """The guest has the disk."""

        device_name: str
        bus: str | None = None

    @dataclass(frozen=True, kw_only=True)
    class DeviceUnplugged(Event):
        """The guest let the disk go; `waived` is an operator's reason to do without proof."""

        waived: str | None = None

    @dataclass(frozen=True, kw_only=True)
    class DeleteOnTerminationSet(Event):
        """Whether the volume is deleted with the server."""

        delete_on_termination: bool

    @dataclass(frozen=True, kw_only=True)
    class MappingEnded(Event):
        """The server has this volume no more."""

    S = MappingState
    TRANSITIONS: ClassVar = {
        MappingCreated: (frozenset({None}), S.BOUND),
        DevicePlugged: (frozenset({S.BOUND, S.PLUGGED, S.UNPLUGGED}), S.PLUGGED),
        DeviceUnplugged: (frozenset({S.BOUND, S.PLUGGED, S.UNPLUGGED}), S.UNPLUGGED),
        MappingEnded: (frozenset({S.BOUND, S.UNPLUGGED}), S.ENDED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.created: BlockDeviceMapping.MappingCreated | None = None
        self.device_name: str | None = None
        self.delete_on_termination = False

    def about(self) -> About:
        if self.created is None:
            return About()
        return About(
            attachment_id=self.created.attachment_id,
            volume_id=self.created.volume_id,
            server_id=self.created.server_id,
        )

    def apply(self, event: Any) -> None:
        match event:
            case self.MappingCreated():
                self.created = event
                self.device_name = event.device_name
                self.delete_on_termination = event.delete_on_termination
            case self.DevicePlugged():
                self.device_name = event.device_name
            case self.DeleteOnTerminationSet():
                self.delete_on_termination = event.delete_on_termination

    @property
    def live(self) -> bool:
        """Whether the server still has this mapping."""
        return self.state not in {None, MappingState.ENDED}

    def set_delete_on_termination(self, value: bool) -> None:
        """Change the flag; saying what is already so records nothing."""
        if value != self.delete_on_termination:
            self.record(self.DeleteOnTerminationSet, delete_on_termination=value)
