"""A volume: the servers that hold it, their attachments, and the operations that work on it.

Invariants: for each server at most one operation works on a volume.  At most one reserves it.  On
each host either one operation connects it anew, or any number disconnect it (decision 0042).  At
most one server holds a volume that is not multi-attach, whatever its status in Cinder (LP 1908075,
LP 1762687).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event

#: Flows after which a server no longer has the volume.
LETTING_GO = frozenset({"detach", "delete"})


@dataclass(frozen=True, kw_only=True)
class VolumeClaim:
    """What an operation does with the volume, for a server.

    `shared`: several servers may have the volume (multi-attach).  `reserves`: it makes a new
    attachment, and Cinder lets only one server at a time do that.  `takes`: hosts where it
    connects what was not connected; `hosts`: all hosts where it connects or disconnects.
    """

    server_id: str
    flow: str | None = None
    shared: bool = False
    reserves: bool = False
    takes: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    def excludes(self, other: VolumeClaim) -> bool:
        """Whether the two operations must not run at the same time."""
        if self.server_id == other.server_id or not (self.shared and other.shared):
            return True
        both_reserve = self.reserves and other.reserves
        # Who is the last user of a host is asked of what is known to be connected there:
        # nobody may become a user between that answer and what follows from it.
        return both_reserve or bool(self.takes & other.hosts or other.takes & self.hosts)


class Volume(Aggregate):
    """The aggregate's id is the volume id."""

    class Claimed(Event):
        """An operation works on this volume, for this server.

        `shared`, `reserves`, `takes`, `hosts`: what it does with the volume (VolumeClaim).
        """

        claimant: str
        server_id: str
        flow: str | None = None
        shared: bool = False
        reserves: bool = False
        takes: list[str] = field(default_factory=list)
        hosts: list[str] = field(default_factory=list)

    class ClaimNarrowed(Event):
        """The operation is parked: it connects nothing from now on."""

        claimant: str

    class ClaimReleased(Event):
        """The operation has ended."""

        claimant: str

    class Held(Event):
        """The server holds the volume by this attachment."""

        server_id: str
        attachment_id: str

    class Released(Event):
        """The attachment no longer holds the volume.

        `renamed_to`: it still does, but a migration in Cinder has given the volume this id.
        """

        server_id: str
        attachment_id: str
        renamed_to: str | None = None

    class VolumeMade(Event):
        """The ledger has created the volume in Cinder for a disk of this server.

        `mark`: the id of the mapping, which the volume has in its metadata in Cinder.  The log had
        it before the volume was created.
        """

        server_id: str
        mark: str

    class VolumeDeleted(Event):
        """The ledger has deleted the volume in Cinder, or is about to: no operation may use it."""

        server_id: str
        why: str

    class VolumeDeletionRefused(Event):
        """Cinder has refused to delete the volume (`why`); it stays."""

        server_id: str
        why: str

    class SeenInGuest(Event):
        """A host shows the volume in the guest of a server that does not have it, or not there."""

        server_id: str
        host: str
        epoch: int  # of the host then

    class GoneFromGuest(Event):
        """The host no longer shows the volume there."""

        server_id: str
        host: str

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.claims: dict[str, VolumeClaim] = {}  # by operation
        self.holders: dict[str, str] = {}  # attachment id -> server id
        self.deleted = False
        self.had = False  # by any server, ever
        self.last_server: str | None = None  # that had it, or for which it was made
        self.shown: dict[tuple[str, str], int] = {}  # by host and server: the host's epoch then
        self.mark: str | None = None  # with which we have made it
        self._server_id: str | None = None  # whose story the event just applied belongs to
        self._host: str | None = None

    def about(self) -> About:
        return About(volume_id=str(self.id), server_id=self._server_id, host=self._host)

    def apply(self, event: Any) -> None:
        self._server_id = event.server_id if isinstance(event, _OF_A_SERVER) else None
        self._host = event.host if isinstance(event, _OF_A_GUEST) else None
        match event:
            case self.Claimed():
                self.claims[event.claimant] = VolumeClaim(
                    server_id=event.server_id,
                    flow=event.flow,
                    shared=event.shared,
                    reserves=event.reserves,
                    takes=frozenset(event.takes),
                    hosts=frozenset(event.hosts),
                )
            case self.ClaimNarrowed():
                claim = self.claims[event.claimant]
                self.claims[event.claimant] = replace(claim, takes=frozenset())
            case self.ClaimReleased():
                self.claims.pop(event.claimant, None)
            case self.Held():
                self.holders[event.attachment_id] = event.server_id
                self.had, self.last_server = True, event.server_id
            case self.Released():
                self.holders.pop(event.attachment_id, None)
            case self.VolumeMade():
                self.last_server, self.mark = event.server_id, event.mark
            case self.VolumeDeleted():
                self.deleted, self.last_server = True, event.server_id
            case self.SeenInGuest():
                self.shown[event.host, event.server_id] = event.epoch
            case self.GoneFromGuest():
                self.shown.pop((event.host, event.server_id), None)

    def see(self, server_id: str, host: str, epoch: int) -> None:
        """A host shows it in a guest that must not have it; a known sighting records nothing."""
        if self.shown.get((host, server_id)) != epoch:
            self.record(self.SeenInGuest, server_id=server_id, host=host, epoch=epoch)

    def miss(self, server_id: str, host: str) -> None:
        """The host no longer shows it there."""
        if (host, server_id) in self.shown:
            self.record(self.GoneFromGuest, server_id=server_id, host=host)

    def works_for(self, server_id: str) -> list[str]:
        """The operations that work on the volume for this server."""
        return [op for op, claim in self.claims.items() if claim.server_id == server_id]

    def refuse_working(self, server_id: str) -> None:
        """Raises ClaimedError if an operation works on the volume for this server."""
        self._refuse(self.works_for(server_id))

    def refuse_beside(self, server_id: str, *, shared: bool) -> None:
        """Raises ClaimedError if an operation excludes one for this server that connects nothing
        anew and disconnects nothing.
        """
        wanted = VolumeClaim(server_id=server_id, shared=shared)
        self._refuse(op for op, claim in self.claims.items() if claim.excludes(wanted))

    def refuse_leaving(self, server_id: str, *, shared: bool) -> None:
        """Raises ClaimedError if the volume is being detached from this server, or from another
        one that excludes this: the caller can wait for that.  Any other refusal would be final.
        """
        self._refuse(
            op
            for op, claim in self.claims.items()
            if claim.flow in LETTING_GO and (claim.server_id == server_id or not shared)
        )

    def _refuse(self, claimants: Iterable[str]) -> None:
        for claimant in claimants:
            raise errors.ClaimedError(what="Volume", id=str(self.id), operation_id=claimant)

    def claim(
        self,
        operation_id: str,
        *,
        server_id: str,
        flow: str | None = None,
        shared: bool = False,
        reserves: bool = False,
        takes: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        """Raises ClaimedError naming an operation in the way."""
        wanted = VolumeClaim(
            server_id=server_id,
            flow=flow,
            shared=shared,
            reserves=reserves,
            takes=frozenset(takes),
            hosts=frozenset(hosts),
        )
        self._refuse(op for op, claim in self.claims.items() if claim.excludes(wanted))
        stored = {**vars(wanted), "takes": sorted(takes), "hosts": sorted(hosts)}
        self.record(self.Claimed, claimant=operation_id, **stored)

    def narrow(self, operation_id: str) -> None:
        """The operation is parked, and connects nothing anew; see handlers.engine.claims."""
        claim = self.claims.get(operation_id)
        if claim is not None and claim.takes:
            self.record(self.ClaimNarrowed, claimant=operation_id)

    def made(self, server_id: str, mark: str) -> None:
        """Cinder has the volume now, for this server.  Raises IllegalTransitionError if it was
        given up.
        """
        if self.deleted:
            topic = self.VolumeMade.TOPIC
            raise errors.IllegalTransitionError(event=topic, id=str(self.id), state="deleted")
        self.record(self.VolumeMade, server_id=server_id, mark=mark)

    def release(self, operation_id: str) -> None:
        """End the operation's claim, if it has it."""
        if operation_id in self.claims:
            self.record(self.ClaimReleased, claimant=operation_id)

    def held_by(self, server_id: str) -> tuple[str, ...]:
        """The attachments through which a server holds the volume."""
        return tuple(sorted(a for a, holder in self.holders.items() if holder == server_id))

    def refuse_second_server(self, server_id: str, *, multiattach: bool) -> None:
        """Raises AttachedElsewhereError if another server holds a single-attach volume."""
        others = sorted(set(self.holders.values()) - {server_id})
        if others and not multiattach:
            raise errors.AttachedElsewhereError(volume_id=str(self.id), servers=", ".join(others))


_OF_A_GUEST = (Volume.SeenInGuest, Volume.GoneFromGuest)
#: Events that concern the server as well.
_OF_A_SERVER = (
    *(Volume.VolumeMade, Volume.VolumeDeleted, Volume.VolumeDeletionRefused),
    *_OF_A_GUEST,
)
