"""What follows a position of the log, read and written out once for all who are there.

Readers of the live feed are nearly always at the same position, its end.  So what they ask at the
same moment is one query for each position, and its rows become text once.  Nobody asks while
nothing happens: `ledger.core.wakeups` looks at the log for the whole process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from aiohttp import web

from ledger.http.limits.batching import Batched
from ledger.native.log.cloud_events import cloud_event
from ledger.native.log.schemas_events import EventShown
from projections.reads.queries import Queries

#: Events of one answer to a reader.
PAGE_EVENTS = 200
#: Readers whose questions are answered together.
READERS_MAX = 10_000

Row = dict[str, Any]


class FeedQuery(NamedTuple):
    """What follows this position; as CloudEvents, or as /v1 shows events."""

    position: int
    cloud: bool


@dataclass(frozen=True)
class FeedPage:
    """Events as server-sent ones; `last` is the position to go on after."""

    text: bytes
    last: int
    full: bool


class Feed:
    """One for a process."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._pages = Batched(self._of_all, READERS_MAX)
        self._log: UUID | None = None

    async def after(self, position: int, *, cloud: bool = False) -> FeedPage:
        """What follows; an empty page if nothing does.  Raises what reading raises."""
        return await self._pages.ask(FeedQuery(position, cloud))

    async def log(self) -> UUID:
        """Which log it is; there must be an event in it."""
        if self._log is None:
            self._log = (await self._queries.checkpoint())["log"]
        assert self._log is not None, "it has an event"
        return self._log

    async def _of_all(self, questions: Sequence[FeedQuery]) -> Sequence[FeedPage | Exception]:
        wanted = list(dict.fromkeys(question.position for question in questions))
        read = await asyncio.gather(*map(self._rows, wanted), return_exceptions=True)
        rows = dict(zip(wanted, read, strict=True))
        forms = list(dict.fromkeys(questions))
        made = await asyncio.gather(
            *(self._page(form, rows[form.position]) for form in forms), return_exceptions=True
        )
        found = dict(zip(forms, made, strict=True))
        return [_answer(found[question]) for question in questions]

    async def _rows(self, after: int) -> list[Row]:
        return await self._queries.events(after=after, limit=PAGE_EVENTS)

    async def _page(self, asked: FeedQuery, rows: list[Row] | BaseException) -> FeedPage:
        if isinstance(rows, BaseException):
            raise rows
        log = await self.log() if rows and asked.cloud else None
        last = rows[-1]["position"] if rows else asked.position
        text = b"".join(_message(row, log) for row in rows)
        return FeedPage(text, last, len(rows) == PAGE_EVENTS)


def _answer(found: FeedPage | BaseException) -> FeedPage | Exception:
    if isinstance(found, FeedPage | Exception):
        return found
    raise found


def _message(row: Row, log: UUID | None) -> bytes:
    """`log`: as a CloudEvent of that log."""
    event = EventShown.model_validate(row)
    shown = event if log is None else cloud_event(log, event)
    data = orjson.dumps(shown.model_dump(mode="json"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row["position"], row["topic"].encode(), data)


FEED: web.AppKey[Feed] = web.AppKey("feed", Feed)
