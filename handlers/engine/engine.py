"""What to do next: `decide(plan, history, now)`, a pure function.

Forward, each lane goes from stage to stage; before a stage of the whole server all lanes must be
done.  After a failed step up to the pivot, and once all runs have ended, the stages are undone in
reverse: each lane undoes the steps that may have had an effect, also the failed one.  A failure
after the pivot, or of an undo, parks the operation once nothing else can continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aggregates.operation import ActiveRun, History, Outcome, StepStatus
from handlers.engine.plan import Place, Plan, Stage

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """Steps of one lane to be started now, in one place, in this order."""

    lane: int
    steps: tuple[str, ...]
    undo: bool
    place: Place


@dataclass(frozen=True)
class Start:
    """Record the intent of these runs."""

    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Work:
    """Continue these runs of the ledger; the caller may do one, and ask again."""

    runs: tuple[ActiveRun, ...]


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (seconds since the epoch; None: before a host's report)."""

    until: float | None


@dataclass(frozen=True)
class Left:
    """A step that is not done, and needs an operator."""

    lane: int
    step: str
    undo: bool


@dataclass(frozen=True)
class Park:
    """Wait for an operator."""

    left: tuple[Left, ...]


@dataclass(frozen=True)
class Finish:
    """All done, or all undone."""

    outcome: Outcome


Decision = Start | Work | Wait | Park | Finish


def decide(plan: Plan, history: History, now: float) -> Decision:
    """The next decision; it depends on nothing but its arguments."""
    undo = unwinds(plan, history)
    still_forward = undo and any(not run.undo for run in history.active.values())
    if still_forward:
        return _work_or_wait(list(history.active.values()), None)
    for lanes, stages in _ordered(plan.segments, undo=undo):
        decision = _segment(lanes, stages, history, now, undo=undo)
        if decision is not None:
            return decision
    if not undo:
        return Finish(Outcome.COMPLETED)
    return Finish(Outcome.CANCELLED if history.unwinding else Outcome.FAILED)


def unwinds(plan: Plan, history: History) -> bool:
    """Whether the plan is undone: requested, or after a failure, and before the pivot."""
    if pivot_passed(plan, history):
        return False
    return history.unwinding or any(
        record.status is StepStatus.FAILED and not undo and not plan.after_pivot(step)
        for (_, step, undo), record in history.records.items()
    )


def pivot_passed(plan: Plan, history: History) -> bool:
    """Whether the pivot step is done (or skipped), so that nothing is undone any more."""
    return plan.pivot is not None and any(
        step == plan.pivot and not undo and record.resolved
        for (_, step, undo), record in history.records.items()
    )


def left(plan: Plan, history: History) -> list[Left]:
    """The steps that are not done, or not undone, in order."""
    undo = unwinds(plan, history)
    return [
        Left(lane, step, undo)
        for lanes, stages in _ordered(plan.segments, undo=undo)
        for lane in lanes
        for stage in _ordered(stages, undo=undo)
        for step in _todo(stage, history, lane, undo=undo)
    ]


def _segment(
    lanes: tuple[int, ...], stages: tuple[Stage, ...], history: History, now: float, *, undo: bool
) -> Decision | None:
    """The decision for these stages; None: they are done."""
    start: list[Run] = []
    active: list[ActiveRun] = []
    retry_at: list[float] = []
    failed: list[Left] = []
    names = {step.name for stage in stages for step in stage.steps}
    for lane in lanes:
        run = history.active.get(lane)
        if run is not None:
            active += [run] if run.steps[0] in names else []
            continue
        place, todo = _next(stages, history, lane, undo=undo)
        if not todo:
            continue
        record = history.of_step(lane, todo[0], undo=undo)
        if record.status is StepStatus.FAILED:
            failed.extend(Left(lane, step, undo) for step in todo)
        elif record.retry_at is not None and record.retry_at > now:
            retry_at.append(record.retry_at)
        else:
            start.append(Run(lane, todo, undo, place))
    if start:
        return Start(tuple(start))
    if active or retry_at:
        return _work_or_wait(active, min(retry_at, default=None))
    return Park(tuple(failed)) if failed else None


def _next(
    stages: tuple[Stage, ...], history: History, lane: int, *, undo: bool
) -> tuple[Place, tuple[str, ...]]:
    """The place and the steps of the next stage of a lane with something left."""
    for stage in _ordered(stages, undo=undo):
        todo = tuple(_todo(stage, history, lane, undo=undo))
        if todo:
            return stage.place, todo
    return Place.LEDGER, ()


def _todo(stage: Stage, history: History, lane: int, *, undo: bool) -> Iterator[str]:
    """The steps of a stage that are left for this lane, in order."""
    for step in _ordered(stage.steps, undo=undo):
        if history.of_step(lane, step.name, undo=undo).resolved:
            continue
        if not undo or (step.undo is not None and history.touched(lane, step.name)):
            yield step.name


def _ordered(items: Sequence[T], *, undo: bool) -> Iterable[T]:
    return reversed(items) if undo else items


def _work_or_wait(active: list[ActiveRun], until: float | None) -> Work | Wait:
    own = tuple(run for run in active if run.host is None)
    return Work(own) if own else Wait(until)
