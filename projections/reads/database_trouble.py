"""Errors of the database: which of them mean a lost connection, and texts that may be shown.

The server's errors have an SQLSTATE.  An error without one is libpq's: the connection broke, and
the statement may have been executed or not.  The class of the error does not tell (libpq's result
of a call is a bare DatabaseError), nor does psycopg's `closed`: a crashing server may have sent
something that was not read yet.
"""

from __future__ import annotations

import re
import time

import psycopg

#: How long an error counts as present: a writer with waiters tries again more often than that.
TROUBLE_AGE_S = 5.0
_NAME = re.compile(r'"[^"]*"')
_OF_THE_DATA = (psycopg.DataError, psycopg.IntegrityError)


def is_lost(error: Exception) -> bool:
    """Whether the connection broke, or could not be made."""
    # psycopg's own errors about its arguments have other classes.
    broke = isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError
    return broke and error.sqlstate is None  # type: ignore[attr-defined]


def is_away(error: Exception) -> bool:
    """Whether the database does not answer now, for any reason, and may later."""
    return isinstance(error, psycopg.OperationalError) or is_lost(error)


def in_words(error: psycopg.Error) -> str:
    """PostgreSQL's message without data, and without hosts and roles, which it puts in quotes."""
    words = error.diag.message_primary
    if words is None:  # of a connection that was refused
        _, found, fatal = str(error).rpartition("FATAL:")
        words = fatal.strip().partition("\n")[0] if found else "no connection"
    return _NAME.sub('"..."', words)


class DatabaseTrouble:
    """The last error of a retrying writer, if it is recent."""

    def __init__(self) -> None:
        self._last: tuple[str, float] | None = None

    def met(self, error: psycopg.Error) -> None:
        """Note an error, unless it is about the data (a constraint, a type)."""
        if not isinstance(error, _OF_THE_DATA):
            self._last = in_words(error), time.monotonic()

    def end(self) -> None:
        self._last = None

    def now(self) -> str | None:
        """Its text; None if there was none in the last TROUBLE_AGE_S."""
        last = self._last
        return last[0] if last and time.monotonic() - last[1] < TROUBLE_AGE_S else None
