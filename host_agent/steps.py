"""One step of a run: done, timed, traced and logged; an exception becomes its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from host_agent.clock import Stopping
from host_agent.shared.contract.messages import (
    Command,
    CommandStep,
    ErrorKind,
    Occurred,
    StepError,
    StepResult,
)
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.masking import clean_message
from host_agent.shared.platform.tracing import doing
from host_agent.verbs import GUEST_VERBS, VERBS
from host_agent.verbs.cinder import take_back
from host_agent.verbs.context import RunContext

_LOG = structlog.get_logger(__name__)

#: The present time, if it is known.
Now = Callable[[], Occurred | None]


class StepOutcome(NamedTuple):
    """A step's outputs, or its error; and the ids of its changing requests to Cinder."""

    outputs: dict[str, Any] = {}  # noqa: RUF012 - never changed
    error: StepError | None = None
    cinder_requests: tuple[str, ...] = ()


def do(command: Command, step: CommandStep, context: RunContext, now: Now) -> StepResult:
    """The step's result.  Raises Stopping if the agent stops before there is one."""
    began = context.clock.now()
    with doing(command.span.child(step.name), command.request_id) as request_ids:
        outputs, error, _ = _outcome(command, step, context)
        return result_of(step, StepOutcome(outputs, error, tuple(request_ids)), began, context, now)


def _outcome(command: Command, step: CommandStep, context: RunContext) -> StepOutcome:
    try:
        if command.guest is not None:
            return StepOutcome(GUEST_VERBS[step.verb](context, command.guest))
        assert command.lane is not None, "Command has seen to it"
        return StepOutcome(VERBS[step.verb](context, command.lane))
    except Stopping:
        raise
    except PortError as error:
        return StepOutcome(error=error.as_step_error())
    except Exception as error:  # noqa: BLE001 - ours or a library's: outcome unknown
        _LOG.exception("step_crashed", step=step.name)
        name = type(error).__name__
        message = f"Unexpected {name} in the agent: see its log."
        kind = ErrorKind.UNKNOWN
        return StepOutcome(error=StepError(kind=kind, code="internal", message=message))


def result_of(
    step: CommandStep, outcome: StepOutcome, began: float, context: RunContext, now: Now
) -> StepResult:
    """The result for the report; `began` by the run's clock."""
    took_ms, error = round((context.clock.now() - began) * 1000), outcome.error
    if error is None:
        _LOG.info("step_done", step=step.name, took_ms=took_ms)
    else:
        # It may be a tool's whole output; the ledger must be able to accept the report.
        error = StepError(kind=error.kind, code=error.code, message=clean_message(error.message))
        _LOG.warning(
            "step_failed", step=step.name, kind=error.kind, code=error.code, why=error.message
        )
    return StepResult(
        step=step.name,
        took_ms=took_ms,
        outputs=outcome.outputs,
        error=error,
        occurred=now(),
        cinder_requests=outcome.cinder_requests,
    )


def take_back_made(command: Command, step: CommandStep, context: RunContext) -> None:
    """Undo what the step created: its result was refused, so no other step knows of it."""
    if command.lane is None:
        return
    try:
        take_back(context, step.verb, command.lane)
    except PortError as error:
        _LOG.warning("not_taken_back", step=step.name, code=error.code, why=error.message)
