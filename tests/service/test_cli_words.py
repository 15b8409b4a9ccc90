"""What people are told: every event and verb has words, the timeline and the plan read well."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from datetime import UTC, datetime

import pytest

import aggregates
from aggregates.base import Aggregate, Event
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from handlers.engine.verbs import VERBS, LedgerVerb
from host_agent.shared.contract.messages import Verb
from ledger.cli.operations import plan
from ledger.http import redaction
from ledger.words import timeline
from ledger.words.sentences import BOOKKEEPING, SENTENCES, sentence
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

NOW = datetime(2026, 11, 20, 10, 1, tzinfo=UTC)


def all_topics() -> set[str]:
    for module in pkgutil.iter_modules(aggregates.__path__):
        importlib.import_module(f"aggregates.{module.name}")
    bases = Aggregate.__subclasses__()
    owners = {kind.__name__ for base in bases for kind in (base, *base.__subclasses__())}
    events = {kind.TOPIC for kind in Event.__subclasses__()}
    return {topic for topic in events if topic.partition(".")[0] in owners}


def entry(position: int, topic: str, body: dict, **about: object) -> timeline.Entry:
    return timeline.Entry.of(event(position, topic, body, **about).model_dump(mode="json"))


def test_every_event_has_words() -> None:
    assert all_topics() - set(SENTENCES) == set()
    assert set(SENTENCES) - all_topics() == set()
    assert set(SENTENCES) > BOOKKEEPING


def test_every_verb_has_a_row() -> None:
    assert set(VERBS) == {verb.value for verb in (*LedgerVerb, *Verb)}


def test_an_event_of_a_newer_version_is_named_not_left_out() -> None:
    assert sentence("Volume.Teleported", {"to": "mars"}) == "Teleported"


def test_an_event_without_all_its_fields_is_still_told() -> None:
    for topic in SENTENCES:
        assert sentence(topic, {})


def test_a_host_that_a_member_is_not_shown_is_not_called_none() -> None:
    body = {"name": "db-1", "power_state": "running"}
    assert sentence("Instance.InstanceObserved", body) == "Server db-1 seen: running, no disks"
    for topic in SENTENCES:
        assert "host None" not in sentence(topic, {"host": None}), topic
        assert "on None" not in sentence(topic, {"host": None}), topic


@pytest.mark.parametrize("kind", [Instance.ActionsSeen, BlockDeviceMapping.DeletedRowSeen])
def test_of_what_was_before_the_first_look_a_member_is_told_all(kind: type[Event]) -> None:
    asked = [{"event": "attach_volume", "at": NOW.isoformat(), "request_id": "req-1"}]
    names = [each.name for each in fields(kind)[len(fields(Event)) :]]
    body = {**{name: NOW.isoformat() for name in names}, "actions": asked}
    shown = redaction.event({"body": body, "asked_by": None})
    assert sentence(kind.TOPIC, shown["body"]) == sentence(kind.TOPIC, body)


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


def test_a_request_tells_volumes_server_and_where_it_goes() -> None:
    lanes = [{"volume_id": "a", "new": {"host": "hv2"}}, {"volume_id": ""}]
    plan = {"lanes": lanes, "hosts": {"source": "hv1", "destination": "hv2"}}
    body = {"flow": "live_migrate", "server_id": "s", "plan": plan}
    told = sentence("Operation.OperationStarted", body)
    assert told == "Live migrate requested: volume a, volume (new), server s, to hv2"
    swap = {"lanes": [{"volume_id": "a", "new": {"volume_id": "b"}}], "hosts": {"host": "hv1"}}
    told = sentence("Operation.OperationStarted", {**body, "flow": "swap", "plan": swap})
    assert told == "Swap requested: volume a -> b, server s"


def test_steps_of_several_volumes_are_told_apart_and_those_of_the_server_name_none() -> None:
    steps = [{"step": "connect", "undo": False, "lane": lane, "took_ms": 3} for lane in (-1, 0, 1)]
    told = [sentence("Operation.StepSucceeded", body) for body in steps]
    assert told == [
        "Step connect done in 3 ms",
        "Step connect done in 3 ms",
        "Step connect of lane 1 done in 3 ms",
    ]


def test_an_undo_that_came_too_late_is_not_told_as_done() -> None:
    body = {"step": "migrate", "undo": True, "lane": -1, "outputs": {"passed": True}}
    assert sentence("Operation.StepSucceeded", body) == (
        "Too late to undo step migrate: it has happened, and the flow goes on"
    )


def test_what_cinder_refused_without_harm_is_told() -> None:
    body = {"step": "volume", "lane": 0, "took_ms": 3, "outputs": {"refused": "It is in use."}}
    told = sentence("Operation.StepSucceeded", body)
    assert told == "Step volume done in 3 ms; Cinder refused: It is in use."


def test_an_attachment_that_is_kept_for_a_revert_is_told() -> None:
    body = {"volume_id": "v", "attachment_id": "a2", "kept": "a1"}
    told = sentence("BlockDeviceMapping.AttachmentSwitched", body)
    assert told.endswith(
        "through attachment a2 now; a1 is kept until the resize is confirmed or reverted"
    )


def test_leftovers_are_named() -> None:
    body = {"guests": ["g"], "attachments": []}
    assert sentence("Host.LeftoversFound", body) == (
        "Host has leftovers to release: guests g; attachments none"
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
        entry(
            5, "Instance.InstanceObserved", {"vm_state": "active", "disks": []}, actor="agent-hv1"
        ),
    ]
    assert list(timeline.lines(entries)) == [
        f"2026-11-20 UTC  operation {OPERATION}  request {REQUEST}",
        f"  10:00:01.500  alice           Attach requested: volume {VOLUME}, server {SERVER}",
        "  10:00:03.500  agent-hv1  hv1  Attachment complete: Cinder was told that it is in use",
        "",
        "2026-11-20 UTC  outside of operations",
        "  10:00:04.500  olivia          Host unfenced: repaired",
        "(2 events of bookkeeping are not shown: --long)",
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
    commands = [line for line in plan.next_commands(shown) if not line.startswith(" ")]
    assert commands == [
        f"attachment-ledger operation retry {OPERATION} --reason TEXT",
        f"attachment-ledger operation skip {OPERATION} disconnect --reason TEXT",
        f"attachment-ledger operation give-up {OPERATION} --reason TEXT",
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


def test_the_plan_of_a_move_tells_hosts_volumes_sides_and_what_is_for_the_server() -> None:
    other = "66666666-6666-4666-8666-666666666666"
    steps = [
        step("connect", "done", place="hv2", side="new", took_ms=5),
        step("connect", "done", place="hv2", side="new", lane=1, volume_id=other, took_ms=6),
        step("migrate", "running", lane=-1, volume_id=None),
        step("disconnect"),
        step("disconnect", lane=1, volume_id=other),
    ]
    progress = {"run": 3, "done_bytes": 2**30, "total_bytes": 2**32}
    shown = operation(
        flow="live_migrate",
        destination="hv2",
        steps=steps,
        progress=[{**progress, "updated_at": "2026-11-20T10:00:09Z"}],
    ).model_dump(mode="json")
    assert list(plan.drawing(shown)) == [
        f"on hv2, lane 0: {VOLUME}, new attachment",
        "    connect             done, 5 ms",
        f"on hv2, lane 1: {other}, new attachment",
        "    connect             done, 6 ms",
        "on hv1, the server",
        " -> migrate             running",
        f"on hv1, lane 0: {VOLUME}",
        "    disconnect",
        f"on hv1, lane 1: {other}",
        "    disconnect",
    ]
    assert plan.progress(shown) == "live_migrate: running, step migrate, 25% of 4.0 GiB"
    told = plan.fields(shown, plan.NOTHING, NOW)
    assert told["destination"] == "hv2"
    assert told["progress"].human_readable() == "25% of 4.0 GiB"


def test_the_commands_offered_name_the_lane_that_is_left() -> None:
    left = {"step": "remove", "lane": -1, "undo": False, "volume_id": None, "error": None}
    shown = operation(state="parked", left=[left], acts=["skip"]).model_dump(mode="json")
    assert list(plan.next_commands(shown)) == [
        f"attachment-ledger operation skip {OPERATION} remove --lane -1 --reason TEXT",
        "    takes remove as done without doing it, then disconnect, delete, unbind",
    ]
