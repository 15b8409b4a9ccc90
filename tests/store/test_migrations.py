"""Databases are made by migrations, and refused if this code could not work on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import sql
from ledger.log import schema
from ledger.log.recorder import LedgerRecorder
from ledger.log.schema import SchemaError
from ledger.upkeep import long_work
from ledger.upkeep.rebuild import rebuild
from projections.catalog import ALL
from projections.running.runner import catch_up
from tests.store.histories import scenario, stored_events
from tests.store.test_projector import check_same, tables

#: What a release after this one may bring without stopping processes of this one.
GAINED = {
    "0998_gains.expand": """
        ALTER TABLE instances ADD COLUMN colour text;
        CREATE TABLE colours (name text PRIMARY KEY);
        CREATE INDEX instances_by_colour ON instances (colour)""",
}
LOST = {"0999_loses.contract": "ALTER TABLE instances DROP COLUMN colour"}
MARKED = re.compile(r"\d{4}_[a-z_]+\.(expand|contract)")
CATALOG = {
    "columns": """
        SELECT c.relname, c.relkind::text, c.reloptions,
               row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid)
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relnamespace IN ('public'::regnamespace, 'audit'::regnamespace)
           AND a.attnum > 0 AND c.relkind <> 'i' AND NOT a.attisdropped
         ORDER BY c.relnamespace::regnamespace::text, 1, 4""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    "views": "SELECT viewname, definition FROM pg_views"
    " WHERE schemaname IN ('public', 'audit') ORDER BY schemaname, 1",
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


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> Iterator[None]:
    """The code is of a later release, which has these migrations as well."""
    texts = {**sql.migrations(), **more}
    with monkeypatch.context() as patched:
        patched.setattr(sql, "migrations", lambda: texts)
        yield


def test_every_migration_says_what_it_asks_of_the_versions_before() -> None:
    names = list(sql.migrations())
    assert names == sorted(names)
    assert [name for name in names if not MARKED.fullmatch(name)] == []
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_a_version_from_before_an_expansion_can_still_write_rows() -> None:
    """It gives NULL for each column that it does not know, whatever the column's default is."""
    later = {name: text for name, text in sql.migrations().items() if "0001" not in name}
    added = re.findall(r"ADD COLUMN ([^,;]*)", "\n".join(later.values()))
    assert len(added) > 5
    assert [each for each in added if "NOT NULL" in each] == []


def test_a_server_needs_no_more_than_plain_postgresql(database_url: str) -> None:
    made = catalog(database_url)
    assert made["extensions"] == [("plpgsql",)]
    assert made["triggers"] == []


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


def test_a_database_that_lost_something_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with later(monkeypatch, GAINED | LOST):
        schema.upgrade(database_url)
    assert not schema.status(database_url).current
    for refuse in (schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match=r"\(0999_loses.contract is not known here\)"):
            refuse(database_url)


def test_a_database_that_only_gained_something_is_worked_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with later(monkeypatch, GAINED):
        assert schema.upgrade(database_url) == tuple(GAINED)

    schema.check(database_url)
    assert schema.upgrade(database_url) == ()
    state = schema.status(database_url)
    assert state.current
    assert state.unknown == tuple(GAINED)
    watched = scenario(5)
    with closing(LedgerRecorder(database_url)) as recorder:
        for event, context in stored_events(watched.world):
            recorder.insert_events([event], context=context)
    catch_up(database_url, ALL)
    for make_anew in (False, True):
        if make_anew:
            long_work.run(database_url, "rebuild", rebuild(database_url, ALL), lambda _: None)
        with psycopg.connect(database_url) as connection:
            shown = tables(connection)
        assert {row.pop("colour") for row in shown["instances"]} == {None}
        check_same(shown, watched.folded)


def test_a_database_made_by_an_edited_migration_is_refused(
    database_url: str, db: psycopg.Connection[Any]
) -> None:
    db.execute("UPDATE schema_migrations SET checksum = 'edited'")
    for refuse in (schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match="0001_schema"):
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


def test_readers_do_not_wait_behind_a_migration_that_waits_for_one_of_them(
    database_url: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pg_dump, or an auditor's session, which may take hours."""
    pauses: list[float] = []
    with psycopg.connect(database_url) as reader:
        reader.execute("SET idle_in_transaction_session_timeout = '10s'")  # ends a wait for ever
        reader.execute("SELECT FROM instances")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            assert db.execute("SELECT FROM instances").fetchall() == []
            if len(pauses) == 2:
                reader.rollback()

        monkeypatch.setattr(schema, "time", SimpleNamespace(sleep=pause))
        with later(monkeypatch, GAINED):
            assert schema.upgrade(database_url) == tuple(GAINED)
            assert schema.status(database_url).pending == ()
    assert len(pauses) == 2


def test_what_a_migration_refuses_is_told_in_its_own_words(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "RAISE EXCEPTION 'Months are detached.' USING HINT = 'Restore them first.'"
    texts = {"0999_refuses.contract": f"DO $$ BEGIN {refusal}; END $$"}
    with (
        later(monkeypatch, texts),
        pytest.raises(SchemaError, match=r"^Months are detached\. Restore them first\.$"),
    ):
        schema.upgrade(database_url)
    schema.check(database_url)


def test_another_encoding_is_refused(empty_database_url: str) -> None:
    """With SQL_ASCII, as of a server made in the locale C, texts come back as bytes."""
    name = f"{conninfo_to_dict(empty_database_url)['dbname']}_ascii"
    made = f"CREATE DATABASE {name} ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0"
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute(made.encode())
        try:
            for does in (schema.upgrade, schema.check, schema.status):
                with pytest.raises(SchemaError, match=r"SQL_ASCII: .* createdb --encoding UTF8"):
                    does(make_conninfo(empty_database_url, dbname=name))
        finally:
            db.execute(f"DROP DATABASE {name}".encode())


def test_an_old_server_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(SchemaError, match="99 or newer"):
        schema.upgrade(empty_database_url)
