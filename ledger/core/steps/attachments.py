"""Attachments in Cinder: the ledger's own steps reserve, delete and report them.

Each step is an *ensure*, like a host's verb: it checks first, and may be repeated.  One call is not
repeatable: Cinder's attachment_create takes no id of ours, so after a lost answer an unknown
attachment may exist.  Therefore `attachment_reserve` first looks at the attachments of (volume,
server), leaves out those that the ledger knows, and adopts what is left, if it is a bare
reservation.  That is safe because the operation holds the claim on the volume: nobody else in the
ledger reserves it now.

Cinder may carry out a lost request *after* that look: its sender gave up or died, and Cinder does
not know.  So an attempt that follows one with an unknown outcome gives the reservation LATE_S to
appear before it makes another; and the work of a dead dispatcher is not touched for as long
(ledger.core.dispatcher).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from aggregates.attachment import Attachment, AttachmentState
from aggregates.volume import Volume
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, AttachmentView, PortError
from host_agent.shared.contract.volume_states import letting_go
from ledger.core.steps.context import EffectContext, given_up
from ledger.log.unit import AggregateStore

LATE_POLL_S = 0.25


def attachment_reserve(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1: attachment_create without connector; the volume becomes `reserved`."""
    if lane.legacy:
        return _reserve_by_old_calls(lane, context)
    unknown: list[AttachmentView] = []
    looks = 0 if _is_clear(lane, context) else 1
    for _ in range(1 + round(LATE_S / LATE_POLL_S) if context.uncertain else looks):
        unknown = _unknown(lane, context)
        fitting = [each.id for each in unknown if each.mode in {None, lane.access_mode}]
        if fitting:
            _end(unknown, context, but=fitting[0])
            return {"attachment_id": fitting[0], "adopted": True}
        if context.uncertain:
            context.wait(LATE_POLL_S)
    created = context.cinder.attachment_create(
        lane.volume_id, lane.server_id, None, lane.access_mode
    )
    _end(unknown, context, but=created.id)
    return {"attachment_id": created.id}


def take_back_reservation(
    lane: Lane, made: dict[str, Any], context: EffectContext, store: AggregateStore
) -> None:
    """Delete it, unless the log knows it: then somebody uses it."""
    if not lane.legacy:
        of = {"volume_id": lane.volume_id, "server_id": lane.server_id}
        id_ = made["attachment_id"]
        if given_up(Attachment, id_, Attachment.Disowned, context, store, **of).disowned:
            context.cinder.attachment_delete(id_)
        return
    # The old calls leave a status and no row: whoever has the volume, or claims it, uses it.
    volume = context.book.get(Volume, lane.volume_id)
    if not volume.claims and not volume.holders and _is_attaching(lane, context):
        context.cinder.unreserve(lane.volume_id)


def _is_clear(lane: Lane, context: EffectContext) -> bool:
    """Whether there is no reservation to adopt, or another step deletes it anyway.

    A volume that was `available`, or that was just made, has none.  In a move, leftovers of late
    requests are deleted with the server's other attachment.
    """
    seen, other = lane.volume_seen, lane.other
    available = seen is not None and seen.status == "available"
    moves = other is not None and other.volume_id == lane.volume_id
    return context.first and (available or moves or lane.create is not None)


def _unknown(lane: Lane, context: EffectContext) -> list[AttachmentView]:
    """Bare reservations that the log does not know and has not given up."""
    bare = [
        view
        for view in context.cinder.attachments(lane.volume_id or None, lane.server_id)
        if view.status == "reserved" and not view.connection_info
    ]
    return [view for view in bare if context.book.get(Attachment, view.id).version == 0]


def _end(unknown: list[AttachmentView], context: EffectContext, but: str) -> None:
    """Delete what other attempts, or an earlier attach in another mode, have left late."""
    for each in unknown:
        if each.id != but:
            context.cinder.attachment_delete(each.id)


def _reserve_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1, old flow: os-reserve.  The claim on the volume says whose reservation it is.

    In a move the volume stays `in-use`, and nothing has to be reserved.
    """
    reserved = not _is_clear(lane, context) and _is_attaching(lane, context)
    if lane.other is None and not reserved:
        context.cinder.reserve(lane.volume_id)
    return {"attachment_id": str(uuid4())}  # Cinder knows none: the ledger's own name for it


def _is_attaching(lane: Lane, context: EffectContext) -> bool:
    return context.cinder.volume(lane.volume_id).status == "attaching"


def reservation_convert(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Replace what the old calls left of an offloaded server by a bare reservation.

    The volume stays the server's throughout: if it is only reserved, and Cinder has no row that
    says for whom, the old calls first make one.  An attachment that the log knows by its id is not
    of the old calls: another process may just have converted it.
    """
    if not context.cinder.attachments(lane.volume_id, lane.server_id):
        device, mode = f"/dev/{lane.device_name}", lane.access_mode
        context.cinder.attach(lane.volume_id, lane.server_id, device, "", mode)
    made = attachment_reserve(replace(lane, legacy=False), context)
    for view in context.cinder.attachments(lane.volume_id, lane.server_id):
        if view.id != made["attachment_id"] and is_unknown(view, context):
            with letting_go(context.cinder, lane) as deletion:
                deletion.shown = context.cinder.attachment_delete(view.id) is not None
    return made


