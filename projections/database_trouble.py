"""Errors of the database in words that may be shown to anybody: no data, host or role names."""

from __future__ import annotations

import re
import time

import psycopg

#: Trouble is told for so long: who meets it tries again more often while anybody waits.
TROUBLE_AGE_S = 5.0
_NAME = re.compile(r'"[^"]*"')
_OF_THE_DATA = (psycopg.DataError, psycopg.IntegrityError)


def in_words(error: psycopg.Error) -> str:
    """In PostgreSQL's own words, without data, and without where it is or who we are there: these
    it names in quotes.
    """
    words = error.diag.message_primary
    if words is None:  # of a connection that was refused
        _, found, fatal = str(error).rpartition("FATAL:")
        words = fatal.strip().partition("\n")[0] if found else "no connection"
    return _NAME.sub('"..."', words)


class Trouble:
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
