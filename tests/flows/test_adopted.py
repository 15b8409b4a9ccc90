"""On a server that was Nova's every flow works as on one of our own."""

from __future__ import annotations

import pytest

from tests.flows.adopted import adopted, can_be_adopted
from tests.flows.scenarios import SCENARIOS, Scenario

_THEIRS = [each for each in SCENARIOS if not each.repairs]


@pytest.mark.parametrize("scenario", _THEIRS, ids=lambda each: each.name)
def test_every_flow_ends_as_on_a_server_of_our_own(scenario: Scenario) -> None:
    world = scenario.begin()
    if world.instance.version == 0 or not can_be_adopted(world):
        pytest.skip("Nova hands no such server over")
    own = scenario.begin()
    assert own.run(scenario.ask(own)).outcome == "completed"
    world = adopted(world)
    operation = world.run(scenario.ask(world))
    assert operation.outcome == "completed", operation.first_error
    assert world.summary() == own.summary()
    wrong = [each for each in world.wrong() if "has records of" not in each]
    assert wrong == []
