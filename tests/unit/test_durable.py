"""Where the plan says that a result must be durable before the next step begins (decision 0036)."""

from __future__ import annotations

import pytest

from handlers.engine.plan import Flow, Place, Plan, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows import FLOWS
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import GuestOrder, Verb


def plan_of(flow: Flow) -> Plan:
    lane = Lane(
        server_id="s", volume_id="v", bdm_id="b", attachment_id=None, device_name=None, image="i"
    )
    hosts: dict[Place, str | None] = dict.fromkeys(Place, "compute-1")
    return flow.expand((lane,), hosts, GuestOrder(server_id="s"))


@pytest.mark.parametrize("name", FLOWS)
def test_where_it_matters_a_result_is_durable_before_the_next_step(name: str) -> None:
    plan = plan_of(FLOWS[name])
    for stage in plan.stages:
        names = [step.name for step in stage.steps]
        for step, after in zip(stage.steps, [*names[1:], None], strict=True):
            # No flow has a pivot with anything after it in its stage, but detach (below).
            durable = plan.durable(step.name)
            assert ("do" in durable) is (
                step.do in {Verb.ATTACHMENT_CREATE, Verb.VOLUME_DISCONNECT}
                or (plan.pivot is not None and plan.pivot == after)
            )
            assert ("undo" in durable) is (
                step.undo is Verb.VOLUME_DISCONNECT or step.name == plan.pivot
            )


def test_the_results_of_an_attach_travel_together() -> None:
    plan = plan_of(FLOWS["attach"])
    [stage] = [stage for stage in plan.stages if stage.place is Place.HOST]
    assert [step.name for step in stage.steps if "do" in plan.durable(step.name)] == []


def test_the_stored_plan_says_it() -> None:
    steps = (Step("a", Verb.VOLUME_CONNECT, undo=Verb.VOLUME_DISCONNECT), Step("b", Verb.DISK_PLUG))
    flow = Flow(name="f", stages=(Stage(Place.HOST, steps),))
    [stage] = plan_of(flow).to_json()["stages"]
    assert {step["name"]: step["durable"] for step in stage["steps"]} == {"a": ["undo"], "b": []}


def test_what_a_stored_plan_says_counts_whatever_the_rules_are_by_now() -> None:
    stored = plan_of(FLOWS["attach"]).to_json()
    for stage in stored["stages"]:
        for step in stage["steps"]:
            step["durable"] = ["undo"]
    assert Plan.from_json(stored).durable("update") == ["undo"]


def test_a_ledger_step_that_is_the_pivot_is_no_exception() -> None:
    steps = (Step("a", LedgerVerb.MAPPING_BIND), Step("b", LedgerVerb.CHECKPOINT))
    plan = plan_of(Flow(name="f", pivot="b", stages=(Stage(Place.LEDGER, steps),)))
    assert (plan.durable("a"), plan.durable("b")) == (["do"], ["undo"])


def test_a_pivot_is_durable_before_anything_that_its_undo_does_not_take_back() -> None:
    """A disk that is plugged again is connected again; it is not given back by Cinder again."""
    unplug = Step("unplug", Verb.DISK_UNPLUG, undo=Verb.DISK_PLUG)
    for verb, durable in (
        (Verb.VOLUME_DISCONNECT, ["undo"]),
        (Verb.ATTACHMENT_DELETE, ["do", "undo"]),
    ):
        stage = Stage(Place.HOST, (unplug, Step("next", verb)))
        plan = plan_of(Flow(name="f", pivot="unplug", stages=(stage,)))
        assert plan.durable("unplug") == durable


def test_the_results_of_a_detach_travel_together_until_cinder_is_given_the_volume_back() -> None:
    plan = plan_of(FLOWS["detach"])
    [stage] = [stage for stage in plan.stages if stage.place is Place.HOST]
    durable = [step.name for step in stage.steps if "do" in plan.durable(step.name)]
    assert durable == ["disconnect"]
