"""Databases are made by schema, equal the schema that is read, and are refused otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import sql
from ledger.log import schema
from ledger.log.schema import SchemaError

CATALOG = {
    "columns": """
        SELECT c.relname, c.relkind::text, c.reloptions,
               row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid)
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND c.relkind <> 'i'
           AND NOT a.attisdropped
         ORDER BY 1, 4""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' ORDER BY 1",
    "functions": """
        SELECT pg_get_functiondef(oid) FROM pg_proc
         WHERE pronamespace = 'public'::regnamespace ORDER BY 1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
    "triggers": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
    "extensions": "SELECT extname FROM pg_extension ORDER BY 1",
    "head": "SELECT * FROM log_head",
}


def catalog(dsn: str) -> dict[str, list[Any]]:
    with psycopg.connect(dsn) as connection:
        return {name: connection.execute(query).fetchall() for name, query in CATALOG.items()}


def test_migrations_give_the_schema_that_is_read(
    database_url: str, empty_database_url: str
) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(sql.schema().encode())

    migrated, read = catalog(database_url), catalog(empty_database_url)

    assert migrated == read
    assert len(read["columns"]) > 100
    assert read["extensions"] == [("plpgsql",)]
    assert read["triggers"] == []


def test_upgrade_brings_an_empty_database_to_current_and_is_repeatable(
    empty_database_url: str,
) -> None:
    assert not schema.status(empty_database_url).current
    with pytest.raises(SchemaError, match="attachment-ledger db upgrade"):
        schema.check(empty_database_url)

    assert schema.upgrade(empty_database_url) == tuple(sql.migrations())
    assert schema.upgrade(empty_database_url) == ()

    schema.check(empty_database_url)
    assert schema.status(empty_database_url).current


def test_many_processes_may_upgrade_at_once(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(schema.upgrade, [empty_database_url] * 4))
    assert sorted(results, reverse=True) == [tuple(sql.migrations()), (), (), ()]


def test_a_database_of_newer_code_is_refused(
    database_url: str, db: psycopg.Connection[Any]
) -> None:
    db.execute("INSERT INTO schema_migrations (name, checksum) VALUES ('9999_future', 'x')")
    for refuse in (schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match="9999_future"):
            refuse(database_url)


def test_a_database_made_by_an_edited_migration_is_refused(
    database_url: str, db: psycopg.Connection[Any]
) -> None:
    db.execute("UPDATE schema_migrations SET checksum = 'edited'")
    for refuse in (schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match="0001_the_log"):
            refuse(database_url)


def test_a_failing_migration_leaves_nothing_behind(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {**sql.migrations(), "0999_broken": "CREATE TABLE half (id int); SELECT 1 / 0;"}
    monkeypatch.setattr(sql, "migrations", lambda: texts)

    with pytest.raises(psycopg.errors.DivisionByZero):
        schema.upgrade(empty_database_url)

    state = schema.status(empty_database_url)
    assert state.pending == ("0999_broken",)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,)


def test_an_old_server_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(SchemaError, match="99 or newer"):
        schema.upgrade(empty_database_url)
