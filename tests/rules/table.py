"""The rules of docs/specs.md: what to change in the code to remove one, and who should notice."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_SCENARIOS = "tests/flows/test_every_flow.py"
#: Of the tests that run over all scenarios: in which no trouble is made first, it takes a second.
_GENERIC = ("test_every_step_done_twice_is_done_once", "test_every_kind_of_trouble_at_every_point")


class Rule(NamedTuple):
    """In `file`, `old` (it is there once) is what holds the claim of a row; `new` is without it."""

    row: str
    file: str
    old: str
    new: str

    @property
    def tests(self) -> list[str]:
        """Who has to notice."""
        return shown_by(self.row)


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the rows."""
    told = tomllib.loads((Path(__file__).parent / "rules.toml").read_text())
    return tuple(Rule(row, **rule) for row, found in told.items() for rule in found)


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
