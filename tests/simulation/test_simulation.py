"""Seeded storms over a whole cloud, with the invariants of DESIGN D6 after each.

SIMULATE_SEEDS: how many seeds (the nightly run takes thousands); SIMULATE_FROM: the first.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.storm import Storm

FIRST = int(os.environ.get("SIMULATE_FROM", "0"))
SEEDS = int(os.environ.get("SIMULATE_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_is_lost_or_leaked_whatever_happens(seed: int) -> None:
    Storm(seed).run()
