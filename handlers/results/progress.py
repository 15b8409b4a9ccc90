"""What results mean: from step outcomes to domain events, in one transaction each.

`advance`, `succeeded`, `failed`, `park` and `finish` change the operation and
everything the change concerns; the caller saves all of it at once.  So the log
never says that a step succeeded without saying what that made true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aggregates import errors
from aggregates.finding import Finding, FindingState
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import SERVER, ActiveRun, Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.engine.engine import (
    Decision,
    Finish,
    Left,
    Park,
    Run,
    Start,
    Wait,
    Work,
    decide,
    pivot_passed,
)
from handlers.engine.plan import Place, Plan, Side
from handlers.engine.verbs import VERBS, VOUCHED, AnyVerb, Fence, LedgerVerb, is_due
from handlers.requests import presence
from handlers.results import fences
from handlers.results.meaning import MEANING, Book, Done, Outputs
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, GuestOrder, StepError, StepResult, Verb
from host_agent.shared.contract.wire import plain

#: The code of a step's failure for its host's sake.
FENCED = "host_fenced"


def plan_of(operation: Operation) -> Plan:
    """The plan stored when the operation started."""
    if operation.plan.value is None:
        assert operation.started is not None, "an operation is never loaded without its first event"
        operation.plan.value = Plan.from_json(operation.started.plan)
    plan: Plan = operation.plan.value
    return plan


def lane_of(operation: Operation, lane: int, step: str) -> Lane:
    """The lane as this step sees it, with what steps have found out so far: also those of the
    volume's other lanes.

    A step for the whole server has one of no volume.
    """
    if lane == SERVER:
        assert operation.started is not None
        return Lane.of_server(operation.started.server_id)
    new = plan_of(operation).stage_of(step).side is Side.NEW
    return operation.lanes[lane].beside(operation.lanes).side(new=new)


def arrival(operation: Operation) -> str | None:
    """The host to which a migration may still bring the guest: nobody has seen its end."""
    plan, history = plan_of(operation), operation.history
    step = next((step.name for step in plan.steps if step.do is Verb.GUEST_MIGRATE), None)
    if step is None or not history.touched(SERVER, step):
        return None
    known = any(history.of_step(SERVER, step, undo=undo).resolved for undo in (False, True))
    return None if known else plan.hosts[Place.DESTINATION]


def order_of(operation: Operation, step: str) -> GuestOrder:
    """What a step for the whole server is to do, and with which lanes."""
    plan = plan_of(operation)
    assert plan.guest is not None, "a plan with such a step has an order"
    new = plan.stage_of(step).side is Side.NEW
    return replace(plan.guest, lanes=tuple(lane.side(new=new) for lane in operation.lanes))


def is_first(operation: Operation, run: ActiveRun) -> bool:
    """Whether no earlier run of the operation had any of the steps that this one still owes.

    Never of a repair: where something was wrong before, more than an earlier attempt may be found.
    """
    assert operation.started is not None, "it runs"
    history = operation.history
    todo = run.steps[run.steps.index(history.next_step(run)) :]
    before = {(lane, step) for lane, step, undo in history.records if not undo} | history.begun
    repairs = operation.started.finding is not None
    touched = run.undo or repairs or bool(before & {(run.lane, step) for step in todo})
    return not touched


def verb_of(operation: Operation, run: ActiveRun, step: str) -> AnyVerb:
    """What the run does as this step."""
    if run.verb is not None:
        return Verb(run.verb)
    return plan_of(operation).verb(step, undo=run.undo, host=run.host)


def advance(operation: Operation, book: Book, now: float) -> Work | Wait:
    """Take every decision that has no effect outside the ledger; return the first that has.

    Called in the same transaction as whatever made the decisions possible, so an
    accepted request already holds its first intent, and a last report its end.
    """
    while operation.state is OperationState.RUNNING:
        decision = _decided(operation, now)
        match decision:
            case Start():
                _begin(operation, decision.runs, book, now)
            case Work() if (mine := _effect_free(operation, decision)) is not None:
                succeeded(operation, mine[0], _waiver(operation, *mine, book), book)
            case Park():
                park(operation, decision.left, book)
            case Finish():
                in_vain = decision.outcome is Outcome.COMPLETED and operation.history.moot
                finish(operation, Outcome.FAILED if in_vain else decision.outcome, book)
            case _:
                return decision
    return Wait(None)


def _decided(operation: Operation, now: float) -> Decision:
    """What the engine decides; what was put off by a clock that was ahead is due."""
    plan, history = plan_of(operation), operation.history
    decision = decide(plan, history, now)
    until = decision.until if isinstance(decision, Wait) else None
    return decision if until is None or not is_due(until, now) else decide(plan, history, until)


def _effect_free(operation: Operation, work: Work) -> tuple[ActiveRun, str] | None:
    """A run whose next step only records what is true now, and that step."""
    for run in work.runs:
        step = operation.history.next_step(run)
        do = verb_of(operation, run, step)
        if isinstance(do, LedgerVerb) and not VERBS[do].outside:
            return run, step
    return None


def _waiver(operation: Operation, run: ActiveRun, step: str, book: Book) -> StepResult:
    """By what evidence the ledger does a step of a host: that host's fence."""
    plan = plan_of(operation)
    place = plan.stage_of(step).place
    name = plan.host_of(run.lane, place)
    if place is Place.LEDGER or name is None:
        return StepResult(step=step, took_ms=0)
    host = book.get(Host, name)
    waiver: Outputs = {"waived": f"host {name} is fenced: {host.why}", "fenced_host": name}
    if run.undo:
        waiver |= {"passed": True} if plan.puts_back(step) else {}
    else:
        waiver |= {"moot": True} if VERBS[plan.step(step).do].fence is Fence.MOOT else {}
    return StepResult(step=step, took_ms=0, outputs=waiver)


