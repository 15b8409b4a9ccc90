"""How much of what has many cases is run: `make test` takes a sample, nightly runs take all of it.

A test that takes more of its cases in `make test-deep` is marked `deep`.  What repeats a kind of
`make test` at another place, or takes longer than its neighbours (a third of a second and more), is
marked `further`, and runs there alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

#: So many pairs of troubles of each flow; `make test-deep` and nightly runs take more.
PAIRS = int(os.environ.get("FLOW_PAIRS", "5"))
#: No test takes longer strides through its cases: 3 in `make test-deep`, 1 in nightly runs.
STRIDE_DEFAULT = 6
STRIDE = int(os.environ.get("FLOW_STRIDE", STRIDE_DEFAULT))
DEEP, ALL = STRIDE < STRIDE_DEFAULT, STRIDE == 1


def every(stride: int, cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """Every `stride`th case, more of them in deeper tiers; `first` says which, so that tests take
    turns.
    """
    stride = min(stride, STRIDE)
    return cases[first % stride :: stride]


def one_then_further(first: Any, *others: Any) -> list[Any]:
    """Cases for `parametrize`: the first is run always, the others in the deep tier."""
    return [first, *(pytest.param(*_values(each), marks=pytest.mark.further) for each in others)]


def by_turns(cases: Sequence[Any], turn: int) -> list[Any]:
    """Cases for `parametrize`: a third is run always, the others in the deep tier; `turn` says
    which third, so that tests take turns.
    """
    return [
        case
        if (number - turn) % 3 == 0
        else pytest.param(*_values(case), marks=pytest.mark.further)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
