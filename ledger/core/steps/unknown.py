"""Attachments in Cinder that the log does not know, or has given up: nobody waits for them."""

from __future__ import annotations

from typing import Any

from aggregates.attachment import Attachment
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.ports import LATE_S, AttachmentView
from ledger.core.steps.context import EffectContext


def end_unknown(
    lane: Lane, context: EffectContext, shown: list[AttachmentView] | None = None
) -> dict[str, Any]:
    """Delete unknown attachments: no step learnt their ids, so nothing connected by them.

    Whoever calls it has the claim on the volume, or the server is deleted: nobody makes one
    now.  One whose deletion an operator vouched for was known, and stays as the sign it is.
    `shown`: the volume's attachments, if Cinder has just told them.
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