def _begin(operation: Operation, runs: tuple[Run, ...], book: Book, now: float) -> None:
    """Record the intent of these runs, where they can be done (decision 0027)."""
    for run in runs:
        host, error = _given_to(operation, run, book)
        error = error or shown_elsewhere(operation, run.steps, book, undo=run.undo)
        own = plan_of(operation).host_of(run.lane, run.place)
        handed_over = host is not None and host.name != own
        operation.record(
            Operation.RunStarted,
            run=operation.history.runs + 1,
            lane=run.lane,
            steps=list(run.steps),
            undo=run.undo,
            host=host.name if host else None,
            epoch=host.epoch if host else 0,
            verb=Verb.GUEST_FIND.value if handed_over else None,
            creates_at=now if _creates(operation, run) else None,
        )
        if error is not None:
            result = StepResult(step=run.steps[0], took_ms=0, error=error)
            failed(operation, operation.history.active[run.lane], result, now)


def shown_elsewhere(
    operation: Operation, steps: Iterable[str], book: Book, *, undo: bool
) -> StepError | None:
    """Why these steps are not begun, if they start or free what others show now (0088).

    What has to be done some time waits until they show it no more.
    """
    plan, started = plan_of(operation), operation.started
    assert started is not None
    if not presence.is_asked(plan, steps, undo=undo):
        return None
    question = presence.Question.of(plan, started.server_id, book)
    if not (found := list(presence.signs(question, book))):
        return None
    refusal = presence.refusal(question, found)
    kind = ErrorKind.RETRYABLE if plan.patient else ErrorKind.FINAL
    return StepError(kind=kind, code=refusal.code, message=str(refusal))


def hold_up(operation: Operation, run: ActiveRun, done: str, book: Book, now: float) -> None:
    """End a run whose host waits for our word before its next step, if that frees or starts what
    others show by now.
    """
    direction = "undo" if run.undo else "do"
    waits = direction in plan_of(operation).durable(done)
    if not waits or not operation.is_active(run.number):
        return
    step = operation.history.next_step(run)
    if error := shown_elsewhere(operation, [step], book, undo=run.undo):
        failed(operation, run, StepResult(step=step, took_ms=0, error=error), now)


def _creates(operation: Operation, run: Run) -> bool:
    """Whether a volume is made by it: by when, it is known if its id is lost (`made`)."""
    does = {plan_of(operation).step(name).do for name in run.steps}
    wanted = LedgerVerb.VOLUME_CREATE in does and not run.undo
    return wanted and operation.lanes[run.lane].create is not None


def _given_to(operation: Operation, run: Run, book: Book) -> tuple[Host | None, StepError | None]:
    """The host that gets a run (None: the ledger does it), and why it cannot be done."""
    plan = plan_of(operation)
    name = plan.host_of(run.lane, run.place)
    if name is None:
        return None, None
    assert operation.started is not None
    instance = book.get(Instance, operation.started.server_id)
    host = book.get(Host, name)
    if not host.fenced:
        return host, _unknown_to(host, plan, run) or _distrust(operation, run, instance, book)
    if not plan.is_replaceable(run.steps, undo=run.undo):
        return host, fenced_error(name)
    verbs = {plan.owed(step, undo=run.undo) for step in run.steps}
    asked = operation.history.of_step(run.lane, run.steps[0], undo=run.undo).asked
    if Verb.GUEST_STAY in verbs:
        return _told_by_destination(plan, asked, book)
    late = run.place is Place.ARRIVAL and not fences.renewed(host, asked)
    let_go = any(verb and VERBS[verb].fence in VOUCHED for verb in verbs)
    if not let_go or (fences.vouches(host, instance) and not late):
        return None, None
    return host, _too_old(name, instance)


