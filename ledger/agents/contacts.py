"""When each host's agent was last in contact: recorded at once, written in batches.

Thousands of agents call several hundred times a second, and the only question is whether one was in
contact within `host_down_after_s` (decision 0006).  So contacts are kept in memory, and one
statement writes them every WRITE_INTERVAL_S.  The database gets the age of each contact, so it has
a contact at most that much late, and never one that is too young.  The contacts that a crash loses
come again with the agents' next polls.

If the database's clock is set, all its contact times are wrong by that.  So all are written again:
this process knows their ages by its own monotonic clock.

Each contact also has what the agent reported of its host's clock.  No decision uses it.  It helps
to read a host's log, and shows a wrong clock that should be corrected.
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
    """`write` takes, for some hosts, the age of the last contact in seconds, and how far the host's
    clock is ahead of the ledger's (None: not reported).  `sets` returns how often the database's
    clock was set.
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
        self._writing = asyncio.Lock()
        self._skewed: dict[str, Skewed] = {}

    def heard(self, host: str, clock_ahead_s: float | None = None) -> None:
        """The host's agent is in contact now."""
        self._heard[host] = self._clock(), clock_ahead_s
        if clock_ahead_s is None:
            return
        wrong = self._skewed.setdefault(host, Skewed()).has_become(clock_ahead_s)
        if wrong is not None:
            tell = _log.warning if wrong else _log.info
            tell("host_clock_skewed", host=host, wrong=wrong, ahead_s=round(clock_ahead_s, 3))

    async def written(self) -> None:
        """Write the unwritten contacts, also those that are being written just now.  If that fails
        they are kept for the next time, and it raises.
        """
        async with self._writing:
            await self._write_heard()

    async def _write_heard(self) -> None:
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
        """Write repeatedly; when cancelled, once more."""
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
