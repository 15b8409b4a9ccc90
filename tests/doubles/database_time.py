"""A database whose clock is wrong, and can be set.

Functions of the schema stand before those of PostgreSQL, so that whatever is asked for the
time there, queries, functions and defaults, sees the one clock.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

_WRONG = """
CREATE TABLE wrong_by (seconds float8 NOT NULL);
INSERT INTO wrong_by VALUES (0);
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$ SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM public.wrong_by $$;
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.statement_timestamp() + make_interval(secs => seconds)
         FROM public.wrong_by $$;
"""
_FIRST = "ALTER DATABASE {} SET search_path = public, pg_catalog"


class DatabaseTime:
    """Made before anybody else connects."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute(_WRONG)
        connection.execute(sql.SQL(_FIRST).format(sql.Identifier(connection.info.dbname)))

    def set_ahead(self, seconds: float) -> None:
        """Let it be so far ahead of this machine's clock from now on."""
        self._connection.execute("UPDATE public.wrong_by SET seconds = %s", [seconds])
