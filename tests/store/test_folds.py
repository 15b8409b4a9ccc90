"""What each projection says agrees with the aggregates, after every append of any history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregates.attachment import AttachmentState
from aggregates.base import Event, Seen
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import SERVER, ActiveRun, Operation, OperationState, StepStatus
from handlers.engine.engine import Left, Park, Start, Wait, Work, decide, pivot_passed, unwinds
from handlers.engine.plan import Place, lane_of, order_of, plan_of, volumes_of
from host_agent.shared.contract.messages import Command
from host_agent.shared.contract.spans import span_of_run
from host_agent.shared.contract.wire import plain, read
from projections.attachments import ATTACHMENTS
from projections.base import LoggedEvent, Row
from projections.catalog import ALL
from projections.instances import INSTANCES
from projections.mappings import MAPPINGS
from projections.operations import OPERATIONS
from tests.store.histories import Folded, Watched, logged, scenario
from tests.tiers import DEEP
from tests.world import CONTEXT, World
from tests.world import SERVER as SERVER_ID

AT = datetime(2026, 1, 1, tzinfo=UTC)
SEEDS = range(100)
#: Of an aggregate: what only serves to record the next events.
NOT_STORED = {"_pending", "plan"}

MAY_BE_ON_A_HOST = {
    AttachmentState.CONNECTING,
    AttachmentState.CONNECTED,
    AttachmentState.ATTACHED,
}


def check_operation(watched: Watched, row: Row) -> None:
    operation = watched.world.operation(row["operation_id"])
    plan, history = plan_of(operation), operation.history
    state = watched.folded.state("operations", row["operation_id"])
    assert known(state.operation) == known(operation), "what is folded is the aggregate"
    assert row["state"] == operation.state
    assert row["outcome"] == operation.outcome
    assert row["error"] == operation.first_error
    assert row["lanes"] == plain(operation.lanes)
    assert row["volume_ids"] == sorted(volumes_of(operation))
    assert row["unwinding"] == unwinds(plan, history)
    assert row["pivot_passed"] == pivot_passed(plan, history)
    check_origin(watched, operation, row)
    parked = operation.state is OperationState.PARKED
    assert [left_of(each) for each in row["left_steps"] or []] == (
        [left_of(vars(each)) for each in parked_at(operation)] if parked else []
    )
    times = state.parkings()
    assert [each["to_position"] is None for each in times[-1:]] == [parked] * len(times[-1:])
    assert all(each["to_position"] for each in times[:-1])
    assert bool(times) or not parked


def check_origin(watched: Watched, operation: Operation, row: Row) -> None:
    """Who asked for what, where, and when it was over."""
    started, hosts = operation.started, plan_of(operation).hosts
    assert started is not None
    asked = ("flow", "server_id", "request_id", "global_request_id")
    assert [row[name] for name in asked] == [getattr(started, name) for name in asked]
    by = ("name", "user_id", "project_id")
    who = [row["actor"], row["user_id"], row["project_id"]]
    assert who == [started.actor[name] for name in by]
    assert row["host"] == (hosts.get(Place.HOST) or hosts.get(Place.SOURCE))
    assert row["destination"] == hosts.get(Place.DESTINATION)
    assert row["started_position"] == next(at for at, _ in events_of(watched, operation))
    finished = operation.state is OperationState.FINISHED
    assert row["finished_at"] == (row["updated_at"] if finished else None)


def known(operation: Operation) -> dict[str, Any]:
    """All that an aggregate knows, but for what it has not saved."""
    return {name: value for name, value in vars(operation).items() if name not in NOT_STORED}


def parked_at(operation: Operation) -> tuple[Left, ...]:
    decision = decide(plan_of(operation), operation.history, 0.0)
    assert isinstance(decision, Park)
    return decision.left


def left_of(item: dict[str, Any]) -> tuple[Any, ...]:
    return item["lane"], item["step"], item["undo"]


def check_steps(watched: Watched, row: Row) -> None:
    """Every step of the plan for every lane, in the order in which they are done; behind them
    those that are undone, in reverse.
    """
    operation = watched.world.operation(row["operation_id"])
    plan, history = plan_of(operation), operation.history
    stages = {step.name: (stage, step) for stage in plan.stages for step in stage.steps}
    order = [
        (SERVER if stage.once else lane, step.name)
        for stage in plan.stages
        for lane in (range(1) if stage.once else range(len(plan.lanes)))
        for step in stage.steps
    ]
    shown = {(step["lane"], step["step"], step["undo"]): step for step in row["steps"]}
    assert len(shown) == len(row["steps"])
    assert [key[:2] for key in shown if not key[2]] == order
    running = {(run.lane, history.next_step(run), run.undo) for run in history.active.values()}
    undone = {key for key in {*history.records, *running} if key[2]}
    assert {key for key in shown if key[2]} == (undone if unwinds(plan, history) else set())
    for key, step in shown.items():
        record = history.of_step(key[0], key[1], undo=key[2])
        assert step["status"] == ("running" if key in running else record.status)
        assert (step["attempts"], step["error"]) == (record.attempts, record.error)
        assert step["took_ms"] == record.took_ms
        stage, planned = stages[key[1]]
        assert step["verb"] == (planned.undo if key[2] else planned.do)
        assert step["side"] == stage.side
        assert step["place"] == (plan.host_of(key[0], stage.place) or stage.place)
        waits = record.status is StepStatus.RETRYING and key not in running
        assert (step["retry_at"] is not None) == waits
        if key[0] != SERVER:
            lane = lane_of(operation, key[0], key[1])
            assert step["volume_id"] == (lane.volume_id or None)


def check_due(watched: Watched, row: Row) -> None:
    """A dispatcher is told exactly when the engine has something for it to do."""
    operation = watched.world.operation(row["operation_id"])
    if operation.state is not OperationState.RUNNING:
        assert row["due_at"] is None
        return
    now = watched.world.clock()
    match decide(plan_of(operation), operation.history, now):
        case Work() | Start():  # a start is left where the attempt of a lost dispatcher was ended
            assert row["due_at"].timestamp() <= now
        case Wait(until=None):
            assert row["due_at"] is None
        case Wait(until=until):
            assert row["due_at"].timestamp() == pytest.approx(until, abs=1e-5)
        case decision:
            pytest.fail(f"{decision} was left to be taken")


def check_mailbox(watched: Watched) -> None:
    commands = {
        (row["operation_id"], row["run"]): read(row["command"], Command)
        for row in watched.folded.derived("mailbox")
    }
    hosts = {
        (row["operation_id"], row["run"]): (row["host"], row["position"])
        for row in watched.folded.derived("mailbox")
    }
    owed = {}
    for row in watched.folded.table("operations"):
        operation = watched.world.operation(row["operation_id"])
        for run in operation.history.active.values():
            if run.host is not None and operation.state is OperationState.RUNNING:
                owed[row["operation_id"], run.number] = (operation, run)
    assert set(commands) == set(owed)
    for key, (operation, run) in owed.items():
        steps = [
            (step, plan_of(operation).verb(step, undo=run.undo, host=run.host))
            for step in run.steps
            if not operation.history.of_step(run.lane, step, undo=run.undo).resolved
        ]
        assert [(step.name, step.verb) for step in commands[key].steps] == steps
        if run.lane == SERVER:
            assert commands[key].guest == order_of(operation, run.steps[0])
        else:
            assert commands[key].lane == lane_of(operation, run.lane, run.steps[0])
        started = operation.started
        assert started is not None
        assert (commands[key].operation_id, commands[key].run) == key
        assert hosts[key] == (run.host, commands[key].position)
        assert (commands[key].flow, commands[key].request_id) == (started.flow, started.request_id)
        span = span_of_run(str(operation.id), started.traceparent, run.number)
        assert commands[key].traceparent == span.header()
        durable = [plan_of(operation).durable(step) for step, _ in steps]
        way = "undo" if run.undo else "do"
        assert [step.durable for step in commands[key].steps] == [way in each for each in durable]
        assert commands[key].epoch == run.epoch
        assert commands[key].cancel == (asked_to_unwind(watched, operation, run) is not None)
        assert commands[key].position == (
            asked_to_unwind(watched, operation, run) or begun(watched, operation, run)
        )


def begun(watched: Watched, operation: Operation, run: ActiveRun) -> int:
    [position] = [
        position
        for position, event in events_of(watched, operation)
        if isinstance(event, Operation.RunStarted) and event.run == run.number
    ]
    return position


def asked_to_unwind(watched: Watched, operation: Operation, run: ActiveRun) -> int | None:
    """When somebody wanted a run forward to be undone; None if nobody does."""
    asked = [
        position
        for position, event in events_of(watched, operation)
        if isinstance(event, Operation.UnwindRequested)
        and position > begun(watched, operation, run)
    ]
    return asked[0] if asked and not run.undo else None


def events_of(watched: Watched, operation: Operation) -> Iterator[tuple[int, Event]]:
    for position, (event, _) in enumerate(watched.world.store.log, 1):
        if event.originator_id == operation.id:
            yield position, event


def check_rest(watched: Watched) -> None:
    world, folded = watched.world, watched.folded
    [instance] = folded.table("instances")
    for name in ("vm_state", "host", "power_state", "definition", "resize_source"):
        assert instance[name] == getattr(world.instance, name)
    columns = ("state", "device_name", "volume_id", "attachment_id", "kept", "serial")
    assert {(m["bdm_id"], *(m[c] for c in columns)) for m in folded.table("mappings")} == {
        (str(m.id), *(getattr(m, c) for c in columns)) for m in world.mappings()
    }
    open_rows = {
        (a["attachment_id"], a["state"])
        for a in folded.table("attachments")
        if a["state"] != "deleted"
    }
    assert open_rows == {(str(a.id), a.state) for a in world.attachments()}
    on_host = {str(a.id) for a in world.attachments() if a.state in MAY_BE_ON_A_HOST}
    assert on_host == {
        s["attachment_id"] for s in folded.derived("spans") if s["to_position"] is None
    }


def check_all(watched: Watched) -> None:
    for row in watched.folded.table("operations"):
        check_operation(watched, row)
        check_steps(watched, row)
        check_due(watched, row)
    check_mailbox(watched)
    check_rest(watched)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_agree_with_the_aggregates_after_every_append(seed: int) -> None:
    scenario(seed, check_all)


def test_rows_of_a_swap_tell_its_two_volumes_apart() -> None:
    world = World(volumes=2, encrypted=True)
    old, new = world.volumes
    world.done(world.attach(old))
    watched = Watched(world, check_all)
    swap = world.swap(old, new)
    world.done(swap)
    row = watched.folded.row("operations", swap)
    assert row is not None
    assert {(step["side"], step["volume_id"]) for step in row["steps"]} == {
        ("current", old),
        ("new", new),
    }
    assert row["volume_ids"] == sorted([old, new])


@pytest.mark.deep
@settings(deadline=None, max_examples=30 if DEEP else 10, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 100_000), chance=st.randoms(use_true_random=False))
def test_however_the_log_is_cut_an_operation_shows_the_same(seed: int, chance: Random) -> None:
    """In batches of any length, by a process that has it in memory or by one that reads its
    stream again; each batch on a twin, for it may not be written.
    """
    log = scenario(seed).world.store.log
    whole, states, streams = Folded(), {}, defaultdict[str, list[LoggedEvent]](list)
    batch: dict[str, Any] = {}
    for position, (event, context) in enumerate(log, 1):
        read = logged(position, event, context, AT + timedelta(seconds=position))
        whole.fold(read)
        key = read.originator_id
        if read.topic not in OPERATIONS.topics:
            continue
        if chance.random() < 0.3:  # the batch is written
            states.update(batch)
            batch = {}
        if key not in batch:
            if chance.random() < 0.3:  # somebody else has been at it
                states[key] = reduce(OPERATIONS.fold, streams[key], None)
            before = states.get(key)
            batch[key] = before and before.fork()
            shown = before and seen(before)
        batch[key] = OPERATIONS.fold(batch[key], read)
        streams[key].append(read)
        assert seen(batch[key]) == seen(whole.state("operations", key))
        assert (states.get(key) and seen(states[key])) == shown, "a batch is folded on a twin"


def seen(state: Any) -> tuple[Row, list[Row]]:
    return state.row(), state.commands()


def test_the_histories_contain_what_they_are_meant_to_test() -> None:
    """Retries, failures, undoing, parking, and operators: else the test above is empty."""
    topics = {type(event).TOPIC for seed in SEEDS for event, _ in scenario(seed).world.store.log}
    assert {kind.TOPIC for kind in Operation.TRANSITIONS} <= topics


def fold_all(*events: Event) -> Folded:
    folded = Folded()
    for position, event in enumerate(events, 1):
        folded.fold(logged(position, event, CONTEXT, AT))
    return folded


def test_every_topic_of_a_projection_is_an_event_of_this_code() -> None:
    known = {kind.TOPIC for kind in Event.__subclasses__()}
    for projection in ALL:
        assert projection.topics <= known


def test_a_host_is_fenced_with_reason_and_evidence_and_unfenced() -> None:
    host = Host(host_uuid("h"))
    host.register("h", 1, {"tag": True})
    host.fence("dead", "ipmi says off")
    fenced = host.collect_events()
    [row] = fold_all(*fenced).table("hosts")
    assert (row["epoch"], row["fenced"], row["fence_reason"]) == (1, True, "dead")
    assert row["fence_evidence"] == "ipmi says off"

    host.unfence("repaired")
    [row] = fold_all(*fenced, *host.collect_events()).table("hosts")
    assert (row["epoch"], row["fenced"], row["fence_reason"]) == (1, False, None)


def test_a_host_of_the_first_agents_is_registered_once() -> None:
    """They are of version 0."""
    host, folded = Host(host_uuid("h")), Folded()
    for position, at in enumerate((AT, AT + timedelta(minutes=5)), 1):
        host.register("h", 0, {"times": position})
        [event] = host.collect_events()
        folded.fold(logged(position, event, CONTEXT, at))
    [row] = folded.table("hosts")
    assert (row["registered_at"], row["service_version"]) == (AT, 0)
    assert row["capabilities"] == {"times": 2}


def test_an_adopted_host_is_one_before_its_agent_comes_and_none_once_it_is_back() -> None:
    host, events = Host(host_uuid("h")), []

    def rows() -> list[Row]:
        events.extend(host.collect_events())
        return list(fold_all(*events).table("hosts"))

    seen = Seen(origin="nova", after=None, before=AT.isoformat())
    host.record(Host.HostSeen, name="h", seen=seen.stored())
    assert rows() == []
    host.adopt("rack 3")
    [row] = rows()
    assert (row["service_version"], row["epoch"], row["fenced"]) == (None, 0, False)
    host.register("h", 7, {"tag": True})
    host.disable("soon")
    host.fence("dead", "ipmi says off")
    [row] = rows()
    assert (row["service_version"], row["epoch"], row["fenced"]) == (7, 1, True)
    host.unfence("it is back")
    host.report_leftovers([], [], all_decided=True)
    host.hand_back("not yet")
    assert rows() == []
    host.adopt("now")
    [row] = rows()
    told = {name: row[name] for name in ("epoch", "fenced", "disabled")}
    assert told == {name: getattr(host, name) for name in told}
    assert row["service_version"] is None
    assert (row["epoch"], row["fenced"]) == (1, False), "no command of before counts"


def test_a_guest_that_is_lost_keeps_the_vm_state_it_had() -> None:
    instance = Instance(UUID(SERVER_ID))
    seen = {"name": "vm", "host": "h", "owner": ("p", "u")}
    instance.observe(**seen, power_state="shutdown")  # type: ignore[arg-type]
    instance.observe(**seen, power_state="nostate")  # type: ignore[arg-type]
    [row] = fold_all(*instance.collect_events()).table("instances")
    assert (row["power_state"], row["vm_state"]) == ("nostate", "stopped")


def test_a_mapping_row_goes_when_the_mapping_ends() -> None:
    mapping = BlockDeviceMapping(uuid4())
    ids = {name: str(uuid4()) for name in ("server_id", "volume_id", "attachment_id")}
    mapping.record(
        BlockDeviceMapping.MappingCreated,
        **ids,
        device_name="vdb",
        tag=None,
        boot_index=None,
        delete_on_termination=False,
        multiattach=False,
    )
    mapping.set_delete_on_termination(value=True)
    events = mapping.collect_events()
    [row] = fold_all(*events).table(MAPPINGS.name)
    assert (row["delete_on_termination"], row["state"]) == (True, "bound")

    mapping.record(BlockDeviceMapping.MappingEnded)
    assert fold_all(*events, *mapping.collect_events()).table(MAPPINGS.name) == []


def test_a_mapping_row_of_what_was_adopted_says_what_the_mapping_does() -> None:
    mapping, seen = BlockDeviceMapping(uuid4()), {"origin": "nova", "after": None, "before": "x"}
    ids = {name: str(uuid4()) for name in ("server_id", "volume_id", "attachment_id")}
    mapping.record(
        BlockDeviceMapping.MappingCreated,
        **ids,
        device_name=None,
        tag=None,
        boot_index=None,
        delete_on_termination=False,
        multiattach=False,
        seen=seen,
    )
    other = {name: str(uuid4()) for name in ("volume_id", "attachment_id")}
    mapping.record(BlockDeviceMapping.AttachmentSwitched, **other, seen=seen)
    mapping.record(BlockDeviceMapping.Adopted, is_root=True, multiattach=True)
    [row] = fold_all(*mapping.collect_events()).table(MAPPINGS.name)
    names = ("boot_index", "multiattach", "serial", "volume_id", "origin")
    assert [row[name] for name in names] == [0, True, other["volume_id"], other["volume_id"], None]
    assert [getattr(mapping, name) for name in names] == [row[name] for name in names]


def test_the_row_of_a_server_that_is_shown_again_is_as_before() -> None:
    seen = {"seen": {"origin": "nova", "after": None, "before": "x"}}
    shown = dict.fromkeys(("host", "power_state", "project_id", "user_id"), "a")
    instance = Instance(uuid4())
    instance.record(Instance.ServerSeen, name="db", **shown, vm_state="active", **seen)
    instance.record(Instance.Deleted, **seen)
    instance.record(Instance.ServerSeen, name="db", **shown, vm_state="active", **seen)
    [row] = fold_all(*instance.collect_events()).table(INSTANCES.name)
    assert (row["deleted"], row["vm_state"], row["origin"]) == (False, "active", "nova")


def test_an_answered_attach_is_bound_and_a_failed_one_is_when_it_is_over() -> None:
    bound: list[bool] = []
    world = World()
    watched = Watched(
        world, lambda w: bound.extend(row["bound"] for row in w.folded.table("operations"))
    )
    world.run(world.attach())
    assert bound == sorted(bound)
    assert bound[0] is False
    assert [row["state"] for row in watched.folded.table("operations")] == ["finished"]


def test_a_deleted_attachment_keeps_its_row_and_its_closed_span() -> None:
    world = World()
    watched = Watched(world)
    world.run(world.attach())
    detach = world.detach()
    world.run(detach)
    [row] = watched.folded.table(ATTACHMENTS.name)
    assert (row["state"], row["host"]) == ("deleted", "compute-1")
    assert row["operation_id"] == detach
    assert row["ended_at"] is not None
    [span] = watched.folded.derived("spans")
    assert span["from_position"] < span["to_position"] < row["position"]
