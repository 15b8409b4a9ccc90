"""Reads of the log: histories, the feed, and the position of a moment.

The history of a volume has more than the events that name it.  An operation on a whole server, such
as a live migration, records its start, parking, undo and end once for all volumes.  So the history
includes the events of the volume's operations that name no volume, or that concern the whole
operation (`OF_THE_WHOLE`).

An answer as of a moment depends only on the log up to there, and no event can be recorded at that
moment any more (`settled_at`).  So it never changes (decision 0050).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import orjson
from psycopg import AsyncConnection, DatabaseError
from psycopg import sql as compose
from psycopg.errors import QueryCanceled, ReadOnlySqlTransaction
from psycopg.rows import dict_row
from psycopg_pool import PoolTimeout

import sql
from aggregates.operation import Operation
from projections.base import LoggedEvent, Row, upcast
from projections.database_connections import READ_ATTEMPTS
from projections.reads import persons
from projections.reads.database_trouble import is_away
from projections.running.detached import DetachedError

#: Events that are searched for a topic in one call; there is no index of topics.
SEARCHED_MAX = 50_000
PAGE_MAX = 1_001  # the API's largest page, and one row to see whether there is another page
POSITION_MAX = 2**63 - 1

#: Events of an operation that concern all its volumes, whichever they are stored with.
OF_THE_WHOLE = [
    kind.TOPIC
    for kind in (
        Operation.OperationStarted,
        Operation.Parked,
        Operation.RetryRequested,
        Operation.UnwindRequested,
        Operation.OperationFinished,
    )
]

_NO_PARTS: Mapping[str, compose.Composable] = {}

Subject = Literal[
    "volume_id", "server_id", "attachment_id", "host", "operation_id", "originator_id"
]


class Pool(Protocol):
    """Lends connections (ledger.http.limits.reading)."""

    async def getconn(self) -> Any: ...

    async def putconn(self, connection: Any, /) -> None: ...

    async def drain(self) -> None: ...


class MomentToComeError(Exception):
    """By the database's clock the moment is in the future, so the answer could change."""


class NotReplayedError(Exception):
    """The standby has replayed nothing later than that moment, so the answer could change."""


class LogReads:
    """Reads of the log, and the way in which all queries are sent."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def events(
        self,
        about: tuple[Subject, str] | None = None,
        *,
        after: int = 0,
        before: int | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        limit: int = PAGE_MAX,
        newest_first: bool = False,
    ) -> list[Row]:
        """Events about one object, or all, strictly between two positions.

        `at`: only what was recorded up to that moment.  `known_at`, not before `at` and only with
        `about`: also what was recorded between the two moments, if it was observed and was, or may
        have been, true at `at`.  Bodies are in the newest form; `asked_by` is who requested the
        operation, `occurred_at` when it happened.  Raises MomentToComeError; and DetachedError if
        events of the whole log are missing (for one object see `detached_to`).
        """
        until = POSITION_MAX if at is None else await self.settled_at(at)
        before = POSITION_MAX if before is None else before
        name, parts = _query(about and about[0], newest_first=newest_first)
        rows = await self._all(
            name,
            parts,
            id=about[1] if about else None,
            after=after,
            before=min(before, until + 1),
            until=until,
            of_the_whole=OF_THE_WHOLE,
            limit=limit,
        )
        if about is not None and known_at is not None:
            known = await self.settled_at(known_at)
            learnt = await self._all(
                "learnt",
                _of(about[0], newest_first=newest_first),
                id=about[1],
                after=max(after, until),
                before=min(before, known + 1),
                at=at,
                limit=limit,
            )
            rows = ([*learnt, *rows] if newest_first else [*rows, *learnt])[:limit]
        if about is None:
            await self._refuse_holes([row["position"] for row in rows], after, newest_first)
        return await self._told(rows)

    async def events_of_topic(
        self,
        topic: str,
        *,
        after: int = 0,
        before: int | None = None,
        at: datetime | None = None,
        limit: int = PAGE_MAX,
        newest_first: bool = False,
    ) -> tuple[list[Row], int | None]:
        """The events of one topic among the next SEARCHED_MAX between two positions, as `events`;
        and the position to continue from, None at the end.

        Detached events are missing: see `detached_to`.
        """
        end = (await self.head())["position"] if at is None else await self.settled_at(at)
        last = end + 1 if before is None else min(before, end + 1)
        if newest_first:
            first, whole = max(after, last - 1 - SEARCHED_MAX), last
            cursor = first + 1 if first > after else None
        else:
            first, whole = after, min(last, after + 1 + SEARCHED_MAX)
            cursor = whole - 1 if whole < last else None
        way = compose.SQL("DESC" if newest_first else "ASC")
        only = compose.SQL("AND topic = %(topic)s")
        parts = {"way": way, "only": only}
        rows = await self._all("feed", parts, topic=topic, after=first, before=whole, limit=limit)
        if len(rows) == limit:
            cursor = rows[-1]["position"]
        return await self._told(rows), cursor

    async def _told(self, rows: list[Row]) -> list[Row]:
        """The rows with bodies in the newest form, `asked_by` and `occurred_at`."""
        asked = await self._asked({row["operation_id"] for row in rows} - {None})
        for row in rows:
            row["body"] = upcast(row["topic"], orjson.loads(row["body"]))
            row["asked_by"] = asked.get(row["operation_id"])
            row["occurred_at"] = occurred_at(row["body"])
        return await self.with_persons(rows)

    async def with_persons(self, rows: list[Row]) -> list[Row]:
        """The rows with persons in the place of their hashes."""
        known_as = persons.hashes(rows)
        if known_as:
            found = await self._all("who", group="persons", known_as=known_as)
            persons.tell(rows, {row["known_as"]: row for row in found})
        return rows

    async def _asked(self, operation_ids: set[str]) -> dict[str, Row]:
        """Who requested these operations, by the first event of each."""
        if not operation_ids:
            return {}
        rows = await self._all("asked", ids=list(operation_ids))
        return {row.pop("operation_id"): row for row in rows}

    async def _refuse_holes(self, positions: list[int], after: int, newest_first: bool) -> None:
        if newest_first:
            positions, after = positions[::-1], min(positions, default=1) - 1
        for expected, position in enumerate(positions, after + 1):
            if position != expected:
                months = await self._all("detached", after=expected - 1)
                raise DetachedError(months[-1]["last_position"], [row["file"] for row in months])

    async def detached_to(self) -> int:
        """Events up to this position may be only in archive files; 0 if none are."""
        months = await self._all("detached", after=0)
        return months[-1]["last_position"] if months else 0

    async def checkpoint(self) -> Row:
        """The end of the log: `log`, `position`, `chain` (bytes), `recorded_at`."""
        [row] = await self._all("checkpoint")
        return row

    async def first_link(self, position: int) -> Row | None:
        """`position` and `chain` of the first link at or after the position, if there is one."""
        return await self._one("first_link", position=position)

    async def chained(self, after: int, upto: int) -> list[Row]:
        """Events as the hash chain has them: `event_bytes`, `chain` (ledger.log.chain)."""
        return await self._all("chained", group="log", after=after, upto=upto)

    async def position_at(self, at: datetime) -> int:
        """The last position recorded at or before a moment."""
        [row] = await self._all("position_at", at=at)
        return int(row["position"])

    async def settled_at(self, at: datetime) -> int:
        """As `position_at`, once nothing can be recorded at or before that moment any more.

        Waits for an append in progress, if necessary.  Raises MomentToComeError, and on a standby
        NotReplayedError.
        """
        if (await self.head())["recorded_at"] <= at and not await self._is_over(at):
            raise MomentToComeError
        return await self.position_at(at)

    async def _is_over(self, at: datetime) -> bool:
        try:
            [row] = await self._all("is_over", at=at)
        except ReadOnlySqlTransaction:  # a database without appends, or a standby
            [row] = await self._all("follows")
            if row["follows"]:
                raise NotReplayedError from None
            return True
        return bool(row["is_over"])

    async def streams(self, ids: Sequence[str], position: int) -> list[LoggedEvent]:
        """The events of these streams up to a position, in order."""
        rows = await self._all("streams", group="projections", keys=list(ids), position=position)
        bodies = [upcast(row["topic"], orjson.loads(row["body"])) for row in rows]
        return [
            LoggedEvent(**{**row, "body": body, "seen": body.pop("seen", None)})
            for row, body in zip(rows, bodies, strict=True)
        ]

    async def head(self) -> Row:
        """`position` (0: none yet) and `recorded_at` of the last event."""
        [row] = await self._all("head")
        return row

    # ------------------------------------------------------------------------------------

    async def _one(
        self, name: str, *, group: str = "reads", named: bool = False, **parameters: Any
    ) -> Row | None:
        """The first row; `named`: through `with_persons`."""
        rows = await self._all(name, group=group, **parameters)
        return next(iter(await self.with_persons(rows) if named else rows), None)

    async def _all(
        self,
        query: str,
        parts: Mapping[str, compose.Composable] = _NO_PARTS,
        /,
        group: str = "reads",
        *,
        timeout_ms: int | None = None,
        **parameters: Any,
    ) -> list[Row]:
        """The rows of a query of `group`; `parts` are formatted into its text.

        Raises QueryCanceled after `timeout_ms`.
        """
        if "limit" in parameters:
            parameters["limit"] = max(0, min(parameters["limit"], PAGE_MAX))
        text: Any = sql.query(group, query)
        if parts:
            text = compose.SQL(text.decode()).format(**parts)
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return await self._fetch(text, parameters, timeout_ms)
            except (PoolTimeout, QueryCanceled):
                raise
            except DatabaseError as error:  # a restart of the database breaks every connection
                if not is_away(error):
                    raise
                await self._pool.drain()  # the others may be dead, too, and not know it
        return await self._fetch(text, parameters, timeout_ms)

    async def _fetch(
        self, text: Any, parameters: dict[str, Any], timeout_ms: int | None
    ) -> list[Row]:
        # No context managers: in autocommit only the loan must end.  And no `description`, which
        # makes objects of the columns and costs two fifths of a read.
        connection = await self._lent()
        try:
            cursor = connection.cursor(row_factory=dict_row)
            if timeout_ms is not None:
                async with connection.transaction():
                    await cursor.execute(sql.query("reads", "timeout"), {"ms": str(timeout_ms)})
                    await cursor.execute(text, parameters)
                    return await cursor.fetchall()
            await cursor.execute(text, parameters or None)
            return [] if cursor.rownumber is None else await cursor.fetchall()
        finally:
            await self._pool.putconn(connection)

    async def _lent(self) -> AsyncConnection[Any]:
        """A connection of the pool, to be put back.

        The pool uses asyncio.wait_for, which before Python 3.12 loses a cancellation that comes at
        the same moment as the connection (gh-86296).  Then whoever cancelled the task would wait
        for ever.
        """
        task = asyncio.current_task()
        assert task is not None, "in a task"
        cancelled = task.cancelling()
        connection: AsyncConnection[Any] = await self._pool.getconn()
        if task.cancelling() > cancelled:
            await self._pool.putconn(connection)
            raise asyncio.CancelledError
        return connection


def _query(
    subject: Subject | None, *, newest_first: bool
) -> tuple[str, Mapping[str, compose.Composable]]:
    """The query for the events of a subject (None: all), and the parts of its text."""
    way = compose.SQL("DESC" if newest_first else "ASC")
    if subject == "volume_id":
        return "volume_history_backwards" if newest_first else "volume_history", {"way": way}
    if subject is None:
        return "feed", {"way": way, "only": compose.SQL("")}
    return "history", _of(subject, newest_first=newest_first)


def _of(subject: Subject, *, newest_first: bool) -> Mapping[str, compose.Composable]:
    way = compose.SQL("DESC" if newest_first else "ASC")
    return {"way": way, "column": compose.Identifier(subject)}


def occurred_at(body: Row) -> datetime | None:
    """When it happened on its host, by the ledger's clock: the host's time minus its offset
    (decision 0044).  None: not reported.
    """
    occurred = body.get("occurred")
    if occurred is None:
        return None
    return datetime.fromtimestamp(occurred["at"] - occurred["offset_s"], UTC)
