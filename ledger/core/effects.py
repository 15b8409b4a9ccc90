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
dead dispatcher has left behind is not touched for as long (ledger.core.dispatcher).

A process may also stand still between its look and its request, for longer than its lease;
then somebody else has done the step when its answer comes (ledger.core.take_back).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from uuid import uuid4

import structlog

from aggregates.attachment import Attachment, AttachmentState
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, StepError, StepResult
from host_agent.shared.contract.ports import LATE_S, AttachmentView, PortError
from host_agent.shared.contract.spans import span_of_run
from host_agent.shared.contract.volume_states import AT_WORK, is_migrating, letting_go
from host_agent.shared.platform.tracing import doing
from ledger.core.steps import snapshots
from ledger.core.steps.context import EffectContext
from ledger.core.steps.made import (
    await_volume,
    delete_with_reservations,
    make_volume,
    not_ready,
    unmake_volume,
    volumes_gone,
)
from ledger.core.steps.reimage import reimage
from ledger.core.steps.unknown import end_unknown, is_unknown
from ledger.reconcile import mending

_log = structlog.get_logger(__name__)

LATE_POLL_S = 0.25
#: Cinder waits to hear that the guest has all of the volume (3.71).
EXTENDING = "extending"


def carry_out(step: str, verb: str, lane: Lane, context: EffectContext) -> StepResult:
    """Do one effect; whatever it raises is its result."""
    began = time.monotonic()
    outputs: dict[str, Any] = {}
    error: StepError | None = None
    request_ids: list[str] = []
    try:
        with _asking(step, context) as request_ids:
            outputs = EFFECTS[verb](lane, context)
    except PortError as failure:
        error = failure.as_step_error()
    except Exception as failure:  # noqa: BLE001 - recorded as unknown, logged in full
        _log.exception("step_crashed", verb=verb, volume=lane.volume_id)
        error = _unexpected(failure)
    took_ms = int((time.monotonic() - began) * 1000)
    return StepResult(
        step=step, took_ms=took_ms, outputs=outputs, error=error, cinder_requests=tuple(request_ids)
    )


def _asking(step: str, context: EffectContext) -> AbstractContextManager[list[str]]:
    """What Cinder is asked inside belongs to the step; the ids that it gave to that."""
    operation = context.operation
    if operation is None or operation.started is None:
        return nullcontext([])
    started = operation.started
    run = span_of_run(str(operation.id), started.traceparent, context.run)
    return doing(run.child(step), started.request_id)


def _unexpected(error: Exception) -> StepError:
    """An error nobody foresaw; its text may hold anything, so only its type is kept."""
    return StepError(
        kind=ErrorKind.UNKNOWN,
        code="internal",
        message=f"Unexpected {type(error).__name__}; the service's log has the traceback.",
    )


