"""When each host's agent was last in contact: noted at once, written in batches.

Thousands of agents are heard of several hundred times a second, and all that is ever asked
is whether one was within `host_down_after_s` (decision 0006).  So contacts are kept in memory
and written every WRITE_INTERVAL_S, by one statement: whoever asks the database sees a contact
at most that much later than it was, and never a later one than there was, for what is written
is its age.  What a crash takes with it, the agents' next polls bring back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

WRITE_INTERVAL_S = 1.0

_log = structlog.get_logger(__name__)


class Contacts:
    """`write` takes how many seconds ago each of some hosts was heard of."""

    def __init__(
        self,
        write: Callable[[Mapping[str, float]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._heard: dict[str, float] = {}

    def heard(self, host: str) -> None:
        """The host's agent is in contact just now."""
        self._heard[host] = self._clock()

    async def written(self) -> None:
        """Write what is not written.  What cannot be is kept for the next time, and raised."""
        heard, self._heard = self._heard, {}
        if not heard:
            return
        now = self._clock()
        try:
            await self._write({host: now - at for host, at in heard.items()})
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
