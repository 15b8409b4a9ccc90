"""The clock of runs, whose waits end when the agent stops."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Stopping(Exception):  # noqa: N818 - not an error: the agent was asked to stop
    """The agent stops: the run is dropped without a report."""


class Clock(Protocol):
    """Seconds of a monotonic clock."""

    def now(self) -> float: ...

    def wait(self, seconds: float) -> None:
        """Return after `seconds`; raises Stopping as soon as the agent stops."""


class StopClock:
    """The real clock; a wait raises Stopping when `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopping
