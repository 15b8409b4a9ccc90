"""Reads the log for projectors, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import psycopg
from psycopg import sql as compose

import sql
from projections.base import LoggedEvent, Projection, upcast

AHEAD = 8  # reads in advance
_HEAD = 4  # the column in which the first row of the query `events` has the head of the log


def logged(rows: Sequence[tuple[Any, ...]]) -> list[LoggedEvent]:
    """The events of these rows, whose last column is the body."""
    bodies = orjson.loads(b"[%b]" % b",".join([row[-1] for row in rows]))
    return [
        LoggedEvent(
            position,
            at,
            topic,
            id_,
            version,
            host,
            operation,
            upcast(topic, body),
            body.pop("seen", None),
        )
        for (position, at, topic, id_, version, host, operation, _), body in zip(
            rows, bodies, strict=True
        )
    ]


class Batch(NamedTuple):
    """Events, and the head of the log when they were read."""

    head: int
    events: list[LoggedEvent]


class Reader:
    """Reads the events of the topics that some projections follow."""

    def __init__(
        self, connection: psycopg.Connection[Any], projections: Sequence[Projection]
    ) -> None:
        self._cursor = connection.cursor(binary=True)
        topics = sorted(frozenset().union(*(each.topics for each in projections)))
        text: Any = sql.query("projections", "events").decode()
        self._query = compose.SQL(text).format(topics=compose.Literal(topics)).as_bytes(connection)

    def read(self, after: int, until: int) -> Batch:
        """The events after one position, up to another or the head."""
        parameters = {"after": after, "until": until}
        # The rows come in order, but UNION does not guarantee it; sorting sorted rows is cheap.
        head, *rows = sorted(self._cursor.execute(self._query, parameters))
        return Batch(head[_HEAD], logged(rows))


class ReaderAhead(Reader):
    """Reads the next events in `thread`, while the last ones are folded and written."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        projections: Sequence[Projection],
        thread: ThreadPoolExecutor,
    ) -> None:
        super().__init__(connection, projections)
        self._thread = thread
        self._answers: dict[tuple[int, int], Future[Batch]] = {}  # in the order of positions

    def read(self, after: int, until: int) -> Batch:
        answer = self._answers.pop((after, until), None)
        if answer is None:
            self._answers.clear()
            answer = self._thread.submit(super().read, after, until)
        batch, size = answer.result(), until - after
        for nth in range(len(self._answers), AHEAD):
            begin = until + nth * size
            if begin + size <= batch.head:  # else part of it is not there yet
                ahead = self._thread.submit(super().read, begin, begin + size)
                self._answers[begin, begin + size] = ahead
        return batch


@contextmanager
def reading_ahead(
    connection: psycopg.Connection[Any], projections: Sequence[Projection]
) -> Iterator[Reader]:
    """A ReaderAhead for a rebuild; `connection` must not be the projector's."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        connection.execute(sql.query("projections", "session"))
        yield ReaderAhead(connection, projections, thread)
