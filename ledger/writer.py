"""The group-commit writer: every append of this process goes through its one connection.

Theory of operation.  Callers put appends into a bounded queue and get a future each.  One
thread takes what is queued, up to a limit, sends it as one call of `append_events` (one
round trip, one lock of the log, one fsync) and resolves the futures.  Under load batches
grow by themselves; an append alone waits for nobody.

* A stream occurs in one append of a batch only; the others of that stream wait, in
  their order, for the next batch.
* If the connection is lost, or the server asks to try again, the same batch is sent again
  with growing pauses.  Appends carry an id, so one that had been stored is answered with
  its position instead of a conflict with itself.
* An append that cannot be stored for a reason of its own (text the database refuses)
  fails alone: the batch is repeated append by append.
* An append that got no answer before its deadline fails with UnknownOutcomeError.  Its
  caller knows nothing then, and has to read before it acts.
* A process that dies leaves whole appends or nothing: a call is one transaction.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import psycopg
from eventsourcing.persistence import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
)

import sql
from aggregates.base import NOBODY, Context
from ledger import arrays

log = logging.getLogger(__name__)

QUEUE_APPENDS_MAX = 10_000
BATCH_APPENDS_MAX = 1_000
BATCH_EVENTS_MAX = 5_000  # a single larger append still goes, alone
APPEND_EVENTS_MAX = 10_000
APPEND_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 10.0
RETRY_PAUSE_FIRST_S = 0.02
RETRY_PAUSE_MAX_S = 2.0
CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 10  # then the server cancels, and the batch is sent again

#: SQLSTATE classes and codes after which the same batch may well succeed: lost connection,
#: transaction rollback (serialization, deadlock), too few resources, operator intervention
#: (shutdown, cancel), a primary that has become a standby, lock not available.
_TRY_AGAIN = ("08", "40", "53", "57", "25006", "55P03")

_APPEND = sql.query("log", "append")
_int4 = struct.Struct("!i").pack
_int8 = struct.Struct("!q").pack


class QueueFullError(OperationalError):
    """The log's queue is full.  Nothing was stored; try again in a moment."""


class UnknownOutcomeError(OperationalError):
    """The database did not answer in time.  The append may have been stored: read first."""


@dataclass(eq=False)
class Append:
    """Events that are stored together or not at all, encoded, and the promise of an answer."""

    columns: list[tuple[bytes | None, ...]]  # one tuple per event, in the order of the query
    streams: frozenset[uuid.UUID]
    deadline: float
    sent: bool = False
    future: Future[list[int]] = field(default_factory=Future)

    def accepted(self, first_position: int) -> None:
        self.future.set_result(list(range(first_position, first_position + len(self.columns))))

    def refused(self, error: Exception) -> None:
        self.future.set_exception(error)


def encode(events: Sequence[StoredEvent], context: Context | None) -> Append:
    """The append in the form the database takes; raises ValueError for an id that is no uuid."""
    append_id = uuid.uuid4().bytes
    why = _why(context)
    columns: list[tuple[bytes | None, ...]] = []
    streams = set()
    for event in events:
        stream = _as_uuid(event.originator_id)
        streams.add(stream)
        about = getattr(event, "about", NOBODY)
        columns.append(
            (
                append_id,
                stream.bytes,
                _int8(event.originator_version),
                event.topic.encode(),
                event.state,
                _uuid(about.attachment_id),
                _uuid(about.volume_id),
                _uuid(about.server_id),
                _text(about.host),
                *why,
            )
        )
    return Append(columns, frozenset(streams), time.monotonic() + APPEND_DEADLINE_S)


def _why(context: Context | None) -> tuple[bytes | None, ...]:
    if context is None:
        return (None,) * 7
    actor = context.actor
    return (
        _uuid(context.operation_id),
        _text(context.request_id),
        _text(context.cause),
        _text(actor.name),
        _text(actor.user_id),
        _text(actor.project_id),
        _text("\n".join(actor.roles) if actor.roles else None),
    )


def _as_uuid(value: uuid.UUID | str) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(value)


def _uuid(value: str | None) -> bytes | None:
    return None if value is None else uuid.UUID(value).bytes


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


_KINDS: tuple[type[arrays.Array], ...] = (
    *(arrays.Uuid, arrays.Uuid, arrays.Int8, arrays.Text, arrays.Bytea),
    *(arrays.Uuid, arrays.Uuid, arrays.Uuid, arrays.Text),
    *(arrays.Uuid, arrays.Text, arrays.Text, arrays.Text, arrays.Text, arrays.Text, arrays.Text),
)


def _parameters(batch: Sequence[Append]) -> list[arrays.Array]:
    numbers: list[bytes | None] = []
    for number, append in enumerate(batch):
        numbers += [_int4(number)] * len(append.columns)
    columns = zip(*(row for append in batch for row in append.columns), strict=True)
    typed = (kind(column) for kind, column in zip(_KINDS, columns, strict=True))
    return [arrays.Int4(numbers), *typed]


