"""What `decide` says, by example; the generic tests say that it is right everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from aggregates.operation import SERVER, Operation, Outcome
from aggregates.server import DEVICES_MAX
from handlers.drift.repairs import REPAIRS
from handlers.engine.engine import Finish, Left, Park, Run, Start, Wait, Work, decide, left
from handlers.engine.plan import Flow, Place, Plan, PlanError, Side, Stage, Step
from handlers.engine.verbs import VERBS, LedgerVerb
from handlers.flows import FLOWS
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import GuestOrder, Verb
from ledger.core import effects

NOW = 1000.0


HOSTS: dict[Place, str | None] = {place: place.value for place in Place}
ORDER = GuestOrder(server_id="s", definition="<domain/>")


def lane(n: int = 0) -> Lane:
    return Lane(
        server_id="s",
        volume_id=f"v{n}",
        bdm_id=f"b{n}",
        attachment_id=None,
        device_name="vdb",
        host="h",
        new=LaneSide(),
        image=None if n else "i",
    )


def operation(flow: str = "attach", lanes: int = 1) -> tuple[Operation, Plan]:
    plan = FLOWS[flow].expand(tuple(map(lane, range(lanes))), HOSTS, ORDER)
    op = Operation(uuid4())
    op.record(
        Operation.OperationStarted,
        flow=flow,
        server_id="s",
        plan=plan.to_json(),
        request_id="r",
        actor={},
    )
    return op, plan


def start(op: Operation, run: Run) -> None:
    op.record(
        Operation.RunStarted,
        run=op.history.runs + 1,
        lane=run.lane,
        steps=list(run.steps),
        undo=run.undo,
        host=None if run.place is Place.LEDGER else "h",
        epoch=0,
    )


def to_start(op: Operation, plan: Plan) -> tuple[Run, ...]:
    decision = decide(plan, op.history, NOW)
    assert isinstance(decision, Start)
    return decision.runs


def end(op: Operation, kind: type[Any], lane_no: int = 0, **fields: Any) -> None:
    run = op.history.active[lane_no]
    step = op.history.next_step(run)
    if kind is Operation.StepSucceeded:
        fields = {"outputs": {}, "took_ms": 1, **fields}
    else:
        fields = {"error": {"kind": "final", "code": "c", "message": "m"}, **fields}
    op.record(kind, run=run.number, lane=lane_no, step=step, undo=run.undo, **fields)


def go_on(op: Operation, plan: Plan) -> None:
    """Start what is to be started and let it all succeed."""
    decision = decide(plan, op.history, NOW)
    assert isinstance(decision, Start)
    for run in decision.runs:
        start(op, run)
        while run.lane in op.history.active:
            end(op, Operation.StepSucceeded, run.lane)


def test_a_new_operation_starts_its_first_stage() -> None:
    op, plan = operation()
    run = Run(lane=0, steps=("reserve", "bind"), undo=False, place=Place.LEDGER)
    assert decide(plan, op.history, NOW) == Start((run,))


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("flow", sorted(FLOWS))
def test_what_is_left_is_what_will_be_done_in_that_order(flow: str, failing: bool) -> None:
    """Forward to the end; or, after a failure of the first host step, back to the beginning."""
    op, plan = operation(flow)
    done: list[Left] = []
    foreseen = left(plan, op.history)
    while isinstance(decision := decide(plan, op.history, NOW), Start):
        for run in decision.runs:
            start(op, run)
            for step in run.steps:
                if failing and run.place is not Place.LEDGER and run.lane == 0:
                    failing = False
                    end(op, Operation.StepFailed, run.lane)
                    done, foreseen = [], left(plan, op.history)
                    break
                end(op, Operation.StepSucceeded, run.lane)
                done.append(Left(run.lane, step, run.undo))
    assert done == [] if isinstance(decision, Park) else done == foreseen
    assert left(plan, op.history) == (foreseen if isinstance(decision, Park) else [])


def test_an_active_run_of_the_ledger_is_work_and_of_a_host_is_waiting() -> None:
    op, plan = operation()
    start(op, Run(0, ("reserve", "bind"), undo=False, place=Place.LEDGER))
    assert isinstance(decide(plan, op.history, NOW), Work)
    end(op, Operation.StepSucceeded)
    end(op, Operation.StepSucceeded)
    start(op, Run(0, ("update", "ready"), undo=False, place=Place.HOST))
    assert decide(plan, op.history, NOW) == Wait(None)


@pytest.mark.parametrize(("flow", "of_each"), [("stop", 1), ("delete", 3)])
def test_there_is_a_plan_for_a_server_with_a_volume_of_each_name(flow: str, of_each: int) -> None:
    """Of a deletion: on both hosts of a resize, and what a parked operation has left."""
    _, plan = operation(flow, lanes=of_each * DEVICES_MAX)
    assert Plan.from_json(plan.to_json()) == plan


def test_lanes_go_from_stage_to_stage_by_themselves() -> None:
    op, plan = operation(lanes=2)
    first, second = to_start(op, plan)
    start(op, first)
    end(op, Operation.StepSucceeded, 0)
    end(op, Operation.StepSucceeded, 0)
    ahead, behind = to_start(op, plan)
    assert (ahead.lane, ahead.steps[0]) == (0, "update")
    assert behind == second


@pytest.mark.parametrize("busy", [0, 1])
def test_a_lane_at_work_keeps_no_other_from_starting(busy: int) -> None:
    op, plan = operation(lanes=2)
    runs = to_start(op, plan)
    start(op, runs[busy])
    assert to_start(op, plan) == (runs[1 - busy],)


def test_a_stage_for_the_whole_server_waits_for_all_lanes() -> None:
    op, plan = operation("live_migrate", lanes=2)
    first, second = to_start(op, plan)
    for run in (first, second):
        start(op, run)
    for _ in first.steps:
        end(op, Operation.StepSucceeded, 0)
    assert isinstance(decide(plan, op.history, NOW), Wait)
    for _ in second.steps:
        end(op, Operation.StepSucceeded, 1)
    assert to_start(op, plan) == (Run(SERVER, ("migrate",), undo=False, place=Place.SOURCE),)


def test_a_server_without_volumes_goes_through_the_stages_for_the_whole_server() -> None:
    op, plan = operation("live_migrate", lanes=0)
    go_on(op, plan)
    assert decide(plan, op.history, NOW) == Finish(Outcome.COMPLETED)


def test_a_lane_that_cannot_go_on_after_the_pivot_does_not_stop_the_others() -> None:
    op, plan = operation("delete", lanes=2)
    for _ in ("forget", "remove", "remove_former", "remove_other", "remove_arrived"):
        go_on(op, plan)
    first, second = to_start(op, plan)
    start(op, first)
    start(op, second)
    end(op, Operation.StepFailed, 0)
    end(op, Operation.StepSucceeded, 1)
    end(op, Operation.StepSucceeded, 1)
    assert to_start(op, plan)[0].steps == ("unbind", "volume")
    go_on(op, plan)
    parked = decide(plan, op.history, NOW)
    assert isinstance(parked, Park)
    assert {left.lane for left in parked.left} == {0}


def test_a_lane_that_waits_is_tried_again_while_another_is_at_work() -> None:
    op, plan = operation("shelve", lanes=2)
    for _ in ("stop", "reserve", "remove"):
        go_on(op, plan)
    first, second = to_start(op, plan)
    start(op, first)
    start(op, second)
    end(op, Operation.StepRetried, 0, retry_at=NOW + 5)
    assert decide(plan, op.history, NOW) == Wait(NOW + 5)


@pytest.mark.parametrize("later", [0, 1])
def test_the_first_of_several_retries_says_how_long_to_wait(later: int) -> None:
    op, plan = operation("shelve", lanes=2)
    for _ in ("stop", "reserve", "remove"):
        go_on(op, plan)
    for lane_no, run in enumerate(to_start(op, plan)):
        start(op, run)
        retry_at = NOW + (60 if lane_no == later else 5)
        end(op, Operation.StepRetried, lane_no, retry_at=retry_at)
    assert decide(plan, op.history, NOW) == Wait(NOW + 5)


def test_an_undo_that_comes_too_late_for_the_pivot_leaves_only_forward() -> None:
    op, plan = operation("live_migrate")
    go_on(op, plan)
    start(op, to_start(op, plan)[0])
    end(op, Operation.StepFailed, SERVER)
    (undo,) = to_start(op, plan)
    assert (undo.steps, undo.undo) == (("migrate",), True)
    start(op, undo)
    end(op, Operation.StepSucceeded, SERVER, outputs={"passed": True})
    (forward,) = to_start(op, plan)
    assert (forward.steps, forward.undo) == (("complete",), False)
    start(op, forward)
    end(op, Operation.StepFailed)
    assert isinstance(decide(plan, op.history, NOW), Park)
    op.record(Operation.Parked, left=[])
    op.record(Operation.RetryRequested, reason="mended")
    assert to_start(op, plan) == (forward,)


def test_an_abort_after_the_pivot_comes_too_late() -> None:
    op, plan = operation("live_migrate")
    go_on(op, plan)
    start(op, to_start(op, plan)[0])
    op.record(Operation.UnwindRequested, reason="too slow")
    assert isinstance(decide(plan, op.history, NOW), Wait)
    end(op, Operation.StepSucceeded, SERVER)
    assert to_start(op, plan)[0].undo is False


def test_when_everything_is_done_the_operation_is_completed() -> None:
    op, plan = operation()
    go_on(op, plan)
    go_on(op, plan)
    assert decide(plan, op.history, NOW) == Finish(Outcome.COMPLETED)


def test_a_retry_waits_for_its_time_and_then_starts_where_it_stopped() -> None:
    op, plan = operation()
    go_on(op, plan)
    start(op, to_start(op, plan)[0])
    end(op, Operation.StepSucceeded)
    end(op, Operation.StepRetried, retry_at=NOW + 5)
    assert decide(plan, op.history, NOW) == Wait(NOW + 5)
    again = decide(plan, op.history, NOW + 5)
    assert isinstance(again, Start)
    assert again.runs[0].steps == ("ready", "connect", "plug", "complete")


def test_a_failure_undoes_in_reverse_what_may_have_happened_and_nothing_else() -> None:
    op, plan = operation()
    go_on(op, plan)
    start(op, to_start(op, plan)[0])
    for _ in ("update", "ready"):
        end(op, Operation.StepSucceeded)
    end(op, Operation.StepFailed)  # connect
    undo = decide(plan, op.history, NOW)
    assert undo == Start((Run(0, ("connect", "update"), undo=True, place=Place.HOST),))
    go_on(op, plan)
    undo = decide(plan, op.history, NOW)
    assert undo == Start((Run(0, ("bind", "reserve"), undo=True, place=Place.LEDGER),))
    go_on(op, plan)
    assert decide(plan, op.history, NOW) == Finish(Outcome.FAILED)


def test_a_lane_that_fails_lets_the_others_settle_before_anything_is_undone() -> None:
    op, plan = operation(lanes=2)
    first, second = to_start(op, plan)
    start(op, first)
    start(op, second)
    end(op, Operation.StepFailed, 0)
    assert isinstance(decide(plan, op.history, NOW), Work)
    end(op, Operation.StepSucceeded, 1)
    end(op, Operation.StepSucceeded, 1)
    undone = decide(plan, op.history, NOW)
    assert isinstance(undone, Start)
    assert {run.lane for run in undone.runs} == {0, 1}


def test_after_the_pivot_a_failure_parks_with_all_that_is_left() -> None:
    op, plan = operation("detach")
    start(op, to_start(op, plan)[0])
    end(op, Operation.StepSucceeded)  # unplug, the pivot
    end(op, Operation.StepFailed)  # disconnect
    parked = decide(plan, op.history, NOW)
    assert isinstance(parked, Park)
    assert [left.step for left in parked.left] == ["disconnect", "delete"]


def test_a_failing_undo_parks() -> None:
    op, plan = operation()
    start(op, to_start(op, plan)[0])
    end(op, Operation.StepFailed)
    start(op, to_start(op, plan)[0])
    end(op, Operation.StepFailed)
    assert isinstance(decide(plan, op.history, NOW), Park)


def test_unwinding_on_request_ends_as_cancelled() -> None:
    op, plan = operation()
    go_on(op, plan)
    op.record(Operation.UnwindRequested, reason="changed my mind")
    go_on(op, plan)
    assert decide(plan, op.history, NOW) == Finish(Outcome.CANCELLED)


def test_what_the_ledger_does_outside_is_just_what_it_has_effects_for() -> None:
    assert set(effects.EFFECTS) == {verb for verb in LedgerVerb if VERBS[verb].outside}


RESERVE = Step("reserve", LedgerVerb.ATTACHMENT_RESERVE, undo=LedgerVerb.ATTACHMENT_DELETE)


@pytest.mark.parametrize(
    ("flow", "rule"),
    [
        (Flow("f", ()), "steps"),
        (Flow("f", (Stage(Place.LEDGER, (RESERVE, RESERVE)),)), "unique"),
        (Flow("f", (Stage(Place.LEDGER, (RESERVE,)),), pivot="nowhere"), "pivot is a step"),
        (Flow("f", (Stage(Place.HOST, (RESERVE,)),)), "verbs of place"),
        (
            Flow(
                "f",
                (
                    Stage(Place.HOST, (Step("a", Verb.DISK_UNPLUG),)),
                    Stage(Place.LEDGER, (RESERVE,)),
                ),
                pivot="a",
            ),
            "no undo",
        ),
    ],
)
def test_a_plan_that_breaks_a_rule_does_not_come_to_be(flow: Flow, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        flow.expand((lane(),), HOSTS, ORDER)


def test_a_pivot_inside_a_stage_stands_for_one_lane_only() -> None:
    with pytest.raises(PlanError, match="one lane"):
        FLOWS["detach"].expand((lane(0), lane(1)), HOSTS)


def test_a_plan_needs_the_host_it_runs_on() -> None:
    with pytest.raises(PlanError, match="host"):
        FLOWS["attach"].expand((lane(),), {})


@pytest.mark.parametrize("flow", FLOWS.values(), ids=lambda f: f.name)
def test_a_plan_survives_storage(flow: Flow) -> None:
    plan = flow.expand((lane(),), HOSTS, ORDER)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_keeps_the_stages_it_was_stored_with_whatever_its_flow_has_now() -> None:
    flow = FLOWS["detach"]
    older = replace(flow, stages=flow.stages[:-1])
    plans = [each.expand((lane(),), HOSTS, ORDER) for each in (flow, older, flow)]
    assert [Plan.from_json(plan.to_json()).table for plan in plans] == [p.table for p in plans]
    pivoted = replace(flow, pivot=None).expand((lane(),), HOSTS, ORDER)
    assert Plan.from_json(pivoted.to_json()).pivot is None


@pytest.mark.parametrize("flow", FLOWS.values(), ids=lambda f: f.name)
def test_whatever_takes_something_from_a_host_before_the_pivot_can_give_it_back(flow: Flow) -> None:
    """An attachment made and connected, a disk plugged, a guest taken away: each has its undo.

    Not the disk of a repair, which the server has had all the time.
    """
    plan = flow.expand((lane(),), HOSTS, ORDER)
    makes = {
        Verb.ATTACHMENT_CREATE,
        Verb.DISK_COPY,
        Verb.GUEST_MIGRATE,
        Verb.GUEST_STOP,
    }
    if flow.name not in REPAIRS:
        makes.add(Verb.DISK_PLUG)
    for step in plan.steps:
        new = plan.stage_of(step.name).side is Side.NEW and step.do is Verb.VOLUME_CONNECT
        if (new or step.do in makes) and not plan.after_pivot(step.name):
            assert step.undo is not None, f"{flow.name}: {step.name}"
