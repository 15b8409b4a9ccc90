"""What is written into a projection's table is what its row has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from projections.catalog import ALL
from projections.running.tables import prepare
from projections.running.writes import column, columns

TEXTS = [
    "",
    "null",
    "NULL",
    "a,b",
    "{braces}",
    "\"quoted\" 'twice'",
    "back\\slash, \\n, \\u0041, \\\\",
    "line\nfeed\rand\ttab\b\f\x01\x1f\x7f",
    "ümläut \u2028 \U0001f600",
    "100% $1 %(a)s",
]
VALUES: list[tuple[Any, list[Any]]] = [
    ("text", TEXTS),
    ("text[]", [TEXTS, []]),
    ("jsonb", [*TEXTS, {text: [text, {"a": text}] for text in TEXTS}, [], {}, 1.5, True]),
    ("uuid[]", [["7a9259c0-2893-4704-ad1d-5fd72512dce7"] * 2]),
    ("boolean", [True, False]),
    ("bigint", [0, -1, 2**63 - 1]),
    ("double precision", [0.1, -1e300]),
    ("timestamp with time zone", [datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)]),
]


@pytest.fixture
def arrived(db: psycopg.Connection[Any]) -> Any:
    prepare(db)

    def send(type_: Any, values: list[Any]) -> list[Any]:
        any_ = column("any", type_)
        query = f"SELECT unnest(%s::{any_.given}[])::{type_}"
        rows: list[Any] = db.execute(query, [any_.array(values)]).fetchall()
        return [value for (value,) in rows]

    return send


@pytest.mark.parametrize(("type_", "values"), VALUES)
def test_any_value_arrives_as_it_is(type_: str, values: list[Any], arrived: Any) -> None:
    assert arrived(type_, [None, *values, None]) == [None, *values, None]
    assert arrived(type_, []) == []


def test_a_nul_arrives_as_a_replacement(arrived: Any) -> None:
    assert arrived("text", ["a\0b", "\\\0"]) == ["a\ufffdb", "\\\ufffd"]
    assert arrived("jsonb", [{"a\0": "\0"}]) == [{"a\ufffd": "\ufffd"}]


def test_columns_are_those_that_the_table_has_now(db: psycopg.Connection[Any]) -> None:
    db.execute("CREATE TEMP TABLE t (a uuid[], gone int, b varchar(3) PRIMARY KEY)")
    db.execute("ALTER TABLE t DROP COLUMN gone")
    assert columns(db, "t") == (
        column("a", "uuid[]"),
        column("b", "character varying(3)", key=True),
    )


def test_no_table_of_a_projection_takes_a_row_without_position(
    db: psycopg.Connection[Any],
) -> None:
    """By that a row is refused that would replace one from further on (query `replace`)."""
    query = """
        SELECT attrelid::regclass::text FROM pg_attribute
         WHERE attrelid = ANY(%s::regclass[]) AND attname = 'position' AND NOT attnotnull
    """
    tables = [name for p in ALL for name in (p.table, *(d.table for d in p.derived))]
    assert db.execute(query, [tables]).fetchall() == []