class Writer:
    """The thread, its queue and its connection.  `close` drains."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._queue: deque[Append] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._hurry = threading.Event()  # set on close: pauses end, deadlines shrink
        self._close_deadline = float("inf")
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(
        self, events: Sequence[StoredEvent], context: Context | None = None
    ) -> Future[list[int]]:
        """Queue one append; the future gives the positions of its events.

        The future raises the library's IntegrityError if a stream is not at the version
        before the first given, UnknownOutcomeError after APPEND_DEADLINE_S.  Raises
        QueueFullError and, for what can never be stored, ValueError or ProgrammingError
        at once.  Never blocks, so it may be called from an event loop.
        """
        if not 1 <= len(events) <= APPEND_EVENTS_MAX:
            raise ProgrammingError(f"an append has 1 to {APPEND_EVENTS_MAX} events")
        append = encode(events, context)
        with self._changed:
            if self._closing:
                raise ProgrammingError("the log is closed")
            if len(self._queue) >= QUEUE_APPENDS_MAX:
                raise QueueFullError(str(QueueFullError.__doc__))
            self._queue.append(append)
            self._changed.notify()
        return append.future

    def close(self) -> None:
        """Store what is queued, for CLOSE_DEADLINE_S at most, and end."""
        with self._changed:
            if not self._closing:
                self._closing = True
                self._close_deadline = time.monotonic() + CLOSE_DEADLINE_S
            self._changed.notify()
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._store(batch)
        finally:
            self._disconnect()

    def _take(self) -> list[Append]:
        """The next batch; empty when all is stored and the writer is closing."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closing)
                batch = self._pick()
                if batch or (self._closing and not self._queue):
                    return batch

    def _pick(self) -> list[Append]:
        batch: list[Append] = []
        streams: set[uuid.UUID] = set()
        later: list[Append] = []
        events = 0
        for _ in range(min(len(self._queue), BATCH_APPENDS_MAX)):
            append = self._queue.popleft()
            full = bool(batch) and events + len(append.columns) > BATCH_EVENTS_MAX
            if full or not streams.isdisjoint(append.streams):
                later.append(append)
            elif append.future.set_running_or_notify_cancel():
                batch.append(append)
                events += len(append.columns)
            else:
                continue  # cancelled while it waited
            streams |= append.streams
            if full:
                break
        self._queue.extendleft(reversed(later))
        return batch

    def _store(self, batch: list[Append]) -> None:
        """Send until there is an answer; resolves every future of the batch."""
        pause_s = RETRY_PAUSE_FIRST_S
        while batch := self._without_expired(batch):
            try:
                self._send(batch)
            except psycopg.Error as error:
                if not self._may_try_again(error):
                    self._store_apart(batch, error)
                    return
                log.warning("append not answered, trying again: %s", error)
                self._disconnect()
                self._pause(pause_s)
                pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)
            except Exception as error:
                log.exception("append failed")
                for append in batch:
                    append.refused(error)
                return
            else:
                return

    def _store_apart(self, batch: list[Append], error: psycopg.Error) -> None:
        """One of the batch is poison: let each stand for itself."""
        if len(batch) > 1:
            for append in batch:
                self._store([append])
            return
        refusal = DatabaseError(f"the database refuses this append: {error.diag.message_primary}")
        refusal.__cause__ = error
        batch[0].refused(refusal)

    def _send(self, batch: list[Append]) -> None:
        connection = self._connect()
        for append in batch:
            append.sent = True
        with connection.cursor(binary=True) as cursor:
            cursor.execute(_APPEND, _parameters(batch), prepare=True)
            positions = dict(cursor.fetchall())
        for number, append in enumerate(batch):
            first = positions[number]
            if first is None:
                append.refused(IntegrityError("a stream is not at the version this append needs"))
            else:
                append.accepted(first)

    def _without_expired(self, batch: list[Append]) -> list[Append]:
        now = time.monotonic()
        alive = []
        for append in batch:
            if now < min(append.deadline, self._close_deadline):
                alive.append(append)
            elif append.sent:
                append.refused(UnknownOutcomeError(str(UnknownOutcomeError.__doc__)))
            else:
                append.refused(OperationalError("no connection to the database; nothing stored"))
        return alive

    def _may_try_again(self, error: psycopg.Error) -> bool:
        lost = self._connection is None or self._connection.closed
        return lost or (error.sqlstate or "").startswith(_TRY_AGAIN)

    def _pause(self, pause_s: float) -> None:
        if self._hurry.wait(pause_s):
            time.sleep(RETRY_PAUSE_FIRST_S)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                tcp_user_timeout=STATEMENT_TIMEOUT_S * 1000,
                application_name="attachment-ledger writer",
            )
            timeout = {"timeout": f"{STATEMENT_TIMEOUT_S}s"}
            self._connection.execute(sql.query("log", "writer_session"), timeout)
            arrays.register(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
