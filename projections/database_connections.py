"""Connections to PostgreSQL with a client-side timeout for each statement.

The server's `statement_timeout` is not enough: it does not fire while the server process is
stopped or a commit waits for a synchronous standby, and the kernel still answers TCP keepalives.
So the client counts.  A connection without an answer in `answer_s` is closed, and the error is that
of a lost connection: the statement may have been executed or not; a server that still works on it
ends it.  The caller tries again on a new connection, which goes to the present leader (several
hosts in the DSN, with `target_session_attrs=read-write`).
"""

from __future__ import annotations

import os
from typing import Any, Self, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import _WaitTimeout

#: For one statement, or a commit, in seconds.
ANSWER_S = 12.0
#: The same for statements that read whole tables: looks.
LONG_ANSWER_S = 600.0
#: How long a pool reconnects in the background; after that each caller tries at once.  The pool's
#: pauses double, which would turn an outage of 35 s into one of 60 s.
POOL_RECONNECT_S = 2.0
#: The first and the longest pause of a thread that reconnects.  Requests wait for these threads, so
#: an outage is longer by the longest.
RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.1, 1.0
#: Attempts of a read that meets dead connections: after a crash of the server the pool is drained,
#: but connections that it was just opening come after that.
READ_ATTEMPTS = 3
#: libpq's settings, unless the DSN has them; its `options` are added to these, and win.  A vanished
#: host is noticed after 10 s, with or without a statement in progress.
LIMITS: dict[str, int | str] = {
    "connect_timeout": 5,  # s, for each host of the DSN
    "tcp_user_timeout": 10_000,  # ms
    "keepalives_idle": 4,  # s
    "keepalives_interval": 2,  # s
    "keepalives_count": 3,
    # Else a slow query that was given up runs on, beside each new attempt; and a query of a second
    # spends another on compiling itself, each time.
    "options": "-c client_connection_check_interval=1s -c jit=off",
}
_INTERVAL_S = 0.1  # psycopg's default interval between checks for signals

R = TypeVar("R")


def limited(dsn: str) -> str:
    """The DSN, with those of LIMITS that it does not set.  Is the same for what it has returned."""
    said = conninfo_to_dict(dsn)
    limits = {name: LIMITS[name] for name in LIMITS if name not in said}
    ours, own = str(LIMITS["options"]), str(said.get("options") or os.environ.get("PGOPTIONS", ""))
    if not own.startswith(ours):
        limits["options"] = f"{ours} {own}".strip()
    return make_conninfo(dsn, **limits)


def _given_up(answer_s: float) -> psycopg.OperationalError:
    return psycopg.OperationalError(f"no answer in {answer_s:g} s: the line was given up")


class DbConnection(psycopg.Connection[Any]):
    """A connection whose waits end after `answer_s` with OperationalError."""

    answer_s = ANSWER_S

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        return super().connect(limited(conninfo), **kwargs)

    def wait(self, gen: PQGen[R], interval: float = _INTERVAL_S, timeout: float | None = None) -> R:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_s)
        except _WaitTimeout:
            self.pgconn.finish()
            raise _given_up(self.answer_s) from None


class AsyncDbConnection(psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    answer_s = ANSWER_S

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        return await super().connect(limited(conninfo), **kwargs)

    async def wait(
        self,
        gen: PQGen[R],
        interval: float = _INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's name
    ) -> R:
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            return await super().wait(gen, interval, self.answer_s)
        except _WaitTimeout:
            self.pgconn.finish()
            raise _given_up(self.answer_s) from None
