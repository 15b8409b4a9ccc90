"""Databases are made by schema, equal the schema that is read, and are refused otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import sql
from host_agent.shared.definition import size_of
from ledger.log import schema
from ledger.log.recorder import LedgerRecorder
from ledger.log.schema import SchemaError
from projections.catalog import ALL
from projections.runner import catch_up
from tests.store.histories import scenario, stored_events

OLD_ROW = """
INSERT INTO operations (
    operation_id, flow, server_id, volume_ids, state, plan, lanes, steps, active, retries,
    unwinding, bound, request_id, started_at, started_position, updated_at, position)
VALUES (gen_random_uuid(), 'attach', gen_random_uuid(), '{}', 'running', '{}', '[]', '{}', '{}',
    '{}', false, false, 'r', now(), 1, now(), 1)
"""
OLD_SERVER = """
INSERT INTO instances (
    server_id, name, power_state, vm_state, base_vm_state, faults, devices, created_at, updated_at,
    position, definition)
VALUES (%s, 'vm', 'running', 'active', 'active', '{}', '[]', now(), now(), 1, %s)
"""
#: As libvirt writes them, and as this service does; the last two say nothing.
DEFINITIONS = (
    "<domain><memory unit='KiB'>524288</memory><vcpu placement='static'>2</vcpu></domain>",
    '<domain><memory unit="MiB">512</memory><memoryBacking/><vcpu current="1">4</vcpu></domain>',
    "<domain><memory dumpCore='off' unit='GiB'>2</memory><vcpu>1</vcpu></domain>",
    "<domain><memory>1048576</memory><vcpu>\n  3\n</vcpu></domain>",
    "<domain><memory unit='bytes'>2097152</memory><vcpu>1</vcpu></domain>",
    "<domain><devices/></domain>",
    None,
)
DETACHED = """
INSERT INTO detached_months (month, first_position, last_position, file, sha256)
VALUES ('2026-01-01', 1, 2, 'events-2026-01.jsonl.gz', 'x')
"""
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


def test_operations_are_made_anew_by_the_upgrade_that_changed_their_rows(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the old columns is of no use; what the log has is shown in the new ones."""
    texts = sql.migrations()
    before = {name: text for name, text in texts.items() if name < "0009"}
    monkeypatch.setattr(sql, "migrations", lambda: before)
    schema.upgrade(empty_database_url)
    recorder = LedgerRecorder(empty_database_url)
    watched = scenario(1)
    for event, context in stored_events(watched.world):
        recorder.insert_events([event], context=context)
    recorder.close()
    monkeypatch.setattr(sql, "migrations", lambda: texts)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(OLD_ROW)
        connection.execute(
            "INSERT INTO tracking (projection, position)"
            " SELECT 'operations', position FROM log_head"
        )
        connection.execute(DETACHED)
        with pytest.raises(SchemaError, match=r"Restore them first.*event restore"):
            schema.upgrade(empty_database_url)
        connection.execute("DELETE FROM detached_months")
        schema.upgrade(empty_database_url)
        catch_up(empty_database_url, ALL)
        shown = connection.execute("SELECT operation_id::text, steps FROM operations").fetchall()
    expected = watched.folded.table("operations")
    assert sorted(shown) == sorted((row["operation_id"], row["steps"]) for row in expected)


def test_sizes_are_read_from_definitions_by_the_upgrade_that_keeps_them(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As folds read them from then on."""
    texts = sql.migrations()
    before = {name: text for name, text in texts.items() if name < "0025"}
    monkeypatch.setattr(sql, "migrations", lambda: before)
    schema.upgrade(empty_database_url)
    monkeypatch.setattr(sql, "migrations", lambda: texts)
    definitions = {str(uuid4()): definition for definition in DEFINITIONS}
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        for server_id, definition in definitions.items():
            connection.execute(OLD_SERVER, (server_id, definition))
        schema.upgrade(empty_database_url)
        query = "SELECT server_id::text, vcpus, memory_mb FROM instances"
        sizes = {row[0]: row[1:] for row in connection.execute(query).fetchall()}
    assert sizes == {server: size_of(definition) for server, definition in definitions.items()}
    assert sum(map(any, sizes.values())) == len(DEFINITIONS) - 2


def test_an_old_server_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(SchemaError, match="99 or newer"):
        schema.upgrade(empty_database_url)
