"""What follows a position of the log, read and written out once for all who are there.

Readers of the live feed are nearly always at the same position, its end.  So what they ask at the
same moment is one query for each position, and its rows become text once.  Nobody asks while
nothing happens: `ledger.wakeups` looks at the log for the whole process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from ledger.api.batching import Batched
from ledger.api.schemas_events import Event
from projections.queries import Queries

#: Events of one answer to a reader.
PAGE_EVENTS = 200
#: Readers whose questions are answered together.
READERS_MAX = 10_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """Events as server-sent ones; `last` is the position to go on after."""

    text: bytes
    last: int
    full: bool


class Feed:
    """One for a process."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._pages = Batched(self._of_all, READERS_MAX)

    async def after(self, position: int) -> Page:
        """What follows; an empty page if nothing does.  Raises what reading raises."""
        return await self._pages.ask(position)

    async def _of_all(self, positions: Sequence[int]) -> Sequence[Page | Exception]:
        wanted = list(dict.fromkeys(positions))
        read = await asyncio.gather(*map(self._page, wanted), return_exceptions=True)
        found = dict(zip(wanted, read, strict=True))
        return [_answer(found[position]) for position in positions]

    async def _page(self, after: int) -> Page:
        rows = await self._queries.events(after=after, limit=PAGE_EVENTS)
        last = rows[-1]["position"] if rows else after
        return Page(b"".join(map(_message, rows)), last, len(rows) == PAGE_EVENTS)


def _answer(found: Page | BaseException) -> Page | Exception:
    if isinstance(found, Page | Exception):
        return found
    raise found


def _message(row: Row) -> bytes:
    data = orjson.dumps(Event.model_validate(row).model_dump(mode="json"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row["position"], row["topic"].encode(), data)


FEED: web.AppKey[Feed] = web.AppKey("feed", Feed)
