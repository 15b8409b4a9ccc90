"""Results of steps: outcomes become domain events, in one transaction each.

`advance`, `succeeded`, `failed`, `park` and `finish` change the operation and every aggregate that
the change concerns; the caller saves all of it at once.  So the log never has the success of a
step without its domain events.
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
from aggregates.operation import (
    AWAITED,
    SERVER,
    ActiveRun,
    Operation,
    OperationState,
    Outcome,
)
from aggregates.volume import Volume
from handlers.engine import fences
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
from handlers.engine.plan import Place, lane_of, order_of, plan_of, verb_of, volumes_of
from handlers.engine.verbs import VERBS, VOUCHED, AnyVerb, Fence, LedgerVerb, is_due
from handlers.results import presence
from handlers.results.meaning import MEANING, Book, Outputs, StepDone
from host_agent.shared.contract.messages import ErrorKind, StepError, StepResult, Verb
from host_agent.shared.contract.wire import plain

#: The code of a step's failure for its host's sake.
FENCED = "host_fenced"

#: The host that gets a run (None: the ledger does it), and why it cannot be done.
Given = tuple[Host | None, StepError | None]


def fenced_error(host: str) -> StepError:
    """Why a host's steps fail once it is fenced."""
    return _final(FENCED, f"Host {host} is fenced; nothing is sent to it.")


def _fence_over(host: str) -> StepError:
    return _final(
        "fence_over",
        f"Host {host} is no longer under the fence that this relied on; the guest may run there.",
    )


def _final(code: str, message: str) -> StepError:
    return StepError(kind=ErrorKind.FINAL, code=code, message=message)


def _refused(refusal: errors.DomainError, kind: ErrorKind = ErrorKind.RETRYABLE) -> StepError:
    return StepError(kind=kind, code=refusal.code, message=str(refusal))


