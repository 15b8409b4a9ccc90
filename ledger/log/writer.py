"""The group-commit writer: every append of this process goes through its one connection.

Theory of operation.  A caller puts its append into a queue and waits for the answer.  One thread
takes what is queued, up to a limit, sends it as one call of `append_events` (one round trip, one
lock of the log, one fsync), and answers each append.  So batches grow under load, and a single
append waits for no other.

* A stream gets events from one append of a batch only; another append that needs the stream
  waits, in its order, for the next batch.
* If the connection is lost, or the server asks to try again, the same batch is sent again
  with growing pauses.  An error without an SQLSTATE is a lost connection, whatever the connection
  counts as.  Each append has an id: if it was stored already, the answer is its position, not a
  conflict with itself.
* An append that cannot be stored for a reason of its own (text the database refuses)
  fails alone: the batch is repeated append by append.
* A silent connection is closed (projections.database_connections), also while a commit waits for a
  standby, and the batch is sent again on a new one, to the leader that there is then.
* An append without an answer at its deadline fails with UnknownOutcomeError.  Its caller has
  to read the log before it acts.
* A process that dies leaves whole appends or nothing: a call is one transaction.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog
from eventsourcing.persistence import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
)
from prometheus_client import Histogram
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.json import Json

import sql
from aggregates.base import NOBODY, EventContext
from projections.database_connections import RECONNECT_MAX_S, DbConnection
from projections.reads.database_trouble import DatabaseTrouble, is_lost

log = structlog.get_logger(__name__)

BATCH_APPENDS_MAX = 1_000
BATCH_EVENTS_MAX = 5_000  # a single larger append still goes, alone
APPEND_EVENTS_MAX = 10_000
APPEND_DEADLINE_S = 60.0  # a failover of Patroni: its ttl, and the promotion
CLOSE_DEADLINE_S = 10.0
RETRY_PAUSE_FIRST_S = 0.02
STATEMENT_TIMEOUT_S = 10  # then the server cancels, and the batch is sent again

#: SQLSTATE classes and codes after which the same batch may well succeed: lost connection,
#: transaction rollback (serialization, deadlock), too few resources, operator intervention
#: (shutdown, cancel), a primary that has become a standby, lock not available.
_TRY_AGAIN = ("08", "40", "53", "57", "25006", "55P03")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)

#: Of a batch without new persons, and with some: most have none (decision 0130).
_APPEND, _APPEND_MET = (sql.query("log", name) for name in ("append", "append_met"))
_NOTHING: Mapping[uuid.UUID, int] = {}
_ROWS = ("appended_stream", "appended_event")


class UnknownOutcomeError(OperationalError):
    """The database did not answer in time.  The append may have been stored: read first."""

    def __init__(self) -> None:
        super().__init__(str(type(self).__doc__))


@dataclass(eq=False, slots=True)
class Append:
    """Events that are stored together or not at all, and the answer: the position of the first."""

    streams: Mapping[uuid.UUID, int]  # the version that each must be at
    events: Sequence[tuple[Any, ...]]  # rows for append_events, less the number of the append
    writes: frozenset[uuid.UUID]  # the streams that get events; the others are relied on
    persons: Sequence[Mapping[str, Any]] = ()  # EventContext's
    since: float = field(default_factory=time.monotonic)
    sent: bool = False
    answer: Future[int] = field(default_factory=Future)

    @property
    def expires(self) -> float:
        return self.since + APPEND_DEADLINE_S


def encode(
    events: Sequence[StoredEvent],
    context: EventContext | None,
    relied_on: Mapping[uuid.UUID, int] = _NOTHING,
) -> Append:
    """The append as rows of what `append_events` takes.

    Raises ValueError for an id that is no uuid, IntegrityError if the events of a stream do
    not follow each other.
    """
    append_id, metadata = uuid.uuid4(), _metadata(context)
    streams: dict[uuid.UUID, int] = {}
    versions: dict[uuid.UUID, int] = {}
    rows = []
    for event in events:
        id_, version = event.originator_id, event.originator_version
        stream = id_ if isinstance(id_, uuid.UUID) else uuid.UUID(id_)
        if stream not in streams:
            streams[stream] = version - 1
        elif version != versions[stream] + 1:
            raise IntegrityError("the events of a stream do not follow each other")
        versions[stream] = version
        about = getattr(event, "about", NOBODY)
        whom = map(_uuid, (about.attachment_id, about.volume_id, about.server_id))
        what = (append_id, stream, version, event.topic, event.state)
        rows.append((*what, *whom, about.host, *metadata))
    writes = frozenset(streams)
    for stream, version in relied_on.items():
        streams.setdefault(stream, version)
    return Append(streams, rows, writes, context.persons if context else ())


def _uuid(value: str | None) -> uuid.UUID | None:
    return None if value is None else uuid.UUID(value)


def _metadata(context: EventContext | None) -> tuple[Any, ...]:
    if context is None:
        return (None,) * 7
    actor = context.actor.noted
    why = (_uuid(context.operation_id), context.request_id, context.cause)
    return (*why, actor.name, actor.user_id, actor.project_id, list(actor.roles) or None)


class Writer:
    """The queue, the thread and its connection.  Thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._queue: deque[Append] = deque()
        self._queued = threading.Condition()
        self._thread: threading.Thread | None = None  # from the first append on
        self._batch: list[Append] = []  # what is being stored
        self._closing = threading.Event()  # pauses end, deadlines shrink
        self._close_deadline = float("inf")
        self._connection: DbConnection | None = None  # the thread's alone
        self.trouble = DatabaseTrouble()  # why the last attempt to store events failed
        self.lost = 0  # connections
        self.append_seconds = Histogram(
            "ledger_append_seconds",
            "Time from an append's call to its durable answer; includes refused appends",
            buckets=SECONDS,
            registry=None,
        )
        self.batch_appends = Histogram(
            "ledger_append_batch_appends", "Appends in one commit", buckets=SIZES, registry=None
        )
        self.batch_events = Histogram(
            "ledger_append_batch_events", "Events in one commit", buckets=SIZES, registry=None
        )

    def append(
        self,
        events: Sequence[StoredEvent],
        context: EventContext | None = None,
        relied_on: Mapping[uuid.UUID, int] = _NOTHING,
    ) -> list[int]:
        """Store the events, all or none, and return their positions, when they are durable.

        `relied_on`: streams that get no event and must still be at the version given.
        Raises the library's IntegrityError if one of them is not at it, or a stream not at
        the version before the first given; DatabaseError if something in the events cannot be
        stored, UnknownOutcomeError or OperationalError after APPEND_DEADLINE_S; for
        what can never be stored, ValueError or ProgrammingError.
        """
        if not 1 <= len(events) <= APPEND_EVENTS_MAX:
            raise ProgrammingError(f"an append has 1 to {APPEND_EVENTS_MAX} events")
        first = self._answer(encode(events, context, relied_on))
        return list(range(first, first + len(events)))

    def state(self) -> str:
        """How many appends wait, and are being stored, for people.  It waits for no lock."""
        sent, queued, now = [*self._batch], self._queue.copy(), time.monotonic()
        oldest = max((now - each.since for each in (*sent, *queued)), default=0.0)
        return (
            f"Appends: {len(sent)} being stored, {len(queued)} wait, the oldest for {oldest:.1f} s"
        )

    def probe(self) -> None:
        """Append nothing, with the lock and the commit of any append.  Raises as `append`."""
        self._answer(Append({}, [], frozenset()))

    def close(self) -> None:
        """Store what is queued, for CLOSE_DEADLINE_S at most, and end."""
        with self._queued:
            if not self._closing.is_set():
                self._close_deadline = time.monotonic() + CLOSE_DEADLINE_S
                self._closing.set()
            self._queued.notify()
        if self._thread is not None:
            self._thread.join()
        self._disconnect()

    def _answer(self, mine: Append) -> int:
        with self._queued:
            if self._closing.is_set():
                raise ProgrammingError("the log is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
                self._thread.start()
            self._queue.append(mine)
            self._queued.notify()
        try:
            return mine.answer.result()
        except BaseException:
            mine.answer.cancel()  # interrupted: not stored, unless it is being sent
            raise

    def _run(self) -> None:
        while self._wait():
            batch = self._batch = self._pick()
            try:
                self._store(batch)
            except Exception:
                log.exception("append_failed")
            for append in batch:
                if not append.answer.done():
                    append.answer.set_exception(UnknownOutcomeError())
            self._count([append for append in batch if append.events])
            self._batch = []

    def _wait(self) -> bool:
        """Until there is something to store; False: no more, it is closed."""
        with self._queued:
            self._queued.wait_for(lambda: self._queue or self._closing.is_set())
            return bool(self._queue)

    def _pick(self) -> list[Append]:
        batch: list[Append] = []
        needed: set[uuid.UUID] = set()
        written: set[uuid.UUID] = set()
        later: list[Append] = []
        events = 0
        with self._queued:
            for _ in range(min(len(self._queue), BATCH_APPENDS_MAX)):
                append = self._queue.popleft()
                full = bool(batch) and events + len(append.events) > BATCH_EVENTS_MAX
                free = written.isdisjoint(append.streams) and needed.isdisjoint(append.writes)
                if full or not free:
                    later.append(append)
                else:
                    batch.append(append)
                    events += len(append.events)
                needed.update(append.streams)
                written.update(append.writes)
                if full:
                    break
            self._queue.extendleft(reversed(later))
        return [append for append in batch if append.answer.set_running_or_notify_cancel()]

    def _store(self, batch: list[Append]) -> None:
        """Send until each append of the batch has an answer."""
        pause_s = RETRY_PAUSE_FIRST_S
        while batch := self._without_expired(batch):
            try:
                self._send(batch)
            except UnicodeError as error:
                self._store_apart(batch, error)
                return
            except psycopg.Error as error:
                self.trouble.met(error)
                if not self._is_transient(error):
                    self._store_apart(batch, error)
                    return
                log.warning("append_retried", wait_s=pause_s, why=str(error))
                self._disconnect()
                self._pause(pause_s)
                pause_s = min(pause_s * 2, RECONNECT_MAX_S)
            else:
                self.trouble.end()
                return

    def _count(self, batch: list[Append]) -> None:
        if not batch:
            return
        now = time.monotonic()
        self.batch_appends.observe(len(batch))
        self.batch_events.observe(sum(len(append.events) for append in batch))
        for append in batch:
            self.append_seconds.observe(now - append.since)

    def _store_apart(self, batch: list[Append], error: Exception) -> None:
        """An append of the batch cannot be stored: store each by itself, to find which."""
        if len(batch) > 1:
            for append in batch:
                self._store([append])
            return
        said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        refusal = DatabaseError(f"the database refuses this append: {said or error}")
        refusal.__cause__ = error
        batch[0].answer.set_exception(refusal)

    def _send(self, batch: list[Append]) -> None:
        connection = self._connect()
        for append in batch:
            append.sent = True
        connection.answer_s = self._patience_s(batch)
        text = _APPEND_MET if any(append.persons for append in batch) else _APPEND
        answer = connection.execute(text, self._parameters(batch), prepare=True)
        [(head, refused, stored_at)] = answer.fetchall()
        old = dict(zip(refused or (), stored_at or (), strict=True))
        position = head + 1
        for number, append in enumerate(batch):
            if number not in old:
                append.answer.set_result(position)
                position += len(append.events)
            elif old[number] is not None:
                append.answer.set_result(old[number])
            else:
                why = "a stream is not at the version this append needs"
                append.answer.set_exception(IntegrityError(why))

    def _parameters(self, batch: Sequence[Append]) -> dict[str, Any]:
        stream, event = self._row_types
        numbered = list(enumerate(batch))
        streams = [stream(no, *each) for no, one in numbered for each in one.streams.items()]
        events = [event(no, *each) for no, one in numbered for each in one.events]
        persons = [{"append_no": no, **each} for no, one in numbered for each in one.persons]
        return {"streams": streams, "events": events, "persons": Json(persons)}

    def _patience_s(self, batch: list[Append]) -> float:
        """How long an answer is waited for: no longer than whoever has waited longest."""
        end = min(batch[0].expires, self._close_deadline)
        return min(max(end - time.monotonic(), RETRY_PAUSE_FIRST_S), DbConnection.answer_s)

    def _without_expired(self, batch: list[Append]) -> list[Append]:
        now = time.monotonic()
        alive = []
        for append in batch:
            if now < min(append.expires, self._close_deadline):
                alive.append(append)
            elif append.sent:
                append.answer.set_exception(UnknownOutcomeError())
            else:
                why = "no connection to the database; nothing stored"
                append.answer.set_exception(OperationalError(why))
        return alive

    def _is_transient(self, error: psycopg.Error) -> bool:
        lost = is_lost(error) or self._connection is None or self._connection.closed
        return lost or (error.sqlstate or "").startswith(_TRY_AGAIN)

    def _pause(self, pause_s: float) -> None:
        if self._closing.wait(pause_s):
            time.sleep(RETRY_PAUSE_FIRST_S)

    def _connect(self) -> DbConnection:
        if self._connection is None:
            self._connection = DbConnection.connect(
                self._dsn,
                autocommit=True,
                client_encoding="UTF8",  # whatever the environment says
                application_name="attachment-ledger writer",
            )
            timeout = {"timeout": f"{STATEMENT_TIMEOUT_S}s"}
            self._connection.execute(sql.query("log", "writer_session"), timeout)
            self._row_types = [_row_type(self._connection, name) for name in _ROWS]
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.lost += 1


def _row_type(connection: DbConnection, name: str) -> Callable[..., Any]:
    """What makes rows of a composite type that psycopg sends as such.

    Raises psycopg.Error; ProgrammingError if this database has no such type.
    """
    info = CompositeInfo.fetch(connection, name)
    if info is None:
        raise psycopg.ProgrammingError(f"the database has no type {name}: it has another schema")
    register_composite(info, connection)
    assert info.python_type is not None, "registered"
    return info.python_type
