"""Requests that were refused and changed nothing: not in the log, but found for a while.

Who asks why a request failed has its id, from the answer's header or a service's log.  The answer
that it got is kept for KEPT_S, the newest ASKER_MAX of each project, and TOTAL_MAX in all.

A refusal must cost no more for it, whoever sends thousands: it is noted in memory, and written with
others every WRITE_INTERVAL_S by one statement; of what does not fit in between the rest is
dropped.  A crash, or a database that does not answer, may lose some: they carry no facts.

Of who has proven nothing (401), and of reads that are forbidden (403), a sample is kept:
SAMPLES_OF_ASKER_MAX an hour of each asker, and of ASKERS_MAX askers.  At the end of the hour the
last one that was left out is kept, too, with the number of the others.

Kept are who asked, from where, for which route, and the error of the answer.  No path, query or
body: they may hold what is nobody else's business.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from aggregates.base import Actor
from ledger.http.call import Call, answer
from ledger.http.problem import Failure, not_found
from ledger.native.log.schemas_refusals import RefusalShown
from projections.reads.queries import Queries

#: How long a refusal can be found, and how many of each project (or of who has none), and in all.
KEPT_S = 24 * 3600.0
ASKER_MAX = 1_000
TOTAL_MAX = 100_000
#: What one process notes between two writes: of all, and of each asker.
NOTED_MAX = 500
NOTED_OF_ASKER_MAX = 100
WRITE_INTERVAL_S = 1.0
#: Every so many writes, what is too old or too much is removed.
WRITES_PER_TRIM = 60
MESSAGE_CHARS_MAX = 1_000
SAMPLED_S = 3600.0
SAMPLES_OF_ASKER_MAX = 5
ASKERS_MAX = 200
#: Wrong, missing or too many wrong tokens; what the caller may not do.
_DENIED = frozenset({401, 403, 429})
_NOT_TOLD = dict.fromkeys(("user_id", "project_id", "address", "agent"))

_log = structlog.get_logger(__name__)

Row = dict[str, Any]


def is_denied(failure: Failure) -> bool:
    """Whether it is of those that auditors ask for, whatever the method."""
    return failure.status in _DENIED


class RefusalSample:
    """Which refusals of an hour are kept, and how many are not."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._kept = Counter[str]()
        self._left: dict[str, Row] = {}

    def keeps(self, asker: str, row: Row) -> bool:
        """Whether this one is; else it is counted."""
        known = asker in self._kept or len(self._kept) < ASKERS_MAX
        if known and self._kept[asker] < SAMPLES_OF_ASKER_MAX:
            self._kept[asker] += 1
            return True
        asker, row = (asker, row) if known else ("", {**row, **_NOT_TOLD, "actor": "others"})
        before = self._left.get(asker, {"left_out": -1})
        self._left[asker] = {**row, "left_out": before["left_out"] + 1}
        return False

    def is_over(self) -> bool:
        return time.monotonic() - self._began > SAMPLED_S

    def left(self) -> list[Row]:
        """The last of each asker that was left out, with the number of the others."""
        return [*self._left.values()]


class Refusals:
    """One for a process."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._noted: list[tuple[float, Row]] = []
        self._of_asker: Counter[str] = Counter()
        self._sample = RefusalSample()
        self._dropped = 0
        self._writes = 0
        self._writing = asyncio.Lock()

    def note(
        self,
        actor: Actor,
        failure: Failure,
        *,
        sampled_as: str | None = None,
        **request: str | None,
    ) -> None:
        """A request was refused just now.  `sampled_as`: by whom it is counted, if a few of its
        kind are enough.  `request`: its columns of the table.
        """
        row = {
            **request,
            "status": failure.status,
            "code": failure.code,
            "message": failure.detail.replace("\x00", "")[:MESSAGE_CHARS_MAX],
            "actor": actor.name,
            "user_id": actor.user_id,
            "project_id": actor.project_id,
            "left_out": None,
        }
        if sampled_as is None or self._sample.keeps(sampled_as, row):
            self._note(sampled_as or actor.project_id or actor.name, row)

    def _note(self, asker: str, row: Row) -> None:
        if len(self._noted) >= NOTED_MAX or self._of_asker[asker] >= NOTED_OF_ASKER_MAX:
            self._dropped += 1
            return
        self._of_asker[asker] += 1
        self._noted.append((time.monotonic(), row))

    def tell_left_out(self) -> None:
        """An hour is over: note how many it had beyond its sample."""
        sample, self._sample = self._sample, RefusalSample()
        self._noted += [(time.monotonic(), row) for row in sample.left()]

    async def written(self) -> None:
        """Return when all that is noted is written.  What cannot be written is lost, and the error
        raised.
        """
        async with self._writing:
            await self._write()

    async def flush(self) -> None:
        """The same; what cannot be written is for the log alone."""
        await self._try(self.written)

    async def _write(self) -> None:
        noted, self._noted = self._noted, []
        dropped, self._dropped = self._dropped, 0
        self._of_asker.clear()
        if dropped:
            _log.warning("refusals_dropped", count=dropped)
        if noted:
            now = time.monotonic()
            await self._queries.note_refusals([{**row, "age_s": now - at} for at, row in noted])

    async def open(self, _: web.Application) -> AsyncIterator[None]:
        """For as long as the application serves: write again and again."""
        writing = asyncio.create_task(self._run(), name="refusals")
        yield
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        self.tell_left_out()
        await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            if self._sample.is_over():
                self.tell_left_out()
            await self.flush()
            if self._writes % WRITES_PER_TRIM == 0:
                await self._try(self._trim)
            self._writes += 1

    async def _trim(self) -> None:
        await self._queries.trim_refusals(KEPT_S, ASKER_MAX, TOTAL_MAX)

    async def _try(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            _log.warning("refusals_not_written", why=str(error))


REFUSALS: web.AppKey[Refusals] = web.AppKey("refusals", Refusals)


async def request(call: Call) -> web.StreamResponse:
    """GET /v1/requests/{refused_id}: how a refused request was answered.

    For whoever sent it, and for those who see all projects: to anybody else it does not exist.
    """
    request_id = call.request.match_info["refused_id"]
    await call.request.app[REFUSALS].flush()
    row = await call.components.queries.refusal(request_id)
    if row is None or not _may_see(call, row):
        raise not_found(
            "request_not_found",
            f"No refused request {request_id[:100]} is known; what was accepted is in the history, "
            f"and what was refused is kept for {KEPT_S / 3600:g} h at most.",
        )
    return answer(RefusalShown.model_validate(row))


def _may_see(call: Call, row: Row) -> bool:
    actor = call.identity.actor
    mine = (actor.name, actor.user_id, actor.project_id)
    return call.identity.everywhere or mine == (row["actor"], row["user_id"], row["project_id"])
