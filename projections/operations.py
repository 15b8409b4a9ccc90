"""Operations with their progress, and the mailbox of commands that follows from them.

The projection folds the aggregate itself; the row is a view of it and of the engine's decision.  So
nothing is computed here in a second way.

Times of parking are kept after the end, because a parked operation is drift (decision 0058).

A command is in its host's mailbox at the position of the event that gave or cancelled it: a run
that is cancelled while its host works on it is delivered once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self
from uuid import UUID

from aggregates.operation import (
    SERVER,
    ActiveRun,
    Operation,
    OperationState,
    StepRecord,
)
from handlers.engine.engine import Wait, decide, pivot_passed, unwinds
from handlers.engine.plan import (
    Place,
    Plan,
    Side,
    Stage,
    Step,
    is_first,
    lane_of,
    order_of,
    plan_of,
    volumes_of,
)
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.lane import stored
from host_agent.shared.contract.messages import Command, CommandStep, Verb
from host_agent.shared.contract.spans import span_of_run
from host_agent.shared.contract.wire import plain
from projections.base import Derived, LoggedEvent, Projection, Row, originator

_KINDS = {kind.TOPIC: kind for kind in Operation.TRANSITIONS}
_BINDING = {LedgerVerb.ATTACHMENT_RESERVE, LedgerVerb.MAPPING_BIND}
_GIVE_COMMANDS = {Operation.RunStarted, Operation.UnwindRequested}


class Parking(NamedTuple):
    """From when to when an operation was parked; `to` None: it still is."""

    from_position: int
    from_at: datetime
    to_position: int | None
    to_at: datetime | None
    left_steps: list[dict[str, Any]]


class Followed:
    """An operation, and the positions and times of its events."""

    def __init__(self, started: LoggedEvent) -> None:
        self.id = started.originator_id
        self.operation = Operation(UUID(self.id))
        self.started_at, self.started_position = started.recorded_at, started.position
        self.updated_at, self.position = started.recorded_at, started.position
        #: The positions at which runs were started or cancelled; it may also have ended runs.
        self.runs: dict[ActiveRun, int] = {}
        self.parked: tuple[Parking, ...] = ()

    def fork(self) -> Self:
        """An independent copy."""
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, operation=self.operation.fork())
        return fork

    def follow(self, event: LoggedEvent) -> None:
        self.updated_at, self.position = event.recorded_at, event.position
        kind = _KINDS[event.topic]
        stored = object.__new__(kind)  # as the library's mapper makes it
        stored.__dict__.update(
            event.body,
            originator_id=self.operation.id,
            originator_version=event.originator_version,
        )
        self.operation.follow([stored])
        if kind in _GIVE_COMMANDS:
            active = self.operation.history.active.values()
            self.runs = {run: self.runs.get(run, event.position) for run in active}
        self._park(kind, event)

    def _park(self, kind: type[Any], event: LoggedEvent) -> None:
        """Any other event ends the parking."""
        at = (event.position, event.recorded_at)
        if kind is Operation.Parked:
            self.parked = (*self.parked, Parking(*at, None, None, event.body["left"]))
        elif self.parked and self.parked[-1].to_position is None:
            *before, last = self.parked
            self.parked = (*before, last._replace(to_position=at[0], to_at=at[1]))

    def row(self) -> Row:
        """The row of `operations`."""
        operation, plan = self.operation, plan_of(self.operation)
        started, history, state = operation.started, operation.history, operation.state
        assert started is not None, "a stream begins with it"
        finished, unwinding = state is OperationState.FINISHED, unwinds(plan, history)
        return {
            "operation_id": self.id,
            "flow": started.flow,
            "server_id": started.server_id,
            "volume_ids": sorted(volumes_of(operation)),
            "host": _host_of(plan),
            "destination": plan.hosts.get(Place.DESTINATION),
            "state": state,
            "outcome": operation.outcome,
            "error": operation.first_error,
            "left_steps": operation.left if state is OperationState.PARKED else None,
            "lanes": plain(operation.lanes),
            "steps": list(_steps(operation, plan, unwinding=unwinding)),
            "unwinding": unwinding,
            "pivot_passed": pivot_passed(plan, history),
            "bound": finished or _bound(operation, plan),
            "actor": started.actor["name"],
            "user_id": started.actor["user_id"],
            "project_id": started.actor["project_id"],
            "request_id": started.request_id,
            "global_request_id": started.global_request_id,
            "started_at": self.started_at,
            "started_position": self.started_position,
            "finished_at": self.updated_at if finished else None,
            "due_at": _due_at(operation, plan, self.updated_at),
            "updated_at": self.updated_at,
            "position": self.position,
        }

    def commands(self) -> list[Row]:
        """The mailbox: one command for each active run of a host."""
        if self.operation.state is not OperationState.RUNNING:
            return []
        commands = (
            (run, _command(self.operation, run, self.runs[run]))
            for run in self.operation.history.active.values()
            if run.host is not None
        )
        return [
            {
                "operation_id": command.operation_id,
                "run": command.run,
                "host": run.host,
                "position": command.position,
                "command": _kept(command),
            }
            for run, command in commands
        ]

    def parkings(self) -> list[Row]:
        """The times of parking, including the present one."""
        started = self.operation.started
        if started is None or not self.parked:
            return []
        about: Row = {"operation_id": self.id, "flow": started.flow, "server_id": started.server_id}
        about["host"] = _host_of(plan_of(self.operation))
        return [
            {**about, "volume_id": _only_volume(parking), "times": times, **parking._asdict()}
            for times, parking in enumerate(self.parked, 1)
        ]


def _kept(command: Command) -> Row:
    """As the mailbox has it."""
    told: Row = plain(command)
    return {**told, "lane": told["lane"] and stored(told["lane"])}


def _host_of(plan: Plan) -> str | None:
    """The server's host at the start."""
    return plan.hosts.get(Place.HOST) or plan.hosts.get(Place.SOURCE)


