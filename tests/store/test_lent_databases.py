"""A database that several tests use, one after another, shows none of them what another did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.databases import USES_MAX, Databases, Lent

TABLES = """SELECT oid::regclass::text FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"""
#: What rows do not show.
CHANGES = (
    "CREATE TABLE another ()",
    "ALTER TABLE log_head ADD COLUMN another text",
    "DROP TABLE tracking CASCADE",
    "CREATE FUNCTION another() RETURNS int LANGUAGE sql RETURN 1",
    "CREATE INDEX another ON log_head (position)",
    "GRANT SELECT ON log_head TO PUBLIC",
    "ANALYZE log_head",
    "ALTER DATABASE {} SET work_mem = '1MB'",
    "GRANT TEMPORARY ON DATABASE {} TO PUBLIC",
    "COMMENT ON TABLE log_head IS 'another'",
)


@pytest.fixture
def lent(databases: Databases) -> Iterator[Lent]:
    name = databases.create_migrated()
    with closing(Lent(name, databases.url(name))) as lent:
        yield lent
    databases.drop(name)


def shown(url: str) -> dict[str, list[tuple[object, ...]]]:
    with psycopg.connect(url) as db:
        tables = [table for [table] in db.execute(TABLES).fetchall()]
        return {t: db.execute(f"SELECT * FROM {t} ORDER BY 1".encode()).fetchall() for t in tables}


def test_its_rows_are_as_they_were_made_and_who_was_there_is_gone(lent: Lent) -> None:
    made = shown(lent.url)
    assert sum(map(len, made.values())) > 1
    with psycopg.connect(lent.url, autocommit=True) as db:
        db.execute("UPDATE log_head SET position = 7")
        db.execute("DELETE FROM schema_migrations")
        db.execute("INSERT INTO long_work (name) VALUES ('another')")
        assert shown(lent.url) != made
        assert lent.clean()
        with pytest.raises(psycopg.OperationalError):
            db.execute("SELECT 1")
    assert shown(lent.url) == made


@pytest.mark.parametrize("change", CHANGES)
def test_whose_catalog_was_changed_is_not_lent_again(lent: Lent, change: str) -> None:
    with psycopg.connect(lent.url, autocommit=True) as db:
        db.execute(change.format(lent.name).encode())
    assert not lent.clean()


def test_one_whose_line_was_cut_or_that_was_used_often_is_not_lent_again(
    lent: Lent, databases: Databases
) -> None:
    assert all(lent.clean() for _ in range(USES_MAX - 1))
    assert not lent.clean()
    name = databases.create_migrated()
    with closing(Lent(name, databases.url(name))) as other:
        databases.drop(name, lag=0)
        assert not other.clean()
