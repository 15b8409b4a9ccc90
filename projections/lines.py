"""Lines to PostgreSQL, none of which waits for ever.

A server's own `statement_timeout` is no limit for who asks: it does not run while the server is
frozen, nor while a commit waits for a synchronous standby, and a kernel answers TCP's probes for a
process that stands still.  So the client counts.  A line that has not answered in `answer_s` is
given up, and the error is that of a lost line: what was sent may have been done or not.  Whoever
meets it asks again on a new line, which goes to the leader that there is by then (several hosts in
the DSN, with `target_session_attrs=read-write`).
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import _WaitTimeout

#: For one statement, or the end of a transaction.
ANSWER_S = 12.0
#: Statements that read whole tables: looks.
LONG_ANSWER_S = 600.0
#: How long a pool goes on by itself to connect; after that whoever wants a line tries at once.
#: Its own pauses double, and an outage of 35 s would be 60 s long.
POOL_RECONNECT_S = 2.0
#: How often a read is sent that meets dead lines: a crash of the server leaves some in the pool,
#: which is emptied then, and those that the pool was just making come after that.
READ_ATTEMPTS = 3
#: libpq's settings, unless the DSN has them.  A host that vanishes without a word is given up after
#: 10 s, whether it owes an answer or not.
LIMITS: dict[str, int] = {
    "connect_timeout": 5,  # s, for each host of the DSN
    "tcp_user_timeout": 10_000,  # ms
    "keepalives_idle": 4,  # s
    "keepalives_interval": 2,  # s
    "keepalives_count": 3,
}
_INTERVAL_S = 0.1  # psycopg's, between two looks for signals

R = TypeVar("R")


def limited(dsn: str) -> str:
    """The DSN, with those of LIMITS that it does not say itself."""
    said = conninfo_to_dict(dsn)
    return make_conninfo(dsn, **{name: LIMITS[name] for name in LIMITS if name not in said})


def _given_up(answer_s: float) -> psycopg.OperationalError:
    return psycopg.OperationalError(f"no answer in {answer_s:g} s: the line was given up")


class Line(psycopg.Connection[Any]):
    """A connection each wait of which ends after `answer_s`, with OperationalError."""

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


class AsyncLine(psycopg.AsyncConnection[Any]):
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
