"""When each host's agent was last in contact: noted at once, written in batches.

Thousands of agents are heard of several hundred times a second, and all that is ever asked
is whether one was within `host_down_after_s` (decision 0006).  So contacts are kept in memory
and written every WRITE_INTERVAL_S, by one statement: whoever asks the database sees a contact
at most that much later than it was, and never a later one than there was, for what is written
is its age.  What a crash takes with it, the agents' next polls bring back.

If the database's clock is set, all that it was told before is wrong by that; so all is written
once more, for this process knows how long ago it was by its own monotonic clock.

With each contact goes what the agent said of its host's clock.  Nothing is decided by it: a
host's log is read with it, and a clock that is wrong is to be mended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from host_agent.shared.platform.clocks import Skewed

WRITE_INTERVAL_S = 1.0

_log = structlog.get_logger(__name__)


class Contacts:
    """`write` takes how many seconds ago each of some hosts was heard of, and by how many its
    clock is ahead of the ledger's (None: it did not say).  `sets` counts how often the
    database's clock was set.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, tuple[float, float | None]]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        sets: Callable[[], int] = lambda: 0,
    ) -> None:
        self._write = write
        self._clock = clock
        self._sets, self._sets_seen = sets, sets()
        self._all: dict[str, tuple[float, float | None]] = {}
        self._heard: dict[str, tuple[float, float | None]] = {}
        self._skewed: dict[str, Skewed] = {}

    def heard(self, host: str, clock_ahead_s: float | None = None) -> None:
        """The host's agent is in contact just now."""
        self._heard[host] = self._clock(), clock_ahead_s
        if clock_ahead_s is None:
            return
        wrong = self._skewed.setdefault(host, Skewed()).has_become(clock_ahead_s)
        if wrong is not None:
            tell = _log.warning if wrong else _log.info
            tell("host_clock_skewed", host=host, wrong=wrong, ahead_s=round(clock_ahead_s, 3))

    async def written(self) -> None:
        """Write what is not written.  What cannot be is kept for the next time, and raised."""
        if self._sets() != self._sets_seen:
            self._sets_seen = self._sets()
            self._heard = self._all | self._heard
        heard, self._heard = self._heard, {}
        self._all |= heard
        if not heard:
            return
        now = self._clock()
        try:
            await self._write({host: (now - at, ahead_s) for host, (at, ahead_s) in heard.items()})
        except BaseException:
            self._heard = heard | self._heard
            raise

    async def run(self) -> None:
        """Write again and again; when cancelled, a last time."""
        try:
            while True:
                await asyncio.sleep(WRITE_INTERVAL_S)
                await self._try()
        finally:
            await self._try()

    async def _try(self) -> None:
        try:
            await self.written()
        except Exception as error:  # noqa: BLE001 - tried again in a moment
            _log.warning("contacts_not_written", why=str(error))
