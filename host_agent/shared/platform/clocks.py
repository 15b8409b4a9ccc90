"""The clock of another machine, computed from the time that it sends and our monotonic clock.

Theory of operation.  The other machine wrote its time after we had sent the request, and before we
had the answer.  So "its time minus our monotonic time" is in an interval as wide as the round trip.
Both clocks run at nearly the same speed.  The intervals of several answers, each widened by the
possible drift since, have a common part, which is narrower than each of them (Marzullo and Owicki,
Maintaining the time in a distributed system, 1983).

A single answer that has no common part with those before is not trusted, because it may be wrong.
If the next one agrees with it, the other clock was set.  Our own wall clock is not used here, so it
may jump, and its error can be computed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

#: The largest drift between two clocks, per second: NTP slews each by at most 500 ppm.
DRIFT_MAX = 1e-3
#: Headers: the ledger's time in its answers to agents, in seconds since the epoch; and in their
#: requests how many seconds the host's clock is ahead of it, once that is known.
TIME_HEADER, AHEAD_HEADER = "Ledger-Time", "Host-Clock-Ahead"
#: A larger skew is reported.  With NTP clocks differ by milliseconds.
SKEW_MAX_S = 1.0


@dataclass(frozen=True)
class Interval:
    """The interval of "its time minus our monotonic time", as of `at` of our monotonic clock."""

    low: float
    high: float
    at: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def aged(self, at: float) -> Interval:
        """Widened by the drift since."""
        drift = DRIFT_MAX * max(0.0, at - self.at)
        return Interval(self.low - drift, self.high + drift, max(at, self.at))

    def common(self, other: Interval) -> Interval | None:
        one, two = self.aged(other.at), other.aged(self.at)
        both = replace(one, low=max(one.low, two.low), high=min(one.high, two.high))
        return both if both.low <= both.high else None


class FarClock:
    """The other machine's time.  Thread-safe; all times in seconds."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._known: Interval | None = None
        self._doubted: Interval | None = None

    def asking(self) -> float:
        """The present moment, before a request is sent, for `heard`."""
        return self._monotonic()

    def heard(self, time_s: float, asked_at: float) -> float:
        """Use the time in an answer; returns by how much the other clock was set, usually 0."""
        if not math.isfinite(time_s):
            return 0.0
        now = self._monotonic()
        interval = Interval(time_s - now, time_s - asked_at, now)
        with self._lock:
            known, doubted = self._known, self._doubted
            if known is None or (common := known.common(interval)) is not None:
                self._known, self._doubted = interval if known is None else common, None
                return 0.0
            self._doubted = interval
            if doubted is None or (agreed := doubted.common(interval)) is None:
                return 0.0
            self._known, self._doubted = agreed, None
            return agreed.middle - known.middle

    @property
    def known(self) -> bool:
        return self._known is not None

    def __call__(self) -> float:
        """The other machine's time now, in seconds since the epoch, within `error_s`."""
        return self._now()[0]

    def supposed(self) -> float:
        """The other machine's time; our wall clock's before the first answer."""
        return self() if self.known else self._wall()

    @property
    def error_s(self) -> float:
        return self._now()[1]

    @property
    def skew_s(self) -> float:
        """How far our wall clock is ahead of the other's, within `error_s`."""
        return self._wall() - self()

    def reading(self) -> tuple[float, float, float] | None:
        """Our wall clock, how far it is ahead of the other's now, and the error of that."""
        if not self.known:
            return None
        wall, (far, error_s) = self._wall(), self._now()
        return wall, wall - far, error_s

    def _now(self) -> tuple[float, float]:
        assert self._known is not None, "nobody asks for it before it was heard"
        now = self._monotonic()
        aged = self._known.aged(now)
        return now + aged.middle, (aged.high - aged.low) / 2


class Skewed:
    """Whether a clock is off by more than SKEW_MAX_S; reports only changes."""

    def __init__(self) -> None:
        self._skewed = False

    def has_become(self, skew_s: float) -> bool | None:
        """True: it is off now; False: it is right again; None: unchanged."""
        skewed = abs(skew_s) > SKEW_MAX_S
        if skewed == self._skewed:
            return None
        self._skewed = skewed
        return skewed