def _unknown_to(host: Host, plan: Plan, run: Run) -> StepError | None:
    """Why the host cannot do these steps, if its agent is older than what they ask for."""
    for name in run.steps:
        verb = plan.verb(name, undo=run.undo, host=host.name)
        if host.service_version < (needed := VERBS[verb].since):
            message = (
                f"The agent of host {host.name} is of service version {host.service_version}, and "
                f"{verb} needs {needed}: upgrade it, then retry."
            )
            return StepError(kind=ErrorKind.FINAL, code="agent_too_old", message=message)
    return None


def _told_by_destination(
    plan: Plan, asked: tuple[str, int] | None, book: Book
) -> tuple[Host | None, StepError | None]:
    """Who says where the guest is whose source is fenced: what has not come by now never will.

    The destination; or, if that is fenced as well, its fence, made after the source's.
    """
    name = plan.hosts[Place.DESTINATION] or ""
    host = book.get(Host, name)
    if not host.fenced:
        return host, None
    if fences.renewed(host, asked):
        return None, None
    message = (
        f"Both hosts of the migration are fenced, and the guest may have arrived on host {name} "
        "after its fence. Check that host and fence it again with that evidence, or unfence it."
    )
    return host, StepError(kind=ErrorKind.FINAL, code="fence_too_old", message=message)


def _distrust(operation: Operation, run: Run, instance: Instance, book: Book) -> StepError | None:
    """Why a plan that rests on a fence cannot go on, if it cannot."""
    plan = plan_of(operation)
    trusted = plan.hosts.get(plan.trusts) if plan.trusts else None
    if trusted is None or run.undo or pivot_passed(plan, operation.history):
        return None
    host = book.get(Host, trusted)
    if not host.fenced:
        message = f"Host {trusted} was unfenced; the guest may run there."
        return StepError(kind=ErrorKind.FINAL, code="fence_over", message=message)
    return None if fences.vouches(host, instance) else _too_old(trusted, instance)


def _too_old(host: str, instance: Instance) -> StepError:
    refusal = errors.FenceTooOldError(host=host, server_id=str(instance.id))
    return StepError(kind=ErrorKind.FINAL, code=refusal.code, message=str(refusal))


def fenced_error(host: str) -> StepError:
    """Why a host's steps fail once it is fenced."""
    message = f"Host {host} is fenced; nothing is sent to it."
    return StepError(kind=ErrorKind.FINAL, code=FENCED, message=message)


def succeeded(operation: Operation, run: ActiveRun, result: StepResult, book: Book) -> None:
    """The run's next step is done, and with it what its verb means."""
    step, outputs = result.step, result.outputs
    operation.record(
        Operation.StepSucceeded,
        run=run.number,
        lane=run.lane,
        step=step,
        undo=run.undo,
        outputs=outputs,
        took_ms=result.took_ms,
        host=run.host,
        **_noted(result),
    )
    passed = run.undo and bool(outputs.get("passed"))  # too late to undo: it is done
    verb = plan_of(operation).verb(step, undo=run.undo and not passed, host=run.host)
    _mean(verb, _done(operation, run.lane, step, outputs, run.host, book))


def _mean(verb: AnyVerb, done: Done) -> None:
    """Record what this verb's success means, if anything."""
    if verb in MEANING:
        MEANING[verb](done)


def _done(
    operation: Operation, lane: int, step: str, outputs: Outputs, host: str | None, book: Book
) -> Done:
    assert operation.started is not None
    error = operation.first_error
    return Done(
        operation_id=str(operation.id),
        server_id=operation.started.server_id,
        outputs=outputs,
        host=host,
        hosts=plan_of(operation).hosts,
        book=book,
        error=error["message"] if error else None,
        of_lane=lane_of(operation, lane, step) if lane != SERVER else None,
        order=order_of(operation, step) if lane == SERVER else None,
    )


def failed(
    operation: Operation,
    run: ActiveRun,
    result: StepResult,
    now: float,
    *,
    at_once: bool = False,
    further: bool = False,
) -> None:
    """The run's next step did not work: try again later, or not at all.

    `at_once`: again without a pause, whatever was tried before: somebody else will do it.
    `further`: the run's later steps may have been begun all the same.
    """
    step, error, delay_s = result.step, result.error, None
    assert error is not None, "a result of failure has one"
    if error.kind is not ErrorKind.FINAL:
        verb, patient = verb_of(operation, run, step), plan_of(operation).patient
        attempts = operation.history.of_step(run.lane, step, undo=run.undo).attempts + 1
        delay_s = 0.0 if at_once else VERBS[verb].retry.delay_s(attempts, patient=patient)
    fields = {
        "run": run.number,
        "lane": run.lane,
        "step": step,
        "undo": run.undo,
        "error": plain(error),
        "further": _further(operation, run, step) if further else [],
        "host": run.host,
        **_noted(result),
    }
    if delay_s is None:
        operation.record(Operation.StepFailed, **fields)
    else:
        operation.record(Operation.StepRetried, **fields, retry_at=now + delay_s)


