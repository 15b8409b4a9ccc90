"""Which tests a run takes (tests.tiers)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

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


def test_three_turns_take_each_costly_case_once_and_no_turn_none() -> None:
    costly = min(tiers.COSTLY)
    turns = [_cases_of(turn, costly) for turn in range(tiers.THIRDS + 1)]
    assert turns[0] == []
    assert sorted(itertools.chain(*turns)) == sorted(_cases_of(1, costly, all_asked_for=True))
    assert all(5 <= len(turn) <= 15 for turn in turns[1:])


def test_what_is_not_costly_is_always_run() -> None:
    assert len(_cases_of(1, "tests/unit/test_tree.py::test_of_no_cost")) == 30


def test_what_is_said_to_be_costly_is_there() -> None:
    """Whoever renames one renames it in the file: else it is run each time until a night's run."""
    gone = [name for name in tiers.COSTLY if not _is_there(*name.split("::"))]
    assert gone == [], f"tests/costly.txt names what is gone: {gone}; rename it there, or remove it"


def _is_there(path: str, function: str) -> bool:
    return (ROOT / path).exists() and f"def {function}(" in (ROOT / path).read_text()


def test_what_was_costly_stays_so_down_to_half_of_it() -> None:
    was, new = min(tiers.COSTLY), "tests/unit/test_tree.py::test_of_no_cost"
    spent = costs.COSTLY_S * 0.6
    assert costs.costly({was: spent, new: spent}) == [was]
    assert costs.costly({was: spent / 2, new: spent * 2}) == [new]
