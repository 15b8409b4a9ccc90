"""The log as the eventsourcing library sees it: a recorder of our own.

Differences from the library's PostgreSQL recorder, and why (docs/log.md has the figures):

* positions are gap-free and in commit order, whatever the number of writers, so a reader that
  follows the log by position misses nothing;
* appends of all threads share commits (ledger.log.writer), and are idempotent;
* each event has typed columns for what it concerns and for its metadata;
* a stream never has a hole: a version that is too high is refused like one too low;
* subscriptions poll.  Nothing of the ledger subscribes: its projections page through the
  log by themselves (projections.running.runner).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import (
    ApplicationRecorder,
    Notification,
    NotSupportedError,
    StoredEvent,
    Subscription,
    Tracking,
)
from psycopg_pool import ConnectionPool, PoolTimeout

import sql
from aggregates.base import EventContext
from ledger.log.writer import Writer
from projections.database_connections import POOL_RECONNECT_S, READ_ATTEMPTS, DbConnection
from projections.reads.database_trouble import is_away

READ_CONNECTIONS_MAX = 8
READ_WAIT_S = 10.0
STREAM_EVENTS_MAX = 1_000_000
SUBSCRIPTION_PAGE = 500
SUBSCRIPTION_POLL_S = 0.2
_POSITION_MAX = 2**63 - 1


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise the library's errors for psycopg's, as its own recorders do."""
    try:
        yield
    except psycopg.DataError as error:
        raise persistence.DataError(str(error)) from error
    except psycopg.Error as error:
        kind = persistence.OperationalError if is_away(error) else persistence.DatabaseError
        raise kind(str(error)) from error


class LedgerRecorder(ApplicationRecorder):
    """Appends through one Writer, reads through a pool.  Thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._pool = ConnectionPool(
            dsn,
            connection_class=DbConnection,
            min_size=0,
            max_size=READ_CONNECTIONS_MAX,
            timeout=READ_WAIT_S,
            reconnect_timeout=POOL_RECONNECT_S,
            kwargs={"autocommit": True, "application_name": "attachment-ledger reader"},
            configure=_configure,
            open=True,
        )
        self.writer = Writer(dsn)

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        context: EventContext | None = None,
        relied_on: Mapping[UUID, int] | None = None,
        tracking: Tracking | None = None,
        **kwargs: Any,  # noqa: ARG002 - the library lets applications pass further arguments
    ) -> Sequence[int]:
        """Store all of the events or none and return their positions, when they are durable.

        Raises the library's IntegrityError if a stream is not at the version before the
        first one given for it, or one of `relied_on` not at its version; NotSupportedError for
        tracking; ledger.log.writer.UnknownOutcomeError if there is no answer.
        """
        if tracking is not None:
            raise NotSupportedError("this log stores no tracking with its events")
        if not stored_events:
            return []
        return self.writer.append(stored_events, context, relied_on or {})

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """One aggregate's events; `gt` and `lte` bound the version."""
        rows = self._rows(
            "stream_backwards" if desc else "stream",
            id=originator_id,
            gt=-1 if gt is None else gt,
            lte=_POSITION_MAX if lte is None else lte,
            limit=STREAM_EVENTS_MAX if limit is None else limit,
        )
        return [StoredEvent(*row) for row in rows]

    def select_streams(self, versions: Mapping[UUID, int | None]) -> dict[UUID, list[StoredEvent]]:
        """The events of several aggregates after a version each (None: all of them), from
        one query and so of one moment.
        """
        streams: dict[UUID, list[StoredEvent]] = {id_: [] for id_ in versions}
        after = [-1 if version is None else version for version in versions.values()]
        for row in self._rows("streams", ids=_literal(streams), after=_literal(after)):
            streams[row[0]].append(StoredEvent(*row))
        return streams

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> list[Notification]:
        """The log from `start` (or after it) to `stop`, at most `limit` events."""
        first = 0 if start is None else start + (not inclusive_of_start)
        rows = self._rows(
            "notifications_of_topics" if topics else "notifications",
            start=first,
            stop=_POSITION_MAX if stop is None else stop,
            topics=list(topics),
            limit=limit,
        )
        return [Notification(*row) for row in rows]

    def max_notification_id(self) -> int | None:
        """Position of the last event; None if there is none."""
        [(position,)] = self._rows("head")
        return position or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> PollingSubscription:
        """Every event after `gt`, then each new one; blocks until there is one."""
        return PollingSubscription(self, gt, topics)

    def close(self) -> None:
        """Store what is queued and close all connections."""
        self.writer.close()
        self._pool.close()

    def _rows(self, query: LiteralString, /, **parameters: Any) -> list[tuple[Any, ...]]:
        text = sql.query("log", query)
        with library_errors():
            for _ in range(READ_ATTEMPTS - 1):
                try:
                    return self._fetch(text, parameters)
                except psycopg.Error as error:
                    if isinstance(error, PoolTimeout) or not is_away(error):
                        raise
                    self._pool.drain()  # where one is dead the others may be silent
            return self._fetch(text, parameters)

    def _fetch(self, text: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self._pool.connection() as connection, connection.cursor(binary=True) as cursor:
            return cursor.execute(text, parameters).fetchall()


def _configure(connection: psycopg.Connection[Any]) -> None:
    connection.execute(sql.query("log", "reader_session"))


def _literal(values: Iterable[object]) -> str:
    """An array in PostgreSQL's text form; psycopg would inspect each element of a list, slowly."""
    return f"{{{','.join(map(str, values))}}}"


class PollingSubscription(Subscription[LedgerRecorder]):
    """Pages through the log; at its end polls."""

    def __init__(
        self, recorder: LedgerRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._page: Iterator[Notification] = iter(())
        self._stopped = Event()

    def stop(self) -> None:
        """End the iteration, from any thread."""
        super().stop()
        self._stopped.set()

    def __next__(self) -> Notification:
        while not self._stopped.is_set():
            notification = next(self._page, None)
            if notification is not None:
                self._last_notification_id = notification.id
                return notification
            self._turn_page()
        raise StopIteration

    def _turn_page(self) -> None:
        page = self._recorder.select_notifications(
            start=self._last_notification_id or 0,
            limit=SUBSCRIPTION_PAGE,
            topics=self._topics,
            inclusive_of_start=False,
        )
        self._page = iter(page)
        if not page:
            self._stopped.wait(SUBSCRIPTION_POLL_S)