def reserve(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1: attachment_create without connector; the volume becomes `reserved`."""
    if lane.legacy:
        return _reserve_by_old_calls(lane, context)
    orphans: list[AttachmentView] = []
    looks = 0 if _is_clear(lane, context) else 1
    for _ in range(1 + round(LATE_S / LATE_POLL_S) if context.uncertain else looks):
        orphans = _orphans(lane, context)
        fitting = [each.id for each in orphans if each.mode in {None, lane.access_mode}]
        if fitting:
            _end(orphans, context, but=fitting[0])
            return {"attachment_id": fitting[0], "adopted": True}
        if context.uncertain:
            context.wait(LATE_POLL_S)
    created = context.cinder.attachment_create(
        lane.volume_id, lane.server_id, None, lane.access_mode
    )
    _end(orphans, context, but=created.id)
    return {"attachment_id": created.id}


def _is_clear(lane: Lane, context: EffectContext) -> bool:
    """Whether there is no reservation to be adopted, or it goes all the same.

    A volume that was `available` has none, nor has one that was just made.  In a move what late
    requests have left goes with the server's other attachment.
    """
    seen, other = lane.volume_seen, lane.other
    available = seen is not None and seen.status == "available"
    moves = other is not None and other.volume_id == lane.volume_id
    return context.first and (available or moves or lane.create is not None)


def _end(orphans: list[AttachmentView], context: EffectContext, but: str) -> None:
    """What came late of other attempts, or of an earlier attach in another mode."""
    for orphan in orphans:
        if orphan.id != but:
            context.cinder.attachment_delete(orphan.id)


def _reserve_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """S1, old flow: os-reserve.  The claim on the volume says whose reservation it is.

    In a move the volume stays `in-use`, and there is nothing to reserve.
    """
    reserved = not _is_clear(lane, context) and _is_attaching(lane, context)
    if lane.other is None and not reserved:
        context.old_cinder.reserve(lane.volume_id)
    return {"attachment_id": str(uuid4())}  # Cinder knows none: the ledger's own name for it


def _is_attaching(lane: Lane, context: EffectContext) -> bool:
    return context.cinder.volume(lane.volume_id).status == "attaching"


def delete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the attachment; one the host deleted already is not asked for again.

    With it goes what nobody knows of this volume and server: whose answer was lost, or which
    was made after all when its sender had given up.  A host that made one and is fenced may
    have given it its connector, but cannot have connected.
    """
    if lane.legacy:
        return _delete_by_old_calls(lane, context)
    left: list[AttachmentView] | None = None
    if lane.attachment_id is not None:
        attachment = context.book.get(Attachment, lane.attachment_id)
        if attachment.state is not AttachmentState.DELETED:
            with letting_go(context.cinder, context.old_cinder, lane) as deletion:
                left = context.cinder.attachment_delete(lane.attachment_id)
                deletion.shown = left is not None
    return end_unknown(lane, context, left)


def complete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Tell Cinder for a fenced host that its guest has the volume, as the log says it had.

    So the volume stays the server's, and an evacuation finds all of them alike.  What the host has
    never given its connector to, its guest cannot have.
    """
    assert lane.attachment_id is not None, "a host that got as far as this had one"
    if context.book.get(Attachment, lane.attachment_id).state is AttachmentState.RESERVED:
        return {}
    if lane.legacy:
        rows = context.old_cinder.old_attachments(lane.volume_id)
        if not any(row.server_id == lane.server_id for row in rows):
            host = context.book.get(Attachment, lane.attachment_id).host or ""
            device = f"/dev/{lane.device_name}"
            mode = lane.access_mode
            context.old_cinder.attach(lane.volume_id, lane.server_id, device, host, mode)
    elif context.cinder.attachment(lane.attachment_id).status != "attached":
        context.cinder.attachment_complete(lane.attachment_id)
    return {}


def tidy(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """A server that could not be built keeps what is reserved for it (LP 1899649); what was
    reserved by a call that seemed to fail is not known to be its, and goes.
    """
    if lane.legacy:
        return delete(lane, context) if lane.attachment_id is None else {}
    return end_unknown(lane, context)


def clear(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the unknown attachments of a server that is gone, of any volume."""
    return end_unknown(lane, context)


def convert(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Put a bare reservation in the place of what the old calls left of an offloaded server.

    The volume is the server's throughout: where it is only reserved, and Cinder has no row that
    says for whom, the old calls first make one.  What the log knows by its id is not of the old
    calls: another process may just have converted it.
    """
    if not context.cinder.attachments(lane.volume_id, lane.server_id):
        device, mode = f"/dev/{lane.device_name}", lane.access_mode
        context.old_cinder.attach(lane.volume_id, lane.server_id, device, "", mode)
    made = reserve(replace(lane, legacy=False), context)
    for view in context.cinder.attachments(lane.volume_id, lane.server_id):
        if view.id != made["attachment_id"] and is_unknown(view, context):
            with letting_go(context.cinder, context.old_cinder, lane) as deletion:
                deletion.shown = context.cinder.attachment_delete(view.id) is not None
    return made


def _delete_by_old_calls(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """What is left when no host has the volume: the reservation, or Cinder's record of it."""
    known = lane.attachment_id and context.book.get(Attachment, lane.attachment_id)
    if lane.other is not None or (known and known.state is AttachmentState.DELETED):
        return {}
    rows = context.old_cinder.old_attachments(lane.volume_id)
    for row in rows:
        if row.server_id == lane.server_id:
            with letting_go(context.cinder, context.old_cinder, lane):
                context.old_cinder.detach(lane.volume_id, row.id)
    if not rows and context.cinder.volume(lane.volume_id).status == "attaching":
        context.old_cinder.unreserve(lane.volume_id)
    return {}


def delete_volume(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the volume with its server, if it is to be; a refusal is noted, not fatal (S3).

    The last of its attachments that goes does it: before that Cinder would refuse.
    """
    try:
        if lane.create is not None:
            return unmake_volume(lane, context)
        held = context.book.get(Volume, lane.volume_id).held_by(lane.server_id)
        if not lane.delete_on_termination or held:
            return {}
        ended = delete_with_reservations(lane.volume_id, lane, context)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
        _refuse_at_work(lane, context)
        return {"refused": error.message}
    return volumes_gone([lane.volume_id], ended)


def _refuse_at_work(lane: Lane, context: EffectContext) -> None:
    """A refusal that lasts only until Cinder is done with the volume is none."""
    try:
        volume = context.cinder.volume(lane.volume_id) if lane.volume_id else None
    except PortError as error:
        if error.code != "not_found":
            raise
        return
    if volume is not None and (volume.status in AT_WORK or is_migrating(volume)):
        raise not_ready(volume)


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


def complete_extension(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest has all of the volume: a Cinder that waits for that takes the new size for true."""
    if context.cinder.volume(lane.volume_id).status == EXTENDING:
        context.cinder.extend_volume_completion(lane.volume_id, error=False)
    return {}


def revoke_extension(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest has all of it, and whether Cinder has heard so is not known: it may have."""
    if context.cinder.volume(lane.volume_id).status not in {EXTENDING, "error_extending"}:
        return {"passed": True}
    return fail_extension(lane, context)


def fail_extension(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest does not: Cinder shows `error_extending`, if it has not done so before."""
    if context.cinder.volume(lane.volume_id).status == EXTENDING:
        context.cinder.extend_volume_completion(lane.volume_id, error=True)
    return {}


def _orphans(lane: Lane, context: EffectContext) -> list[AttachmentView]:
    """Bare reservations that the log neither knows nor has disowned."""
    bare = [
        view
        for view in context.cinder.attachments(lane.volume_id or None, lane.server_id)
        if view.status == "reserved" and not view.connection_info
    ]
    return [view for view in bare if context.book.get(Attachment, view.id).version == 0]


EFFECTS: dict[str, Callable[[Lane, EffectContext], dict[str, Any]]] = {
    LedgerVerb.ATTACHMENT_RESERVE: reserve,
    LedgerVerb.ATTACHMENT_DELETE: delete,
    LedgerVerb.ATTACHMENT_COMPLETE: complete,
    LedgerVerb.RESERVATION_TIDY: tidy,
    LedgerVerb.ATTACHMENTS_CLEAR: clear,
    LedgerVerb.RESERVATION_CONVERT: convert,
    LedgerVerb.VOLUME_CREATE: make_volume,
    LedgerVerb.VOLUME_AWAIT: await_volume,
    LedgerVerb.VOLUME_UNMAKE: unmake_volume,
    LedgerVerb.VOLUME_DELETE: delete_volume,
    LedgerVerb.VOLUME_REIMAGE: reimage,
    LedgerVerb.MIGRATION_COMPLETE: complete_migration,
    LedgerVerb.MIGRATION_FAIL: fail_migration,
    LedgerVerb.EXTENSION_COMPLETE: complete_extension,
    LedgerVerb.EXTENSION_REVOKE: revoke_extension,
    LedgerVerb.EXTENSION_FAIL: fail_extension,
    LedgerVerb.SNAPSHOT_TAKEN: snapshots.tell_taken,
    LedgerVerb.SNAPSHOT_REVOKE: snapshots.revoke_taken,
    LedgerVerb.SNAPSHOT_FAIL: snapshots.fail_taken,
    LedgerVerb.SNAPSHOT_AWAIT: snapshots.await_followed,
    LedgerVerb.SNAPSHOT_MERGED: snapshots.tell_merged,
    LedgerVerb.SNAPSHOT_KEEP: snapshots.keep,
    LedgerVerb.DRIFT_AGAIN: mending.look_again,
    LedgerVerb.ATTACHMENT_DROP: mending.drop_attachment,
    LedgerVerb.VOLUME_SETTLE: mending.settle_volume,
    LedgerVerb.VOLUME_DROP: mending.drop_volume,
}
