"""What results mean: from step outcomes to domain events, in one transaction each.

`settle`, `succeeded`, `failed`, `park` and `finish` change the operation and
everything the change concerns; the caller saves all of it at once.  So the log
never says that a step succeeded without saying what that made true.
"""

from __future__ import annotations

from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import ActiveRun, Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.engine import Finish, Left, Park, Run, Start, Wait, Work, decide
from handlers.meaning import Book, Outputs, apply_meaning
from handlers.plan import LedgerVerb, Place, Plan
from handlers.retries import retry_delay_s
from host_agent.contract import ErrorKind, Lane, StepError

#: Steps that change nothing outside the ledger.
EFFECT_FREE = frozenset({LedgerVerb.MAPPING_BIND, LedgerVerb.MAPPING_UNBIND})


def plan_of(operation: Operation) -> Plan:
    """The plan stored when the operation started."""
    assert operation.started is not None, "an operation is never loaded without its first event"
    return Plan.from_json(operation.started.plan)


def lane_of(operation: Operation, lane: int) -> Lane:
    """The lane with what its steps have found out so far."""
    return Lane.from_wire(operation.lanes[lane])


def settle(operation: Operation, book: Book, now: float) -> Work | Wait:
    """Take every decision that has no effect outside the ledger; return the first that has.

    Called in the same transaction as whatever made the decisions possible, so an
    accepted request already holds its first intent, and a last report its end.
    """
    while operation.state is OperationState.RUNNING:
        decision = decide(plan_of(operation), operation.history, now)
        match decision:
            case Start():
                _begin(operation, decision.runs, book, now)
            case Work() if (run := _effect_free(operation, decision)) is not None:
                succeeded(operation, run, {}, 0, book)
            case Park():
                park(operation, decision.left, book)
            case Finish():
                finish(operation, decision.outcome, book)
            case _:
                return decision
    return Wait(None)


def _effect_free(operation: Operation, work: Work) -> ActiveRun | None:
    """A run whose next step only records what is true now (bind, unbind)."""
    plan = plan_of(operation)
    for run in work.runs:
        if plan.verb(operation.history.next_step(run), undo=run.undo) in EFFECT_FREE:
            return run
    return None


def _begin(operation: Operation, runs: tuple[Run, ...], book: Book, now: float) -> None:
    """Record the intent of these runs; a fenced host fails them at once (D7)."""
    plan = plan_of(operation)
    for run in runs:
        name = None if run.place is Place.LEDGER else plan.hosts[run.place]
        host = book.get(Host, str(host_uuid(name))) if name is not None else None
        operation.record(
            Operation.RunStarted,
            run=operation.history.runs + 1,
            lane=run.lane,
            steps=list(run.steps),
            undo=run.undo,
            host=name,
            epoch=host.epoch if host else 0,
        )
        if host is not None and host.fenced:
            failed(operation, operation.history.active[run.lane], fenced_error(host.name), now)


def fenced_error(host: str) -> StepError:
    """Why a host's steps fail once it is fenced."""
    message = f"Host {host} is fenced; nothing is sent to it."
    return StepError(kind=ErrorKind.FINAL, code="host_fenced", message=message)


def succeeded(
    operation: Operation, run: ActiveRun, outputs: Outputs, took_ms: int, book: Book
) -> None:
    """The run's next step is done, and with it what its verb means."""
    step = operation.history.next_step(run)
    operation.record(
        Operation.StepSucceeded,
        run=run.number,
        lane=run.lane,
        step=step,
        undo=run.undo,
        outputs=outputs,
        took_ms=took_ms,
    )
    verb = plan_of(operation).verb(step, undo=run.undo)
    apply_meaning(verb, lane_of(operation, run.lane), outputs, run.host, book)


def failed(operation: Operation, run: ActiveRun, error: StepError, now: float) -> None:
    """The run's next step did not work: try again later, or not at all."""
    step = operation.history.next_step(run)
    attempts = operation.history.record(run.lane, step, undo=run.undo).attempts + 1
    delay_s = None
    if error.kind is not ErrorKind.FINAL:
        delay_s = retry_delay_s(plan_of(operation).verb(step, undo=run.undo), attempts)
    fields = {
        "run": run.number,
        "lane": run.lane,
        "step": step,
        "undo": run.undo,
        "error": error.to_wire(),
    }
    if delay_s is None:
        operation.record(Operation.StepFailed, **fields)
    else:
        operation.record(Operation.StepRetried, **fields, retry_at=now + delay_s)


def park(operation: Operation, left: tuple[Left, ...], book: Book) -> None:
    """The operator's turn; the server shows ERROR with a fault (S1)."""
    rows = [
        {
            "lane": item.lane,
            "volume_id": operation.lanes[item.lane]["volume_id"],
            "step": item.step,
            "undo": item.undo,
            "verb": plan_of(operation).verb(item.step, undo=item.undo).value,
            "error": operation.history.record(item.lane, item.step, undo=item.undo).error,
        }
        for item in left
    ]
    operation.record(Operation.Parked, left=rows)
    started = operation.started
    assert started is not None
    why = next((row["error"]["message"] for row in rows if row["error"]), "unknown")
    book.get(Instance, started.server_id).record(
        Instance.Faulted,
        claimant=str(operation.id),
        message=f"Operation {operation.id} ({started.flow}) is parked: {why}",
    )


def skip(operation: Operation, left: Left, reason: str, book: Book) -> None:
    """An operator vouches for a failed step: it means what its success would mean."""
    operation.record(
        Operation.StepSkipped, lane=left.lane, step=left.step, undo=left.undo, reason=reason
    )
    plan = plan_of(operation)
    host = next(
        (
            plan.hosts.get(stage.place)
            for stage in plan.stages
            if left.step in [step.name for step in stage.steps]
        ),
        None,
    )
    verb = plan.verb(left.step, undo=left.undo)
    apply_meaning(verb, lane_of(operation, left.lane), {"waived": reason}, host, book)


def finish(
    operation: Operation, outcome: Outcome, book: Book, *, reason: str | None = None
) -> None:
    """End the operation; release its claims, and a device name that led to no mapping."""
    error = operation.first_error if outcome is not Outcome.COMPLETED else None
    operation.record(Operation.OperationFinished, outcome=outcome.value, error=error, reason=reason)
    assert operation.started is not None
    instance = book.get(Instance, operation.started.server_id)
    for facts in operation.lanes:
        volume = book.get(Volume, facts["volume_id"])
        volume.release(str(operation.id))
        # A device name is given before the mapping exists; without one it is free again.
        if not book.get(BlockDeviceMapping, facts["bdm_id"]).live:
            instance.release_device(facts["bdm_id"])
    instance.release(str(operation.id))
