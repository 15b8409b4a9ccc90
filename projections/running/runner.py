"""Keeps projections current in the background, with one thread and one connection.

The thread is woken by appends and by other processes' projectors, and looks by itself every
POLL_INTERVAL_S.  When the connection is lost it opens a new one, with growing pauses.  Of several
processes one does the work; those that lose the compare-and-set stand by.

`projected(position)` lets an answer wait until reads in any process show its result: the tables are
shared, so it is enough that one process has projected it.  Nobody waits for a projection that is
held back, which would delay every answer; the log, /readyz and the metrics report it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import psycopg
import structlog

import sql
from projections.base import Projection
from projections.database_connections import RECONNECT_FIRST_S, RECONNECT_MAX_S, DbConnection
from projections.reads.database_trouble import in_words
from projections.running.projector import Projector, lags

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 0.5
REPLAYED_INTERVAL_S = 0.2
WAITERS_MAX = 100_000
_PROJECTED = "ledger_projected"


class NotProjectingError(Exception):
    """The runner was stopped, or has WAITERS_MAX waiters."""


class ProjectionRunner:
    """Start it, wait on it, stop it."""

    def __init__(self, dsn: str, projections: Sequence[Projection]) -> None:
        self._dsn = dsn
        self._projections = tuple(projections)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._projected = 0
        self.trouble: str | None = None  #: why nothing is projected now
        self._waiters: list[tuple[int, int, Future[int]]] = []
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="projections", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present batch; waiters get NotProjectingError."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for _, _, waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_exception(NotProjectingError())

    def projected(self, position: int) -> Future[int]:
        """A future that is done when all projections that are not held have reached `position`.

        It raises NotProjectingError if the runner stops.  In an event loop: await
        `asyncio.wrap_future(...)` in an `asyncio.timeout`.
        """
        waiter: Future[int] = Future()
        with self._lock:
            if self._projected >= position:
                waiter.set_result(self._projected)
            elif self._stopping.is_set() or len(self._waiters) >= WAITERS_MAX:
                waiter.set_exception(NotProjectingError())
            else:
                heapq.heappush(self._waiters, (position, next(self._numbers), waiter))
        return waiter

    def _run(self) -> None:
        pause_s = RECONNECT_FIRST_S
        while not self._stopping.is_set():
            self._projected = 0  # a crash of the database may have lost the last steps
            try:
                with connect(self._dsn) as connection:
                    for _ in self._steps(connection):
                        pause_s = RECONNECT_FIRST_S
            except psycopg.Error as error:
                self.trouble = in_words(error)
                log.warning("projections_paused", wait_s=pause_s, why=str(error))
            except Exception as error:
                self.trouble = type(error).__name__
                log.exception("projections_paused", wait_s=pause_s)
            else:
                continue
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_MAX_S)

    def _steps(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Project until stopped; raises the errors of the connection."""
        projector = Projector(connection, self._projections)
        _listen(connection)
        while not self._stopping.is_set():
            moved = projector.step()
            self.trouble = None
            self._announce(projector.projected)
            yield
            if projector.overtaken:
                self._watch(connection, projector)
            elif not moved or projector.projected >= projector.head:
                _wait(connection, POLL_INTERVAL_S)

    def _watch(self, connection: psycopg.Connection[Any], projector: Projector) -> None:
        """Stand by while another process projects, because folding the same events is wasted.

        Returns when it reports nothing for POLL_INTERVAL_S, or when projections are apart.
        """
        while not self._stopping.is_set() and _wait(connection, POLL_INTERVAL_S, _PROJECTED):
            projector.look()
            self._announce(projector.projected)
            if projector.apart:
                return

    def _announce(self, position: int) -> None:
        done = []
        with self._lock:
            self._projected = max(self._projected, position)
            while self._waiters and self._waiters[0][0] <= self._projected:
                done.append(heapq.heappop(self._waiters)[2])
        for waiter in done:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(position)


class ReplayedProjections(ProjectionRunner):
    """For a read-only standby, where the rows of projections are replicated with the log."""

    def _steps(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        while not self._stopping.is_set():
            rows = lags(connection, self._projections)
            self.trouble = None
            self._announce(min((at for _, at, *_, held in rows if held is None), default=0))
            yield
            self._stopping.wait(REPLAYED_INTERVAL_S)


def connect(dsn: str) -> DbConnection:
    """A connection for a Projector."""
    return DbConnection.connect(
        dsn, autocommit=True, application_name="attachment-ledger projections"
    )


def _listen(connection: psycopg.Connection[Any]) -> None:
    connection.execute(sql.query("projections", "listen_appended"))
    connection.execute(sql.query("projections", "listen_projected"))


def _wait(
    connection: psycopg.Connection[Any], timeout_s: float, channel: str | None = None
) -> bool:
    """Wait for another connection's NOTIFY on a channel (None: any); False after `timeout_s`."""
    for notify in connection.notifies(timeout=timeout_s):
        if notify.pid != connection.info.backend_pid and channel in {None, notify.channel}:
            return True
    return False


def catch_up(dsn: str, projections: Sequence[Projection]) -> None:
    """Bring the projections to the head of the log, in this thread."""
    with connect(dsn) as connection:
        Projector(connection, projections).catch_up()
