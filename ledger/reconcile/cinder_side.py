"""Cinder's side of a look: paced, patient, and believed only as far as it can be.

Theory of operation.  A list says nothing of what is not in it: it may be cut, and a user without
the admin role gets an empty one with 200.  So
* before anything is believed, Cinder has to show what the ledger knows of another project than
  the service's own (`Canary`);
* what a list lacks is asked for by its id, and is gone only if Cinder itself says 404;
* a volume whose list does not fit is asked for again, by itself, and only that is judged.

A single thing that Cinder does not tell, while it answers its lists, is unknown, and the look goes
on; if it does not answer these either, it is away, and waited for.  A look loses only so much time
by single things (SINGLES_S): after it, it asks for no more of them.

The pace is a share of one API worker: after an answer that took t, (1 - share) / share * t pass.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from handlers.drift.join import CinderListing, volume_as
from handlers.drift.predicates import LASTING
from handlers.drift.rows import UNKNOWN, CinderAttachment, CinderVolume, Unknown
from host_agent.shared.cinder.lists import ListedAttachment, ListedVolume
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError

T = TypeVar("T")
L = TypeVar("L", bound=ListedAttachment | ListedVolume)

#: Rows of Cinder's lists that are asked for at once; each costs it a transaction.
PAGE_ROWS = 100
#: How long a look waits for a Cinder that does not answer, and how often it asks meanwhile.
PATIENCE_S, AGAIN_S = 600.0, 15.0
#: What a look may lose in all by single things that Cinder does not tell.
SINGLES_S = 600.0
#: Ids that a walk can go on behind, if the last of them is deleted meanwhile.
MARKERS = 5


class NotBelievedError(Exception):
    """Nothing that Cinder says can be believed; the message says why, and what to do."""


class StoppedError(Exception):
    """The service ends: the look goes on elsewhere, or later."""


class Lists(Protocol):
    """host_agent.shared.cinder.lists.CinderLists."""

    def own_project(self) -> str | None: ...
    def attachments(self, after: Sequence[str], limit: int) -> list[ListedAttachment]: ...
    def volumes(self, after: Sequence[str], limit: int) -> list[ListedVolume]: ...
    def attachment(self, attachment_id: str) -> ListedAttachment: ...
    def attachments_of(self, volume_id: str) -> list[ListedAttachment]: ...
    def volume(self, volume_id: str) -> ListedVolume: ...


@dataclass(frozen=True, kw_only=True)
class VolumeShown:
    """A volume and its attachments, each asked for by itself; `attachments`: by id.

    `why_unknown`: why Cinder has not told all of it; None: it has.
    """

    volume: CinderVolume | Unknown | None
    made_for: str | None
    multiattach: bool
    attachments: dict[str, CinderListing | Unknown | None]
    why_unknown: str | None = None
    size_gb: int | None = None


class CinderSide:
    """`stop` ends all waiting, with a StoppedError."""

    def __init__(
        self,
        lists: Lists,
        share: float,
        stop: threading.Event,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lists = lists
        self._idle = (1 - share) / share
        self._stop = stop
        self._patience_s = patience_s
        self._clock = clock
        self._lost_s = 0.0  # by single things
        self._why_unknown: str | None = None  # the last of these
        self.asked = 0

    def own_project(self) -> str | None:
        return self._patient(self._lists.own_project)

    # --- lists --------------------------------------------------------------------------------

    def attachments(self, after: Sequence[str]) -> Iterator[list[ListedAttachment]]:
        """Pages in the order of ids, behind the last of some; in memory is one page."""
        return self._walk(self._lists.attachments, after)

    def volumes(self, after: Sequence[str]) -> Iterator[list[ListedVolume]]:
        return self._walk(self._lists.volumes, after)

    def _walk(
        self, page_of: Callable[[Sequence[str], int], list[L]], after: Sequence[str]
    ) -> Iterator[list[L]]:
        seen = deque(after, maxlen=MARKERS)
        while page := self._patient(lambda: page_of(list(seen), PAGE_ROWS)):
            seen.extend(row.id for row in page)
            yield page

    def check_canaries(self, known: Iterable[tuple[str, str]]) -> None:
        """Whether Cinder shows us any of these (attachment, volume) that the ledger knows.

        Raises NotBelievedError if it shows none.  A volume without its attachment will do: who
        sees the one would see the other.
        """
        blind = 0
        for attachment_id, volume_id in known:
            if self._shows(attachment_id, volume_id):
                return
            blind += 1
        if self._why_unknown is not None:
            raise NotBelievedError(
                f"Cinder shows none of {blind} attachments that the ledger knows, and does not "
                f"tell of each of them whether it has it: {self._why_unknown}. Mend Cinder first."
            )
        if blind:
            raise NotBelievedError(
                f"Cinder shows none of {blind} attachments that the ledger knows, and none of "
                "their volumes: the user of [cinder] most likely lacks the admin role, without "
                "which Cinder's lists are empty. Grant it (the role 'service' does not suffice)."
            )

    def _shows(self, attachment_id: str, volume_id: str) -> bool:
        listed = self._found(lambda: self._lists.attachments_of(volume_id))
        if isinstance(listed, list) and any(row.id == attachment_id for row in listed):
            return True
        return isinstance(self._found(lambda: self._lists.volume(volume_id)), ListedVolume)

    # --- one by one ---------------------------------------------------------------------------

    def shown(self, volume_id: str, attachment_ids: Iterable[str]) -> VolumeShown:
        """A volume as it is now, with all its attachments; some that it may have."""
        self._why_unknown = None
        volume = self._found(lambda: self._lists.volume(volume_id))
        rows = self._found(lambda: self._lists.attachments_of(volume_id))
        if rows is UNKNOWN or isinstance(volume, Unknown):
            unknown = dict.fromkeys(attachment_ids, UNKNOWN)
            return VolumeShown(
                volume=UNKNOWN,
                made_for=None,
                multiattach=True,
                attachments={**unknown},
                why_unknown=self._why_unknown,
            )
        summary = {row.id: row for row in rows or ()}
        listed = {row.id: row for row in volume.attached} if volume else {}
        asked = sorted(summary.keys() | set(attachment_ids))
        attachments = {
            id_: self._attachment(id_, listed.get(id_), summary.get(id_)) for id_ in asked
        }
        there = sum(each is not None for each in attachments.values())
        return VolumeShown(
            volume=cinder_volume(volume, there) if volume else None,
            made_for=volume.made_for if volume else None,
            multiattach=volume.multiattach if volume else True,
            attachments=attachments,
            why_unknown=self._why_unknown,
            size_gb=volume.size_gb if volume else None,
        )

    def _attachment(
        self,
        attachment_id: str,
        listed: ListedAttachment | None,
        summary: ListedAttachment | None,
    ) -> CinderListing | Unknown | None:
        """`listed`: as its volume tells it, if it is in use; `summary`: as the list of the volume's
        attachments does.  That is believed where Cinder refuses to show it alone, as it does one
        that was made by its old calls (400): it is there, and its mode is not known.
        """
        refused = summary if summary is not None else UNKNOWN
        found = self._found(lambda: self._lists.attachment(attachment_id), refused)
        if not isinstance(found, ListedAttachment):
            return found
        shown = CinderAttachment(
            status=found.status,
            host=listed.host if listed else None,
            mode=found.mode if found.status == "attached" else None,
            mountpoint=listed.mountpoint if listed else None,
        )
        return CinderListing(
            id=found.id, volume_id=found.volume_id, server_id=found.server_id, shown=shown
        )

    def _found(self, ask: Callable[[], T], refused: T | Unknown = UNKNOWN) -> T | Unknown | None:
        """None only if Cinder itself says that there is no such thing; `refused` if it refuses.

        Raises a PortError if Cinder does not answer at all.
        """
        for again in (True, False):
            if self._lost_s >= SINGLES_S:
                self._why_unknown = (
                    f"not asked for: single things had taken {SINGLES_S:.0f} s without an answer"
                )
                return UNKNOWN
            began = self._clock()
            try:
                return self._paced(ask)
            except PortError as error:
                if error.code == "not_found":
                    return None
                if error.code == "refused" and refused is not UNKNOWN:
                    return refused
                self._lost_s += self._clock() - began
                self._why_unknown = str(error).rstrip(".")
                if error.kind is ErrorKind.FINAL:
                    return UNKNOWN
            if again:
                self._patient(lambda: self._lists.volumes((), 1))
        return UNKNOWN

    # --- how it is asked ----------------------------------------------------------------------

    def _patient(self, ask: Callable[[], T]) -> T:
        """Ask again for a while if Cinder does not answer.  Raises its last PortError."""
        until = self._clock() + self._patience_s
        while True:
            try:
                return self._paced(ask)
            except PortError as error:
                if error.kind is ErrorKind.FINAL or self._clock() + AGAIN_S > until:
                    raise
                self.wait(AGAIN_S)

    def _paced(self, ask: Callable[[], T]) -> T:
        if self._stop.is_set():
            raise StoppedError
        self.asked += 1
        began = self._clock()
        try:
            return ask()
        finally:
            self.wait((self._clock() - began) * self._idle)

    def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError


def cinder_volume(volume: ListedVolume, attachments: int) -> CinderVolume:
    made = volume.made_for is not None
    since = volume.updated_at if volume.status in LASTING else None
    return volume_as(
        volume.status, attachments, volume.migration_status, made, volume.project_id, since
    )