def _only_volume(parking: Parking) -> str | None:
    """The volume of the pending steps, if it is exactly one.

    Older events have the id "" for a volume that was not created yet.
    """
    volumes = {left.get("volume_id") or None for left in parking.left_steps}
    return volumes.pop() if len(volumes) == 1 else None


def _fold(followed: Followed | None, event: LoggedEvent) -> Followed:
    followed = followed or Followed(event)
    followed.follow(event)
    return followed


def _bound(operation: Operation, plan: Plan) -> bool:
    """Whether all its reservations and mappings exist; a synchronous request waits for that."""
    binding = [
        (stage, step) for stage in plan.stages for step in stage.steps if step.do in _BINDING
    ]
    return all(
        operation.history.of_step(lane, step.name, undo=False).resolved
        for stage, step in binding
        for lane in plan.lanes_of(stage)
    )


def _due_at(operation: Operation, plan: Plan, now: datetime) -> datetime | None:
    """When a dispatcher must work on it; None: not before a host's report or an operator's act.

    `now` is the log's time, which may be ahead of the clock that set a retry's time.  So `decide`
    gets -inf, and a retry waits until its own time.
    """
    if operation.state is not OperationState.RUNNING:
        return None
    match decide(plan, operation.history, float("-inf")):
        case Wait(until=None):
            return None
        case Wait(until=float(until)):
            return _moment(until)
        case _:
            return now


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _steps(operation: Operation, plan: Plan, *, unwinding: bool) -> Iterator[Row]:
    """Every step of the plan in order; then, if the operation unwinds, the undo steps."""
    history = operation.history
    due = {(run.lane, history.next_step(run), run.undo) for run in history.active.values()}
    for undo in (False, True) if unwinding else (False,):
        for stage in reversed(plan.stages) if undo else plan.stages:
            for lane in plan.lanes_of(stage):
                about = _about(operation, plan, stage, lane)
                for step in reversed(stage.steps) if undo else stage.steps:
                    key = (lane, step.name, undo)
                    if not undo or (step.undo and (key in due or key in history.records)):
                        record = history.of_step(lane, step.name, undo=undo)
                        yield {**about, **_step(step, record, undo=undo, active=key in due)}


def _about(operation: Operation, plan: Plan, stage: Stage, lane: int) -> Row:
    """The place and the volume of a stage's steps."""
    volume_id = None
    if lane != SERVER:
        volume_id = operation.lanes[lane].volume_of(new=stage.side is Side.NEW) or None
    return {
        "lane": lane,
        "side": stage.side,
        "volume_id": volume_id,
        "place": plan.host_of(lane, stage.place) or stage.place,
    }


def _step(step: Step, record: StepRecord, *, undo: bool, active: bool) -> Row:
    retry_at = None if active or record.retry_at is None else _moment(record.retry_at)
    return {
        "step": step.name,
        "verb": step.undo if undo else step.do,
        "undo": undo,
        "status": "running" if active else record.status,
        "attempts": record.attempts,
        "took_ms": record.took_ms,
        "error": record.error,
        "retry_at": retry_at and retry_at.isoformat(),
    }


def _command(operation: Operation, run: ActiveRun, position: int) -> Command:
    """The command of a run: its steps from the next one without a result."""
    started = operation.started
    assert started is not None
    step = operation.history.next_step(run)
    plan = plan_of(operation)
    todo = run.steps[run.steps.index(step) :]
    return Command(
        operation_id=str(operation.id),
        run=run.number,
        position=position,
        epoch=run.epoch,
        request_id=started.request_id,
        flow=started.flow,
        steps=tuple(
            CommandStep(
                name=name,
                verb=Verb(run.verb or plan.verb(name, undo=run.undo, host=run.host)),
                durable=("undo" if run.undo else "do") in plan.durable(name),
            )
            for name in todo
        ),
        lane=lane_of(operation, run.lane, step) if run.lane != SERVER else None,
        guest=order_of(operation, step) if run.lane == SERVER else None,
        cancel=run.cancelled,
        first=is_first(operation, run),
        traceparent=span_of_run(str(operation.id), started.traceparent, run.number).header(),
    )


OPERATIONS = Projection(
    table="operations",
    key="operation_id",
    topics=frozenset(_KINDS),
    key_of=originator,
    fold=_fold,
    derived=(Derived("mailbox", Followed.commands), Derived("parked", Followed.parkings)),
    stateful=True,
)
