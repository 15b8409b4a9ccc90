"""What a host's agent does with a command, step by step and without threads.

`command_of` makes the command from the aggregates, as the mailbox has it; `run_command` does
what host_agent.executor does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aggregates.base import EventContext
from aggregates.operation import SERVER, ActiveRun, Operation
from handlers.engine.plan import is_first, lane_of, order_of, plan_of
from host_agent import verbs
from host_agent.executor import _learn
from host_agent.reporting import Reporting, Verdict
from host_agent.shared.contract.messages import (
    Command,
    CommandStep,
    Registration,
    StepError,
    StepResult,
    Verb,
)
from host_agent.shared.contract.ports import PortError
from host_agent.verbs.context import RunContext
from ledger.core.service import RegistrationResult, Service
from tests.guards import check_outputs


def command_of(operation: Operation, run: ActiveRun, position: int) -> Command:
    """The run with the steps that have no result yet, as its host is given it."""
    plan, direction = plan_of(operation), "undo" if run.undo else "do"
    todo = run.steps[run.steps.index(operation.history.next_step(run)) :]
    whole = run.lane == SERVER
    assert operation.started is not None, "it runs"
    return Command(
        operation_id=str(operation.id),
        run=run.number,
        position=position,
        epoch=run.epoch,
        request_id=operation.started.request_id,
        flow=plan.flow,
        steps=tuple(
            CommandStep(
                name=step,
                verb=Verb(run.verb or plan.verb(step, undo=run.undo, host=run.host)),
                durable=direction in plan.durable(step),
            )
            for step in todo
        ),
        lane=None if whole else lane_of(operation, run.lane, todo[0]),
        guest=order_of(operation, todo[0]) if whole else None,
        first=is_first(operation, run),
    )


def registered(
    service: Service,
    name: str,
    said: Registration,
    context: EventContext,
    evacuating: Callable[[], Iterable[str]],
) -> RegistrationResult:
    """The result of an agent's registration; what a suspect host has to release is decided, too."""
    known = service.register(name, said, context)
    if not known.host.suspect:
        return known
    return service.decide_leftovers(name, said, context, known, evacuating())


def run_command(
    command: Command, ctx: RunContext, reporting: Reporting, steps: int, *, alone: bool = False
) -> None:
    """Its first so many steps; `alone`: each result is reported by itself."""
    for step in command.steps[:steps]:
        result = carry_out(command, step, ctx)
        last = alone or result.error is not None or step is command.steps[-1]
        if reporting.ended(result, last=last, durable=step.durable):
            reporting.deliver()
        if result.error is not None or reporting.verdict is not Verdict.CONTINUE:
            return
        command = _learn(command, result.outputs)
    reporting.deliver()


def carry_out(command: Command, step: CommandStep, ctx: RunContext) -> StepResult:
    """Do the step, whatever comes of it."""
    outputs: dict[str, Any] = {}
    error: StepError | None = None
    try:
        if command.guest is not None:
            outputs = verbs.GUEST_VERBS[step.verb](ctx, command.guest)
        elif command.lane is not None:
            outputs = verbs.VERBS[step.verb](ctx, command.lane)
    except PortError as failure:
        error = failure.as_step_error()
    return StepResult(step=step.name, took_ms=1, outputs=check_outputs(outputs), error=error)
