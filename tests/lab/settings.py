"""The lab's settings as env.sh has them: one place for ports, paths and credentials."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

LAB_SRC = Path(__file__).parent


def load() -> dict[str, str]:
    script = f". '{LAB_SRC}/env.sh' && env -0"
    shown = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    return dict(line.split("=", 1) for line in shown.stdout.split("\0") if "=" in line)


ENV = load()
LAB_DIR = Path(ENV["LAB_DIR"])
LOG_DIR = LAB_DIR / "log"

SETTLE_S = 120  # for anything the cloud does, on two busy cores

FULL = os.environ.get("LAB_TIER") == "full"
#: When a request to Cinder is held for somebody to die; after it is the harder case.
WHEN = ["before", "after"] if FULL else ["after"]

#: Here only in the full tier: in every change's tests the simulated flows die at that point, and
#: the quick tier has a neighbour of it in the same file.
neighbours_in_quick = pytest.mark.skipif(not FULL, reason="full tier: a neighbour is in the quick")
#: What the quick tier shows by a test in which somebody dies: it asserts no less.
without_deaths = pytest.mark.skipif(not FULL, reason="full tier: the one with deaths shows it too")


def some(*cases: Any) -> list[Any]:
    """Of the points at which somebody may die: all, or in the quick tier the first."""
    return list(cases) if FULL else [cases[0]]
