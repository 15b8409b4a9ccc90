"""Errors of the database: which of them refuse nothing, and words that may be shown to anybody.

What the server says has an SQLSTATE.  An error without one is libpq's own word that the line to the
server broke: nothing was refused, and what was sent may have been done or not.  The class of the
error does not tell (libpq's result of a call is a bare DatabaseError), and psycopg need not count
the connection as closed: not when the last words of a server that crashes were still to be read.
"""

from __future__ import annotations

import re
import time

import psycopg

#: Trouble is told for so long: who meets it tries again more often while anybody waits.
TROUBLE_AGE_S = 5.0
_NAME = re.compile(r'"[^"]*"')
_OF_THE_DATA = (psycopg.DataError, psycopg.IntegrityError)


def is_lost(error: Exception) -> bool:
    """Whether the line to the database broke, or could not be made."""
    # Not psycopg's own errors, of what it was given: they have classes of their own.
    broke = isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError
    return broke and error.sqlstate is None  # type: ignore[attr-defined]


def is_away(error: Exception) -> bool:
    """Whether the database does not answer now, for whichever reason: ask again later."""
    return isinstance(error, psycopg.OperationalError) or is_lost(error)


def in_words(error: psycopg.Error) -> str:
    """In PostgreSQL's own words, without data, and without where it is or who we are there: these
    it names in quotes.
    """
    words = error.diag.message_primary
    if words is None:  # of a connection that was refused
        _, found, fatal = str(error).rpartition("FATAL:")
        words = fatal.strip().partition("\n")[0] if found else "no connection"
    return _NAME.sub('"..."', words)


class DatabaseTrouble:
    """The last error that a retrying writer met, if it is recent."""

    def __init__(self) -> None:
        self._last: tuple[str, float] | None = None

    def met(self, error: psycopg.Error) -> None:
        """Note an error, unless it is about the data (a constraint, a type)."""
        if not isinstance(error, _OF_THE_DATA):
            self._last = in_words(error), time.monotonic()

    def end(self) -> None:
        self._last = None

    def now(self) -> str | None:
        """The words for it; None if there is none, or was none for TROUBLE_AGE_S."""
        last = self._last
        return last[0] if last and time.monotonic() - last[1] < TROUBLE_AGE_S else None
