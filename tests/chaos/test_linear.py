"""The checker of histories finds what is wrong, and nothing in what is right."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.chaos.linear import (
    COMPLETED,
    FAILED,
    NEVER,
    REFUSED,
    UNKNOWN,
    Called,
    History,
    unexplained,
)

A, B = "server-a", "server-b"


def call(call: str, since: float, until: float, told: Any, server: str = A, **more: Any) -> Called:
    return Called("client", call, since, until, told, server, **more)


def history(*calls: Called, **more: Any) -> History:
    return History(calls=list(calls), **more)


RIGHT = {
    "nothing": history(),
    "one after the other": history(
        call("show", 0, 1, told=False),
        call("attach", 1, 2, COMPLETED),
        call("show", 3, 4, told=True),
        call("detach", 5, 6, COMPLETED),
        call("list", 7, 8, told=False),
    ),
    "a read beside a change sees it, or does not": history(
        call("attach", 0, 9, COMPLETED),
        call("show", 1, 2, told=False),
        call("show", 3, 4, told=True),
        call("show", 5, 6, told=True),
    ),
    "an attach that fails is seen for a while": history(
        call("attach", 0, 9, FAILED),
        call("show", 1, 2, told=False),
        call("show", 3, 4, told=True),
        call("show", 5, 6, told=False),
    ),
    "one without an answer happened late": history(
        call("attach", 0, NEVER, UNKNOWN),
        call("show", 3, 4, told=False),
        call("show", 50, 51, told=True),
    ),
    "or never": history(
        call("detach", 0, NEVER, UNKNOWN),
        call("show", 3, 4, told=True),
        first=frozenset({A}),
    ),
    "what is refused changes nothing": history(
        call("attach", 0, 1, REFUSED, B), call("show", 2, 3, told=True), first=frozenset({A})
    ),
    "two that exclude each other, one after the other": history(
        call("attach", 0, 9, COMPLETED, B),
        call("detach", 0, 9, COMPLETED, A),
        call("read", 10, 11, frozenset({B}), ""),
        first=frozenset({A}),
    ),
    "several have what is shared": history(
        call("attach", 0, 1, COMPLETED, A),
        call("attach", 2, 3, COMPLETED, B),
        call("read", 4, 5, frozenset({A, B}), ""),
        shared=True,
    ),
    "what was so then is told later": history(
        call("attach", 0, 1, COMPLETED),
        call("detach", 3, 4, COMPLETED),
        call("as of", 8, 9, frozenset({A}), "", at=2.0),
        call("as of", 20, 21, frozenset({A}), "", at=2.0),
        call("as of", 22, 23, frozenset(), "", at=5.0),
    ),
}

WRONG = {
    "a write that was acknowledged is lost": history(
        call("attach", 0, 1, COMPLETED), call("show", 2, 3, told=False)
    ),
    "a read is older than an acknowledged write": history(
        call("attach", 0, 1, COMPLETED),
        call("detach", 2, 3, COMPLETED),
        call("show", 4, 5, told=True),
        call("show", 6, 7, told=False),
    ),
    "a second read is older than the first": history(
        call("attach", 0, 9, COMPLETED),
        call("show", 1, 2, told=True),
        call("show", 3, 4, told=False),
    ),
    "two servers have what only one may have": history(
        call("attach", 0, 1, COMPLETED, A), call("attach", 2, 3, COMPLETED, B)
    ),
    "a detach of what was not there": history(call("detach", 0, 1, COMPLETED)),
    "what happened twice": history(
        call("attach", 0, NEVER, UNKNOWN),
        call("show", 1, 2, told=True),
        call("detach", 3, 4, COMPLETED),
        call("show", 5, 6, told=False),
        call("show", 7, 8, told=True),
    ),
    "a detach that failed took it away": history(
        call("detach", 0, 1, FAILED), call("show", 2, 3, told=False), first=frozenset({A})
    ),
    "a refused attach attached": history(
        call("attach", 0, 1, REFUSED), call("show", 2, 3, told=True)
    ),
    "what was so then has changed": history(
        call("attach", 0, 1, COMPLETED),
        call("as of", 8, 9, frozenset({A}), "", at=2.0),
        call("as of", 20, 21, frozenset(), "", at=2.0),
    ),
    "what was so then was not so": history(
        call("attach", 0, 1, COMPLETED), call("as of", 8, 9, frozenset(), "", at=2.0)
    ),
    "the whole shows one that has it, and lacks another": history(
        call("attach", 0, 1, COMPLETED, A),
        call("attach", 2, 3, COMPLETED, B),
        call("read", 4, 5, frozenset({B}), ""),
        shared=True,
    ),
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT.keys())
def test_what_can_be_explained_is(right: History) -> None:
    assert unexplained(right) is None


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_not(wrong: History) -> None:
    assert unexplained(wrong)


def test_it_says_how_far_it_comes_and_what_it_meets() -> None:
    told = unexplained(WRONG["a write that was acknowledged is lost"])
    assert told is not None
    assert "0.000..1.000 client: attach server-a: completed" in told
    assert "with the volume at ['server-a'], and then comes one of" in told
    assert "2.000..3.000 client: show server-a: False" in told


class Volume:
    """A real one, which answers at one point between question and answer; `lost`: how many answers
    nobody gets.
    """

    def __init__(self, seed: int, lost: float) -> None:
        self._chance, self._lost = random.Random(seed), lost
        self.history = History(shared=self._chance.random() < 0.5)
        self.has, self.now = frozenset[str](), 0.0
        self._moments = {0.5: self.has}

    def live(self) -> None:
        for _ in range(40):
            self.now += 1
            self._something_happens(self._chance.choice([A, B]))
            self._moments[self.now + 0.5] = self.has
            at = self._chance.choice([*self._moments])
            self._called("as of", self._moments[at], "", at=at)

    def _something_happens(self, server: str) -> None:
        match self._chance.randrange(4):
            case 0:
                free = server not in self.has and (self.history.shared or not self.has)
                self.has |= {server} if free else set()
                self._called("attach", COMPLETED if free else REFUSED, server)
            case 1:
                had, self.has = server in self.has, self.has - {server}
                self._called("detach", COMPLETED if had else REFUSED, server)
            case _:
                self._called("show", server in self.has, server)

    def _called(self, name: str, told: Any, server: str, **more: Any) -> None:
        since, until = (self.now + way * self._chance.uniform(0, 4) for way in (-1, 1))
        if name in {"attach", "detach"} and self._chance.random() < self._lost:
            told, until = UNKNOWN, NEVER
        self.history.calls.append(call(name, since, until, told, server, **more))


@pytest.mark.parametrize("seed", range(30))
def test_whatever_a_volume_really_does_is_explained(seed: int) -> None:
    volume = Volume(seed, lost=0.1)
    volume.live()
    assert unexplained(volume.history) is None


@pytest.mark.parametrize("seed", range(30))
def test_a_read_in_the_end_that_says_the_opposite_is_found(seed: int) -> None:
    volume = Volume(seed, lost=0.0)
    volume.live()
    late = (volume.now + 10, volume.now + 11)
    volume.history.calls.append(call("show", *late, A not in volume.has))
    assert unexplained(volume.history)


def test_many_calls_without_an_answer_are_no_more_than_a_few() -> None:
    """Those that are alike can stand for each other, and none of them has to happen."""
    unknown = [
        call(what, 0, NEVER, UNKNOWN, server)
        for what in ("attach", "detach") * 10
        for server in (A, B)
    ]
    seen = [call("show", n, n + 0.5, n % 2 == 0, A) for n in range(1, 10)]
    assert unexplained(history(*unknown, *seen)) is None
    assert unexplained(
        history(
            *unknown, *seen, *(call("show", 10 + n, 10.5 + n, n % 2 == 0, A) for n in range(30))
        )
    )
