"""An operation: its plan, the started steps, their results, its outcome.

The first event stores the whole plan, so that a change of a flow never changes a running
operation.  The intent (`RunStarted`) is durable before any effect, the results after it: after a
crash the log shows what may have happened, and what has happened for certain.

A *run* is a sequence of consecutive steps of one lane in one place: a dispatcher of the ledger
does them, or a host's agent as one command.  A lane has at most one active run.  A step that fails,
or is to be retried, ends its run.  Steps for the whole server have their own lane, `SERVER`.

A lane that is moved or swapped has two *sides*: what the server has now, and what it will have
(host_agent.shared.contract.lane).  Each stage works on one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.wire import read

#: To wait for these is no attempt of a step: they end by themselves, or by an operator.
AWAITED = frozenset({errors.HookAwaitedError.code, errors.HostAwaitedError.code})
#: The number of the lane for steps that concern the whole server.
SERVER = -1


class OperationState(StrEnum):
    """Where an operation stands."""

    RUNNING = "running"  # -> parked, finished
    PARKED = "parked"  # the operator's turn -> running, finished
    FINISHED = "finished"


class Outcome(StrEnum):
    """How an operation ended."""

    COMPLETED = "completed"
    FAILED = "failed"  # clean: everything was undone
    CANCELLED = "cancelled"  # undone on request, or given up by an operator


class StepStatus(StrEnum):
    """What is known of one step in one direction."""

    PENDING = "pending"
    RETRYING = "retrying"  # will be done again at `retry_at`
    DONE = "done"
    SKIPPED = "skipped"  # an operator vouched for it
    FAILED = "failed"


class StepRecord(NamedTuple):
    """The history of one step of one lane in one direction."""

    status: StepStatus = StepStatus.PENDING
    attempts: int = 0
    error: dict[str, Any] | None = None
    retry_at: float | None = None  # seconds since the epoch, while it is RETRYING
    took_ms: int | None = None
    run: int = 0  # the run that brought the last result,
    host: str | None = None  # and where that was; None: the ledger itself
    asked: tuple[str, int] | None = None  # the host, and its epoch when it was asked first
    #: Kind and code of each attempt's error since it was done last: what none of them has ended.
    errors: frozenset[tuple[str, str]] = frozenset()

    def attempt(self, error: Mapping[str, Any] | None) -> int:
        """Which attempt ends so.  To wait for others (AWAITED) is none: waits and attempts are
        counted apart, each from where the other ended.
        """
        awaited = [each is not None and each["code"] in AWAITED for each in (self.error, error)]
        return self.attempts + 1 if awaited[0] == awaited[1] else 1

    @property
    def resolved(self) -> bool:
        return self.status is StepStatus.DONE or self.status is StepStatus.SKIPPED


_NOT_BEGUN = StepRecord()


class ActiveRun(NamedTuple):
    """A run with results still missing."""

    number: int
    lane: int
    steps: tuple[str, ...]
    undo: bool
    host: str | None  # None: the ledger itself
    epoch: int
    cancelled: bool = False  # to end where it is: somebody wants the operation undone
    verb: str | None = None  # if it is not the steps' own: another host answers for a fenced one
    fence: int | None = None  # then: the epoch of that fence; None: not known


@dataclass
class History:
    """Everything `decide` needs beside the plan."""

    records: dict[tuple[int, str, bool], StepRecord] = field(default_factory=dict)
    active: dict[int, ActiveRun] = field(default_factory=dict)
    unwinding: bool = False  # asked for; a failure before the pivot needs no asking
    already_happened: bool = False  # undoing the pivot found that it has happened
    overtaken_by_fence: bool = False  # something was not done because a fence had made it pointless
    runs: int = 0
    #: Steps of runs that ended before them, and that may have been begun all the same.
    begun: frozenset[tuple[int, str]] = frozenset()

    def of_step(self, lane: int, step: str, *, undo: bool) -> StepRecord:
        return self.records.get((lane, step, undo), _NOT_BEGUN)

    def note(self, lane: int, step: str, *, undo: bool, **news: Any) -> None:
        """Record what is known of a step."""
        known = self.of_step(lane, step, undo=undo)
        self.records[lane, step, undo] = known._replace(**news)

    def fork(self) -> History:
        """A copy to decide on; see Aggregate.fork."""
        fork = object.__new__(History)  # `replace` would take five times as long
        fork.__dict__.update(self.__dict__, records=self.records.copy(), active=self.active.copy())
        return fork

    def next_step(self, run: ActiveRun) -> str:
        """The step whose result the run owes next."""
        return next(
            step for step in run.steps if not self.of_step(run.lane, step, undo=run.undo).resolved
        )

    def touched(self, lane: int, step: str) -> bool:
        """Whether the step may have had an effect."""
        record = self.records.get((lane, step, False))
        known = record is not None and record.status is not StepStatus.PENDING
        if known or (lane, step) in self.begun:
            return True
        run = self.active.get(lane)
        return run is not None and not run.undo and step in run.steps


@dataclass
class ReadPlan:
    """`started.plan` as handlers read it: parsed once for all forks.  It is no separate state."""

    value: Any = field(default=None, compare=False)


def new_side_steps(plan: dict[str, Any]) -> frozenset[str]:
    """The names of a plan's steps that work on the new side of its lanes."""
    stages = [stage for stage in plan["stages"] if stage["side"] == "new"]
    return frozenset(step["name"] for stage in stages for step in stage["steps"])


