"""The effects of the ledger's own steps (S1's "(api)" calls to Cinder), and their undo.

The functions are in `ledger.core.steps`, by subject.

A lease only avoids double work.  A process may stop between its look and its request, and continue
when another process has the lease: then it creates a second attachment in Cinder.  The log refuses
its result, so without an undo the id would be lost, and the volume reserved for ever.  So a process
that learns that its step is already done deletes what it has created.

A request without an answer may still be carried out later.  A step that releases a volume looks for
unknown reservations; but nothing would look for a volume that was created.  A volume
that may be a copy of the one in the log is left (handlers.results.made).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import structlog

from aggregates.operation import Operation
from handlers.engine.verbs import AnyVerb, LedgerVerb
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, StepError, StepResult
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.spans import span_of_run
from host_agent.shared.platform.tracing import doing
from ledger.core.steps import attachments, reimage, snapshots, volumes
from ledger.core.steps.context import EffectContext
from ledger.log.unit import AggregateStore, Unit
from ledger.reconcile import repair_effects

_log = structlog.get_logger(__name__)


def carry_out(step: str, verb: str, lane: Lane, context: EffectContext) -> StepResult:
    """Do one effect; an exception becomes its result."""
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
    """Calls of Cinder in here belong to the step; yields the request ids that Cinder returned."""
    operation = context.operation
    if operation is None or operation.started is None:
        return nullcontext([])
    started = operation.started
    run = span_of_run(str(operation.id), started.traceparent, context.run)
    return doing(run.child(step), started.request_id)


def _unexpected(error: Exception) -> StepError:
    """An unforeseen error.  Its text may have anything in it, so only its type is stored."""
    return StepError(
        kind=ErrorKind.UNKNOWN,
        code="internal",
        message=f"Unexpected {type(error).__name__}; the service's log has the traceback.",
    )


def undo_refused_result(
    verb: AnyVerb, lane: Lane, result: StepResult, context: EffectContext, store: AggregateStore
) -> None:
    """Delete what a step made if another process did the step first.  A failure is not retried
    here: the next release of the volume deletes everything unknown.
    """
    if verb not in TAKEN_BACK:
        return
    try:
        for made in _made(verb, lane, result, context, store):
            operation = context.operation and str(context.operation.id)
            _log.warning("step_done_twice", verb=verb, operation=operation)
            TAKEN_BACK[verb](lane, made, replace(context, book=Unit(store)), store)
    except PortError as failure:
        _log.warning("not_taken_back", verb=verb, code=failure.code, why=failure.message)


def _made(
    verb: AnyVerb, lane: Lane, result: StepResult, context: EffectContext, store: AggregateStore
) -> list[dict[str, Any]]:
    """What the step reports as made; if it cannot say, a volume that is certainly its own."""
    if result.error is None:
        return [result.outputs]
    unknown = result.error.kind is ErrorKind.UNKNOWN
    if verb != LedgerVerb.VOLUME_CREATE or lane.create is None or not unknown:
        return []
    book, operation = Unit(store), context.operation
    assert operation is not None, "it is a step of one"
    known = book.get(Operation, str(operation.id))
    now = replace(context, book=book, operation=known, uncertain=True)
    return [{"volume_id": volume.id} for volume in volumes.marked(lane, now).ours]


#: Each is the function of its name.
EFFECTS: dict[str, Callable[[Lane, EffectContext], dict[str, Any]]] = {
    verb: vars(file)[verb]
    for file in (attachments, volumes, reimage, snapshots, repair_effects)
    for verb in LedgerVerb
    if verb in vars(file)
}
#: Of these something is there that would not be without a second attempt.
TAKEN_BACK: dict[str, Callable[[Lane, dict[str, Any], EffectContext, AggregateStore], None]] = {
    LedgerVerb.ATTACHMENT_RESERVE: attachments.take_back_reservation,
    LedgerVerb.RESERVATION_CONVERT: attachments.take_back_conversion,
    LedgerVerb.VOLUME_CREATE: volumes.take_back_volume,
}
