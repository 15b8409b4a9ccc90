"""Does the ledger's own part of operations: takes what is due, works until it waits.

Theory of operation: an operation is due when a row of the `operations` projection
says so.  Any number of dispatchers, in any number of processes, take due ones by
a lease row; the lease only avoids double work.  Correctness rests on the log: an
intent is stored before its effect, the effect is an ensure, and of two results
for one intent the second finds the step settled.  A dispatcher that dies leaves a
lease that runs out; one that meets an unexpected error (a database restart, a bug)
logs it and lets its lease run out, which is the pause before the next attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import structlog

from handlers.engine import Wait

#: A lease not renewed for so long is free; renewed at a third of it.
LEASE_S = 10.0
#: How long a due operation waits at most if every wake-up is lost.
POLL_S = 1.0

_log = structlog.get_logger(__name__)


class Leases(Protocol):
    """Which operations are due, and who works on them (projections.queries)."""

    async def due(
        self, now: datetime, limit: int, holder: str, lease_s: float
    ) -> list[tuple[str, bool]]: ...
    async def renew(self, holder: str, ids: Sequence[str], lease_s: float) -> list[str]: ...
    async def release(self, holder: str, operation_id: str) -> None: ...
    async def release_all(self, holder: str) -> None: ...


class Dispatcher:
    """Takes and does what is due.

    `holder` names this process, and its next life, among all that may live at once: what
    it held when it died is free as soon as it is back.  `advance` does one thing for an
    operation, told whether another life may have been at it (ledger.service); `caught_up`
    returns when the projections know all that this process has written; `woken` returns
    when something was written anywhere, or after the given seconds.  `concurrency_max`:
    operations worked on at once; each may block a thread on Cinder.
    """

    def __init__(
        self,
        holder: str,
        leases: Leases,
        advance: Callable[[str, bool], Wait | None],
        caught_up: Callable[[], Awaitable[object]],
        woken: Callable[[float], Awaitable[object]],
        concurrency_max: int,
    ) -> None:
        self._holder = holder
        self._leases = leases
        self._advance = advance
        self._caught_up = caught_up
        self._woken = woken
        self._concurrency_max = concurrency_max
        self._working: dict[str, asyncio.Task[None]] = {}

    @property
    def working(self) -> int:
        """How many operations this process works on now."""
        return len(self._working)

    async def run(self) -> None:
        """Until cancelled; then what is under way gets to its next recorded point."""
        renewal = asyncio.create_task(self._renew())
        try:
            with _survived("leases_not_released"):
                await self._leases.release_all(self._holder)
            while True:
                with _survived("dispatcher_failed"):
                    await self._take()
                await self._woken(POLL_S)
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, *self._working.values(), return_exceptions=True)

    async def _take(self) -> None:
        free = self._concurrency_max - len(self._working)
        if free <= 0:
            return
        now = datetime.now(UTC)
        for operation_id, taken_over in await self._leases.due(now, free, self._holder, LEASE_S):
            if operation_id not in self._working:
                task = asyncio.create_task(self._work(operation_id, taken_over))
                self._working[operation_id] = task
                task.add_done_callback(partial(self._done, operation_id))

    def _done(self, operation_id: str, _: asyncio.Task[None]) -> None:
        del self._working[operation_id]

    async def _work(self, operation_id: str, taken_over: bool) -> None:
        with _survived("operation_failed", operation=operation_id):
            while await asyncio.to_thread(self._advance, operation_id, taken_over) is None:
                taken_over = False  # what follows is our own
            # Without this the row would still say "due" when the lease is gone.
            await self._caught_up()
            await self._leases.release(self._holder, operation_id)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with _survived("lease_renewal_failed"):
                await self._leases.renew(self._holder, list(self._working), LEASE_S)


@contextlib.contextmanager
def _survived(event: str, **fields: str) -> Iterator[None]:
    """Log what went wrong and go on: the lease, or the next poll, is the retry."""
    try:
        yield
    except Exception:  # noqa: BLE001 - logged, and retried by whoever comes next
        _log.exception(event, **fields)