class Operation(Aggregate):
    """The process manager; the aggregate's id is the operation id."""

    class OperationStarted(Event):
        """A request is accepted; `fingerprint` distinguishes its repetition from another request.

        `global_request_id`: the id under which another service (Cinder) passed the request on.
        `finding`: of a repair: {"id", "drift_class", "differs", "reason"}, the evidence for it.
        `traceparent`: the span of the caller, if the request has one (W3C Trace Context).
        """

        flow: str
        server_id: str
        plan: dict[str, Any]
        request_id: str
        actor: dict[str, Any]
        fingerprint: str | None = None
        global_request_id: str | None = None
        finding: dict[str, Any] | None = None
        traceparent: str | None = None

    class RunStarted(Event):
        """The intent: these steps are about to be done, or undone (`undo`), in this order.

        `creates_at`: the time by the database's clock, if one of them creates a volume.
        `verb`: that of a host that answers for a fenced one; `fence`: the epoch of that fence.
        """

        run: int
        lane: int
        steps: list[str]
        undo: bool
        host: str | None
        epoch: int
        verb: str | None = None
        creates_at: float | None = None
        fence: int | None = None

    class StepSucceeded(Event):
        """The step is done; its domain events are in the same transaction.

        `occurred`, here and below: when the step ended by its host's clock, and the error of that
        clock (contract.Occurred); None: a step of the ledger, or not reported.
        `host`: the host that did it; None: the ledger.
        `cinder_requests`: the request ids of Cinder for the changes that the step made there.
        """

        run: int
        lane: int
        step: str
        undo: bool
        outputs: dict[str, Any]
        took_ms: int
        occurred: dict[str, Any] | None = None
        host: str | None = None
        cinder_requests: list[str] = field(default_factory=list)

    class StepRetried(Event):
        """The step failed, or its outcome is unknown; it will be retried.

        `further`: the later steps of the run that may have begun.
        """

        run: int
        lane: int
        step: str
        undo: bool
        error: dict[str, Any]
        retry_at: float
        further: list[str] = field(default_factory=list)
        occurred: dict[str, Any] | None = None
        host: str | None = None
        cinder_requests: list[str] = field(default_factory=list)

    class StepFailed(Event):
        """The step failed and is not retried automatically; `further`: see StepRetried."""

        run: int
        lane: int
        step: str
        undo: bool
        error: dict[str, Any]
        further: list[str] = field(default_factory=list)
        occurred: dict[str, Any] | None = None
        host: str | None = None
        cinder_requests: list[str] = field(default_factory=list)

    class Parked(Event):
        """The operation waits for an operator: `left` are the pending steps, with their errors."""

        left: list[dict[str, Any]]

    class RetryRequested(Event):
        """An operator retries the failed steps, or delayed ones at once if the operation runs."""

        reason: str

    class StepSkipped(Event):
        """An operator vouches for a failed step; the domain events have the `reason`, too."""

        lane: int
        step: str
        undo: bool
        reason: str

    class UnwindRequested(Event):
        """A user or an operator has requested to undo the operation."""

        reason: str

    class OperationFinished(Event):
        """The operation has ended, and its claims are released.

        `error`: the first error, never a later one (LP 1812969).
        """

        outcome: str
        error: dict[str, Any] | None
        reason: str | None = None

    S = OperationState
    RUNNING, PARKED = frozenset({S.RUNNING}), frozenset({S.PARKED})
    TRANSITIONS: ClassVar = {
        OperationStarted: (frozenset({None}), S.RUNNING),
        RunStarted: (RUNNING, S.RUNNING),
        StepSucceeded: (RUNNING, S.RUNNING),
        StepRetried: (RUNNING, S.RUNNING),
        StepFailed: (RUNNING, S.RUNNING),
        Parked: (RUNNING, S.PARKED),
        RetryRequested: (RUNNING | PARKED, S.RUNNING),
        StepSkipped: (PARKED, S.RUNNING),
        UnwindRequested: (RUNNING | PARKED, S.RUNNING),
        OperationFinished: (RUNNING | PARKED, S.FINISHED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.started: Operation.OperationStarted | None = None
        self.plan = ReadPlan()
        self.lanes: list[Lane] = []  # the plan's, with what steps have found out
        self.history = History()
        self.asked: dict[int, tuple[float, float]] = {}  # for a lane's volume: first and last
        self.first_error: dict[str, Any] | None = None
        self.left: list[dict[str, Any]] = []  # when it was parked last
        self.outcome: Outcome | None = None
        self._last: Any = None  # the event that was applied last
        self._new_steps: frozenset[str] = frozenset()  # that work on the lanes' new side

    def fork(self) -> Self:
        fork = super().fork()
        fork.history = self.history.fork()
        return fork

    def about(self) -> About:
        lane, host = getattr(self._last, "lane", None), getattr(self._last, "host", None)
        server_id = self.started.server_id if self.started else None
        if lane is None and len(self.lanes) == 1:
            lane = 0
        if lane is None or lane == SERVER:
            return About(server_id=server_id, host=host)
        about, new = self.lanes[lane], getattr(self._last, "step", None) in self._new_steps
        side = about.new if new and about.new is not None else about
        return About(
            attachment_id=side.attachment_id or about.attachment_id,
            volume_id=about.volume_of(new=new) or None,
            server_id=server_id,
            host=host,
        )

    def apply(self, event: Any) -> None:
        self._last = event
        match event:
            case self.OperationStarted():
                self.started = event
                self.lanes = [read(lane, Lane) for lane in event.plan["lanes"]]
                self._new_steps = new_side_steps(event.plan)
            case self.RunStarted():
                self._run_started(event)
            case self.StepSucceeded():
                self._succeeded(event)
            case self.StepRetried() | self.StepFailed():
                self._not_done(event)
            case self.Parked():
                self.left = event.left
            case self.RetryRequested():
                self._try_again()
            case self.StepSkipped():
                self.history.note(
                    event.lane, event.step, undo=event.undo, status=StepStatus.SKIPPED, error=None
                )
                self._give_failed_steps_another_chance()
            case self.UnwindRequested():
                self._unwind()
            case self.OperationFinished():
                self.outcome = Outcome(event.outcome)

    def _run_started(self, event: RunStarted) -> None:
        self.history.runs, steps = event.run, tuple(event.steps)
        facts = (event.run, event.lane, steps, event.undo, event.host, event.epoch)
        self.history.active[event.lane] = ActiveRun(*facts, verb=event.verb, fence=event.fence)
        if (at := event.creates_at) is not None:
            self.asked[event.lane] = (self.asked.get(event.lane, (at,))[0], at)

    def _succeeded(self, event: StepSucceeded) -> None:
        # Undoing a pivot may find that it is too late: it has happened, and counts as done.
        passed = event.undo and bool(event.outputs.get("passed"))
        self.history.already_happened = self.history.already_happened or passed
        self.history.overtaken_by_fence = self.history.overtaken_by_fence or bool(
            event.outputs.get("moot")
        )
        self._result(
            event, undo=event.undo and not passed, status=StepStatus.DONE, took_ms=event.took_ms
        )
        if event.lane != SERVER:
            lane = self.lanes[event.lane]
            self.lanes[event.lane] = lane.learn(event.outputs, new=event.step in self._new_steps)
        if passed or event.step == self.history.active[event.lane].steps[-1]:
            del self.history.active[event.lane]

    def _not_done(self, event: StepRetried | StepFailed) -> None:
        status, retry_at = StepStatus.FAILED, None
        if isinstance(event, self.StepRetried):
            status, retry_at = StepStatus.RETRYING, event.retry_at
        else:
            self.first_error = self.first_error or event.error
        run = self.history.active[event.lane]
        before = self.history.of_step(event.lane, event.step, undo=event.undo)
        asked = before.asked
        if run.host is not None and (asked is None or asked[0] != run.host):
            asked = (run.host, run.epoch)
        errors = before.errors | {(event.error["kind"], event.error["code"])}
        facts = {"error": event.error, "retry_at": retry_at, "asked": asked, "errors": errors}
        self._result(event, undo=event.undo, status=status, **facts)
        del self.history.active[event.lane]
        if not event.undo:
            self.history.begun |= {(event.lane, step) for step in event.further}

    def _unwind(self) -> None:
        self.history.unwinding = True
        for lane, run in self.history.active.items():
            self.history.active[lane] = run._replace(cancelled=not run.undo)

    def _result(
        self, event: StepSucceeded | StepRetried | StepFailed, *, undo: bool, **facts: Any
    ) -> None:
        """What is known of a step: its last result, and their number."""
        attempts = self.history.of_step(event.lane, event.step, undo=undo).attempt(
            facts.get("error")
        )
        host = self.history.active[event.lane].host
        self.history.records[event.lane, event.step, undo] = StepRecord(
            attempts=attempts, run=event.run, host=host, **facts
        )

    def _give_failed_steps_another_chance(self) -> None:
        """A forward failure before the pivot stays: it is the reason to unwind."""
        undoing = any(undo for (_, _, undo) in self.history.records)
        unwinding = undoing and not self.history.already_happened
        for (lane, step, undo), record in list(self.history.records.items()):
            if record.status is StepStatus.FAILED and undo == unwinding:
                self.history.note(lane, step, undo=undo, status=StepStatus.PENDING, attempts=0)

    def _try_again(self) -> None:
        if self.state is OperationState.PARKED:
            self._give_failed_steps_another_chance()
            return
        for (lane, step, undo), record in list(self.history.records.items()):
            if record.status is StepStatus.RETRYING:
                self.history.note(lane, step, undo=undo, retry_at=None)

    def is_known(self, number: int, host: str | None, step: str) -> bool:
        """Whether this run's result for this step was recorded already (a repeated report)."""
        return any(
            (name, record.run, record.host) == (step, number, host)
            for (_, name, _), record in self.history.records.items()
        )

    def is_active(self, number: int) -> bool:
        """Whether the run still owes a result."""
        return any(run.number == number for run in self.history.active.values())

    def active_run(self, number: int, host: str | None, step: str) -> ActiveRun:
        """The active run that waits for just this step's result.

        Raises StaleReportError otherwise: a late or misdirected report.
        """
        for run in self.history.active.values():
            if (run.number, run.host) == (number, host) and self.history.next_step(run) == step:
                return run
        raise errors.StaleReportError(
            operation_id=str(self.id), step=step, run=number, host=host or "(ledger)"
        )
