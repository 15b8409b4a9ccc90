"""How much of what costs much is run: `make test` takes a sample, nightly runs take all of it.

A test that takes more of its cases in `make test-deep` is marked `deep`.  What costs most is marked
`costly`: `tests/costly.txt` names the functions, and of each in how many turns all of its cases are
run, so that a run takes about as much time of each, whatever all of it costs (tests.costs).  The
cases of other turns are marked `further`, and run in `make test-deep`.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

#: So many pairs of troubles of each flow; `make test-deep` and nightly runs take more.
PAIRS = int(os.environ.get("FLOW_PAIRS", "5"))
#: No test takes longer strides through its cases: 3 in `make test-deep`, 1 in nightly runs.
STRIDE_DEFAULT = 6
STRIDE = int(os.environ.get("FLOW_STRIDE", STRIDE_DEFAULT))
DEEP, ALL = STRIDE < STRIDE_DEFAULT, STRIDE == 1

#: So many turns has what costs most; a power of two, as all numbers of turns.
TURNS_MAX = 64
#: Whose turn it is: chance, if nobody says it, and the same for what a run starts.  -1: nobody's.
TURN = int(os.environ.setdefault("TEST_TURN", str(random.randrange(TURNS_MAX))))
COSTLY_FILE = Path(__file__).with_name("costly.txt")
_LINES = (line.split() for line in COSTLY_FILE.read_text().splitlines())
COSTLY = {name: int(turns) for turns, name in _LINES}


def every(stride: int, cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """Every `stride`th case, more of them in deeper tiers; `first` says which, so that tests take
    turns.
    """
    stride = min(stride, STRIDE)
    return cases[first % stride :: stride]


def mark_costly(items: Iterable[pytest.Item], turn: int, *, all_asked_for: bool) -> None:
    """Mark what is costly, and `further` the cases of other turns."""
    for item in items:
        turns = COSTLY.get(function_of(item.nodeid), 1)
        if turns > 1:
            item.add_marker("costly")
            if not all_asked_for and (turn < 0 or turn_of(item.nodeid, turns) != turn % turns):
                item.add_marker("further")


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def turn_of(nodeid: str, turns: int) -> int:
    """The same in every process, and whichever other tests there are."""
    return zlib.crc32(nodeid.encode()) % turns
