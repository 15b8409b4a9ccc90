"""The page of limits says what the program does."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from ledger.config import Limits

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\|[^|]+\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/limits.md").read_text())
#: Where all that is a number is a limit that others meet.
ALL_LIMITS = (
    "ledger/http/limits/bulkheads",
    "ledger/http/limits/connections",
    "ledger/http/call",
    "ledger/auth/keystone",
    "ledger/auth/keystone_client",
    "ledger/auth/known",
    "ledger/auth/policy",
    "ledger/auth/reading",
    "ledger/nova_beside/passing",
    "ledger/http/body",
)


def value_of(name: str) -> float:
    if name.startswith("limits."):
        return float(getattr(Limits(), name.removeprefix("limits.")))
    path, _, constant = name.partition(" ")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    return float(getattr(module, constant))


def written(name: str, value: float) -> str:
    if name.upper().endswith(("_S", "_S_MAX")):
        return f"{value:g} s"
    if name.endswith("_SHARE"):
        return f"{value * 100:g} %"
    if "BYTES" in name.upper() and value % 1024 == 0:
        mib, kib = value / 2**20, value / 2**10
        return f"{mib:g} MiB" if mib >= 1 else f"{kib:g} KiB"
    return f"{value:,.0f}"


@pytest.mark.parametrize(("name", "default"), ROWS, ids=[name for name, _ in ROWS])
def test_each_limit_is_what_the_page_says(name: str, default: str) -> None:
    assert default == written(name, value_of(name))


def test_no_limit_is_missing() -> None:
    named = {name for name, _ in ROWS}
    assert {f"limits.{field.name}" for field in dataclasses.fields(Limits)} <= named
    for module in ALL_LIMITS:
        text = (ROOT / f"{module}.py").read_text()
        constants = re.findall(r"^([A-Z][A-Z_]+)(?:: \w+)? = [\d(]", text, re.MULTILINE)
        assert constants
        assert {f"{module}.py {constant}" for constant in constants} <= named
