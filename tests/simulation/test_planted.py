"""Drift that comes about in the midst of a storm, or at rest: looks find it, and repairs mend it.

Somebody does past everybody what lost requests, other clients and crashed hosts do.  The storm goes
on over it: servers of it are deleted, hosts lose power, are fenced and come back.  What is
still there when all is at rest has to be found, and nothing else; its repair has to take it away,
and nothing else.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from aggregates.errors import RepairError
from aggregates.finding import Finding, FindingState
from handlers.drift.classes import BY_NAME, CLASSES
from handlers.drift.rows import Row
from tests.simulation import drift
from tests.simulation.looking import look, repair
from tests.simulation.picture import Picture
from tests.simulation.planting import (
    AMONG,
    KINDS,
    NOT_PLANTED,
    TOGETHER,
    Planted,
    PlantingStorm,
    kinds_of,
)
from tests.simulation.test_simulation import FEWER_SEEDS, FIRST, SEEDS

#: So many of the first storms have every kind.
ALL_KINDS = -(-len([*KINDS, *AMONG]) // TOGETHER)
CHANGES = {**{name: kind.changes for name, kind in KINDS.items()}, **AMONG}


#: A pair at rest for so many storms: all of them by night.
SEEDS_OF_A_PAIR = 4


def some_pairs() -> list[tuple[str, str]]:
    pairs = list(itertools.combinations(KINDS, 2))
    random.Random(0).shuffle(pairs)
    return pairs[: max(1, SEEDS // SEEDS_OF_A_PAIR)]


def expected(storm: PlantingStorm) -> dict[str, list[str]]:
    """By kind: as what it is to be found now."""
    return {each.kind: each.found_as() for each in storm.planted}


def found(storm: PlantingStorm, cases: list[tuple[Row, str]]) -> dict[str, list[str]]:
    """By kind: as what it is found.  That nothing else is found the storm itself looks for."""
    return {
        each.kind: sorted(name for row, name in cases if each.owns(row)) for each in storm.planted
    }


def seen(storm: PlantingStorm) -> dict[str, list[str]]:
    return found(storm, [(row, drift_class.name) for row, drift_class in drift.cases(storm.cloud)])


def class_of(finding: Finding) -> str:
    assert finding.found is not None, "a look has found it"
    return finding.found.drift_class


def mended(storm: PlantingStorm, planted: Planted, finding: Finding) -> None:
    """By the repair of its class, which changes nothing of anything else."""
    before = Picture(storm)
    repair(storm.cloud, finding)
    storm.rest()
    after = storm.cloud.store.load(Finding, finding.id)
    drift_class = BY_NAME[class_of(finding)]
    begun = [
        event
        for event, _ in storm.cloud.store.log
        if isinstance(event, Finding.RepairBegun) and event.originator_id == finding.id
    ]
    assert [event.repair for event in begun] == [drift_class.repair], planted.kind
    assert after.state is FindingState.OVER, f"{planted.kind}: {after.state}"
    changed = before.changed(Picture(storm))
    assert set(changed.values()) == {planted.kind}, f"{planted.kind}: {changed}"
    assert {part for part, *_ in changed} <= set(changes(planted, finding).split()), planted.kind


def changes(planted: Planted, finding: Finding) -> str:
    """Of a guest without a definition nothing is there once its host has lost power."""
    missing = class_of(finding) == "guest_missing"
    return CHANGES["guest_missing" if missing else planted.kind]


def planted_in(storm: PlantingStorm) -> Counter[str]:
    """All that becomes of what was planted in a cloud at rest; what of that was still there."""
    there = expected(storm)
    findings: list[tuple[Row, Finding]] = []
    for state in (FindingState.SUSPECTED, FindingState.CONFIRMED):
        found_now = look(storm.cloud)  # and what the storm's hand left, which it has had looked at
        findings = [it for it in found_now if any(each.owns(it[0]) for each in storm.planted)]
        assert found(storm, [(row, class_of(each)) for row, each in findings]) == there
        assert {each.state for _, each in findings} <= {state}
    left: dict[str, list[str]] = {kind: [] for kind in there}
    for planted in storm.planted:
        for finding in [finding for row, finding in findings if planted.owns(row)]:
            if class_of(finding) not in seen(storm)[planted.kind]:
                continue  # it went with another finding of the same
            if changes(planted, finding):
                mended(storm, planted, finding)
            else:
                with pytest.raises(RepairError):
                    repair(storm.cloud, finding)
                left[planted.kind] = there[planted.kind]
    assert seen(storm) == left
    return Counter(kind for kind, names in there.items() if names)


def lasting(kinds: Iterable[str]) -> Counter[str]:
    """Those that somebody has to end."""
    return Counter(kind for kind in kinds if not KINDS[kind].passes)


def in_storm(seed: int) -> Counter[str]:
    storm = PlantingStorm(seed)
    storm.blow_over()
    return planted_in(storm)


def at_rest(*kinds: str) -> Counter[str]:
    storm = PlantingStorm(0, ticks=0, kinds=kinds)
    for _ in kinds:
        storm.plant_next()
    storm.rest()  # hosts tell what they have now
    return planted_in(storm)


def test_every_class_is_planted_or_it_is_said_why_not() -> None:
    """A new class: plant it, or say why no storm can."""
    planted = {BY_NAME.get(name) and name for name in KINDS} - {None}
    assert planted | set(NOT_PLANTED) == {each.name for each in CLASSES}
    assert not planted & set(NOT_PLANTED)


def test_what_a_class_can_be_mended_by_mends_what_is_planted() -> None:
    """Each class that has a repair is repaired here, but what nobody knows the server of."""
    repaired = {name for name, kind in KINDS.items() if kind.changes}
    assert repaired == {name for name in KINDS if name in BY_NAME and BY_NAME[name].repair}


def test_storms_have_every_kind_and_every_pair() -> None:
    every = {*KINDS, *AMONG}
    assert {kind for seed in range(ALL_KINDS) for kind in kinds_of(seed)} == every
    pairs = {
        frozenset(pair) for seed in range(300) for pair in itertools.combinations(kinds_of(seed), 2)
    }
    assert pairs == {frozenset(pair) for pair in itertools.combinations(every, 2)}


@pytest.mark.parametrize("seed", range(ALL_KINDS))
def test_what_comes_about_in_a_storm_is_found_after_it_and_mended(seed: int) -> None:
    in_storm(seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + FEWER_SEEDS))
def test_so_it_is_in_many_storms(seed: int) -> None:
    in_storm(seed)


@pytest.mark.parametrize("first", range(0, len(KINDS), TOGETHER))
def test_what_comes_about_at_rest_is_found_and_mended(first: int) -> None:
    kinds = list(KINDS)[first : first + TOGETHER]
    assert at_rest(*kinds) == lasting(kinds)


@pytest.mark.parametrize("kind", [*KINDS])
def test_so_it_is_alone(kind: str) -> None:
    assert at_rest(kind) == lasting([kind])


@pytest.mark.deep
@pytest.mark.parametrize("pair", some_pairs(), ids="-".join)
def test_so_it_is_in_pairs(pair: tuple[str, str]) -> None:
    assert at_rest(*pair) == lasting(pair)


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.passes])
def test_what_hosts_correct_is_found_until_they_tell_what_they_have(kind: str) -> None:
    storm = PlantingStorm(0, ticks=0, kinds=[kind])
    storm.plant_next()
    for state in (FindingState.SUSPECTED, FindingState.CONFIRMED):
        assert [each.state for _, each in look(storm.cloud)] == [state]
    storm.rest()
    assert not list(look(storm.cloud))