def take_back_conversion(
    lane: Lane, made: dict[str, Any], context: EffectContext, store: AggregateStore
) -> None:
    """Delete the new-style reservation that it makes, whatever the lane had before."""
    take_back_reservation(replace(lane, legacy=False), made, context, store)


def attachment_delete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the attachment; one that the host has already deleted is not requested again.

    Unknown attachments of this volume and server are deleted with it: their answers were lost, or
    they were made after the sender had given up.  If a fenced host made one, it may have given it
    its connector, but cannot have connected.
    """
    if lane.legacy:
        return _delete_by_old_calls(lane, context)
    left: list[AttachmentView] | None = None
    if lane.attachment_id is not None:
        attachment = context.book.get(Attachment, lane.attachment_id)
        if attachment.state is not AttachmentState.DELETED:
            with letting_go(context.cinder, lane) as deletion:
                left = context.cinder.attachment_delete(lane.attachment_id)
                deletion.shown = left is not None
                left = _without(lane.attachment_id, left, lane, context)
    return attachments_clear(lane, context, left)


def _without(
    deleted: str, left: list[AttachmentView] | None, lane: Lane, context: EffectContext
) -> list[AttachmentView]:
    """The volume's other attachments; they are read if the answer to a deletion does not have them.

    RETRYABLE `attachment_left` if the deletion has left the attachment's row (LP 1935057).
    """
    if left is None:
        left = context.cinder.attachments(lane.volume_id or None, lane.server_id)
    if row := next((view for view in left if view.id == deleted), None):
        text = f"Attachment {deleted} is still there ({row.status!r}) after its deletion."
        raise PortError(ErrorKind.RETRYABLE, "attachment_left", text)
    return left


def _delete_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """What is left when no host has the volume: the reservation, or Cinder's record of it."""
    known = lane.attachment_id and context.book.get(Attachment, lane.attachment_id)
    if lane.other is not None or (known and known.state is AttachmentState.DELETED):
        return {}
    rows = context.cinder.old_attachments(lane.volume_id)
    for row in rows:
        if row.server_id == lane.server_id:
            with letting_go(context.cinder, lane):
                context.cinder.detach(lane.volume_id, row.id)
    if not rows and _is_attaching(lane, context):
        context.cinder.unreserve(lane.volume_id)
    return {}


def attachment_complete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Tell Cinder for a fenced host that its guest has the volume, as the log says.

    So the volume stays the server's, and an evacuation finds all volumes in the same state.
    Without the host's connector its guest cannot have the volume.
    """
    assert lane.attachment_id is not None, "a host that got as far as this had one"
    if context.book.get(Attachment, lane.attachment_id).state is AttachmentState.RESERVED:
        return {}
    if lane.legacy:
        rows = context.cinder.old_attachments(lane.volume_id)
        if not any(row.server_id == lane.server_id for row in rows):
            host = context.book.get(Attachment, lane.attachment_id).host or ""
            device = f"/dev/{lane.device_name}"
            mode = lane.access_mode
            context.cinder.attach(lane.volume_id, lane.server_id, device, host, mode)
    elif context.cinder.attachment(lane.attachment_id).status != "attached":
        context.cinder.attachment_complete(lane.attachment_id)
    return {}


def reservation_tidy(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """A server that could not be built keeps its reservations (LP 1899649).  A reservation by a
    call that seemed to fail is not known as the server's, and is deleted.
    """
    if lane.legacy:
        return attachment_delete(lane, context) if lane.attachment_id is None else {}
    return attachments_clear(lane, context)


# --- of which the log knows nothing, or has given them up: nobody waits for them ----------------


def attachments_clear(
    lane: Lane, context: EffectContext, shown: list[AttachmentView] | None = None
) -> dict[str, Any]:
    """Delete unknown attachments, of any volume if the lane has none: no step learnt their ids, so
    nothing was connected by them.

    The caller has the claim on the volume, or the server is deleted: nobody creates one now.  An
    attachment whose deletion an operator vouched for was known; it stays, as a sign.  `shown`: the
    volume's attachments, if Cinder has just returned them.
    """
    if shown is None or context.uncertain:
        if context.uncertain:
            context.wait(LATE_S)
        shown = context.cinder.attachments(lane.volume_id or None, lane.server_id)
    ended = _ended(shown, lane.server_id, context)
    return {"ended": ended} if ended else {}


def unknown_ended(volume_id: str | None, server_id: str, context: EffectContext) -> dict[str, str]:
    """Delete unknown attachments; their volumes, by their ids."""
    return _ended(context.cinder.attachments(volume_id, server_id), server_id, context)


def _ended(shown: list[AttachmentView], server_id: str, context: EffectContext) -> dict[str, str]:
    ended = {}
    for view in shown:
        if view.server_id == server_id and view.incomplete and is_unknown(view, context):
            context.cinder.attachment_delete(view.id)
            ended[view.id] = view.volume_id
    return ended


def is_unknown(view: AttachmentView, context: EffectContext) -> bool:
    """Whether the log does not know this attachment, or has given it up."""
    known = context.book.get(Attachment, view.id)
    return known.version == 0 or known.disowned