def _noted(result: StepResult) -> dict[str, Any]:
    return {
        "occurred": plain(result.occurred),
        "cinder_requests": list(result.cinder_requests),
    }


def _further(operation: Operation, run: ActiveRun, step: str) -> list[str]:
    """The steps after this one that its host may have begun without a word of it."""
    plan, direction = plan_of(operation), "undo" if run.undo else "do"
    at = run.steps.index(step)
    durable = (n for n, name in enumerate(run.steps[at:]) if direction in plan.durable(name))
    return list(run.steps[at + 1 : at + 1 + next(durable, len(run.steps))])


def park(
    operation: Operation, left: tuple[Left, ...], book: Book, error: StepError | None = None
) -> None:
    """The operator's turn; the server shows ERROR with a fault (S1).

    `error`: why, if it is not that of the steps.
    """
    rows = [_left_row(operation, item) for item in left]
    rows = [{**row, "error": plain(error)} for row in rows] if error else rows
    operation.record(Operation.Parked, left=rows)
    started = operation.started
    assert started is not None
    why = next((row["error"]["message"] for row in rows if row["error"]), "unknown")
    book.get(Instance, started.server_id).record(
        Instance.Faulted,
        claimant=str(operation.id),
        message=f"Operation {operation.id} ({started.flow}) is parked: {why}",
    )
    for volume_id in sorted(volumes_of(operation)):
        book.get(Volume, volume_id).narrow(str(operation.id))


def _left_row(operation: Operation, item: Left) -> dict[str, Any]:
    return {
        "lane": item.lane,
        "volume_id": _volume_of(operation, item),
        "step": item.step,
        "undo": item.undo,
        "verb": named_verb(plan_of(operation), item).value,
        "error": operation.history.of_step(item.lane, item.step, undo=item.undo).error,
    }


def _volume_of(operation: Operation, left: Left) -> str | None:
    if left.lane == SERVER:
        return None
    return lane_of(operation, left.lane, left.step).volume_id or None


def named_verb(plan: Plan, left: Left) -> AnyVerb:
    """What a step that is left would do, by whoever it was planned for."""
    step = plan.step(left.step)
    return (step.undo if left.undo else step.do) or LedgerVerb.NOTHING


def skip(operation: Operation, left: Left, reason: str, book: Book) -> None:
    """An operator vouches for a failed step: it means what its success would mean."""
    operation.record(
        Operation.StepSkipped, lane=left.lane, step=left.step, undo=left.undo, reason=reason
    )
    plan = plan_of(operation)
    host = plan.host_of(left.lane, plan.stage_of(left.step).place)
    done = _done(operation, left.lane, left.step, {"waived": reason}, host, book)
    _mean(named_verb(plan, left), done)


def finish(
    operation: Operation, outcome: Outcome, book: Book, *, reason: str | None = None
) -> None:
    """End the operation; release its claims, and a device name that led to no mapping."""
    error = operation.first_error if outcome is not Outcome.COMPLETED else None
    if error is None and operation.history.moot:
        error = plain(fenced_error(plan_of(operation).hosts[Place.HOST] or ""))
    operation.record(Operation.OperationFinished, outcome=outcome.value, error=error, reason=reason)
    _end_repair(operation, outcome, book)
    assert operation.started is not None
    instance = book.get(Instance, operation.started.server_id)
    for volume_id in sorted(volumes_of(operation)):
        book.get(Volume, volume_id).release(str(operation.id))
    for lane in operation.lanes:
        mapping = book.get(BlockDeviceMapping, lane.bdm_id)
        # A device name is given before the mapping exists; without one it is free again.
        if not mapping.live:
            instance.release_device(lane.bdm_id)
        else:  # a root's place is kept, with or without a volume
            instance.set_device_volume(lane.bdm_id, mapping.volume_id)
    instance.release(str(operation.id))


def _end_repair(operation: Operation, outcome: Outcome, book: Book) -> None:
    """The finding hears how its repair ended, in the same append."""
    started = operation.started
    if started is None or started.finding is None:
        return
    finding = book.get(Finding, started.finding["id"])
    if outcome is not Outcome.COMPLETED:
        why = (operation.first_error or {}).get("message") or f"The repair was {outcome.value}."
        finding.record(Finding.RepairFailed, by_operation=str(operation.id), why=why)
    elif finding.state is not FindingState.OVER:
        finding.record(Finding.DriftRepaired, by_operation=str(operation.id))


def volumes_of(operation: Operation) -> set[str]:
    """Every volume that the operation works on, or has worked on."""
    lanes = [*plan_of(operation).lanes, *operation.lanes]
    return set().union(*(lane.volume_ids for lane in lanes))
