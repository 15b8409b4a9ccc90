"""Reports of several results, as the ledger takes them (decision 0028)."""

from __future__ import annotations

from uuid import UUID

from aggregates.attachment import Attachment
from aggregates.operation import Operation, StepStatus
from host_agent.shared.contract.messages import ErrorKind, Report, StepError, StepResult
from tests.world import CONTEXT, HOST, World, events


def asked() -> tuple[World, str]:
    """An attach whose host has been asked for its part."""
    world = World()
    operation_id = world.attach()
    while world.service.advance(operation_id) is None:
        pass
    return world, operation_id


def report(operation_id: str, *results: StepResult, further: bool = False) -> Report:
    return Report(operation_id=operation_id, run=2, epoch=0, results=results, further=further)


def done(*steps: str) -> list[StepResult]:
    return [StepResult(step=step, took_ms=1) for step in steps]


def failed(step: str, kind: ErrorKind = ErrorKind.FINAL) -> StepResult:
    return StepResult(step=step, took_ms=1, error=StepError(kind=kind, code="x", message="x"))


def undone(world: World) -> list[str]:
    """The steps that are to be undone, in order."""
    return [step for e in events(world, Operation.RunStarted) if e.undo for step in e.steps]


def test_after_a_failure_only_what_was_begun_is_undone() -> None:
    world, operation_id = asked()
    said = report(operation_id, *done("update", "ready"), failed("connect"))
    assert world.service.report(HOST, said, CONTEXT)[0] is False
    assert undone(world) == ["connect", "update"]


def test_after_a_failure_of_a_run_that_may_have_gone_further_all_of_it_is_undone() -> None:
    world, operation_id = asked()
    world.service.report(HOST, report(operation_id, failed("update"), further=True), CONTEXT)
    assert undone(world) == ["plug", "connect", "update"]


def test_that_it_may_have_gone_further_is_not_forgotten_by_trying_again() -> None:
    world, operation_id = asked()
    retryable = failed("update", ErrorKind.RETRYABLE)
    world.service.report(HOST, report(operation_id, retryable, further=True), CONTEXT)
    [retried] = events(world, Operation.StepRetried)
    world.clock.seconds = retried.retry_at
    while world.service.advance(operation_id) is None:
        pass
    [run] = world.operation(operation_id).history.active.values()
    again = Report(operation_id=operation_id, run=run.number, epoch=0, results=(failed("update"),))
    world.service.report(HOST, again, CONTEXT)
    assert undone(world) == ["plug", "connect", "update"]


def test_what_a_fenced_host_was_asked_to_do_may_have_been_done_to_its_end() -> None:
    world, operation_id = asked()
    world.service.report(HOST, report(operation_id, *done("update")), CONTEXT)
    world.fence(HOST)
    assert undone(world) == ["plug", "connect", "update"]


def test_a_success_that_cannot_be_true_is_a_failure_and_what_came_after_it_is_undone() -> None:
    world, operation_id = asked()
    attachment_id = world.operation(operation_id).lanes[0].attachment_id
    attachment = world.store.load(Attachment, UUID(attachment_id or ""))
    attachment.record(Attachment.Deleted, waived="somebody was mistaken")
    world.store.save(attachment, context=CONTEXT)
    said = report(operation_id, *done("update", "ready", "connect"))
    assert world.service.report(HOST, said, CONTEXT)[0] is False
    record = world.operation(operation_id).history.of_step(0, "update", undo=False)
    assert record.status is StepStatus.FAILED
    assert "connect" in undone(world)
    stored = len(world.store.log)
    assert world.service.report(HOST, said, CONTEXT) == (False, 0), "the same again"
    assert len(world.store.log) == stored
