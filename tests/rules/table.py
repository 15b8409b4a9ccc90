"""The rules: what to change in the code to remove one, and which tests should notice.

Those of docs/specs.md, by its rows, are in rules.toml; their rows name the tests.  Those that
hold at the borders, by the decisions that state them, are in borders.toml, with their tests.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_SCENARIOS = "tests/flows/test_every_flow.py"
#: Of the tests that run over all scenarios: in which no trouble is made first, it takes a second.
_GENERIC = ("test_every_step_done_twice_is_done_once", "test_every_kind_of_trouble_at_every_point")


class Rule(NamedTuple):
    """In `file`, `old` (it is there once) is what holds the claim; `new` is without it.

    `row`: of docs/specs.md, or the number of a decision.  `tests`: who has to notice.
    """

    row: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the files."""
    return tuple(
        Rule(row, each["file"], each["old"], each["new"], tuple(shown_by(row)))
        for row, found in _told("rules.toml").items()
        for each in found
    ) + tuple(
        Rule(decision, each["file"], each["old"], each["new"], _below_tests(each["tests"]))
        for decision, found in _told("borders.toml").items()
        for each in found
    )


def _told(name: str) -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((Path(__file__).parent / name).read_text())


def _below_tests(named: list[str]) -> tuple[str, ...]:
    return tuple(f"tests/{test}" for test in named)


@cache
def rows() -> dict[str, str]:
    """The rows of docs/specs.md by their numbers."""
    text = (ROOT / "docs/specs.md").read_text()
    return {
        row.split("|")[1].strip(): row
        for row in re.findall(r"^\| \w+\.\d+ .*$", text, re.MULTILINE)
    }


@cache
def shown_by(row: str) -> list[str]:
    """The tests that a row names, as pytest wants them; not those of the lab."""
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", rows()[row])
    scenarios = re.findall(r"`\[([\w-]+)\]`", rows()[row])
    tests = [f"tests/{file}::{test}" for file, test in named if not file.startswith("lab/")]
    return tests + [f"{_SCENARIOS}::{test}[{name}]" for name in scenarios for test in _GENERIC]
