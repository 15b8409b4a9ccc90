"""A projection's tables, and in memory those of its rows that were written last.

A kept row is right as long as `tracking` says what we left there (`Mark`): nobody else has
been at the tables then.  So a projection that is followed by one process, or rebuilt, reads
only the rows that have not changed for long.  Where it folds states (projections.base) these
are kept, and one that is not is folded from its stream, up to where the projection stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

ROWS_KEPT_MAX = 2_000  # of each projection; at times twice as many, 45 MB in all
Rows = dict[str, Any]  # by key: a row, or a State; None: there is none


class ProjectionError(Exception):
    """An event could not be folded, or its row not be written."""

    def __init__(self, projection: str, position: int, topic: str | None) -> None:
        self._what = f"position {position} ({topic or 'the batch that begins there'})"
        super().__init__(f"projection {projection} fails at {self._what}")
        self.projection = projection
        self.position = position

    @property
    def why(self) -> str:
        """Where, and by which kind of error; without its text, which may contain data."""
        return f"{self._what}: {type(self.__cause__).__name__}"


class RowBeyondMarkError(Exception):
    """A row (by its key) has events in it that its projection has not come to (by its mark)."""


class Change(NamedTuple):
    """The rows that a batch of events concerns, as they are and as they will be."""

    old: Rows
    new: Rows


def prepare(connection: psycopg.BaseConnection[Any]) -> None:
    """Make a connection's rows what folds expect: ids as strings, JSON parsed."""
    connection.adapters.register_loader("uuid", TextLoader)
    set_json_loads(orjson.loads, connection)


class Tables:
    """One projection, over one connection in autocommit mode."""

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
        """Add what the next events do to the rows of a projection that stands at `mark`.

        Raises ProjectionError for the event that cannot be folded.
        """
        if mark != self._mark:
            self._kept.clear()
        projection, kept = self._projection, self._kept
        new_aggregates = projection.key_of is originator
        old, new = change
        keys: list[str] = []
        first: list[str] = []
        unknown: set[str] = set()
        event: LoggedEvent | None = None
        try:
            for event in events:
                key = projection.key_of(event)
                keys.append(key)
                if key not in old:
                    first.append(key)
                    old[key] = new[key] = kept.get(key)
                    if key not in kept and not (new_aggregates and event.originator_version == 1):
                        unknown.add(key)
            stored = self._stored(unknown, mark.position)
            beyond = self._beyond(stored, mark.position)
            old.update(stored)
            new.update(stored)
            if projection.stateful:
                new.update((key, old[key].fork()) for key in first if old[key] is not None)
            fold = projection.fold
            for key, event in zip(keys, events, strict=True):
                if key in beyond:  # it may have the event in it already
                    raise RowBeyondMarkError(key, mark.position)  # noqa: TRY301 - as a fold does
                new[key] = fold(new[key], event)
        except psycopg.Error:
            raise
        except Exception as error:
            assert event is not None
            raise ProjectionError(projection.name, event.position, event.topic) from error

    def _stored(self, keys: set[str], position: int) -> Rows:
        """The rows (or states) of these keys, as far as there are any."""
        if not keys:
            return {}
        if self._projection.stateful:
            return self._folded(keys, position)
        text = _load(self._place)
        with self._connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(text, {"keys": array(keys)}).fetchall()
        return {row[self._projection.key]: row for row in rows}

    def _beyond(self, stored: Rows, position: int) -> set[str]:
        """The rows that have events after the position; a state is folded up to it."""
        if self._projection.stateful:
            return set()
        return {key for key, row in stored.items() if row and row["position"] > position}

    def _folded(self, keys: set[str], position: int) -> Rows:
        """The states that these streams had at a position."""
        states: Rows = {}
        with self._connection.cursor(binary=True) as cursor:
            parameters = {"keys": array(keys), "position": position}
            rows = cursor.execute(sql.query("projections", "streams"), parameters).fetchall()
        for event in logged(rows):
            if event.topic in self._projection.topics:
                key = event.originator_id
                states[key] = self._projection.fold(states.get(key), event)
        return states

    def _row(self, row: Any) -> Row:
        try:
            shown: Row = row.row() if self._projection.stateful else row
        except Exception as error:
            raise ProjectionError(self._projection.name, row.position, None) from error
        return shown

    def replacements(self, change: Change) -> Iterator[Replacement]:
        """What there is to write.  Raises ProjectionError for a state without a row."""
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
        """The change is written, and the projection at `mark`."""
        self._mark = mark
        for key, row in change.new.items():
            self._kept.pop(key, None)
            self._kept[key] = row  # the last one
        if len(self._kept) > 2 * ROWS_KEPT_MAX:
            oldest = len(self._kept) - ROWS_KEPT_MAX
            self._kept = dict(islice(self._kept.items(), oldest, None))


def _replacement(place: TablePlace, before: Keyed, after: Keyed) -> Iterator[Replacement]:
    """What makes the rows before those after; nothing if they are the same."""
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
