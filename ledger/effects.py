"""What the ledger's own steps do outside: S1's "(api)" calls to Cinder.

Each is an *ensure*, as the host's verbs are.  The one call that is none by nature
is Cinder's attachment_create, which takes no id of ours: after a lost answer an
attachment may exist that nobody knows.  `reserve` therefore looks first at the
attachments of (volume, server), leaves out those the ledger knows, and adopts
what is left, if it is a bare reservation.  That is safe because the operation
holds the claim on the volume: nobody else in the ledger reserves it now.

A lost request may even be carried out *after* that look: whoever sent it died, or
gave up waiting, and Cinder does not know.  So an attempt that follows another one
of unknown outcome gives the reservation some time to appear before it makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aggregates.attachment import Attachment, AttachmentState
from aggregates.volume import Volume
from handlers.meaning import Book
from handlers.plan import LedgerVerb
from host_agent.contract import Lane
from host_agent.ports import AttachmentView, Cinder

#: How long a reservation may take to appear whose request was sent by somebody who is
#: gone.  Creating one without connector is a few rows in Cinder's database.
LATE_S = 5.0
LATE_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class World:
    """What effects act on; `wait` blocks for so many seconds."""

    cinder: Cinder
    book: Book
    wait: Callable[[float], None]
    uncertain: bool = False  # an earlier attempt of this step may still have an effect


def reserve(lane: Lane, world: World) -> dict[str, Any]:
    """S1: attachment_create without connector; the volume becomes `reserved`."""
    for _ in range(1 + round(LATE_S / LATE_POLL_S) if world.uncertain else 1):
        if orphans := _orphans(lane, world):
            return {"attachment_id": orphans[0].id, "adopted": True}
        if world.uncertain:
            world.wait(LATE_POLL_S)
    created = world.cinder.attachment_create(lane.volume_id, lane.server_id)
    return {"attachment_id": created.id}


def delete(lane: Lane, world: World) -> dict[str, Any]:
    """Delete the attachment; one the host deleted already is not asked for again.

    A reservation whose answer was lost is found as `reserve` would find it.
    """
    if lane.attachment_id is None:
        for orphan in _orphans(lane, world):
            world.cinder.attachment_delete(orphan.id)
    elif world.book.get(Attachment, lane.attachment_id).state is not AttachmentState.DELETED:
        world.cinder.attachment_delete(lane.attachment_id)
    return {}


def _orphans(lane: Lane, world: World) -> list[AttachmentView]:
    known = world.book.get(Volume, lane.volume_id).holders
    return [
        view
        for view in world.cinder.attachments(lane.volume_id, lane.server_id)
        if view.id not in known and view.status == "reserved" and not view.connection_info
    ]


EFFECTS: dict[str, Callable[[Lane, World], dict[str, Any]]] = {
    LedgerVerb.ATTACHMENT_RESERVE: reserve,
    LedgerVerb.ATTACHMENT_DELETE: delete,
}
