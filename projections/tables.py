"""A projection's tables, and in memory those of its rows that were written last.

A kept row is right as long as `tracking` says what we left there (`Mark`): nobody else has
been at the tables then.  So a projection that is followed by one process, or rebuilt, reads
only the rows that have not changed for long, and its writes are one statement per table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, LiteralString, NamedTuple

import orjson
import psycopg
from psycopg import sql as compose
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

import sql
from projections.base import LoggedEvent, Projection, Row, originator

ROWS_KEPT_MAX = 2_000  # of each projection; at times twice as many, 45 MB in all
Rows = dict[str, Row | None]  # by key
_NUL, _REPLACEMENT = b"\\u0000", b"\\ufffd"  # PostgreSQL's text has no NUL


class ProjectionError(Exception):
    """An event could not be folded, or its row not be written."""

    def __init__(self, projection: str, position: int, topic: str | None) -> None:
        what = topic or "the batch that begins there"
        super().__init__(f"projection {projection} fails at position {position} ({what})")
        self.projection = projection
        self.position = position


class Mark(NamedTuple):
    """Where a projection stands, and how often it was made anew."""

    position: int
    rebuilds: int


class Change(NamedTuple):
    """The rows that a batch of events concerns, as they are and as they will be."""

    old: Rows
    new: Rows


class Place(NamedTuple):
    """A table of a projection, and how its rows are found."""

    projection: LiteralString
    table: LiteralString
    key: LiteralString
    key_type: LiteralString


class Replacement(NamedTuple):
    """New rows for a table, in the place of those of some keys."""

    place: Place
    gone: list[str]
    rows: list[Row]


def prepare(connection: psycopg.BaseConnection[Any]) -> None:
    """Make a connection's rows what folds expect: ids as strings, JSON parsed."""
    connection.adapters.register_loader("uuid", TextLoader)
    set_json_loads(orjson.loads, connection)


def array(items: Iterable[str]) -> str:
    """An array in PostgreSQL's text form: psycopg would look at each item for its type."""
    escaped = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


class Tables:
    """One projection, over one connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], projection: Projection) -> None:
        self._connection = connection
        self._projection = projection
        self._mark: Mark | None = None
        self._kept: Rows = {}

    def fold(self, mark: Mark, events: list[LoggedEvent]) -> Change:
        """What the next events do to the rows of a projection that stands at `mark`.

        Raises ProjectionError for the event that cannot be folded.
        """
        if mark != self._mark:
            self._kept.clear()
        projection, kept = self._projection, self._kept
        new_aggregates = projection.key_of is originator
        keys: list[str] = []
        old: Rows = {}
        unknown: set[str] = set()
        event: LoggedEvent | None = None
        try:
            for event in events:
                key = projection.key_of(event)
                keys.append(key)
                if key not in old:
                    old[key] = kept.get(key)
                    if key not in kept and not (new_aggregates and event.originator_version == 1):
                        unknown.add(key)
            old.update(self._stored(unknown))
            new, fold = dict(old), projection.fold
            for key, event in zip(keys, events, strict=True):
                new[key] = fold(new[key], event)
        except psycopg.Error:
            raise
        except Exception as error:
            assert event is not None
            raise ProjectionError(projection.name, event.position, event.topic) from error
        return Change(old, new)

    def _stored(self, keys: set[str]) -> Rows:
        """The rows of these keys, as far as there are any."""
        if not keys:
            return {}
        text = _load(self._place(self._projection.table))
        with self._connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(text, {"keys": array(keys)}).fetchall()
        return {row[self._projection.key]: row for row in rows}

    def replacements(self, change: Change) -> Iterator[Replacement]:
        """What there is to write."""
        gone = [key for key, row in change.old.items() if row is not None]
        rows = [row for row in change.new.values() if row is not None]
        if gone or rows:
            yield Replacement(self._place(self._projection.table), gone, rows)
        for derived in self._projection.derived:
            gone, rows = [], []
            for key, row in change.new.items():
                last = change.old[key]
                before = derived.rows(last) if last is not None else []
                after = derived.rows(row) if row is not None else []
                if before != after:
                    rows += after
                    if before:
                        gone.append(key)
            if gone or rows:
                yield Replacement(self._place(derived.table), gone, rows)

    def keep(self, change: Change, mark: Mark) -> None:
        """The change is written, and the projection at `mark`."""
        self._mark = mark
        for key, row in change.new.items():
            self._kept.pop(key, None)
            self._kept[key] = row  # the last one
        if len(self._kept) > 2 * ROWS_KEPT_MAX:
            oldest = len(self._kept) - ROWS_KEPT_MAX
            self._kept = dict(islice(self._kept.items(), oldest, None))

    def _place(self, table: LiteralString) -> Place:
        return Place(self._projection.table, table, self._projection.key, self._projection.key_type)


def advance(
    connection: psycopg.Connection[Any],
    marks: dict[str, Mark],
    to: int,
    replacements: Sequence[Replacement],
) -> list[str]:
    """Bring projections that are all at one position to another, with their rows.

    Returns those for which this was done: not those that are not at their mark any more, or
    that another process is writing now.
    """
    parameters: dict[str, Any] = {
        "names": array(marks),
        "rebuilds": array(str(mark.rebuilds) for mark in marks.values()),
        "after": next(iter(marks.values())).position,
        "to": to,
    }
    for nth, (_, gone, rows) in enumerate(replacements):
        parameters[f"gone_{nth}"] = array(gone)
        document = orjson.dumps(rows).replace(_NUL, _REPLACEMENT).decode()
        parameters[f"rows_{nth}"] = document
    text = _advance(tuple(replacement.place for replacement in replacements))
    return [name for (name,) in connection.execute(text, parameters)]


@cache
def _advance(places: tuple[Place, ...]) -> bytes:
    """One statement for all the tables, so that it is one round trip and one transaction."""
    one: Any = sql.query("projections", "replace").decode().rstrip(";")
    changes = [
        compose.SQL(one).format(
            nth=compose.SQL(str(nth)),
            name=compose.Literal(place.projection),
            **_identifiers(place),
        )
        for nth, place in enumerate(places)
    ]
    whole: Any = sql.query("projections", "advance").decode()
    return compose.SQL(whole).format(changes=compose.SQL("\n").join(changes)).as_bytes()


@cache
def _load(place: Place) -> bytes:
    text: Any = sql.query("projections", "load").decode()
    return compose.SQL(text).format(**_identifiers(place)).as_bytes()


def _identifiers(place: Place) -> dict[str, compose.Composable]:
    return {
        "table": compose.Identifier(place.table),
        "key": compose.Identifier(place.key),
        "type": compose.SQL(place.key_type),
    }
