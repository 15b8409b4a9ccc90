"""What the ledger's own steps do outside: S1's "(api)" calls to Cinder.

Each is an *ensure*, as the host's verbs are.  The one call that is none by nature
is Cinder's attachment_create, which takes no id of ours: after a lost answer an
attachment may exist that nobody knows.  `reserve` therefore looks first at the
attachments of (volume, server), leaves out those the ledger knows, and adopts
what is left, if it is a bare reservation.  That is safe because the operation
holds the claim on the volume: nobody else in the ledger reserves it now.

A lost request may even be carried out *after* that look: whoever sent it gave up
waiting, or died, and Cinder does not know.  So an attempt that follows another one of
unknown outcome gives the reservation LATE_S to appear before it makes one; and what a
dead dispatcher has left behind is not touched for as long (ledger.dispatcher).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aggregates.attachment import Attachment, AttachmentState
from aggregates.volume import Volume
from handlers.meaning import Book
from handlers.plan import LedgerVerb
from host_agent.shared.contract import ErrorKind
from host_agent.shared.lane import Lane
from host_agent.shared.ports import AttachmentView, Cinder, OldCinder, PortError

#: How long a reservation may take to appear whose request was sent by somebody who is
#: gone.  Creating one without connector is a few rows in Cinder's database.
LATE_S = 5.0
LATE_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class EffectContext:
    """What effects act on; `wait` blocks for so many seconds."""

    cinder: Cinder
    old_cinder: OldCinder
    book: Book
    wait: Callable[[float], None]
    uncertain: bool = False  # an earlier attempt of this step may still have an effect


def reserve(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1: attachment_create without connector; the volume becomes `reserved`."""
    if lane.legacy:
        return _reserve_by_old_calls(lane, context)
    for _ in range(1 + round(LATE_S / LATE_POLL_S) if context.uncertain else 1):
        if orphans := _orphans(lane, context):
            return {"attachment_id": orphans[0].id, "adopted": True}
        if context.uncertain:
            context.wait(LATE_POLL_S)
    created = context.cinder.attachment_create(lane.volume_id, lane.server_id)
    return {"attachment_id": created.id}


def _reserve_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1, old flow: os-reserve.  The claim on the volume says whose reservation it is.

    In a move the volume stays `in-use`, and there is nothing to reserve.
    """
    if lane.other is None and context.cinder.volume(lane.volume_id).status != "attaching":
        context.old_cinder.reserve(lane.volume_id)
    return {"attachment_id": str(uuid4())}  # Cinder knows none: the ledger's own name for it


def delete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the attachment; one the host deleted already is not asked for again.

    One whose answer was lost is what nobody knows of this volume and server; a host that
    made it and is fenced may have given it its connector, but cannot have connected.
    """
    if lane.legacy:
        return _delete_by_old_calls(lane, context)
    if lane.attachment_id is None:
        for orphan in _unknown(lane, context):
            if orphan.status in {"reserved", "attaching"}:
                context.cinder.attachment_delete(orphan.id)
    elif context.book.get(Attachment, lane.attachment_id).state is not AttachmentState.DELETED:
        context.cinder.attachment_delete(lane.attachment_id)
    return {}


def complete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Tell Cinder for a fenced host that its guest has the volume, as the log says it had.

    So the volume stays the server's, and an evacuation finds all of them alike.
    """
    assert lane.attachment_id is not None, "a host that got as far as this had one"
    if lane.legacy:
        rows = context.old_cinder.old_attachments(lane.volume_id)
        if not any(row.server_id == lane.server_id for row in rows):
            host = context.book.get(Attachment, lane.attachment_id).host or ""
            device = f"/dev/{lane.device_name}"
            context.old_cinder.attach(lane.volume_id, lane.server_id, device, host)
    elif context.cinder.attachment(lane.attachment_id).status != "attached":
        context.cinder.attachment_complete(lane.attachment_id)
    return {}


def tidy(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """A server that could not be built keeps what is reserved for it (LP 1899649); what was
    reserved by a call that seemed to fail is not known to be its, and goes.
    """
    return delete(lane, context) if lane.attachment_id is None else {}


def _delete_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """What is left when no host has the volume: the reservation, or Cinder's record of it."""
    known = lane.attachment_id and context.book.get(Attachment, lane.attachment_id)
    if lane.other is not None or (known and known.state is AttachmentState.DELETED):
        return {}
    rows = context.old_cinder.old_attachments(lane.volume_id)
    for row in rows:
        if row.server_id == lane.server_id:
            context.old_cinder.detach(lane.volume_id, row.id)
    if not rows and context.cinder.volume(lane.volume_id).status == "attaching":
        context.old_cinder.unreserve(lane.volume_id)
    return {}


def make_volume(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Create the volume of a new server's disk, if it is to be, and wait until it can be had."""
    if lane.create is None:
        return {}
    volume = context.cinder.volume_create(lane.create, lane.bdm_id)
    if volume.status.startswith("error"):
        text = f"Volume {volume.id} could not be created ({volume.status}): see its messages."
        raise PortError(ErrorKind.FINAL, "volume_error", text)
    if volume.status not in {"available", "reserved", "in-use"}:
        text = f"Volume {volume.id} is {volume.status}."
        raise PortError(ErrorKind.RETRYABLE, "volume_not_ready", text)
    return {"volume_id": volume.id}


def delete_volume(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the volume with its server, if it is to be; a refusal is noted, not fatal (S3).

    The last of its attachments that goes does it: before that Cinder would refuse.
    """
    held = context.book.get(Volume, lane.volume_id).held_by(lane.server_id)
    if not lane.delete_on_termination or held:
        return {}
    try:
        context.cinder.volume_delete(lane.volume_id)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
        return {"refused": error.message}
    return {}


def complete_migration(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder's own migration is done; it says which of both ids the volume keeps (S1)."""
    return {"volume_id": _end_migration(lane, context, error=False)}


def fail_migration(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder's own migration did not come to be: it deletes the new volume."""
    _end_migration(lane, context, error=True)
    return {}


def _end_migration(lane: Lane, context: EffectContext, *, error: bool) -> str:
    assert lane.other is not None, "a swap has two sides"
    old, new = lane.other.volume_id, lane.volume_id
    return context.cinder.migrate_volume_completion(old, new, error=error)


def _orphans(lane: Lane, context: EffectContext) -> list[AttachmentView]:
    """Bare reservations that nobody knows."""
    unknown = _unknown(lane, context)
    return [view for view in unknown if view.status == "reserved" and not view.connection_info]


def _unknown(lane: Lane, context: EffectContext) -> list[AttachmentView]:
    known = context.book.get(Volume, lane.volume_id).holders
    views = context.cinder.attachments(lane.volume_id, lane.server_id)
    unknown = [view for view in views if view.id not in known]
    # One whose deletion somebody vouched for may still be there; it is not new.
    return [view for view in unknown if context.book.get(Attachment, view.id).version == 0]


EFFECTS: dict[str, Callable[[Lane, EffectContext], dict[str, Any]]] = {
    LedgerVerb.ATTACHMENT_RESERVE: reserve,
    LedgerVerb.ATTACHMENT_DELETE: delete,
    LedgerVerb.ATTACHMENT_COMPLETE: complete,
    LedgerVerb.RESERVATION_TIDY: tidy,
    LedgerVerb.VOLUME_CREATE: make_volume,
    LedgerVerb.VOLUME_DELETE: delete_volume,
    LedgerVerb.MIGRATION_COMPLETE: complete_migration,
    LedgerVerb.MIGRATION_FAIL: fail_migration,
}
