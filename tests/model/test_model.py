"""The model in its small size breaks no rule; and it finds what a missing guard breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import pytest

from aggregates.claimable import Claimable
from aggregates.volume import Volume
from handlers.drift import recheck
from handlers.engine import rules
from handlers.requests import actions
from handlers.results import presence, progress
from tests.model.__main__ import quiet
from tests.model.explore import Bounds, Violation, explore
from tests.model.parts import SMALL
from tests.model.world import NOTHING_UNDER_A_GUEST, NOTHING_UNDER_A_HOST, ONE_WRITER

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def first_broken(bounds: Bounds) -> Violation:
    explored = explore(bounds)
    assert explored.violations, f"nothing is found: {explored}"
    return explored.violations[0]


@lru_cache
def is_sound(bounds: Bounds) -> bool:
    explored = explore(bounds)
    return explored.complete and explored.violations == [] and explored.at_rest > 0


@pytest.mark.parametrize("part", SMALL)
def test_no_rule_is_broken_whatever_happens_with_one_request(part: str) -> None:
    """`make model ARGS=--small`, as `.ci/run` has it, allows more requests."""
    assert is_sound(replace(SMALL[part], requests=1))


def test_the_same_model_has_the_same_states_again() -> None:
    bounds = Bounds(faults=0, requests=2)
    one, other = explore(bounds), explore(bounds)
    assert (one.states, one.transitions, one.at_rest) == (
        other.states,
        other.transitions,
        other.at_rest,
    )


def without_claims(patch: Patch) -> None:
    for kind in (Claimable, Volume):
        patch.setattr(kind, "_refuse", lambda _self, _claimants: None)


def without_fences(patch: Patch) -> None:
    """Neither when an evacuation is accepted, nor before the guest is started elsewhere."""
    patch.setattr(actions, "_check_need", lambda *_: None)
    patch.setattr(progress.Execution, "_distrust", lambda *_: None)


def without_proof(patch: Patch) -> None:
    """Neither who else shows it, when a repair is accepted, nor what the hosts answer it."""
    patch.setattr(presence, "refuse", lambda *_: None)
    patch.setattr(presence, "signs", lambda *_: ())
    patch.setattr(recheck, "refusal", lambda *_: None)


GUARDS: dict[str, tuple[Callable[[Patch], None], Bounds, str]] = {
    "claims": (without_claims, Bounds(faults=0, requests=2), NOTHING_UNDER_A_HOST),
    "fences": (without_fences, Bounds(faults=0, requests=2), ONE_WRITER),
    "proof": (without_proof, Bounds(faults=1, requests=0, acts=1), NOTHING_UNDER_A_GUEST),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_missing_is_found_by_what_it_does_to_the_world(
    guard: str, monkeypatch: Patch
) -> None:
    without, bounds, rule = GUARDS[guard]
    assert is_sound(bounds)
    without(monkeypatch)
    monkeypatch.setattr(rules, "_BY_KIND", {})  # the log's rules would find it before
    found = first_broken(bounds)
    assert found.rule.startswith(rule), found
    assert found.story


def test_an_undo_that_asks_nobody_gives_a_volume_back_under_a_guest(monkeypatch: Patch) -> None:
    """An attach whose answer is lost is undone, and its guest was moved by hand meanwhile."""
    asked = presence.is_asked
    monkeypatch.setattr(
        presence,
        "is_asked",
        lambda plan, steps, *, undo: not undo and asked(plan, steps, undo=undo),
    )
    monkeypatch.setattr(rules, "_BY_KIND", {})
    found = first_broken(Bounds(faults=2, requests=1))
    assert found.rule.startswith(NOTHING_UNDER_A_GUEST), found


def test_a_missing_fence_is_found_by_the_log_alone(monkeypatch: Patch) -> None:
    without_fences(monkeypatch)
    assert "standing_fence" in first_broken(Bounds(faults=0, requests=1)).rule


def test_a_story_is_one_of_the_shortest_and_can_be_read(monkeypatch: Patch) -> None:
    without_proof(monkeypatch)
    story = first_broken(Bounds(faults=1, requests=0, acts=1)).story
    assert story[:3] == (
        "somebody attaches volume 1 past us",
        "an operator looks, twice",
        "an operator repairs attachment_unknown of the attachment of volume 1, drop_attachment",
    )
