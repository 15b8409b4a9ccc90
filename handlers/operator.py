"""What a person may do about an operation: retry, skip, unwind, give up.

Each act records who and why in the same log as everything else.
"""

from __future__ import annotations

from typing import NoReturn

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState, Outcome, StepStatus
from handlers import engine
from handlers.engine import Left, pivot_passed, unwinds
from handlers.meaning import Book
from handlers.plan import LedgerVerb
from handlers.progress import arrival, finish, lane_of, plan_of, skip
from host_agent.shared.lane import Lane

#: Undoing an attachment or a reservation; where none is known, whatever Cinder made all the same.
_DELETIONS = frozenset({LedgerVerb.ATTACHMENT_DELETE, LedgerVerb.RESERVATION_TIDY})


def acts(operation: Operation) -> str:
    """What may be done about a parked operation, in words."""
    if pivot_passed(plan_of(operation), operation.history):
        return "retry it, skip its step, or give it up"
    return "retry it, skip its step, unwind it, or give it up"


def retry(operation: Operation, reason: str) -> None:
    """Try the failed steps of a parked operation again; of one that runs, at once what waits
    for its time, however far that is.
    """
    if operation.state is OperationState.RUNNING:
        if not waits(operation):
            _refuse(operation, "be retried", "it is running, and no step waits to be tried again")
    else:
        _require_parked(operation, "be retried")
    operation.record(Operation.RetryRequested, reason=reason)


def waits(operation: Operation) -> bool:
    """Whether a step waits for the time to be tried again."""
    history = operation.history
    undoing = unwinds(plan_of(operation), history)
    return any(
        record.status is StepStatus.RETRYING and undo == undoing and lane not in history.active
        for (lane, _, undo), record in history.records.items()
    )


def skip_step(operation: Operation, lane: int, step: str, reason: str, book: Book) -> None:
    """Go on as if this step, the first one left in its lane, were done.

    The operator vouches for it; the reason is kept in the domain events.
    """
    _require_parked(operation, "skip a step")
    first = next((item for item in left(operation) if item.lane == lane), None)
    if first is None or first.step != step:
        wanted = f"step {first.step} is the next one" if first else "it has nothing left"
        _refuse(operation, f"skip step {step} of lane {lane}", wanted)
    skip(operation, first, reason, book)


def unwind(operation: Operation, reason: str) -> None:
    """Undo everything, if the point of no return is not behind."""
    if operation.state is OperationState.FINISHED:
        _refuse(operation, "be unwound", "it is finished")
    if pivot_passed(plan_of(operation), operation.history):
        _refuse(operation, "be unwound", "its pivot is passed; there is only forward")
    operation.record(Operation.UnwindRequested, reason=reason)


def give_up(operation: Operation, reason: str, book: Book) -> None:
    """End a parked operation as it is; what is left stays as the log shows it.

    Not if nobody knew then where the guest is, or if that left an attachment behind that no
    mapping leads to, or nobody knows: nobody could ever release it.  Its steps are then to be
    done, or vouched for one by one.
    """
    _require_parked(operation, "be given up")
    if plan_of(operation).patient:
        why = "its server is deleted, and no other operation releases what is left; retry, or skip"
        _refuse(operation, "be given up", why)
    if (host := arrival(operation)) is not None:
        why = f"its guest may be on host {host}; retry, or skip its steps with the evidence"
        _refuse(operation, "be given up", why)
    for attachment in _strays(operation, book):
        where = f"attachment {attachment.id} on host {attachment.host}"
        why = f"{where} would stay behind; retry, or skip its steps with the evidence"
        _refuse(operation, "be given up", why)
    for lane in unlearnt(operation):
        what = f"an unknown attachment of volume {lane.volume_id}"
        why = f"Cinder may have {what}; retry, or skip its steps with the evidence"
        _refuse(operation, "be given up", why)
    for lane in unmade(operation, book):
        why = f"a volume with mark {lane.bdm_id} would stay behind; retry, or skip"
        _refuse(operation, "be given up", why)
    finish(operation, Outcome.CANCELLED, book, reason=reason)


def _strays(operation: Operation, book: Book) -> list[Attachment]:
    """Attachments of the operation that are there, and that no mapping has."""
    strays = []
    for lane in operation.lanes:
        mapping = book.get(BlockDeviceMapping, lane.bdm_id)
        for attachment_id in lane.attachment_ids - {mapping.attachment_id, mapping.kept}:
            attachment = book.get(Attachment, attachment_id)
            if attachment.version and attachment.state is not AttachmentState.DELETED:
                strays.append(attachment)
    return strays


def left(operation: Operation) -> list[Left]:
    """The steps a parked operation has not done, in the order they would be done."""
    return engine.left(plan_of(operation), operation.history)


def unlearnt(operation: Operation) -> list[Lane]:
    """Where a parked operation may have an attachment in Cinder whose id nobody has learnt: one
    for each volume, whichever of its deletions is left.
    """
    plan = plan_of(operation)
    lanes = [
        lane_of(operation, item.lane, item.step)
        for item in left(operation)
        if item.undo and plan.step(item.step).undo in _DELETIONS
    ]
    return list({lane.volume_id: lane for lane in lanes if lane.attachment_id is None}.values())


def unmade(operation: Operation, book: Book) -> list[Lane]:
    """Lanes for which a volume may have been made that no mapping has."""
    makes = [step.name for step in plan_of(operation).steps if step.do is LedgerVerb.VOLUME_CREATE]
    return [
        lane
        for number, lane in enumerate(operation.lanes)
        if lane.create
        and not book.get(BlockDeviceMapping, lane.bdm_id).volume_id
        and any(operation.history.touched(number, name) for name in makes)
    ]


def _require_parked(operation: Operation, act: str) -> None:
    if operation.state is not OperationState.PARKED:
        _refuse(operation, act, f"it is {operation.state}, and only a parked one can")


def _refuse(operation: Operation, act: str, why: str) -> NoReturn:
    raise errors.OperatorActError(operation_id=str(operation.id), act=act, why=why)
