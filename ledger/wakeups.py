"""Wake the coroutines that wait for a host's mailbox or for an operation to move.

One connection per process listens for projections that have advanced (every notification
wakes every listening backend, so an agent must never have one of its own).  On a wake-up,
and every POLL_INTERVAL_S without one, two queries ask what changed after the position seen
last, and only who waits for that is woken: a waiter costs nothing in between.

    async with wakeups.watch(host_key(name)) as changed:
        while not (rows := await queries.commands(name, after)):
            if not await changed.wait(timeout_s):
                break

`watch` begins before the question is asked, so nothing can fall in between; being woken
means "look again", no more: it may happen for nothing, and after a lost connection it
happens to everybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psycopg

import sql
from projections.projector import prepare

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
RECONNECT_FIRST_S = 0.1
RECONNECT_MAX_S = 5.0
CONNECT_TIMEOUT_S = 5


def host_key(name: str) -> str:
    """The key of a host's mailbox."""
    return f"host:{name}"


def operation_key(operation_id: str) -> str:
    """The key of an operation."""
    return f"operation:{operation_id}"


#: Changes with every event: for followers of the whole log.
ANY_EVENT = "event"


class Watch:
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
    """An async context manager; `watch` may be used while it is entered."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._watches: dict[str, set[Watch]] = {}
        self._head: int | None = None
        self._projected: int | None = None
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
    def watch(self, key: str) -> Iterator[Watch]:
        """Be woken by changes of `key` from now on."""
        watch = Watch()
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
                    self._wake(list(self._watches))  # nobody knows what was missed
                    pause_s = RECONNECT_FIRST_S
                    await self._follow(connection)
            except psycopg.Error as error:
                log.warning("wake-ups pause for %.1f s: %s", pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_MAX_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="attachment-ledger wakeups",
        )
        prepare(connection)
        await connection.execute(sql.query("reads", "listen"))
        return connection

    async def _follow(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            self._wake(await self._changed(connection))
            async for _ in connection.notifies(timeout=POLL_INTERVAL_S, stop_after=1):
                pass

    async def _changed(self, connection: psycopg.AsyncConnection[Any]) -> list[str]:
        """The keys that changed since the last call; none, the first time."""
        [(head, projected)] = await _rows(connection, "marks")
        appended = self._head is not None and head > self._head
        after, self._head, self._projected = self._projected, head, projected
        keys = [ANY_EVENT] if appended else []
        if after is None or projected <= after:
            return keys
        hosts = await _rows(connection, "changed_hosts", after=after)
        operations = await _rows(connection, "changed_operations", after=after)
        keys += [host_key(host) for (host,) in hosts]
        return keys + [operation_key(operation_id) for (operation_id,) in operations]

    def _wake(self, keys: list[str]) -> None:
        for key in keys:
            for watch in self._watches.get(key, ()):
                watch.event.set()


async def _rows(
    connection: psycopg.AsyncConnection[Any], query: str, /, **parameters: Any
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(sql.query("reads", query), parameters or None)
    return await cursor.fetchall()
