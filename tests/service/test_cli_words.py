"""What people are told: every event and verb has words, the timeline and the plan read well."""

from __future__ import annotations

import importlib
import pkgutil

import aggregates
from aggregates.base import Aggregate, Event
from handlers.plan import LedgerVerb
from host_agent.contract import Verb
from ledger.cli import plan, timeline
from ledger.cli.words import BOOKKEEPING, SENTENCES, VERBS, sentence
from tests.service.cli_stub import (
    OPERATION,
    REQUEST,
    SERVER,
    VOLUME,
    event,
    finished,
    operation,
    parked,
    step,
)


def all_topics() -> set[str]:
    for module in pkgutil.iter_modules(aggregates.__path__):
        importlib.import_module(f"aggregates.{module.name}")
    owners = {kind.__name__ for kind in Aggregate.__subclasses__()}
    events = {kind.TOPIC for kind in Event.__subclasses__()}
    return {topic for topic in events if topic.partition(".")[0] in owners}


def entry(position: int, topic: str, body: dict, **about: object) -> timeline.Entry:
    return timeline.Entry.of(event(position, topic, body, **about).model_dump(mode="json"))


def test_every_event_has_words() -> None:
    assert all_topics() - set(SENTENCES) == set()
    assert set(SENTENCES) - all_topics() == set()
    assert set(SENTENCES) > BOOKKEEPING


def test_every_verb_has_words() -> None:
    assert set(VERBS) == {verb.value for verb in (*LedgerVerb, *Verb)}


def test_an_event_of_a_newer_version_is_named_not_left_out() -> None:
    assert sentence("Volume.Teleported", {"to": "mars"}) == "Teleported"


def test_an_event_without_all_its_fields_is_still_told() -> None:
    for topic in SENTENCES:
        assert sentence(topic, {})


def test_an_operators_reason_is_part_of_the_sentence() -> None:
    told = sentence("Attachment.Disconnected", {"shared": False, "waived": "host burnt down"})
    assert "host burnt down" in told
    assert "without proof" in told


def test_unknown_outcomes_are_called_that() -> None:
    error = {"kind": "unknown", "code": "timeout", "message": "No answer."}
    body = {"step": "connect", "undo": False, "error": error, "retry_at": 0}
    told = sentence("Operation.StepRetried", body)
    assert told == (
        "Step connect did not work: outcome unknown, No answer. (timeout); again at 00:00:00"
    )


def test_the_timeline_is_grouped_by_operation_and_leaves_out_bookkeeping() -> None:
    started = {
        "flow": "attach",
        "server_id": SERVER,
        "plan": {"lanes": [{"volume_id": VOLUME}]},
    }
    entries = [
        entry(1, "Operation.OperationStarted", started),
        entry(2, "Volume.Claimed", {"claimant": OPERATION, "server_id": SERVER}),
        entry(3, "Attachment.Completed", {}, actor="agent-hv1", host="hv1"),
        entry(4, "Host.Unfenced", {"reason": "repaired"}, operation_id=None, actor="olivia"),
    ]
    assert list(timeline.lines(entries)) == [
        f"2026-11-20 UTC  operation {OPERATION}  request {REQUEST}",
        f"  10:00:01.500  alice           Attach requested: volume {VOLUME}, server {SERVER}",
        "  10:00:03.500  agent-hv1  hv1  Attachment complete: Cinder was told that it is in use",
        "",
        "2026-11-20 UTC  outside of operations",
        "  10:00:04.500  olivia          Host unfenced: repaired",
        "(1 events of bookkeeping are not shown: --long)",
    ]
    assert any("Volume claimed" in line for line in timeline.lines(entries, long=True))


def test_the_plan_shows_where_it_is_and_why_it_stands() -> None:
    shown = parked().model_dump(mode="json")
    assert list(plan.drawing(shown)) == [
        "on hv1",
        "    unplug              done, 12 ms",
        " -> disconnect          failed, 3 attempts, The device is busy. (busy)",
        "    delete",
        "on ledger",
        "    unbind",
    ]
    assert list(plan.left(shown)) == [
        "disconnect: The device is busy. (busy)",
        "delete: waits for the step above",
    ]
    assert list(plan.next_commands(shown)) == [
        f"attachment-ledger operation retry {OPERATION} --reason ...",
        f"attachment-ledger operation skip {OPERATION} disconnect --reason ...",
        f"attachment-ledger operation give-up {OPERATION} --reason ...",
    ]


def test_the_plan_of_an_unwinding_operation_is_at_the_step_it_undoes() -> None:
    steps = [
        step("plug", "failed", attempts=1, error=None),
        step("plug", "done", undo=True, attempts=1, took_ms=3),
        step("connect", "retrying", undo=True, attempts=2, retry_at="2026-11-20T10:00:09Z"),
    ]
    shown = operation(unwinding=True, steps=steps).model_dump(mode="json")
    assert plan.standing(shown) == "unwinding"
    assert list(plan.drawing(shown))[-1] == (
        " -> undo of connect     retrying, 2 attempts, again at 2026-11-20 10:00:09Z"
    )


def test_progress_is_one_line_with_what_is_wrong() -> None:
    busy = step("disconnect", "retrying", attempts=2, error=parked().steps[1].error)
    shown = operation(steps=[busy]).model_dump(mode="json")
    assert plan.progress(shown) == (
        "detach: running, step disconnect, 2 attempts: The device is busy. (busy)"
    )
    assert plan.progress(finished().model_dump(mode="json")) == "detach: completed"
