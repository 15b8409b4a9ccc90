"""Which tests a run takes (tests.tiers)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests import costs, tiers

ROOT = Path(__file__).parents[2]


class _Case:
    """An item as pytest collects it, as far as the rule looks at it."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.marks = nodeid, list[str]()

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def _cases_of(turn: int, *functions: str, all_asked_for: bool = False) -> list[str]:
    """What a run of this turn takes."""
    cases: list[Any] = [_Case(f"{name}[{n}]") for name in functions for n in range(30)]
    tiers.mark_costly(cases, turn, all_asked_for=all_asked_for)
    return [case.nodeid for case in cases if "further" not in case.marks]


def test_the_turns_take_each_costly_case_once_and_nobodys_turn_none() -> None:
    costly, turns = next(iter(tiers.COSTLY.items()))
    taken = [_cases_of(turn, costly) for turn in range(-1, turns)]
    assert taken[0] == []
    assert sorted(itertools.chain(*taken)) == sorted(_cases_of(0, costly, all_asked_for=True))
    assert max(map(len, taken)) < 30
    assert _cases_of(turns, costly) == _cases_of(0, costly)


def test_what_is_not_costly_is_always_run() -> None:
    assert len(_cases_of(1, "tests/unit/test_tree.py::test_of_no_cost")) == 30


def test_what_is_said_to_be_costly_is_there() -> None:
    """Whoever renames one renames it in the file: else it is run each time until a night's run."""
    gone = [name for name in tiers.COSTLY if not _is_there(name)]
    assert gone == [], f"tests/costly.txt names what is gone: {gone}; rename it there, or remove it"


def _is_there(name: str) -> bool:
    path, first, *of_class = name.split("::")  # a class has tests that stand elsewhere
    stands = f"class {first}(" if of_class else f"def {first}("
    return (ROOT / path).exists() and stands in (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("shares", "before", "turns"),
    [
        (0.0, 1, 1),
        (1.4, 1, 1),
        (1.6, 1, 2),
        (0.8, 2, 2),
        (0.6, 2, 1),
        (8.2, 1, 16),
        (8.2, 8, 8),
        (2000.0, 1, tiers.TURNS_MAX),
    ],
)
def test_the_more_it_costs_the_more_turns_it_has(shares: float, before: int, turns: int) -> None:
    assert costs.turns_of(shares * costs.SHARE_S, before) == turns


def test_what_is_measured_is_what_is_read() -> None:
    name = "tests/unit/test_tree.py::test_of_no_cost"
    assert [*costs.lines({name: 10 * costs.SHARE_S, f"{name}_either": 0.0})] == [f"16 {name}"]
