"""The calls of Cinder that each flow makes when nothing fails: tests/flows/cinder_calls.toml.

`python -m tests.flows.test_cinder_calls` counts them again, and writes that table and its page.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import pytest

from tests.flows import cinder_page
from tests.flows.cinder_page import CALLS, PAGE, REASONS, counts, reason, total
from tests.flows.counting import Counting, line
from tests.flows.scenarios import SCENARIOS, Scenario

TABLE = cinder_page.HERE / "cinder_calls.toml"


def counted(scenario: Scenario) -> dict[str, str]:
    """By "who: step", the calls."""
    with pytest.MonkeyPatch.context() as patch:
        found = Counting(patch).of(scenario)
    return {f"{who}: {step}": line(calls) for (who, step), calls in found.items()}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_flow_asks_cinder_what_its_table_says(scenario: Scenario) -> None:
    assert counted(scenario) == CALLS[scenario.name]


def test_the_table_has_the_flows_that_there_are() -> None:
    assert list(CALLS) == [scenario.name for scenario in SCENARIOS]


def test_an_attach_and_a_detach_ask_ten_times() -> None:
    """Five that change something, and five that ask."""
    assert (total("attach-running"), total("detach-running")) == (5, 5)


def test_each_call_has_a_reason_and_each_reason_a_call() -> None:
    used = {
        tuple(reason(step, call))
        for steps in CALLS.values()
        for step, calls in steps.items()
        for call, _ in counts(calls)
    }
    assert [row for row in REASONS if tuple(row) not in used] == []


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == cinder_page.page(), "python -m tests.flows.test_cinder_calls"


def written(scenarios: Iterable[Scenario]) -> str:
    blocks = []
    for scenario in scenarios:
        rows = [f'"{step}" = "{calls}"' for step, calls in counted(scenario).items()]
        blocks.append("\n".join([f"[{scenario.name}]", *rows]))
    head = "# The calls of Cinder of each flow when nothing fails: tests/flows/test_cinder_calls.py"
    return "\n\n".join([head, *blocks]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(written(SCENARIOS))
    PAGE.write_text(importlib.reload(cinder_page).page())
