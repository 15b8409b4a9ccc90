"""How often something may be in a time: log-ins of a user, refused ones of an address."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable


class Rate:
    """At most `count_max` of a key in `within_s`; of more than `keys_max` keys the one noted last
    longest ago is forgotten.
    """

    def __init__(
        self,
        count_max: int,
        within_s: float,
        keys_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_max, self._within_s, self._keys_max = count_max, within_s, keys_max
        self._clock = clock
        self._at: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, key: str) -> None:
        """There was one."""
        self._at.setdefault(key, deque(maxlen=self._count_max)).append(self._clock())
        self._at.move_to_end(key)
        while len(self._at) > self._keys_max:
            self._at.popitem(last=False)

    def wait_s(self, key: str) -> int:
        """In how many seconds there may be another one; 0: now."""
        at = self._at.get(key)
        if at is None or len(at) < self._count_max:
            return 0
        return max(0, math.ceil(at[0] + self._within_s - self._clock()))
