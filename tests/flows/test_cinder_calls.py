"""What each flow asks Cinder when nothing goes wrong, to the call: tests/flows/cinder_calls.toml.

`python -m tests.flows.test_cinder_calls` counts anew and writes that table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.flows.counting import Counting, line
from tests.flows.scenarios import BY_NAME, SCENARIOS, Scenario

TABLE = Path(__file__).with_name("cinder_calls.toml")
CALLS: dict[str, dict[str, str]] = tomllib.loads(TABLE.read_text())


def counted(scenario: Scenario) -> dict[str, str]:
    """By "who: step", the calls."""
    with pytest.MonkeyPatch.context() as patch:
        found = Counting(patch).of(scenario)
    return {f"{who}: {step}": line(calls) for (who, step), calls in found.items()}


@BY_NAME
def test_a_flow_asks_cinder_what_its_table_says(scenario: Scenario) -> None:
    assert counted(scenario) == CALLS[scenario.name]


def test_the_table_has_the_flows_that_there_are() -> None:
    assert list(CALLS) == [scenario.name for scenario in SCENARIOS]


def written(scenarios: Iterable[Scenario]) -> str:
    blocks = []
    for scenario in scenarios:
        rows = [f'"{step}" = "{calls}"' for step, calls in counted(scenario).items()]
        blocks.append("\n".join([f"[{scenario.name}]", *rows]))
    head = "# What each flow asks Cinder when nothing goes wrong: tests/flows/test_cinder_calls.py"
    return "\n\n".join([head, *blocks]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(written(SCENARIOS))
