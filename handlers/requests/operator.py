"""The acts of operators on an operation: retry, skip, unwind, give up.

The log has who did each act, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState, Outcome, StepStatus
from aggregates.remnant import Remnant, RemnantKind
from handlers.engine import engine
from handlers.engine.claims import connects_anew
from handlers.engine.engine import Left, pivot_passed, unwinds
from handlers.engine.plan import Plan, arrival, lane_of, plan_of
from handlers.engine.verbs import VERBS, LedgerVerb
from handlers.results.meaning import Book
from handlers.results.progress import Execution
from handlers.results.remnants import leave
from host_agent.shared.contract.lane import Lane


def acts(operation: Operation) -> list[str]:
    """The possible acts on an operation now; each may have a reason why it is refused."""
    plan, history = plan_of(operation), operation.history
    unwind = [] if pivot_passed(plan, history) else ["unwind"]
    match operation.state:
        case OperationState.PARKED:
            return ["retry", "skip", *unwind, *([] if _needs_its_end(plan) else ["give_up"])]
        case OperationState.RUNNING:
            waiting = ["retry"] if waits(operation) else []
            return waiting if history.unwinding else [*waiting, *unwind]
    return []


def in_the_way(refusal: errors.ClaimedError, book: Book) -> errors.ClaimedError:
    """The refusal, with the facts about the operation that it names."""
    operation = book.get(Operation, refusal.fields["operation_id"])
    assert operation.started is not None, "an operation that claims something has begun"
    parked = operation.state is OperationState.PARKED
    kind = errors.ParkedClaimError if parked else errors.BusyClaimError
    may, known = acts(operation), refusal.fields
    return kind(
        what=known["what"],
        id=known["id"],
        operation_id=known["operation_id"],
        flow=operation.started.flow,
        state=operation.state.value,
        acts=may,
        choice=", ".join(may),
    )


@contextmanager
def explained(book: Book) -> Iterator[None]:
    """Add to a ClaimedError raised in here the operation that has the claim, and its
    possible acts.
    """
    try:
        yield
    except errors.ClaimedError as refusal:
        raise in_the_way(refusal, book) from None


def retry(operation: Operation, reason: str, book: Book) -> None:
    """Retry the failed steps of a parked operation; of a running one, retry its delayed steps."""
    if operation.state is OperationState.RUNNING:
        if not waits(operation):
            _refuse(operation, "be retried", "it is running, and no step waits to be tried again")
    else:
        _require_parked(operation, "be retried")
        Execution(operation, book).resume()
    operation.record(Operation.RetryRequested, reason=reason)


def waits(operation: Operation) -> bool:
    """Whether a step waits for the time of its next attempt."""
    history = operation.history
    undoing = unwinds(plan_of(operation), history)
    return any(
        record.status is StepStatus.RETRYING and undo == undoing and lane not in history.active
        for (lane, _, undo), record in history.records.items()
    )


def skip_step(operation: Operation, lane: int, step: str, reason: str, book: Book) -> list[Remnant]:
    """Continue as if this step, the first pending one of its lane, were done.  Returns what may be
    left behind.

    The operator vouches for the step; the domain events have the reason.
    """
    _require_parked(operation, "skip a step")
    first = next((item for item in left(operation) if item.lane == lane), None)
    if first is None or first.step != step:
        wanted = f"step {first.step} is the next one" if first else "it has nothing left"
        _refuse(operation, f"skip step {step} of lane {lane}", wanted)
    Execution(operation, book).resume()
    remnants = leave(operation, [first], "skip", reason, book)
    Execution(operation, book).skip(first, reason)
    return remnants


def unwind(operation: Operation, reason: str, book: Book) -> None:
    """Undo everything, unless the operation is past its pivot."""
    if operation.state is OperationState.FINISHED:
        _refuse(operation, "be unwound", "it is finished")
    if pivot_passed(plan_of(operation), operation.history):
        _refuse(operation, "be unwound", "its pivot is passed; there is only forward")
    Execution(operation, book).resume()
    operation.record(Operation.UnwindRequested, reason=reason)


def give_up(operation: Operation, reason: str, book: Book) -> list[Remnant]:
    """End a parked operation as it is.  Returns what is left behind; the log shows the rest as it
    is.

    Refused if afterwards nobody would know where the guest is, or if it would leave an attachment
    that is unknown or that no mapping has: nobody could ever release it.  Its steps have to be
    done, or vouched for one by one.  Also refused if no other operation can do what is left.

    """
    _require_parked(operation, "be given up")
    if why := _needs_its_end(plan_of(operation)):
        _refuse(operation, "be given up", f"{why}; retry, or skip")
    if (host := arrival(operation)) is not None:
        why = f"its guest may be on host {host}; retry, or skip its steps with the evidence"
        _refuse(operation, "be given up", why)
    for attachment in _unmapped(operation, book):
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
    remnants = leave(operation, left(operation), "give_up", reason, book)
    Execution(operation, book).finish(Outcome.CANCELLED, reason=reason)
    return remnants


def _needs_its_end(plan: Plan) -> str | None:
    """Why no other operation can do what is left of this one; None: one can."""
    if plan.patient:
        return "its server is deleted, and no other operation releases what is left"
    if any(step.do is LedgerVerb.INSTANCE_SETTLED for step in plan.steps):
        return "what is let go of cannot be had again, so no other one can confirm or revert"
    return None


def _unmapped(operation: Operation, book: Book) -> list[Attachment]:
    """Existing attachments of the operation that no mapping has."""
    unmapped = []
    for lane in operation.lanes:
        mapping = book.get(BlockDeviceMapping, lane.bdm_id)
        for attachment_id in lane.attachment_ids - {mapping.attachment_id, mapping.kept}:
            attachment = book.get(Attachment, attachment_id)
            if attachment.version and attachment.state is not AttachmentState.DELETED:
                unmapped.append(attachment)
    return unmapped


def left(operation: Operation) -> list[Left]:
    """The pending steps of a parked operation, in order."""
    return engine.left(plan_of(operation), operation.history)


def unlearnt(operation: Operation) -> list[Lane]:
    """Lanes for which a parked operation may have an attachment in Cinder with an unknown id: one
    per volume, whichever of its deletions is pending.
    """
    plan = plan_of(operation)
    lanes = [
        lane_of(operation, item.lane, item.step)
        for item in left(operation)
        if item.undo and VERBS[plan.planned(item.step, undo=True)].remnant is RemnantKind.ATTACHMENT
    ]
    return list({lane.volume_id: lane for lane in lanes if lane.attachment_id is None}.values())


def unconnected(operation: Operation) -> set[str]:
    """Attachments that a parked operation got for a host and did not begin to connect.  The host
    has nothing of them, even if it deleted them in Cinder and did not report it.
    """
    names = [step.name for step in plan_of(operation).steps if connects_anew(step)]
    lanes = [
        lane_of(operation, number, name)
        for number in range(len(operation.lanes))
        for name in names
        if not operation.history.touched(number, name)
    ]
    return {lane.attachment_id for lane in lanes if lane.attachment_id is not None}


def unmade(operation: Operation, book: Book) -> list[Lane]:
    """Lanes for which a volume may have been made that no mapping has, each with its operation."""
    makes = [step.name for step in plan_of(operation).steps if step.do is LedgerVerb.VOLUME_CREATE]
    return [
        replace(lane, create={**lane.create, "operation_id": str(operation.id)})
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
