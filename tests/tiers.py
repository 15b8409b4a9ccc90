"""How much of what has many cases is run: `make test` takes a sample, `make test-deep` all of it.

A test that takes more of its cases there is marked `deep`.  A case that only repeats at another
place what a case of `make test` holds is marked `further`, and runs there alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

#: So many pairs of troubles of each flow; `make test-deep` and nightly runs take more.
PAIRS_DEFAULT = 5
PAIRS = int(os.environ.get("FLOW_PAIRS", PAIRS_DEFAULT))
DEEP = PAIRS > PAIRS_DEFAULT


def every(stride: int, cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """All cases, or every `stride`th by default; `first` says which, so that tests take turns."""
    return cases if DEEP else cases[first % stride :: stride]


def one_then_further(first: Any, *others: Any) -> list[Any]:
    """Cases for `parametrize`: the first is run always, the others in the deep tier."""
    return [first, *(pytest.param(*_values(each), marks=pytest.mark.further) for each in others)]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
