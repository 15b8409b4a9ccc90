"""Seeded storms over a whole cloud, with the invariants of decision 0026 after each.

SIMULATE_SEEDS: how many seeds (`make simulate`, `test-deep`, `nightly`); SIMULATE_FROM: the first.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from aggregates.attachment import Attachment
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.operation import Operation
from handlers.drift.repairs import REPAIRS
from handlers.flows import FLOWS
from tests.simulation.cloud import FAULTS
from tests.simulation.storm import Storm

FIRST = int(os.environ.get("SIMULATE_FROM", "0"))
#: By default as many as a change can wait for: a second each.
SEEDS = int(os.environ.get("SIMULATE_SEEDS", "3"))
#: Of what does more with a storm than to see it end.
FEWER_SEEDS = max(1, SEEDS // 10)
#: So many storms are searched for what each of them may contain.
SEARCHED = 60
#: Which of these is new, and why: in that file.
_SEEDS = Path(__file__).with_name("seeds.toml")
FAILED_ONCE = [each["seed"] for each in tomllib.loads(_SEEDS.read_text())["storm"]]
#: They need a mapping of Cinder's old calls, and the cloud here is new; a Cinder that waits for a
#: guest to grow; or something to repair.
_CONVERT = {"convert", "convert_offloaded", "convert_resized"}
NOT_HERE = _CONVERT | {"grow_for_cinder"} | REPAIRS.keys()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_is_lost_or_leaked_whatever_happens(seed: int) -> None:
    Storm(seed).run()


@pytest.mark.parametrize("seed", FAILED_ONCE[::-1])
def test_a_seed_that_failed_once_fails_no_more(seed: int) -> None:
    Storm(seed).run()


def test_a_seed_repeats_exactly() -> None:
    def happened() -> list[str]:
        storm = Storm(FIRST, ticks=200)
        storm.blow()
        return storm.cloud.actions

    assert happened() == happened()


def test_storms_contain_what_they_are_meant_to_test() -> None:
    """Every flow, every way an operation can go, hosts that are fenced and come back, and faults:
    of processes, requests, clocks and texts.
    """
    skipped = {Operation.StepSkipped}  # an operator who vouches for what is not so breaks the rest
    kinds = set(Operation.TRANSITIONS) - skipped
    kinds |= {Host.Fenced, Host.Unfenced, Host.LeftoversFound, Attachment.Disowned}
    kinds |= {Instance.DeletionAwaited}
    missing = (set(FLOWS) - NOT_HERE) | {kind.TOPIC for kind in kinds} | FAULTS
    for seed in range(SEARCHED):
        storm = Storm(seed)
        storm.blow()
        missing -= {type(event).TOPIC for event, _ in storm.cloud.store.log}
        missing -= set(storm.cloud.happened)
        missing -= {str(row["flow"]) for row in storm.cloud.rows("operations")}
        if not missing:
            return
    raise AssertionError(f"in {SEARCHED} storms there was no {missing}")
