"""Waits between attempts: of calls, of lines, and of a plan's steps."""

from __future__ import annotations

import pytest

from handlers.engine.verbs import VERBS, LedgerVerb
from host_agent.shared.contract.backoff import Backoff, wait_s
from host_agent.shared.contract.messages import Verb


def test_waits_double_up_to_the_bound_and_stay_there() -> None:
    assert [wait_s(attempts, 0.5, 3) for attempts in (1, 2, 3, 4, 100_000)] == [0.5, 1, 2, 3, 3]


def test_chance_puts_a_wait_between_half_and_all_of_it() -> None:
    chances = iter([0.0, 1.0, 0.5, 0.0])
    backoff = Backoff(1.0, 4.0, lambda: next(chances))
    assert [backoff.next_s() for _ in range(3)] == [0.5, 2.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


@pytest.mark.parametrize(
    ("verb", "waits"),
    [
        (Verb.VOLUME_CONNECT, [1, 2, 4, 8, 16, None]),
        (Verb.DISK_UNPLUG, [1, None]),
        (Verb.DISK_COPY, [1, None]),
        (Verb.GUEST_MIGRATE, [1, None]),
        (Verb.VOLUME_WAIT_READY, [1, 2, None]),
        (LedgerVerb.VOLUME_AWAIT, [1, 2, 4, *[5] * 96, None]),
    ],
)
def test_a_step_is_tried_as_often_as_its_verb_says(verb: str, waits: list[float | None]) -> None:
    assert [VERBS[verb].retry.delay_s(attempts) for attempts in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize("verb", [Verb.VOLUME_CONNECT, Verb.DISK_UNPLUG, Verb.VOLUME_WAIT_READY])
def test_release_work_is_tried_for_ever_at_growing_waits(verb: str) -> None:
    waits = [VERBS[verb].retry.delay_s(attempts, patient=True) for attempts in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert VERBS[verb].retry.delay_s(1_000_000, patient=True) == 60
