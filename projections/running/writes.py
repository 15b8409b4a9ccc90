"""Writes rows of several tables, and the projections' positions, in one statement.

Each column is sent as one array, which PostgreSQL reads in half the time of rows in JSON.  An array
is encoded as JSON, with other brackets and escapes (`_values`): psycopg's encoder takes 2 to 100
times as long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any, LiteralString, NamedTuple

import orjson
import psycopg
from psycopg import sql as compose

import sql
from projections.base import Row

_ESCAPED = re.compile(r"\\(?:u(.{4})|(.))")
_PLAIN = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUL, _REPLACEMENT = "\\\\u0000", "\\\\ufffd"  # PostgreSQL's text has no NUL


class Mark(NamedTuple):
    """A projection's position, and how often it was rebuilt."""

    position: int
    rebuilds: int


Keyed = dict[tuple[Any, ...], Row]  # rows by their primary keys
Marks = dict[str, Mark]  # by the projection's name; all of one group are at one position


def position_of(marks: Marks) -> int:
    """The position of a group.  Raises ValueError if its marks differ."""
    [position] = {mark.position for mark in marks.values()}
    return position


class Column(NamedTuple):
    """A column: its type, the type of the array's items (`given`), and the encoder of the array.

    `key`: it is part of the primary key.
    """

    name: str
    type: LiteralString
    given: LiteralString
    array: Callable[[Sequence[Any]], str]
    key: bool = False


class TablePlace(NamedTuple):
    """A table of a projection, its key column, and its columns."""

    projection: LiteralString
    table: LiteralString
    key: LiteralString
    key_type: LiteralString
    columns: tuple[Column, ...]

    def keyed(self, rows: Iterable[Row]) -> Keyed:
        """Rows by their primary keys."""
        names = [each.name for each in self.columns if each.key]
        return {tuple(row[name] for name in names): row for row in rows}


class Replacement(NamedTuple):
    """Changes of a table: rows to delete (their primary keys are enough), and rows to write.

    `known`: some of the rows to write exist.
    """

    place: TablePlace
    gone: list[Row]
    rows: list[Row]
    known: bool = True


def columns(connection: psycopg.Connection[Any], table: LiteralString) -> tuple[Column, ...]:
    """The columns of a table, from the catalog."""
    rows = connection.execute(sql.query("projections", "columns"), {"table": table})
    return tuple(column(*each) for each in rows)


def column(name: str, type_: LiteralString, key: bool = False) -> Column:
    if type_ == "jsonb":
        return Column(name, type_, type_, _documents, key)
    if type_.endswith("[]"):  # PostgreSQL has matrices, but no arrays of arrays
        return Column(name, type_, "text", _arrays, key)
    return Column(name, type_, type_, _values, key)


def array(items: Iterable[str]) -> str:
    """An array in PostgreSQL's text form."""
    escaped = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def advance(
    cursor: psycopg.RawCursor[Any],
    marks: Marks,
    to: int,
    replacements: Sequence[Replacement],
    news: str,
) -> list[str]:
    """Write a group's rows and new position, and NOTIFY `news`.

    Returns the projections that were advanced, without those that are not at their mark any more or
    that another process is writing now.  Parameters are numbered, because psycopg would search this
    long text for names at each call.
    """
    parameters: list[Any] = [
        array(marks),
        array(str(mark.rebuilds) for mark in marks.values()),
        position_of(marks),
        to,
        news,
    ]
    parts = []
    for replacement in replacements:
        for part in _parts(replacement):
            parts.append(part[:2])
            parameters += part.arrays()
    text = _advance(tuple(parts))
    return [name for (name,) in cursor.execute(text, parameters)]


class _Part(NamedTuple):
    """A part of the statement: the query for some rows of a table."""

    place: TablePlace
    query: LiteralString
    rows: Sequence[Row]

    def arrays(self) -> Iterator[str]:
        """Its parameters: the values of each column."""
        for each in given(self.place, self.query):
            yield each.array([row.get(each.name) for row in self.rows])


def _parts(replacement: Replacement) -> Iterator[_Part]:
    place, gone, rows, known = replacement
    if gone:
        yield _Part(place, "remove", gone)
    if rows:
        yield _Part(place, "replace" if known else "add", rows)


def given(place: TablePlace, query: LiteralString) -> tuple[Column, ...]:
    """The columns that are parameters of a part; for `remove` the primary key's."""
    if query != "remove":
        return place.columns
    return tuple(each for each in place.columns if each.key)


@cache
def _advance(parts: tuple[tuple[TablePlace, LiteralString], ...]) -> bytes:
    """One statement for all tables: one round trip and one transaction."""
    numbers = count(6)
    changes = [_part(nth, place, query, numbers) for nth, (place, query) in enumerate(parts)]
    whole: Any = sql.query("projections", "advance").decode()
    return compose.SQL(whole).format(changes=compose.SQL("\n").join(changes)).as_bytes()


def _part(
    nth: int, place: TablePlace, query: LiteralString, numbers: Iterator[int]
) -> compose.Composed:
    """The text of one part."""
    one: Any = sql.query("projections", query).decode().rstrip(";")
    comma, keys = compose.SQL(", "), [each for each in place.columns if each.key]
    marked = any(each.name == "position" for each in place.columns)
    return compose.SQL(one).format(
        nth=compose.SQL(str(nth)),
        name=compose.Literal(place.projection),
        table=compose.Identifier(place.table),
        within=compose.SQL("t.position <= $3" if marked else "true"),
        keys=comma.join(compose.Identifier(each.name) for each in keys),
        same=compose.SQL(" AND ").join(_format("t.{0} = r.{0}", each) for each in keys),
        columns=comma.join(compose.Identifier(each.name) for each in place.columns),
        changes=comma.join(_changed(each) for each in place.columns if not each.key),
        values=comma.join(
            _format(f"unnest(${next(numbers)}::{each.given}[])::{each.type} AS {{0}}", each)
            for each in given(place, query)
        ),
    )


def _changed(each: Column) -> compose.Composed:
    """The assignment of a column; an unchanged long value keeps its TOAST storage."""
    if each.name == "position":
        return _format("{0} = CASE WHEN t.{0} <= $3 THEN EXCLUDED.{0} END", each)
    if each.type in ("jsonb", "text"):
        return _format(
            "{0} = CASE WHEN t.{0} = EXCLUDED.{0} THEN t.{0} ELSE EXCLUDED.{0} END", each
        )
    return _format("{0} = EXCLUDED.{0}", each)


def _format(text: LiteralString, each: Column) -> compose.Composed:
    return compose.SQL(text).format(compose.Identifier(each.name))


def _values(values: Sequence[Any]) -> str:
    text = orjson.dumps(values)[1:-1].decode()
    return "{" + (_ESCAPED.sub(_plain, text) if "\\" in text else text) + "}"


def _arrays(values: Sequence[list[str] | None]) -> str:
    return _values([None if value is None else array(value) for value in values])


def _documents(values: Sequence[Any]) -> str:
    texts = [None if value is None else orjson.dumps(value).decode() for value in values]
    # JSON in JSON: what is escaped there is a quote or a backslash.
    return "{" + orjson.dumps(texts)[1:-1].decode().replace(_NUL, _REPLACEMENT) + "}"


def _plain(match: re.Match[str]) -> str:
    """The character of a JSON escape; PostgreSQL's array syntax has no such escapes."""
    code, letter = match.groups()
    if code:
        return chr(int(code, 16)) if int(code, 16) else "\ufffd"
    return _PLAIN.get(letter, match[0])
