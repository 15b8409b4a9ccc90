"""How much of what costs much is run: `make test` takes a sample, nightly runs take all of it.

A test that takes more of its cases in `make test-deep` is marked `deep`.  The functions that
`tests/costly.txt` names are marked `costly`.  Of their cases a run takes a third, in turn; those of
the other thirds are marked `further`, and run in `make test-deep`.
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

#: Which third of what is costly a run takes, by chance if nobody says it; 0: none.  Processes that
#: the run starts are to take the same.
THIRDS = 3
TURN = int(os.environ.setdefault("TEST_TURN", str(random.randint(1, THIRDS))))
COSTLY_FILE = Path(__file__).with_name("costly.txt")
COSTLY = frozenset(COSTLY_FILE.read_text().splitlines())


def every(stride: int, cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """Every `stride`th case, more of them in deeper tiers; `first` says which, so that tests take
    turns.
    """
    stride = min(stride, STRIDE)
    return cases[first % stride :: stride]


def mark_costly(items: Iterable[pytest.Item], turn: int, *, all_asked_for: bool) -> None:
    """Mark what is costly, and `further` what is not of this turn's third."""
    for item in items:
        if function_of(item.nodeid) in COSTLY:
            item.add_marker("costly")
            if not all_asked_for and third_of(item.nodeid) != turn:
                item.add_marker("further")


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def third_of(nodeid: str) -> int:
    """1 to 3, the same in every process, and whichever other tests there are."""
    return zlib.crc32(nodeid.encode()) % THIRDS + 1
