"""Operations in progress when the ledger was restored from an older backup (decision 0109).

The log ends where the backup did; what an operation did after that is lost.  It may have ended or
been undone since, and what it worked on may belong to somebody else now.  So it is parked where it
stands, with its claims: nothing of it is repeated before a person has checked.
"""

from __future__ import annotations

from aggregates.host import Host
from aggregates.operation import Operation, OperationState
from handlers.engine.engine import left
from handlers.results.meaning import Book
from handlers.results.progress import Execution
from host_agent.shared.contract.messages import ErrorKind, StepError, StepResult

#: Why it is parked.
LOST = StepError(
    kind=ErrorKind.UNKNOWN,
    code="log_restored",
    message="The ledger was restored from an older backup: what this did afterwards is not known, "
    "and it may be over. See what its hosts and Cinder have before it is tried again.",
)


def park(operation: Operation, now: float, book: Book) -> None:
    """Prevent that it continues by itself; an operation that does not run stays as it is."""
    if operation.state is not OperationState.RUNNING:
        return
    execution = Execution(operation, book)
    for run in list(operation.history.active.values()):
        result = StepResult(step=operation.history.next_step(run), took_ms=0, error=LOST)
        execution.failed(run, result, now, at_once=True, further=True)
    execution.park(tuple(left(execution.plan, execution.history)), LOST)


def is_parked(operation: Operation) -> bool:
    """Whether it waits for a person to check what happened to it."""
    errors = [row["error"] for row in operation.left if row["error"]]
    return operation.state is OperationState.PARKED and any(e["code"] == LOST.code for e in errors)


def is_begun_before(operation: Operation, host: Host) -> bool:
    """Whether, by the restored log, the host was asked to do something for it."""
    runs = operation.history.active.values()
    return any(run.host == host.name and run.epoch < host.restored for run in runs)
