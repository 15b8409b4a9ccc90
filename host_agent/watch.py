"""Follows a run's progress, and cancels it (ports.Watch)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from host_agent.clock import Stopping

#: Progress is reported at most once in so many seconds.
TELL_S = 1.0


class RunWatch:
    """The Watch of one run.  `cancelled` raises Stopping when the agent stops."""

    def __init__(self, stop: threading.Event, tell: Callable[[int, int], None]) -> None:
        self._stop = stop
        self._tell = tell
        self._cancelled = threading.Event()
        self._tell_at = 0.0

    def cancel(self) -> None:
        self._cancelled.set()

    def cancelled(self) -> bool:
        if self._stop.is_set():
            raise Stopping
        return self._cancelled.is_set()

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + TELL_S
            self._tell(done_bytes, total_bytes)
