"""Files that are read again while the service runs, by a thread that the storage below may hold up.

The event loop does not wait for it, and nothing else of the service does.  But what is in force
meanwhile may be outdated, without any error: so it is told after READ_S_MAX.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: A look at some files takes milliseconds; one that takes longer hangs.
READ_S_MAX = 10.0


class Reading:
    """One look at a time, in a thread.  `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_at: float | None = None

    async def look(self, read: Callable[[], T]) -> T:
        self._begun_at = self._clock()
        try:
            return await asyncio.to_thread(read)
        finally:
            self._begun_at = None

    def trouble(self) -> str | None:
        """What is to be told of a look that hangs; None: it does not."""
        if self._begun_at is None or (for_s := self._clock() - self._begun_at) < READ_S_MAX:
            return None
        return (
            f"reading it again has taken {for_s:.0f} s so far, and what was read before goes on: "
            "look at the storage that it is on; when that answers, reading goes on by itself"
        )
