"""Wakes the coroutines that wait for a host's mailbox, or for progress of an operation.

One connection per process listens for projections that have advanced.  (Every notification wakes
every listening backend, so an agent must never have its own.)  A notification says what has
changed, and only the coroutines that wait for that are woken; a waiting one costs nothing.  If the
changes were too many for a notification, and every POLL_INTERVAL_S in case one was lost, a query
reads what has changed after the last seen positions.

    with wakeups.watch(host_key(name)) as changed:
        while not (found := await look(name, after)):
            if not await changed.wait(timeout_s):
                break

`watch` begins before the first look, so no change is missed in between.  A wake-up only means "look
again": it can be without a reason, and after a lost connection every coroutine gets one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Self

import psycopg
import structlog

import sql
from ledger.log.clock import DatabaseClock
from projections.database_connections import (
    RECONNECT_FIRST_S,
    RECONNECT_MAX_S,
    AsyncDbConnection,
)
from projections.running.news import Moved, News
from projections.running.tables import prepare

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 1.0


def host_key(name: str) -> str:
    """The key of a host's mailbox."""
    return f"host:{name}"


def bound_key(operation_id: str) -> str:
    """The key of an operation, for a request that waits only until its mappings are bound, or its
    end.
    """
    return f"bound:{operation_id}"


def ended_key(operation_id: str) -> str:
    """The key of an operation, for a request that waits only until it has ended or parked."""
    return f"ended:{operation_id}"


#: Changes with every event, and when it is projected: for followers of the whole log, and of what
#: is made of it.
ANY_EVENT = "event"
#: Changes when an operation has come to be due, now or at some time: for dispatchers.
DUE = "due"
#: A position that nothing comes after: before its first look nothing counts as changed.
NEVER = 2**63 - 1
#: The projections that are waited for, where they are before anything was projected.
UNTRACKED = {"operations": 0, "hosts": 0}


def _keys(moved: Iterable[Moved]) -> Iterator[str]:
    for what, who, _, bound, ended, due in moved:
        if what == "host":
            yield host_key(who)
        if bound:
            yield bound_key(who)
        if ended:
            yield ended_key(who)
        if due:
            yield DUE


class Subscription:
    """One waiter on one key."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """True when woken (since the last `wait`), False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            return False
        self.event.clear()
        return True


class Wakeups:
    """An async context manager; `watch` may be used while it is entered.

    Its query every POLL_INTERVAL_S also gives `clock` the time.
    """

    def __init__(self, dsn: str, clock: DatabaseClock, *, listens: bool = True) -> None:
        """`listens`: False where the database is a standby, which has no notifications."""
        self._dsn = dsn
        self._listens = listens
        self._clock = clock
        self._watches: dict[str, set[Subscription]] = {}
        self._seen: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="wakeups")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None, "entered before"
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    @contextmanager
    def watch(self, key: str) -> Iterator[Subscription]:
        """Be woken by changes of `key` from now on."""
        watch = Subscription()
        self._watches.setdefault(key, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[key].remove(watch)
            if not self._watches[key]:
                del self._watches[key]

    async def _run(self) -> None:
        pause_s = RECONNECT_FIRST_S
        while True:
            try:
                async with await self._connect() as connection:
                    if self._listens:
                        await connection.execute(sql.query("reads", "listen"))
                    self._wake(set(self._watches))  # nobody knows what was missed
                    pause_s = RECONNECT_FIRST_S
                    await self._follow(connection)
            except psycopg.Error as error:
                log.warning("wakeups_paused", wait_s=pause_s, why=str(error))
            except Exception:
                log.exception("wakeups_paused", wait_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_MAX_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await AsyncDbConnection.connect(
            self._dsn, autocommit=True, application_name="attachment-ledger wakeups"
        )
        prepare(connection)
        return connection

    async def _follow(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            self._wake(await self._changed(connection))
            async with aclosing(connection.notifies(timeout=POLL_INTERVAL_S)) as notices:
                async for notify in notices:
                    if not notify.payload:
                        self._wake({ANY_EVENT})
                        break
                    self._wake(self._noticed(News.read(notify.payload)))

    def _noticed(self, news: News) -> set[str]:
        """The keys from notifications; they need not be queried any more."""
        for name in self._seen.keys() & {"head", *news.projections}:
            if name == "head" or self._seen[name] >= news.after:
                self._seen[name] = max(self._seen[name], news.to)
        return {ANY_EVENT, *_keys(news.moved)}

    async def _changed(self, connection: psycopg.AsyncConnection[Any]) -> set[str]:
        """The keys that changed since the last call; none, the first time."""
        seen = self._seen
        query = sql.query("reads", "changed")
        parameters = {name: seen.get(name, NEVER) for name in UNTRACKED}
        asked_at = self._clock.asking()
        cursor = await connection.execute(query, parameters)
        marks = dict(UNTRACKED)
        rows = await cursor.fetchall()
        marks |= {what: position for what, who, position, *_ in rows if who is None}
        time_s, log_ahead_s = (marks.pop(name) / 1e6 for name in ("time_us", "log_ahead_us"))
        self._clock.synchronise(asked_at, time_s, log_ahead_s)
        keys = set(_keys(row for row in rows if row[1] is not None))
        if any(seen.get(name, NEVER) < mark for name, mark in marks.items()):
            keys.add(ANY_EVENT)
        self._seen = marks
        return keys

    def _wake(self, keys: set[str]) -> None:
        for key in keys:
            for watch in self._watches.get(key, ()):
                watch.event.set()
