"""What a skipped step may leave behind, by the step's verb (decision 0054).

A dry run shows the same remnants as the act records.  What the log knows to be gone, or never to
have existed, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid5

from aggregates.attachment import Attachment, AttachmentState
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import SERVER, Operation
from aggregates.remnant import Remnant, RemnantKind
from handlers.engine.engine import Left
from handlers.engine.plan import Place, lane_of, plan_of
from handlers.engine.verbs import VERBS
from handlers.results.meaning import Book
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import Verb

_K = RemnantKind
_IN_CINDER = frozenset({_K.ATTACHMENT, _K.VOLUME, _K.MIGRATION})
#: Nothing is connected through an attachment in these.
_APART = frozenset(
    {AttachmentState.RESERVED, AttachmentState.DISCONNECTED, AttachmentState.DELETED}
)


def leave(
    operation: Operation, passed_over: Iterable[Left], act: str, reason: str, book: Book
) -> list[Remnant]:
    """Record what remains if these steps are not done; each remnant is recorded once."""
    remnants = []
    for item in passed_over:
        kind = VERBS[plan_of(operation).planned(item.step, undo=item.undo)].remnant
        if kind is None or not _may_be_there(kind, operation, item, book):
            continue
        name = f"{item.lane}/{item.step}/{'undo' if item.undo else 'do'}"
        remnant = book.get(Remnant, str(uuid5(operation.id, name)))
        if remnant.version:
            continue
        lane = lane_of(operation, item.lane, item.step)
        remnant.record(
            Remnant.RemnantLeft,
            what=kind.value,
            act=act,
            reason=reason,
            from_operation=str(operation.id),
            step=item.step,
            server_id=lane.server_id,
            volume_id=lane.volume_id or None,
            attachment_id=lane.attachment_id,
            host=None if kind in _IN_CINDER else _host(operation, item),
        )
        remnants.append(remnant)
    return remnants


def _host(operation: Operation, item: Left) -> str | None:
    plan = plan_of(operation)
    if plan.step(item.step).undo is Verb.GUEST_STAY:  # asked of the source; it may have come there
        return plan.hosts[Place.DESTINATION]
    return plan.host_of(item.lane, plan.stage_of(item.step).place)


def _may_be_there(kind: RemnantKind, operation: Operation, item: Left, book: Book) -> bool:
    if item.lane == SERVER:
        return kind in _IN_CINDER or _host(operation, item) is not None
    lane = lane_of(operation, item.lane, item.step)
    if kind is _K.VOLUME:
        return lane.delete_on_termination or lane.create is not None
    if kind is _K.DISK:
        state = book.get(BlockDeviceMapping, lane.bdm_id).state
        return state in {MappingState.BOUND, MappingState.PLUGGED}
    if kind in {_K.CONNECTION, _K.ATTACHMENT}:
        return _is_open(kind, lane, book)
    return True


def _is_open(kind: RemnantKind, lane: Lane, book: Book) -> bool:
    if lane.attachment_id is None:  # one that nobody knows may be in Cinder, never connected
        return kind is _K.ATTACHMENT
    state = book.get(Attachment, lane.attachment_id).state
    gone = _APART if kind is _K.CONNECTION else {AttachmentState.DELETED}
    return state not in gone
