"""The one clock of everything that machines share: the database's.

Due times of retries, leases and the agents' last contacts are compared with it, and with no
other; durations within a process are measured by its monotonic clock.  No extra query reads the
database's time: it comes with a query that is made every second (ledger.core.wakeups), and in
between the monotonic clock is added to it (host_agent.shared.platform.clocks).

The database's clock may be set as well.  If it is set back, events get the last time of the log
until the clock has reached that again, because times of the log never decrease (`append_events`);
no retry waits longer than its bound (handlers.engine.verbs.is_due); leases and contacts with a
time in the future are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import structlog

import sql
from host_agent.shared.platform.clocks import SKEW_MAX_S, FarClock, Skewed
from projections.database_connections import DbConnection

_log = structlog.get_logger(__name__)


class DatabaseClock(FarClock):
    """The database's time, and which clocks are wrong.  It must be read once before it is used."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(wall, monotonic)
        self._skewed, self._ahead = Skewed(), Skewed()
        self.log_ahead_s = 0.0  # how far the last event's time is ahead of the database's clock
        self.set_count = 0  # how often the database's clock was set by more than SKEW_MAX_S

    @classmethod
    def of(cls, dsn: str) -> Self:
        """The clock of a database, read once.  Raises psycopg.Error."""
        clock = cls()
        with DbConnection.connect(dsn, application_name="attachment-ledger clock") as connection:
            asked_at = clock.asking()
            [row] = connection.execute(sql.query("reads", "time")).fetchall()
            clock.synchronise(asked_at, *row)
        return clock

    def synchronise(self, asked_at: float, time_s: float, log_ahead_s: float) -> None:
        """Use the answer of a query that was sent at `asked_at` (monotonic)."""
        set_by_s = self.heard(time_s, asked_at)
        self.log_ahead_s = log_ahead_s
        if abs(set_by_s) > SKEW_MAX_S:
            self.set_count += 1
            _log.warning("database_clock_set", by_s=round(set_by_s, 3))
        if (skewed := self._skewed.has_become(self.skew_s)) is not None:
            _log_change("service_clock_skewed", skewed, ahead_s=round(self.skew_s, 3))
        if (ahead := self._ahead.has_become(log_ahead_s)) is not None:
            _log_change("log_ahead_of_database_clock", ahead, ahead_s=round(log_ahead_s, 3))

    def trouble(self) -> list[str]:
        """Which clocks are wrong by more than SKEW_MAX_S, and the consequence, for people."""
        found = []
        if self.log_ahead_s > SKEW_MAX_S:
            found.append(
                f"the log's last time is {self.log_ahead_s:.0f} s ahead of the database's clock, "
                "which was set back: until it reaches that time, all events are recorded with "
                "the same time. Correct the clock of the database's host"
            )
        if abs(self.skew_s) > SKEW_MAX_S:
            way = "ahead of" if self.skew_s > 0 else "behind"
            found.append(
                f"this host's clock is {abs(self.skew_s):.0f} s {way} the database's: no decision "
                "depends on it, but the times of log lines and the ages of tokens and "
                "certificates do. Correct the clock of this host"
            )
        return found


def _log_change(event: str, wrong: bool, **fields: float) -> None:
    (_log.warning if wrong else _log.info)(event, wrong=wrong, **fields)
