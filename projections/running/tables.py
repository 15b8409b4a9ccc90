"""A projection's tables, and a cache of the rows that this process wrote last.

A cached row is valid while `tracking` has the mark that this process wrote, because then no other
process has written the tables.  So a projector that works alone reads only rows that have not
changed for long.  A stateful projection (projections.base) caches states; a missing one is folded
from its stream, up to the projection's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import orjson
import psycopg
from psycopg import sql as compose
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

import sql
from projections.base import LoggedEvent, Projection, Row, originator
from projections.running.reader import logged
from projections.running.writes import Keyed, Mark, Replacement, TablePlace, array, columns

ROWS_KEPT_MAX = 2_000  # of each projection; twice as many for a while, 45 MB in all
Rows = dict[str, Any]  # by key: a row, or a state; None: there is none


class ProjectionError(Exception):
    """An event could not be folded, or its row could not be written.

    `by`: the earlier event of its stream that is the fault.
    """

    def __init__(
        self, projection: str, position: int, topic: str | None, by: LoggedEvent | None = None
    ) -> None:
        self._what = f"position {position} ({topic or 'the batch that begins there'})"
        if by is not None:
            self._what += f", by position {by.position} ({by.topic})"
        super().__init__(f"projection {projection} fails at {self._what}")
        self.projection = projection
        self.position = position

    @property
    def why(self) -> str:
        """The position and the type of the error, without its text, which may contain data."""
        return f"{self._what}: {type(self.__cause__).__name__}"


class RowBeyondMarkError(Exception):
    """A row (by its key) has events beyond the mark of its projection."""


class Change(NamedTuple):
    """The rows of a batch, before and after it."""

    old: Rows
    new: Rows


def prepare(connection: psycopg.BaseConnection[Any]) -> None:
    """Have a connection return what folds expect: ids as strings, JSON parsed."""
    connection.adapters.register_loader("uuid", TextLoader)
    set_json_loads(orjson.loads, connection)


class Tables:
    """The tables of one projection, over one connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], projection: Projection) -> None:
        self._connection = connection
        self._projection = projection
        self._mark: Mark | None = None
        self._kept: Rows = {}
        name, key, type_ = projection.table, projection.key, projection.key_type
        self._place, *self._derived = (
            TablePlace(name, table, key, type_, columns(connection, table))
            for table in (name, *(derived.table for derived in projection.derived))
        )

    def fold(self, mark: Mark, events: Sequence[LoggedEvent], change: Change) -> None:
        """Fold the next events into `change`, for a projection at `mark`.

        Raises ProjectionError for an event that cannot be folded.
        """
        if mark != self._mark:
            self._kept.clear()
        projection, kept = self._projection, self._kept
        new_aggregates = projection.key_of is originator
        old, new = change
        keys: list[str] = []
        first: list[str] = []
        unknown: dict[str, LoggedEvent] = {}  # the first of each, which needs what is stored
        event: LoggedEvent | None = None
        try:
            for event in events:
                key = projection.key_of(event)
                keys.append(key)
                if key not in old:
                    first.append(key)
                    old[key] = new[key] = kept.get(key)
                    if key not in kept and not (new_aggregates and event.originator_version == 1):
                        unknown[key] = event
            stored = self._stored(unknown, mark.position)
            beyond = self._beyond(stored, mark.position)
            old.update(stored)
            new.update(stored)
            if projection.stateful:
                new.update((key, old[key].fork()) for key in first if old[key] is not None)
            fold = projection.fold
            for key, event in zip(keys, events, strict=True):
                if key in beyond:  # it may already contain the event
                    raise RowBeyondMarkError(key, mark.position)  # noqa: TRY301 - as a fold does
                new[key] = fold(new[key], event)
        except (psycopg.Error, ProjectionError):
            raise
        except Exception as error:
            assert event is not None
            raise ProjectionError(projection.name, event.position, event.topic) from error

    def _stored(self, keys: Mapping[str, LoggedEvent], position: int) -> Rows:
        """The rows (or states) of these keys that exist; each with the event that needs it."""
        if not keys:
            return {}
        if self._projection.stateful:
            return self._folded(keys, position)
        text = _load(self._place)
        with self._connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(text, {"keys": array(keys)}).fetchall()
        return {row[self._projection.key]: row for row in rows}

    def _beyond(self, stored: Rows, position: int) -> set[str]:
        """The rows with events after the position; a state never has any, as it is folded to it."""
        if self._projection.stateful:
            return set()
        return {key for key, row in stored.items() if row and row["position"] > position}

    def _folded(self, keys: Mapping[str, LoggedEvent], position: int) -> Rows:
        """The states of these streams at a position.

        Raises ProjectionError at the event that needs one, as readers were told all before it.
        """
        states: Rows = {}
        with self._connection.cursor(binary=True) as cursor:
            parameters = {"keys": array(keys), "position": position}
            rows = cursor.execute(sql.query("projections", "streams"), parameters).fetchall()
        for event in logged(rows):
            if event.topic in self._projection.topics:
                key = event.originator_id
                try:
                    states[key] = self._projection.fold(states.get(key), event)
                except Exception as error:
                    name, needs = self._projection.name, keys[key]
                    raise ProjectionError(name, needs.position, needs.topic, event) from error
        return states

    def _row(self, row: Any) -> Row:
        try:
            shown: Row = row.row() if self._projection.stateful else row
        except Exception as error:
            raise ProjectionError(self._projection.name, row.position, None) from error
        return shown

    def replacements(self, change: Change) -> Iterator[Replacement]:
        """What to write.  Raises ProjectionError for a state that cannot be shown as a row."""
        old, new = ({key: row for key, row in each.items() if row is not None} for each in change)
        there = {(key,): {self._projection.key: key} for key in old}
        yield from _replacement(
            self._place, there, {(key,): self._row(row) for key, row in new.items()}
        )
        for derived, place in zip(self._projection.derived, self._derived, strict=True):
            before, after = (
                place.keyed(row for one in each.values() for row in derived.rows(one))
                for each in (old, new)
            )
            yield from _replacement(place, before, after)

    def keep(self, change: Change, mark: Mark) -> None:
        """Cache a change that was written; the projection is now at `mark`."""
        self._mark = mark
        for key, row in change.new.items():
            self._kept.pop(key, None)
            self._kept[key] = row  # at the end, as the newest
        if len(self._kept) > 2 * ROWS_KEPT_MAX:
            oldest = len(self._kept) - ROWS_KEPT_MAX
            self._kept = dict(islice(self._kept.items(), oldest, None))


def _replacement(place: TablePlace, before: Keyed, after: Keyed) -> Iterator[Replacement]:
    """The difference between the rows before and after; nothing if they are equal."""
    gone = [row for key, row in before.items() if key not in after]
    new = {key: row for key, row in after.items() if before.get(key) != row}
    if gone or new:
        yield Replacement(place, gone, [*new.values()], known=not before.keys().isdisjoint(new))


@cache
def _load(place: TablePlace) -> bytes:
    text: Any = sql.query("projections", "load").decode()
    return (
        compose.SQL(text)
        .format(
            table=compose.Identifier(place.table),
            key=compose.Identifier(place.key),
            type=compose.SQL(place.key_type),
        )
        .as_bytes()
    )
