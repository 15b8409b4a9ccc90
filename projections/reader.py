"""Reads the log for projectors, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import psycopg

import sql
from projections.base import LoggedEvent, Projection, upcast
from projections.tables import array

_HEAD = 4  # the column of `events` that has the head of the log in its first row


class Batch(NamedTuple):
    """Events, and where the head of the log was when they were read."""

    head: int
    events: list[LoggedEvent]


class Reader:
    """Reads the events that some projections follow."""

    def __init__(
        self, connection: psycopg.Connection[Any], projections: Sequence[Projection]
    ) -> None:
        self._connection = connection
        self._topics = array(sorted(frozenset().union(*(each.topics for each in projections))))

    def read(self, after: int, until: int) -> Batch:
        """What comes after one position up to another, or the head."""
        with self._connection.cursor(binary=True) as cursor:
            parameters = {"after": after, "until": until, "topics": self._topics}
            # In order already, which costs nothing to make sure of, but no promise of UNION's.
            head, *rows = sorted(cursor.execute(sql.query("projections", "events"), parameters))
        return Batch(head[_HEAD], [_decoded(row) for row in rows])


class ReaderAhead(Reader):
    """Reads what comes next while the last batch is folded and written, in `thread`."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        projections: Sequence[Projection],
        thread: ThreadPoolExecutor,
    ) -> None:
        super().__init__(connection, projections)
        self._thread = thread
        self._asked: tuple[int, int] | None = None
        self._answer: Future[Batch]

    def read(self, after: int, until: int) -> Batch:
        if self._asked != (after, until):
            self._answer = self._thread.submit(super().read, after, until)
        batch = self._answer.result()
        self._asked = until, until + (until - after)
        if batch.head >= self._asked[1]:  # all of it is there
            self._answer = self._thread.submit(super().read, *self._asked)
        else:
            self._asked = None
        return batch


@contextmanager
def reading_ahead(
    connection: psycopg.Connection[Any], projections: Sequence[Projection]
) -> Iterator[Reader]:
    """For a long way to go: with a connection of its own, beside the projector's."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        connection.execute(sql.query("projections", "session"))
        yield ReaderAhead(connection, projections, thread)


def _decoded(row: tuple[Any, ...]) -> LoggedEvent:
    return LoggedEvent._make((*row[:-1], upcast(row[2], orjson.loads(row[-1]))))