class Execution:
    """One operation, in one transaction; `book` has all other aggregates that it concerns."""

    def __init__(self, operation: Operation, book: Book) -> None:
        assert operation.started is not None, "an operation is never loaded without its first event"
        self.operation = operation
        self.book = book
        self.started = operation.started
        self.plan = plan_of(operation)
        self.history = operation.history

    @property
    def instance(self) -> Instance:
        return self.book.get(Instance, self.started.server_id)

    def advance(self, now: float) -> Work | Wait:
        """Take every decision without an effect outside the ledger; return the first with one.

        Called in the transaction that made the decisions possible.  So an accepted request already
        has its first intent, and a last report ends the operation.
        """
        while self.operation.state is OperationState.RUNNING:
            decision = self._decided(now)
            match decision:
                case Start():
                    self._begin(decision.runs, now)
                case Work() if (mine := self._effect_free(decision)) is not None:
                    self.succeeded(mine[0], self._waiver(*mine))
                case Park():
                    self.park(decision.left)
                case Finish():
                    in_vain = (
                        decision.outcome is Outcome.COMPLETED and self.history.overtaken_by_fence
                    )
                    self.finish(Outcome.FAILED if in_vain else decision.outcome)
                case _:
                    return decision
        return Wait(None)

    def _decided(self, now: float) -> Decision:
        """The engine's decision; a retry that a fast clock has delayed too far is due."""
        decision = decide(self.plan, self.history, now)
        until = decision.until if isinstance(decision, Wait) else None
        if until is None or not is_due(until, now):
            return decision
        return decide(self.plan, self.history, until)

    def _effect_free(self, work: Work) -> tuple[ActiveRun, str] | None:
        """A run whose next step only records something, and that step."""
        for run in work.runs:
            step = self.history.next_step(run)
            do = verb_of(self.operation, run, step)
            if isinstance(do, LedgerVerb) and not VERBS[do].outside:
                return run, step
        return None

    def _waiver(self, run: ActiveRun, step: str) -> StepResult:
        """The evidence for a host's step that the ledger does: the host's fence."""
        place = self.plan.stage_of(step).place
        name = self.plan.host_of(run.lane, place)
        if place is Place.LEDGER or name is None:
            return StepResult(step=step, took_ms=0)
        host = self.book.get(Host, name)
        waiver: Outputs = {
            "waived": f"host {name} is fenced: {host.fence_reason}",
            "fenced_host": name,
        }
        if run.undo:
            waiver |= {"passed": True} if self.plan.puts_back(step) else {}
        else:
            moot = VERBS[self.plan.step(step).do].fence is Fence.MOOT
            waiver |= {"moot": True} if moot else {}
        return StepResult(step=step, took_ms=0, outputs=waiver)

    # ------------------------------------------------------------------ runs

    def _begin(self, runs: tuple[Run, ...], now: float) -> None:
        """Record the intent of these runs, with the host that can do each (decision 0027)."""
        for run in runs:
            host, error = self._given_to(run)
            error = (
                error or self._unsure(run, host) or self._shown_elsewhere(run.steps, undo=run.undo)
            )
            own = self.plan.host_of(run.lane, run.place)
            asked_for = self.book.get(Host, own) if host and own and host.name != own else None
            self.operation.record(
                Operation.RunStarted,
                run=self.history.runs + 1,
                lane=run.lane,
                steps=list(run.steps),
                undo=run.undo,
                host=host.name if host else None,
                epoch=host.epoch if host else 0,
                verb=Verb.GUEST_FIND.value if asked_for else None,
                fence=asked_for.epoch if asked_for else None,
                creates_at=now if self._creates(run) else None,
            )
            if error is not None:
                result = StepResult(step=run.steps[0], took_ms=0, error=error)
                self.failed(self.history.active[run.lane], result, now)

    def _unsure(self, run: Run, host: Host | None) -> StepError | None:
        """Why a run that begins to write has to wait: another host of the plan was unfenced, and
        has not shown since that it holds nothing (decision 0038).  `host` does the run.
        """
        own = self.plan.host_of(run.lane, run.place)
        if host is None and own is not None:
            return None  # the ledger only records, by the fence of the run's own host
        if run.undo or not any(VERBS[self.plan.step(name).do].starts for name in run.steps):
            return None
        for name in sorted({each for each in self.plan.hosts.values() if each} - {own}):
            back = self.book.get(Host, name)
            if back.suspect and not back.fenced:
                return _refused(errors.HostAwaitedError(host=name))
        return None

    def _shown_elsewhere(self, steps: Iterable[str], *, undo: bool) -> StepError | None:
        """The reason against beginning these steps, if they start or free what others show now
        (0088).

        A step that must be done at some time waits until they no longer show it.
        """
        if not presence.is_asked(self.plan, steps, undo=undo):
            return None
        question = presence.Question.of(self.plan, self.started.server_id, self.book)
        if not (found := list(presence.signs(question, self.book))):
            return None
        kind = ErrorKind.RETRYABLE if self.plan.patient else ErrorKind.FINAL
        return _refused(presence.refusal(question, found), kind)

    def hold_up(self, run: ActiveRun, done: str, now: float) -> None:
        """End a run whose host waits for the ledger before its next step, if that step frees or
        starts something that others show by now.
        """
        direction = "undo" if run.undo else "do"
        waits = direction in self.plan.durable(done)
        if not waits or not self.operation.is_active(run.number):
            return
        step = self.history.next_step(run)
        if error := self._shown_elsewhere([step], undo=run.undo):
            self.failed(run, StepResult(step=step, took_ms=0, error=error), now)

    def _creates(self, run: Run) -> bool:
        """Whether the run creates a volume; then its time is recorded, by which the volume is
        recognised if its id is lost (`made`).
        """
        does = {self.plan.step(name).do for name in run.steps}
        wanted = LedgerVerb.VOLUME_CREATE in does and not run.undo
        return wanted and self.operation.lanes[run.lane].create is not None

    def _given_to(self, run: Run) -> Given:
        """Who does a run; in place of a fenced host only as far as the fence covers it
        (handlers.engine.fences).
        """
        plan = self.plan
        name = plan.host_of(run.lane, run.place)
        if name is None:
            return None, None
        host = self.book.get(Host, name)
        if not host.fenced:
            return host, self._unknown_to(host, run) or self._distrust(run)
        if not plan.is_replaceable(run.steps, undo=run.undo):
            return host, fenced_error(name)
        verbs = {plan.owed(step, undo=run.undo) for step in run.steps}
        asked = self.history.of_step(run.lane, run.steps[0], undo=run.undo).asked
        if Verb.GUEST_STAY in verbs:
            return self._told_by_destination(asked)
        late = run.place is Place.ARRIVAL and not fences.renewed(host, asked)
        let_go = any(verb and VERBS[verb].fence in VOUCHED for verb in verbs)
        if not let_go:
            return None, None
        if late or not fences.vouches(host, self.instance):
            return host, self._too_old(name)
        error = self._hook_awaited(host) if run.undo else None
        return host if error else None, error

    def _unknown_to(self, host: Host, run: Run) -> StepError | None:
        """Why the host cannot do these steps: its agent is older than they need."""
        for name in run.steps:
            verb = self.plan.verb(name, undo=run.undo, host=host.name)
            if host.service_version < (needed := VERBS[verb].since):
                return _final(
                    "agent_too_old",
                    f"The agent of host {host.name} is of service version {host.service_version}, "
                    f"and {verb} needs {needed}: upgrade it, then retry.",
                )
        return None

    def _told_by_destination(self, asked: tuple[str, int] | None) -> Given:
        """Who says where the guest is if its source is fenced: a guest that has not arrived by now
        never will.

        The destination; or, if it is fenced as well, its fence, if that was made after the
        source's.
        """
        name = self.plan.hosts[Place.DESTINATION] or ""
        host = self.book.get(Host, name)
        if not host.fenced:
            return host, None
        if fences.renewed(host, asked):
            return None, None
        return host, _final(
            "fence_too_old",
            f"Both hosts of the migration are fenced, and the guest may have arrived on host {name}"
            " after its fence. Check that host and fence it again with that evidence, or unfence "
            "it.",
        )

    def _distrust(self, run: Run) -> StepError | None:
        """Why a plan that relies on a fence cannot continue; None: it can."""
        trusted = self.plan.hosts.get(self.plan.trusts) if self.plan.trusts else None
        if trusted is None or run.undo or pivot_passed(self.plan, self.history):
            return None
        host = self.book.get(Host, trusted)
        if not host.fenced:
            return _fence_over(trusted)
        vouches = fences.vouches(host, self.instance)
        return self._hook_awaited(host) if vouches else self._too_old(trusted)

    def _hook_awaited(self, host: Host) -> StepError | None:
        """Why a fence does not count yet for a plan that needs the success of the
        program after it.
        """
        if host.hooked or not self.plan.hooked:
            return None
        return _refused(errors.HookAwaitedError(host=host.name, failures=host.hook_failures))

    def _too_old(self, host: str) -> StepError:
        refusal = errors.FenceTooOldError(host=host, server_id=self.started.server_id)
        return _refused(refusal, ErrorKind.FINAL)

    # --------------------------------------------------------------- results

    def believed(self, run: ActiveRun, result: StepResult) -> StepResult:
        """The result, or an error in its place.  A destination that says in a fenced source's
        place that the guest has not arrived (`GUEST_FIND`) is believed while the fence stands under
        which it was asked, renewed or not; afterwards the source is asked itself, or the
        destination again (decision 0039).
        """
        if run.verb is None or result.outputs.get("passed"):
            return result
        own = self.plan.host_of(run.lane, self.plan.stage_of(result.step).place) or ""
        source = self.book.get(Host, own)
        if source.fenced and (run.fence is None or run.fence >= source.fenced_from):
            return result
        error = replace(_fence_over(own), kind=ErrorKind.RETRYABLE)
        return replace(result, error=result.error or error)

    def succeeded(self, run: ActiveRun, result: StepResult) -> None:
        """The run's next step succeeded; record that, and what its verb means."""
        step, outputs = result.step, result.outputs
        self.operation.record(
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
        verb = self.plan.verb(step, undo=run.undo and not passed, host=run.host)
        self._apply_result(verb, run.lane, step, outputs, run.host)

    def _apply_result(
        self, verb: AnyVerb, lane: int, step: str, outputs: Outputs, host: str | None
    ) -> None:
        """Record what this verb's success means, if anything."""
        if verb not in MEANING:
            return
        error = self.operation.first_error
        done = StepDone(
            operation_id=str(self.operation.id),
            server_id=self.started.server_id,
            outputs=outputs,
            host=host,
            hosts=self.plan.hosts,
            book=self.book,
            error=error["message"] if error else None,
            of_lane=lane_of(self.operation, lane, step) if lane != SERVER else None,
            order=order_of(self.operation, step) if lane == SERVER else None,
        )
        MEANING[verb](done)

    def failed(
        self,
        run: ActiveRun,
        result: StepResult,
        now: float,
        *,
        at_once: bool = False,
        further: bool = False,
    ) -> None:
        """The run's next step failed: retry it later, or not at all.

        `at_once`: retry without a pause, whatever was tried before, because somebody else does it.
        `further`: the run's later steps may have been begun all the same.
        """
        step, error, delay_s = result.step, result.error, None
        assert error is not None, "a result of failure has one"
        if error.kind is not ErrorKind.FINAL:
            retry = VERBS[verb_of(self.operation, run, step)].retry
            before = self.history.of_step(run.lane, step, undo=run.undo)
            patient = self.plan.patient or error.code in AWAITED
            attempts = before.attempt(plain(error))
            delay_s = 0.0 if at_once else retry.delay_s(attempts, patient=patient)
        fields = {
            "run": run.number,
            "lane": run.lane,
            "step": step,
            "undo": run.undo,
            "error": plain(error),
            "further": self._further(run, step) if further else [],
            "host": run.host,
            **_noted(result),
        }
        if delay_s is None:
            self.operation.record(Operation.StepFailed, **fields)
        else:
            self.operation.record(Operation.StepRetried, **fields, retry_at=now + delay_s)

    def _further(self, run: ActiveRun, step: str) -> list[str]:
        """The steps after this one that its host may have begun without reporting it."""
        direction = "undo" if run.undo else "do"
        at = run.steps.index(step)
        from_here = enumerate(run.steps[at:])
        durable = (n for n, name in from_here if direction in self.plan.durable(name))
        return list(run.steps[at + 1 : at + 1 + next(durable, len(run.steps))])

    def resume(self) -> None:
        """Raises ClaimedError if one on the whole server has begun since this one parked."""
        self.instance.resume(str(self.operation.id))

    def skip(self, left: Left, reason: str) -> None:
        """An operator vouches for a failed step: it means what its success would mean."""
        self.operation.record(
            Operation.StepSkipped, lane=left.lane, step=left.step, undo=left.undo, reason=reason
        )
        host = self.plan.host_of(left.lane, self.plan.stage_of(left.step).place)
        verb = self.plan.planned(left.step, undo=left.undo)
        self._apply_result(verb, left.lane, left.step, {"waived": reason}, host)

    # ------------------------------------------------------------------ ends

    def park(self, left: tuple[Left, ...], error: StepError | None = None) -> None:
        """Wait for an operator; the server shows ERROR with a fault (S1).

        `error`: the reason, if it is not that of the steps.
        """
        rows = [self._left_row(item) for item in left]
        rows = [{**row, "error": plain(error)} for row in rows] if error else rows
        self.operation.record(Operation.Parked, left=rows)
        why = next((row["error"]["message"] for row in rows if row["error"]), "unknown")
        operation_id = str(self.operation.id)
        self.instance.record(
            Instance.Faulted,
            claimant=operation_id,
            message=f"Operation {operation_id} ({self.started.flow}) is parked: {why}",
        )
        for volume_id in sorted(volumes_of(self.operation)):
            self.book.get(Volume, volume_id).narrow(operation_id)

    def _left_row(self, item: Left) -> dict[str, Any]:
        return {
            "lane": item.lane,
            "volume_id": lane_of(self.operation, item.lane, item.step).volume_id or None,
            "step": item.step,
            "undo": item.undo,
            "verb": self.plan.planned(item.step, undo=item.undo).value,
            "error": self.history.of_step(item.lane, item.step, undo=item.undo).error,
        }

    def finish(self, outcome: Outcome, *, reason: str | None = None) -> None:
        """End the operation; release its claims, and a device name that got no mapping."""
        error = self.operation.first_error if outcome is not Outcome.COMPLETED else None
        if error is None and self.history.overtaken_by_fence:
            error = plain(fenced_error(self.plan.hosts[Place.HOST] or ""))
        self.operation.record(
            Operation.OperationFinished, outcome=outcome.value, error=error, reason=reason
        )
        self._end_repair(outcome)
        instance, operation_id = self.instance, str(self.operation.id)
        for volume_id in sorted(volumes_of(self.operation)):
            self.book.get(Volume, volume_id).release(operation_id)
        for lane in self.operation.lanes:
            mapping = self.book.get(BlockDeviceMapping, lane.bdm_id)
            # A device name is given before the mapping exists; without one it is free again.
            if not mapping.live:
                instance.release_device(lane.bdm_id)
            else:  # a root's place is kept, with or without a volume
                instance.set_device_volume(lane.bdm_id, mapping.volume_id)
        instance.release(operation_id)

    def _end_repair(self, outcome: Outcome) -> None:
        """Record on the finding how its repair ended, in the same append."""
        if self.started.finding is None:
            return
        finding = self.book.get(Finding, self.started.finding["id"])
        operation_id = str(self.operation.id)
        if outcome is not Outcome.COMPLETED:
            first = self.operation.first_error or {}
            why = first.get("message") or f"The repair was {outcome.value}."
            finding.record(Finding.RepairFailed, by_operation=operation_id, why=why)
        elif finding.state is not FindingState.OVER:
            finding.record(Finding.DriftRepaired, by_operation=operation_id)


def _noted(result: StepResult) -> dict[str, Any]:
    return {
        "occurred": plain(result.occurred),
        "cinder_requests": list(result.cinder_requests),
    }
