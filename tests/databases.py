"""Databases for tests, on one server: made from a template, and used again by the next test."""

from __future__ import annotations

import itertools
import os
from collections import deque
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

LAG = 4  # a backend that is still leaving delays cleaning, and DROP DATABASE by 100 ms
USES_MAX = 50  # rows that are deleted still take room until a vacuum
LEAVING_MS = 10_000

#: Nobody but us; each has told the statistics what it did.
_ALONE = """SELECT pg_terminate_backend(pid, {ms}) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
AND backend_type = 'client backend'"""
#: How often the catalog was changed: by DDL, GRANT, ANALYZE, ALTER DATABASE.
_CATALOG = """SELECT
(SELECT sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
          + pg_stat_get_tuples_deleted(oid)) FROM pg_class
 WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared),
(SELECT xmin::text FROM pg_database WHERE datname = current_database()),
(SELECT count(*) FROM pg_db_role_setting
 JOIN pg_database AS us ON us.oid = setdatabase WHERE datname = current_database())"""
_TABLES = """SELECT oid::regclass::text FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"""
_SEQUENCES = "SELECT seqrelid::regclass::text FROM pg_sequence"


class Databases:
    """Makes and drops databases on one server, and lends migrated ones."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._numbers = itertools.count()
        self._template: str | None = None
        self._used: deque[str] = deque()
        self._returned: deque[Lent] = deque()

    def create(self, template: str = "template1") -> str:
        name = f"ledger_test_{os.getpid()}_{next(self._numbers)}"
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return name

    def create_migrated(self) -> str:
        given = os.environ.get("LEDGER_TEST_TEMPLATE")  # of a run of many processes
        if given:
            return self.create(given)
        if self._template is None:
            from ledger.log import schema

            template = self.create()
            schema.upgrade(self.url(template))
            self._template = template
        return self.create(self._template)

    def drop(self, name: str, lag: int = LAG) -> None:
        """Drop the database a few tests later, when its connections are gone."""
        self._used.append(name)
        while len(self._used) > lag:
            name = self._used.popleft()
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            self._admin.execute(drop)

    def lend(self) -> Lent:
        """A migrated database that is as new: give it back."""
        while len(self._returned) > LAG:
            lent = self._returned.popleft()
            if lent.clean():
                return lent
            self._discard(lent)
        name = self.create_migrated()
        return Lent(name, self.url(name))

    def give_back(self, lent: Lent) -> None:
        self._returned.append(lent)

    def _discard(self, lent: Lent) -> None:
        lent.close()
        self.drop(lent.name)

    def url(self, name: str) -> str:
        server = urlsplit(self._dsn)  # geturl() would drop an empty host's slashes
        return f"{server.scheme}://{server.netloc}/{name}?{server.query}"

    def close(self) -> None:
        for lent in self._returned:
            self._discard(lent)
        if self._template is not None:
            self.drop(self._template, lag=0)
        self._admin.close()


class Lent:
    """A migrated database that is put back as it was made: a tenth of the cost of another.

    That is its rows.  If anything else was changed, or it cannot be told, it is not used again.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self._uses = 1
        self._line = psycopg.connect(url, autocommit=True)
        assert self._all(_SEQUENCES) == [], "cleaning has to put sequences back, too"
        made = {table: self._rows(table) for [table] in self._all(_TABLES)}
        deletes = [f"DELETE FROM {table}" for table in made]
        inserts = [_insert(table, rows) for table, rows in made.items() if rows]
        self._clean = "; ".join(["BEGIN", *deletes, *inserts, "COMMIT"]).encode()
        self._catalog = self._all(_CATALOG)

    def clean(self) -> bool:
        """Have it as it was made; False if that cannot be had, and it is to be dropped."""
        self._uses += 1
        with suppress(psycopg.Error):  # a test may have cut our line, too
            self._all(_ALONE.format(ms=LEAVING_MS))
            if self._uses <= USES_MAX and self._all(_CATALOG) == self._catalog:
                self._line.execute(self._clean)
                return True
        return False

    def close(self) -> None:
        self._line.close()

    def _rows(self, table: str) -> str | None:
        """As JSON; None if there are none."""
        [[rows]] = self._all(f"SELECT json_agg(made)::text FROM {table} AS made")
        return None if rows is None else str(rows)

    def _all(self, statement: str) -> list[Any]:
        return self._line.execute(statement.encode()).fetchall()


def _insert(table: str, rows: str) -> str:
    literal = sql.Literal(rows).as_string()
    return f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, {literal})"
