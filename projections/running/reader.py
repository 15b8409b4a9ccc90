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

AHEAD = 8  # reads, while a batch is written
_HEAD = 4  # the column of `events` that has the head of the log in its first row


def logged(rows: Sequence[tuple[Any, ...]]) -> list[LoggedEvent]:
    """The events of rows that end with a body."""
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
    """Events, and where the head of the log was when they were read."""

    head: int
    events: list[LoggedEvent]


class Reader:
    """Reads the events that some projections follow."""

    def __init__(
        self, connection: psycopg.Connection[Any], projections: Sequence[Projection]
    ) -> None:
        self._cursor = connection.cursor(binary=True)
        topics = sorted(frozenset().union(*(each.topics for each in projections)))
        text: Any = sql.query("projections", "events").decode()
        self._query = compose.SQL(text).format(topics=compose.Literal(topics)).as_bytes(connection)

    def read(self, after: int, until: int) -> Batch:
        """What comes after one position up to another, or the head."""
        parameters = {"after": after, "until": until}
        # In order already, which costs nothing to make sure of, but no promise of UNION's.
        head, *rows = sorted(self._cursor.execute(self._query, parameters))
        return Batch(head[_HEAD], logged(rows))


class ReaderAhead(Reader):
    """Reads what comes next while the last events are folded and written, in `thread`."""

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
            if begin + size <= batch.head:  # all of it is there
                ahead = self._thread.submit(super().read, begin, begin + size)
                self._answers[begin, begin + size] = ahead
        return batch


@contextmanager
def reading_ahead(
    connection: psycopg.Connection[Any], projections: Sequence[Projection]
) -> Iterator[Reader]:
    """For a long way to go: with a connection of its own, beside the projector's."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        connection.execute(sql.query("projections", "session"))
        yield ReaderAhead(connection, projections, thread)
