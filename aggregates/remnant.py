"""What an operator's act may have left behind: listed until an operator acknowledges it.

An operator who skips a step, or gives an operation up, vouches for work that was not done.  What
this may leave in Cinder or on a host is recorded apart from the operation: it stays after the
operation has ended, until an operator acknowledges it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from aggregates.base import About, Aggregate, Event


class RemnantKind(StrEnum):
    """The kind of thing that may be left."""

    ATTACHMENT = "attachment"  # in Cinder
    CONNECTION = "connection"  # devices and sessions on a host
    DISK = "disk"  # in a guest on a host
    GUEST = "guest"  # on a host
    VOLUME = "volume"  # in Cinder, made for the server or to go with it
    MIGRATION = "migration"  # Cinder's own, of the volume, which waits for its end


class RemnantState(StrEnum):
    """Whether an operator has acknowledged it."""

    OPEN = "open"  # -> acknowledged
    ACKNOWLEDGED = "acknowledged"


class Remnant(Aggregate):
    """The aggregate's id is derived from the operation and the skipped step."""

    class RemnantLeft(Event):
        """An operator's act (`act`: skip, give_up) left out a step that would have removed this.

        `what`: a RemnantKind.  `host` None: it is in Cinder.  `attachment_id` None, if it is an
        attachment: its id is unknown.
        """

        what: str
        act: str
        reason: str
        from_operation: str
        step: str
        server_id: str
        volume_id: str | None
        attachment_id: str | None
        host: str | None

    class RemnantAcknowledged(Event):
        """An operator has checked the remnant: it is gone, or may stay; `reason` says which."""

        reason: str

    S = RemnantState
    TRANSITIONS: ClassVar = {
        RemnantLeft: (frozenset({None}), S.OPEN),
        RemnantAcknowledged: (frozenset({S.OPEN}), S.ACKNOWLEDGED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.left: Remnant.RemnantLeft | None = None

    def about(self) -> About:
        return About.of(self.left)

    def apply(self, event: Any) -> None:
        if isinstance(event, self.RemnantLeft):
            self.left = event
