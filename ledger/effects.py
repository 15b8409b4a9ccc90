"""What the ledger's own steps do outside: S1's "(api)" calls to Cinder.

Each is an *ensure*, as the host's verbs are.  The one call that is none by nature
is Cinder's attachment_create, which takes no id of ours: after a lost answer an
attachment may exist that nobody knows.  `reserve` therefore looks first at the
attachments of (volume, server), leaves out those the ledger knows, and adopts
what is left, if it is a bare reservation.  That is safe because the operation
holds the claim on the volume: nobody else in the ledger reserves it now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aggregates.attachment import Attachment, AttachmentState
from aggregates.volume import Volume
from handlers.meaning import Book
from handlers.plan import LedgerVerb
from host_agent.contract import Lane
from host_agent.ports import AttachmentView, Cinder


def reserve(lane: Lane, cinder: Cinder, book: Book) -> dict[str, Any]:
    """S1: attachment_create without connector; the volume becomes `reserved`."""
    orphans = _orphans(lane, cinder, book)
    if orphans:
        return {"attachment_id": orphans[0].id, "adopted": True}
    return {"attachment_id": cinder.attachment_create(lane.volume_id, lane.server_id).id}


def delete(lane: Lane, cinder: Cinder, book: Book) -> dict[str, Any]:
    """Delete the attachment; one the host deleted already is not asked for again.

    A reservation whose answer was lost is found as `reserve` would find it.
    """
    if lane.attachment_id is None:
        for orphan in _orphans(lane, cinder, book):
            cinder.attachment_delete(orphan.id)
    elif book.get(Attachment, lane.attachment_id).state is not AttachmentState.DELETED:
        cinder.attachment_delete(lane.attachment_id)
    return {}


def _orphans(lane: Lane, cinder: Cinder, book: Book) -> list[AttachmentView]:
    known = book.get(Volume, lane.volume_id).holders
    return [
        view
        for view in cinder.attachments(lane.volume_id, lane.server_id)
        if view.id not in known and view.status == "reserved" and not view.connection_info
    ]


EFFECTS: dict[str, Callable[[Lane, Cinder, Book], dict[str, Any]]] = {
    LedgerVerb.ATTACHMENT_RESERVE: reserve,
    LedgerVerb.ATTACHMENT_DELETE: delete,
}
