"""Exponential back-off.  Pure: the random source is passed in."""

from __future__ import annotations

from collections.abc import Callable

_DOUBLINGS_MAX = 60  # any bound is reached by then, and no float overflows


def wait_s(attempts: int, first_s: float, max_s: float) -> float:
    """Seconds to wait after `attempts` (at least 1)."""
    return min(first_s * 2.0 ** min(attempts - 1, _DOUBLINGS_MAX), max_s)


class Backoff:
    """Waits with jitter: from half to all of `wait_s`."""

    def __init__(self, first_s: float, max_s: float, chance: Callable[[], float]) -> None:
        """`chance` from 0 to 1."""
        self._first_s, self._max_s, self._chance = first_s, max_s, chance
        self._attempts = 0

    def reset(self) -> None:
        self._attempts = 0

    def next_s(self) -> float:
        self._attempts += 1
        return wait_s(self._attempts, self._first_s, self._max_s) * (0.5 + self._chance() / 2)
