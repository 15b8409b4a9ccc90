"""Undoing an effect whose step somebody else has done as well, and was first.

A lease only avoids double work: a process that is stopped between its look and its request,
and goes on when its lease has long been another's, makes a second attachment in Cinder.  The
log refuses its result, and with it the id would be lost, and the volume reserved for ever.
So whoever is told that a step is done takes back what it made beside.

Where the answer never came it may make it all the same, later.  Whoever releases a volume looks for
reservations that nobody knows; for a volume that was made nobody would look any more (seed 255).
One that may as well be a copy of the volume that the log has is left (handlers.results.made).

Another process may just have found the same attachment, and be about to take it over.  So it
is given up in the log first (`Attachment.Disowned`): of the two saves one is refused, and
either the attachment is somebody's, and stays, or nobody takes it over any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from aggregates.attachment import Attachment
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.verbs import AnyVerb, LedgerVerb
from handlers.results.made import UNFINISHED
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, StepResult
from host_agent.shared.contract.ports import PortError
from ledger.core.steps.context import EffectContext
from ledger.core.steps.made import marked
from ledger.log.unit import AggregateStore, Unit, own_context, run_optimistically

Made = dict[str, Any]

#: How long to wait for a volume to be made before it can be deleted (nova waits as long).
MADE_S = 180.0
MADE_POLL_S = 5.0

_log = structlog.get_logger(__name__)


def take_back(
    verb: AnyVerb,
    lane: Lane,
    result: StepResult,
    operation: Operation,
    effect: EffectContext,
    store: AggregateStore,
) -> None:
    """End what a step made that another has done, and was first.  A failure is not tried again
    here: whoever releases the volume next ends all that nobody knows.
    """
    if verb not in _TAKEN_BACK:
        return
    try:
        for made in _made(verb, lane, result, operation, effect, store):
            _log.warning("step_done_twice", verb=verb, operation=str(operation.id))
            fresh = replace(effect, book=Unit(store))
            _TAKEN_BACK[verb](lane, made, operation, fresh, store)
    except PortError as failure:
        _log.warning("not_taken_back", verb=verb, code=failure.code, why=failure.message)


def _made(
    verb: AnyVerb,
    lane: Lane,
    result: StepResult,
    operation: Operation,
    effect: EffectContext,
    store: AggregateStore,
) -> list[Made]:
    """What the step says that it made; if it cannot tell, a volume that is sure to be of it."""
    if result.error is None:
        return [result.outputs]
    unknown = result.error.kind is ErrorKind.UNKNOWN
    if verb != LedgerVerb.VOLUME_CREATE or lane.create is None or not unknown:
        return []
    book = Unit(store)
    now = replace(effect, book=book, operation=book.get(Operation, operation.id), uncertain=True)
    return [{"volume_id": volume.id} for volume in marked(lane, now).ours]


def _reservation(
    lane: Lane, made: Made, operation: Operation, effect: EffectContext, store: AggregateStore
) -> None:
    """One that the log knows is somebody's."""
    if not lane.legacy:
        if _disowned(lane, made["attachment_id"], operation, store):
            effect.cinder.attachment_delete(made["attachment_id"])
        return
    # The old calls leave a status and no row: whoever has the volume, or claims it, uses it.
    volume = effect.book.get(Volume, lane.volume_id)
    free = not volume.claims and not volume.holders
    if free and effect.cinder.volume(lane.volume_id).status == "attaching":
        effect.old_cinder.unreserve(lane.volume_id)


def _conversion(
    lane: Lane, made: Made, operation: Operation, effect: EffectContext, store: AggregateStore
) -> None:
    """It makes a reservation of the new kind, whatever the lane had before."""
    _reservation(replace(lane, legacy=False), made, operation, effect, store)


def _disowned(lane: Lane, attachment_id: str, operation: Operation, store: AggregateStore) -> bool:
    """Give an attachment up that the log does not know; whether it is given up."""

    def change(unit: Unit) -> bool:
        attachment = unit.get(Attachment, attachment_id)
        if attachment.version == 0:
            attachment.record(
                Attachment.Disowned,
                volume_id=lane.volume_id,
                server_id=lane.server_id,
                why="created for a step that another process had done",
            )
            unit.save(own_context(operation))
        return attachment.disowned

    return run_optimistically(store, change)


def _volume(
    lane: Lane, made: Made, operation: Operation, effect: EffectContext, store: AggregateStore
) -> None:
    """The same for a volume that was created just now; where none was to be made there is none."""
    volume_id = made.get("volume_id")
    if volume_id is None or made.get("adopted"):
        return

    def change(unit: Unit) -> bool:
        volume = unit.get(Volume, volume_id)
        if volume.version == 0:
            why = "created for a step that another process had done"
            volume.record(Volume.VolumeDeleted, server_id=lane.server_id, why=why)
            unit.save(own_context(operation))
        return volume.deleted

    if not run_optimistically(store, change):
        return
    for _ in range(round(MADE_S / MADE_POLL_S)):
        if effect.cinder.volume(volume_id).status not in UNFINISHED:
            break
        effect.wait(MADE_POLL_S)  # Cinder deletes none that it is still making
    effect.cinder.volume_delete(volume_id)


_TAKEN_BACK: dict[str, Callable[[Lane, Made, Operation, EffectContext, AggregateStore], None]] = {
    LedgerVerb.ATTACHMENT_RESERVE: _reservation,
    LedgerVerb.RESERVATION_CONVERT: _conversion,
    LedgerVerb.VOLUME_CREATE: _volume,
}
