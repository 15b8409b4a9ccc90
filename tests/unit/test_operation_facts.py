"""What is known of an operation's steps after what happened to them."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates.operation import Operation, StepStatus
from tests.unit.test_aggregate_facts import RUN, after, lane, started

ERROR = {"kind": "retryable", "code": "busy", "message": "m"}
STEP = {"lane": 0, "step": "one", "undo": False}


def begun(*, undo: bool = False, run: int = 1) -> tuple[Any, dict[str, Any]]:
    return Operation.RunStarted, {**RUN, "run": run, "lane": 0, "undo": undo}


def not_done(run: int = 1, **over: Any) -> tuple[Any, dict[str, Any]]:
    kind = Operation.StepRetried if "retry_at" in over else Operation.StepFailed
    return kind, {**STEP, "run": run, "error": ERROR, **over}


def test_the_errors_of_all_attempts_are_known() -> None:
    operation = after(
        Operation,
        started(lane()),
        begun(),
        not_done(retry_at=1.0),
        begun(run=2),
        not_done(run=2, retry_at=2.0, error={**ERROR, "code": "gone"}),
    )
    record = operation.history.of_step(0, "one", undo=False)
    assert record.errors == {("retryable", "busy"), ("retryable", "gone")}
    assert (record.status, record.attempts, record.retry_at) == (StepStatus.RETRYING, 2, 2.0)


def test_steps_that_a_run_may_have_begun_are_known_and_none_of_an_undo() -> None:
    operation = after(Operation, started(lane()), begun(), not_done(retry_at=1.0, further=["x"]))
    for run, step in ((2, "y"), (3, "z")):
        operation.record(begun(run=run)[0], **begun(run=run)[1])
        kind, facts = not_done(run=run, retry_at=1.0, further=[step])
        operation.record(kind, **facts)
    assert operation.history.begun == {(0, "x"), (0, "y"), (0, "z")}
    undone = after(
        Operation, started(lane()), begun(undo=True), not_done(undo=True, further=["two"])
    )
    assert undone.history.begun == frozenset()


def test_the_first_error_is_kept_and_not_one_that_was_tried_again() -> None:
    operation = after(Operation, started(lane()), begun(), not_done(retry_at=1.0))
    assert operation.first_error is None
    for run, code in ((2, "first"), (3, "second")):
        operation.record(begun(run=run)[0], **begun(run=run)[1])
        kind, facts = not_done(run=run, error={**ERROR, "code": code})
        operation.record(kind, **facts)
    assert operation.first_error == {**ERROR, "code": "first"}


@pytest.mark.parametrize("undo", [False, True])
def test_who_asks_for_a_retry_while_it_runs_waits_for_no_step_that_waits(undo: bool) -> None:
    wait = not_done(undo=undo, retry_at=9.0)
    operation = after(Operation, started(lane()), begun(undo=undo), wait)
    operation.record(Operation.RunStarted, **{**RUN, "run": 2, "lane": -1})
    operation.record(Operation.StepFailed, **{**STEP, "run": 2, "lane": -1, "error": ERROR})
    operation.record(Operation.RetryRequested, reason="now")
    record = operation.history.of_step(0, "one", undo=undo)
    assert (record.status, record.retry_at, record.error) == (StepStatus.RETRYING, None, ERROR)
    failed = operation.history.of_step(-1, "one", undo=False)
    assert failed.status is StepStatus.FAILED, "it does not wait"


def test_a_parked_step_that_is_tried_again_has_all_its_attempts() -> None:
    operation = after(Operation, started(lane()), begun(), not_done())
    operation.record(Operation.Parked, left=[{"step": "one"}])
    assert operation.left == [{"step": "one"}]
    operation.record(Operation.RetryRequested, reason="mended")
    record = operation.history.of_step(0, "one", undo=False)
    assert (record.status, record.attempts) == (StepStatus.PENDING, 0)
    assert (record.error, record.errors) == (ERROR, {("retryable", "busy")})


@pytest.mark.parametrize("undo", [False, True])
def test_who_wants_it_undone_is_heard(undo: bool) -> None:
    operation = after(Operation, started(lane()), begun(undo=undo))
    assert not operation.history.unwinding
    operation.record(Operation.UnwindRequested, reason="r")
    history = operation.history
    assert (history.unwinding, history.active[0].cancelled) == (True, not undo)
