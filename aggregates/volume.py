"""A volume: which servers hold it, through which attachments, and who works on it.

Invariants: at most one operation at a time; at most one server holds a volume
that is not multi-attach, whatever Cinder's status says (LP 1908075, LP 1762687).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event

#: Flows after which a server no longer has the volume.
LETTING_GO = frozenset({"detach", "delete"})


class Volume(Aggregate):
    """The aggregate's id is the volume id."""

    @dataclass(frozen=True, kw_only=True)
    class Claimed(Event):
        """An operation works on this volume, for this server."""

        claimant: str
        server_id: str
        flow: str | None = None

    @dataclass(frozen=True, kw_only=True)
    class ClaimReleased(Event):
        """The operation is over."""

        claimant: str

    @dataclass(frozen=True, kw_only=True)
    class Held(Event):
        """The server holds the volume through this attachment."""

        server_id: str
        attachment_id: str

    @dataclass(frozen=True, kw_only=True)
    class Released(Event):
        """The attachment holds the volume no more."""

        server_id: str
        attachment_id: str

    @dataclass(frozen=True, kw_only=True)
    class VolumeMade(Event):
        """We have created it in Cinder for a disk of this server; the mapping's id is its mark
        there (metadata), which was in the log before.
        """

        server_id: str
        mark: str

    @dataclass(frozen=True, kw_only=True)
    class VolumeDeleted(Event):
        """We have deleted it in Cinder, or are about to: nobody takes it over any more."""

        server_id: str
        why: str

    @dataclass(frozen=True, kw_only=True)
    class VolumeDeletionRefused(Event):
        """It was to be deleted, and Cinder refused: `why`.  It stays."""

        server_id: str
        why: str

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.claimant: str | None = None
        self.flow: str | None = None  # the claimant's
        self.holders: dict[str, str] = {}  # attachment id -> server id
        self.deleted = False

    def about(self) -> About:
        return About(volume_id=str(self.id))

    def apply(self, event: Any) -> None:
        match event:
            case self.Claimed():
                self.claimant, self.flow = event.claimant, event.flow
            case self.ClaimReleased():
                self.claimant = self.flow = None
            case self.Held():
                self.holders[event.attachment_id] = event.server_id
            case self.Released():
                self.holders.pop(event.attachment_id, None)
            case self.VolumeDeleted():
                self.deleted = True

    def refuse_claimed(self) -> None:
        """Raises ClaimedError naming the operation in the way."""
        if self.claimant is not None:
            raise errors.ClaimedError(what="Volume", id=str(self.id), operation_id=self.claimant)

    def refuse_leaving(self) -> None:
        """Raises ClaimedError if the volume is on its way out of a server: the caller can wait for
        that, and a temporary state must not become a final error.
        """
        if self.flow in LETTING_GO:
            self.refuse_claimed()

    def claim(self, operation_id: str, *, server_id: str, flow: str | None = None) -> None:
        """Raises ClaimedError naming the operation in the way."""
        self.refuse_claimed()
        self.record(self.Claimed, claimant=operation_id, server_id=server_id, flow=flow)

    def made(self, server_id: str, mark: str) -> None:
        """Cinder has it now, for this server.  Raises IllegalTransitionError if it was given up."""
        if self.deleted:
            topic = self.VolumeMade.TOPIC
            raise errors.IllegalTransitionError(event=topic, id=str(self.id), state="deleted")
        self.record(self.VolumeMade, server_id=server_id, mark=mark)

    def release(self, operation_id: str) -> None:
        """End the operation's claim, if it has it."""
        if self.claimant == operation_id:
            self.record(self.ClaimReleased, claimant=operation_id)

    def held_by(self, server_id: str) -> tuple[str, ...]:
        """The attachments through which a server holds the volume."""
        return tuple(sorted(a for a, holder in self.holders.items() if holder == server_id))

    def refuse_second_server(self, server_id: str, *, multiattach: bool) -> None:
        """Raises AttachedElsewhereError if another server holds a single-attach volume."""
        others = sorted(set(self.holders.values()) - {server_id})
        if others and not multiattach:
            raise errors.AttachedElsewhereError(volume_id=str(self.id), servers=", ".join(others))
