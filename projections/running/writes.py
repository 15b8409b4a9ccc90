"""Writes rows of any number of tables, and how far projections are, in one statement.

Rows go by columns, as an array for each: PostgreSQL takes half the time for it that it takes
for rows in JSON, and an array is made as JSON, but for its braces and escapes (`_values`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, repeat
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
    """Where a projection stands, and how often it was made anew."""

    position: int
    rebuilds: int


Marks = dict[str, Mark]  # by the projection's name; all of one group are at one position


def position_of(marks: Marks) -> int:
    """Where a group stands.  Raises ValueError if that is not one position."""
    [position] = {mark.position for mark in marks.values()}
    return position


class Column(NamedTuple):
    """A column of a table, and how its values are sent: `array` makes one text of many."""

    name: str
    type: LiteralString
    given: LiteralString
    array: Callable[[Sequence[Any]], str]


class TablePlace(NamedTuple):
    """A table of a projection, how its rows are found, and what they have."""

    projection: LiteralString
    table: LiteralString
    key: LiteralString
    key_type: LiteralString
    columns: tuple[Column, ...]


class Replacement(NamedTuple):
    """New rows for a table, in the place of those of some keys."""

    place: TablePlace
    gone: list[str]
    rows: list[Row]


def columns(connection: psycopg.Connection[Any], table: LiteralString) -> tuple[Column, ...]:
    """The columns that a table has now."""
    rows = connection.execute(sql.query("projections", "columns"), {"table": table})
    return tuple(column(name, type_) for name, type_ in rows)


def column(name: str, type_: LiteralString) -> Column:
    if type_ == "jsonb":
        return Column(name, type_, type_, _documents)
    if type_.endswith("[]"):  # PostgreSQL has matrices, but no arrays of arrays
        return Column(name, type_, "text", _arrays)
    return Column(name, type_, type_, _values)


def array(items: Iterable[str]) -> str:
    """An array in PostgreSQL's text form: psycopg would look at each item for its type."""
    escaped = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def advance(
    cursor: psycopg.RawCursor[Any],
    marks: Marks,
    to: int,
    replacements: Sequence[Replacement],
    news: str,
) -> list[str]:
    """Bring a group of projections from where they were folded from to a later position, with
    their rows, and tell the news of it.

    Returns those for which this was done: not those that are not at their mark any more, or
    that another process is writing now.  Parameters are numbered, as psycopg would look for
    names in a text as long as this one every time.
    """
    parameters: list[Any] = [
        array(marks),
        array(str(mark.rebuilds) for mark in marks.values()),
        position_of(marks),
        to,
        news,
    ]
    for place, gone, rows in replacements:
        parameters.append(array(gone))
        names = [each.name for each in place.columns]
        values = zip(*(map(row.get, names) for row in rows), strict=True)
        parameters += [
            each.array(these)
            for each, these in zip(place.columns, values if rows else repeat(()), strict=False)
        ]
    text = _advance(tuple(replacement.place for replacement in replacements))
    return [name for (name,) in cursor.execute(text, parameters)]


@cache
def _advance(places: tuple[TablePlace, ...]) -> bytes:
    """One statement for all the tables, so that it is one round trip and one transaction."""
    numbers = count(6)
    changes = [_replace(nth, place, numbers) for nth, place in enumerate(places)]
    whole: Any = sql.query("projections", "advance").decode()
    return compose.SQL(whole).format(changes=compose.SQL("\n").join(changes)).as_bytes()


def _replace(nth: int, place: TablePlace, numbers: Iterator[int]) -> compose.Composed:
    """The part of one table; parameters are its keys, then each column's values."""
    one: Any = sql.query("projections", "replace").decode().rstrip(";")
    comma = compose.SQL(", ")
    marked = any(each.name == "position" for each in place.columns)
    return compose.SQL(one).format(
        nth=compose.SQL(str(nth)),
        name=compose.Literal(place.projection),
        table=compose.Identifier(place.table),
        key=compose.Identifier(place.key),
        gone=compose.SQL(f"${next(numbers)}::{place.key_type}[]"),
        within=compose.SQL("position <= $3" if marked else "true"),
        columns=comma.join(compose.Identifier(each.name) for each in place.columns),
        values=comma.join(
            compose.SQL(f"unnest(${next(numbers)}::{each.given}[])::{each.type}")
            for each in place.columns
        ),
    )


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
    """What PostgreSQL has instead of an escape of JSON: the character itself."""
    code, letter = match.groups()
    if code:
        return chr(int(code, 16)) if int(code, 16) else "\ufffd"
    return _PLAIN.get(letter, match[0])
