"""Begins looks, and goes on with them, for as long as a service lives.

Each process looks now and then whether there is a look that nobody is at: one that was asked for,
one that was left by its process or resumed by somebody, or one at everything that is due.  Whoever
is first has it (ledger.upkeep.long_work); the others go on without.  In the same moment it lets go
of a look that somebody has stopped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import structlog

from ledger.reconcile.asking import LookRequests, own_context
from ledger.reconcile.cinder_side import StoppedError
from ledger.reconcile.look import PART, WHOLE, BehindError, LookSources, look
from ledger.upkeep import long_work
from ledger.upkeep.long_work import BusyError, WorkProgress
from projections.reads.queries import Queries

#: How often it is looked whether there is anything to do, and how long after a failure.
TICK_S, PAUSE_S = 2.0, 30.0

_log = structlog.get_logger(__name__)


class Looking:
    """`interval_s`: between looks at everything; 0: only those that somebody asks for."""

    def __init__(
        self, sides: LookSources, looks: LookRequests, queries: Queries, interval_s: float
    ) -> None:
        self._sides = sides
        self._looks = looks
        self._queries = queries
        self._interval_s = interval_s
        self._asked_at = float("-inf")
        self._threads = ThreadPoolExecutor(len((WHOLE, PART)), thread_name_prefix="look")
        self._at: dict[str, asyncio.Task[None]] = {}
        #: Has it let go, of each that this process is at.
        self._stops: dict[str, threading.Event] = {}

    async def run(self) -> None:
        """Until it is cancelled; then `stop`."""
        while True:
            try:
                for name in await self._queries.looks_stopped():
                    if name in self._at:
                        self._stops[name].set()
                for name in await self._waiting():
                    if name not in self._at:
                        self._stops[name] = threading.Event()
                        task = asyncio.create_task(self._look(name), name=name)
                        self._at[name] = task
            except Exception:  # noqa: BLE001 - the next tick tries again
                _log.exception("looks_not_begun")
            await asyncio.sleep(TICK_S)

    async def stop(self) -> None:
        """Stop what is under way where it is; another process may go on there."""
        for stop in self._stops.values():
            stop.set()
        for task in self._at.values():
            task.cancel()
        await asyncio.gather(*self._at.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)

    async def _waiting(self) -> list[str]:
        """This process asks for one in an interval at most, whatever the database's clock says."""
        due = self._interval_s and time.monotonic() - self._asked_at >= self._interval_s
        if due and await self._queries.look_overdue(self._interval_s):
            await asyncio.to_thread(self._looks.ask, {}, "schedule", own_context())
            self._asked_at = time.monotonic()
        return await self._queries.looks_waiting(WHOLE, PART)

    async def _look(self, name: str) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._run, name)
        except (BusyError, StoppedError):
            pass
        except (BehindError, psycopg.OperationalError) as error:
            _log.warning("look_put_off", name=name, wait_s=PAUSE_S, why=str(error))
            await asyncio.sleep(PAUSE_S)
        except Exception:  # noqa: BLE001 - somebody goes on with it later
            _log.exception("look_put_off", name=name, wait_s=PAUSE_S)
            await asyncio.sleep(PAUSE_S)
        finally:
            del self._at[name]

    def _run(self, name: str) -> None:
        sides = replace(self._sides, stop=self._stops[name])
        work = look(sides, whole=name == WHOLE)
        long_work.run(self._sides.dsn, name, work, _unwatched)


def _unwatched(_: WorkProgress) -> None:
    """How far it is can be read where long work is noted."""
