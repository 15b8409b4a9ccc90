"""What becomes of an operation in progress when its host or dispatcher is lost.

A fence ends the work in progress on its host, or hands it over (`host_fenced`), for each
operation that concerns the host.  A move of a guest to the host is undone.  What the host still has
to do, and others can do, becomes theirs at once (`verbs.Fence`).  What nobody else can do fails,
and undoes the operation if it is before its pivot.  What the host may have released is not taken
back (`VerbSpec.puts_back`).  A parked operation is tried again, whatever its reason: it may have
waited for this host, or for this fence.

The process that fences a host tells the operations afterwards, one by one, and may die before it
has told the last one.  The remaining runs have an old epoch, whose reports are refused.  So the
dispatchers look for such runs, also on a host that was unfenced meanwhile (`waiting_on_old_epoch`
of sql/queries/reads.sql).

For operations that began before the ledger was restored from a backup an operator decides first,
and not a fence (`handlers.results.restored`).

What no fence can decide parks: which of two volumes a guest had when its host died during a swap,
and how far the conversion of an old attachment had come.

The ledger's own steps lose their dispatcher (`dispatcher_lost`) when its lease runs out, because it
is dead or paused.  The dispatcher that takes the operation over first ends the former attempt in
the log.  So only the result of the last dispatcher is accepted.  A paused one finds its result
refused, and deletes what it made (ledger.core.effects).
"""

from __future__ import annotations

from dataclasses import replace

from aggregates import errors
from aggregates.host import Host
from aggregates.operation import ActiveRun, Operation, OperationState
from handlers.engine.engine import left, pivot_passed, unwinds
from handlers.engine.plan import Place, arrival, plan_of
from handlers.results import restored
from handlers.results.meaning import Book
from handlers.results.progress import FENCED, Execution, fenced_error
from host_agent.shared.contract.messages import ErrorKind, StepError, StepResult

#: The attempt of a dispatcher that never gave its lease back.
LOST = StepError(
    kind=ErrorKind.UNKNOWN,
    code="dispatcher_lost",
    message="The process that did this step did not come back in time; another one goes on.",
)


def host_fenced(operation: Operation, host: str, now: float, book: Book) -> bool:
    """Whether the fence changes anything for the operation, so that the engine has to
    decide again.
    """
    known = book.get(Host, host)
    if operation.state is OperationState.PARKED:
        waits = known.fenced and not restored.is_parked(operation)
        return waits and _try_again(operation, host, book)
    if operation.state is not OperationState.RUNNING:
        return False
    if restored.is_begun_before(operation, known):
        restored.park(operation, now, book)
        return False
    execution = Execution(operation, book)
    plan, history = execution.plan, execution.history
    going_there = known.fenced and plan.hosts.get(Place.DESTINATION) == host
    if going_there and not (pivot_passed(plan, history) or unwinds(plan, history)):
        operation.record(Operation.UnwindRequested, reason=f"host {host} was fenced")
    active = history.active.values()
    runs = [run for run in active if run.host == host and run.epoch < known.epoch]
    for run in runs:
        step = history.next_step(run)
        error = fenced_error(host)
        if plan.is_replaceable(run.steps[run.steps.index(step) :], undo=run.undo):
            error = replace(error, kind=ErrorKind.RETRYABLE)
        result = StepResult(step=step, took_ms=0, error=error)
        execution.failed(run, result, now, at_once=True, further=True)
    return bool(runs) or going_there


def _try_again(operation: Operation, host: str, book: Book) -> bool:
    plan = plan_of(operation)
    pending = left(plan, operation.history)
    waits_for = {plan.host_of(each.lane, plan.stage_of(each.step).place) for each in pending}
    if host not in {*waits_for, arrival(operation)}:
        return False
    try:
        Execution(operation, book).resume()
    except errors.ClaimedError:  # what began beside it ends first; then somebody retries it
        return False
    operation.record(Operation.RetryRequested, reason=f"host {host} was fenced")
    return True


def dispatcher_lost(operation: Operation, now: float, book: Book) -> None:
    """End the attempts of a dead or paused dispatcher; another one continues."""
    for run in [run for run in operation.history.active.values() if run.host is None]:
        result = StepResult(step=operation.history.next_step(run), took_ms=0, error=LOST)
        Execution(operation, book).failed(run, result, now, at_once=True)


def uncertain(operation: Operation, run: ActiveRun, step: str) -> bool:
    """Whether an earlier attempt of this step may have an effect that is not visible yet.

    Attempts of lost dispatchers do not count: the take-over has waited for them
    (ledger.core.dispatcher).
    """
    errors = operation.history.of_step(run.lane, step, undo=False).errors - {(LOST.kind, LOST.code)}
    return any(kind == ErrorKind.UNKNOWN or code == FENCED for kind, code in errors)
