"""The group-commit writer: every append of this process goes through its one connection.

Theory of operation.  A thread that appends puts its append into a queue and waits.  One of the
waiting threads is the leader: it takes a batch from the queue, up to a limit, sends it as one
call of `append_events` (one round trip, one lock of the log, one fsync), and stores the result
of each append.  When its own append is answered, the thread that has waited longest becomes the
leader.  So batches grow under load, and a single append waits for no other and needs no switch
of threads.

The threads of a batch wake each other, one by one.  If all were woken at once, they would
compete for the interpreter's lock with the next leader.  So the next batch is made and stored
while the callers of this one return.

* A stream gets events from one append of a batch only; another append that needs the stream
  waits, in its order, for the next batch.
* If the connection is lost, or the server asks to try again, the same batch is sent again
  with growing pauses.  An error without an SQLSTATE is a lost connection, whatever the connection
  counts as.  Each append has an id: if it was stored already, the answer is its position, not a
  conflict with itself.
* An append that cannot be stored for a reason of its own (text the database refuses)
  fails alone: the batch is repeated append by append.
* A line that is silent is given up (projections.lines), also while a commit waits for a standby,
  and the batch is sent again on a new one, to the leader that there is then.
* An append without an answer at its deadline fails with UnknownOutcomeError.  Its caller has
  to read the log before it acts.
* A process that dies leaves whole appends or nothing: a call is one transaction.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

import sql
from aggregates.base import NOBODY, EventContext
from ledger.log import binary
from projections.lines import Line
from projections.reads.database_trouble import Trouble, is_lost

log = structlog.get_logger(__name__)

BATCH_APPENDS_MAX = 1_000
BATCH_EVENTS_MAX = 5_000  # a single larger append still goes, alone
APPEND_EVENTS_MAX = 10_000
APPEND_DEADLINE_S = 60.0  # a failover of Patroni: its ttl, and the promotion
CLOSE_DEADLINE_S = 10.0
RETRY_PAUSE_FIRST_S = 0.02
RETRY_PAUSE_MAX_S = 2.0
STATEMENT_TIMEOUT_S = 10  # then the server cancels, and the batch is sent again

#: SQLSTATE classes and codes after which the same batch may well succeed: lost connection,
#: transaction rollback (serialization, deadlock), too few resources, operator intervention
#: (shutdown, cancel), a primary that has become a standby, lock not available.
_TRY_AGAIN = ("08", "40", "53", "57", "25006", "55P03")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)

_APPEND = sql.query("log", "append")
_NAME = b"append"  # of the prepared statement
_TEXT, _BINARY = 0, 1
_STREAM_FIELDS, _EVENT_FIELDS = 3, 17
_NOTHING: Mapping[uuid.UUID, int] = {}


class UnknownOutcomeError(OperationalError):
    """The database did not answer in time.  The append may have been stored: read first."""


@dataclass(eq=False, slots=True)
class Append:
    """Events that are stored together or not at all, encoded, and the result."""

    streams: Mapping[uuid.UUID, bytes]  # rows for append_events, less the number of the append
    events: Sequence[bytes]
    writes: frozenset[uuid.UUID]  # the streams that get events; the others are relied on
    since: float = field(default_factory=time.monotonic)
    sent: bool = False
    first_position: int | None = None
    error: Exception | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    wakes: Append | None = None  # the append whose thread is woken by this one's
    abandoned: bool = False  # no thread waits for it

    def __post_init__(self) -> None:
        self.turn.acquire()  # until it is answered, or its thread becomes the leader

    @property
    def answered(self) -> bool:
        return self.first_position is not None or self.error is not None

    def accepted(self, first_position: int) -> None:
        self.first_position = first_position

    def refused(self, error: Exception) -> None:
        self.error = error

    def positions(self) -> list[int]:
        if self.error is not None:
            raise self.error
        assert self.first_position is not None
        return list(range(self.first_position, self.first_position + len(self.events)))


def encode(
    events: Sequence[StoredEvent],
    context: EventContext | None,
    relied_on: Mapping[uuid.UUID, int] = _NOTHING,
) -> Append:
    """The append in the form the database takes.

    Raises ValueError for an id that is no uuid, IntegrityError if the events of a stream do
    not follow each other.
    """
    append_id, metadata = binary.uuid(uuid.uuid4()), _metadata(context)
    streams: dict[uuid.UUID, bytes] = {}
    versions: dict[uuid.UUID, int] = {}
    rows = []
    for event in events:
        id_, version = event.originator_id, event.originator_version
        stream = id_ if isinstance(id_, uuid.UUID) else uuid.UUID(id_)
        if stream not in streams:
            streams[stream] = binary.uuid(stream) + binary.int8(version - 1)
        elif version != versions[stream] + 1:
            raise IntegrityError("the events of a stream do not follow each other")
        versions[stream] = version
        about = getattr(event, "about", NOBODY)
        fields = (
            append_id,
            binary.uuid(stream),
            binary.int8(version),
            binary.text(event.topic),
            binary.bytea(event.state),
            binary.uuid(about.attachment_id),
            binary.uuid(about.volume_id),
            binary.uuid(about.server_id),
            binary.text(about.host),
            metadata,
        )
        rows.append(b"".join(fields))
    writes = frozenset(streams)
    for stream, version in relied_on.items():
        if stream not in writes:
            streams[stream] = binary.uuid(stream) + binary.int8(version)
    return Append(streams, rows, writes)


def _metadata(context: EventContext | None) -> bytes:
    if context is None:
        return _NO_CONTEXT
    actor = context.actor
    fields = (
        binary.uuid(context.operation_id),
        binary.text(context.request_id),
        binary.text(context.cause),
        binary.text(actor.name),
        binary.text(actor.user_id),
        binary.text(actor.project_id),
        binary.texts(actor.roles or None),
    )
    return b"".join(fields)


_NO_CONTEXT = b"".join((binary.uuid(None), *[binary.text(None)] * 5, binary.texts(None)))


def _parameters(batch: Sequence[Append], types: tuple[int, int]) -> list[bytes]:
    streams: list[bytes] = []
    events: list[bytes] = []
    for append_no, append in enumerate(batch):
        number = binary.int4(append_no)
        streams += [binary.row(_STREAM_FIELDS, number + rest) for rest in append.streams.values()]
        events += [binary.row(_EVENT_FIELDS, number + rest) for rest in append.events]
    return [binary.array(types[0], streams), binary.array(types[1], events)]


class Writer:
    """The queue, the leader and the connection.  Thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()  # of the queue and of the leader
        self._queue: deque[Append] = deque()
        self._leader: Append | None = None  # its thread alone uses the connection
        self._idle = threading.Condition(self._lock)  # there is no leader
        self._closing = threading.Event()  # pauses end, deadlines shrink
        self._close_deadline = float("inf")
        self._connection: Line | None = None
        self.trouble = Trouble()  # why the last attempt to store events failed
        self.lost = 0  # connections
        self.append_seconds = Histogram(
            "ledger_append_seconds",
            "Time from the call of an append to its durable answer; refused ones count too",
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
        the version before the first given; DatabaseError if the database refuses something
        in the events, UnknownOutcomeError or OperationalError after APPEND_DEADLINE_S; for
        what can never be stored, ValueError or ProgrammingError.
        """
        if not 1 <= len(events) <= APPEND_EVENTS_MAX:
            raise ProgrammingError(f"an append has 1 to {APPEND_EVENTS_MAX} events")
        mine = encode(events, context, relied_on)
        self._answer(mine)
        return mine.positions()

    def probe(self) -> None:
        """Append nothing, with the lock and the commit of any append.  Raises as `append`."""
        nothing = Append({}, [], frozenset())
        self._answer(nothing)
        nothing.positions()

    def _answer(self, mine: Append) -> None:
        """Return when the append is answered."""
        leads = self._join(mine)
        try:
            if not leads:
                mine.turn.acquire()
            while not mine.answered:
                self._lead(mine)
        except BaseException:  # interrupted
            self._withdraw(mine)
            raise
        finally:
            self._pass_on(mine)

    def close(self) -> None:
        """Store what is queued, for CLOSE_DEADLINE_S at most, and end."""
        with self._lock:
            if not self._closing.is_set():
                self._close_deadline = time.monotonic() + CLOSE_DEADLINE_S
                self._closing.set()
            self._idle.wait_for(lambda: self._leader is None)
        self._disconnect()

    def _join(self, mine: Append) -> bool:
        """Enter the queue; true if this thread becomes the leader."""
        with self._lock:
            if self._closing.is_set():
                raise ProgrammingError("the log is closed")
            self._queue.append(mine)
            if self._leader is None:
                self._leader = mine
            return self._leader is mine

    def _pass_on(self, mine: Append) -> None:
        """Wake the next thread; if this one is the leader, appoint the one that waited longest."""
        if mine.wakes is not None:
            mine.wakes.turn.release()
        if self._leader is not mine:
            return
        with self._lock:
            self._leader = self._queue[0] if self._queue else None
            if self._leader is None:
                self._idle.notify_all()
            else:
                self._leader.turn.release()

    def _withdraw(self, mine: Append) -> None:
        """Remove the append from the queue, if it is not sent; its thread is not to be woken."""
        with self._lock:
            mine.abandoned = True
            if mine in self._queue:
                self._queue.remove(mine)

    def _lead(self, mine: Append) -> None:
        """Store one batch; each append of it has an answer then, whatever happens."""
        batch = self._pick()
        try:
            self._store(batch)
        finally:
            for append in batch:
                if not append.answered:
                    append.refused(UnknownOutcomeError(str(UnknownOutcomeError.__doc__)))
            self._wake([append for append in batch if append is not mine])
        self._count([append for append in batch if append.events])

    def _wake(self, answered: list[Append]) -> None:
        """Wake the first; each wakes the next."""
        with self._lock:
            waiting = [append for append in answered if not append.abandoned]
            for append, following in itertools.pairwise(waiting):
                append.wakes = following
        if waiting:
            waiting[0].turn.release()

    def _pick(self) -> list[Append]:
        batch: list[Append] = []
        needed: set[uuid.UUID] = set()
        written: set[uuid.UUID] = set()
        later: list[Append] = []
        events = 0
        with self._lock:
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
        return batch

    def _store(self, batch: list[Append]) -> None:
        """Send until each append of the batch has an answer."""
        pause_s = RETRY_PAUSE_FIRST_S
        while batch := self._without_expired(batch):
            try:
                self._send(batch)
            except psycopg.Error as error:
                self.trouble.met(error)
                if not self._is_transient(error):
                    self._store_apart(batch, error)
                    return
                log.warning("append_retried", wait_s=pause_s, why=str(error))
                self._disconnect()
                self._pause(pause_s)
                pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)
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

    def _store_apart(self, batch: list[Append], error: psycopg.Error) -> None:
        """The database refuses an append of the batch: store each by itself, to find which."""
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
        parameters = _parameters(batch, self._types)
        connection.answer_s = self._patience_s(batch)
        formats = [_BINARY, _BINARY]
        connection.pgconn.send_query_prepared(_NAME, parameters, formats, _TEXT)
        result = _result(connection)
        head, *lists = (result.get_value(0, column) or b"" for column in range(3))
        refused = dict(zip(*(_numbers(array) for array in lists), strict=True))
        position = int(head) + 1
        for number, append in enumerate(batch):
            if number not in refused:
                append.accepted(position)
                position += len(append.events)
            elif (stored_at := refused[number]) is not None:
                append.accepted(stored_at)
            else:
                append.refused(IntegrityError("a stream is not at the version this append needs"))

    def _patience_s(self, batch: list[Append]) -> float:
        """How long an answer is waited for: no longer than whoever has waited longest."""
        end = min(batch[0].since + APPEND_DEADLINE_S, self._close_deadline)
        return min(max(end - time.monotonic(), RETRY_PAUSE_FIRST_S), Line.answer_s)

    def _without_expired(self, batch: list[Append]) -> list[Append]:
        now = time.monotonic()
        alive = []
        for append in batch:
            if now < min(append.since + APPEND_DEADLINE_S, self._close_deadline):
                alive.append(append)
            elif append.sent:
                append.refused(UnknownOutcomeError(str(UnknownOutcomeError.__doc__)))
            else:
                append.refused(OperationalError("no connection to the database; nothing stored"))
        return alive

    def _is_transient(self, error: psycopg.Error) -> bool:
        lost = is_lost(error) or self._connection is None or self._connection.closed
        return lost or (error.sqlstate or "").startswith(_TRY_AGAIN)

    def _pause(self, pause_s: float) -> None:
        if self._closing.wait(pause_s):
            time.sleep(RETRY_PAUSE_FIRST_S)

    def _connect(self) -> Line:
        if self._connection is None:
            self._connection = Line.connect(
                self._dsn,
                autocommit=True,
                client_encoding="UTF8",  # what `encode` sends, whatever the environment says
                application_name="attachment-ledger writer",
            )
            timeout = {"timeout": f"{STATEMENT_TIMEOUT_S}s"}
            self._connection.execute(sql.query("log", "writer_session"), timeout)
            types = self._connection.execute(sql.query("log", "append_types"))
            [self._types] = types.fetchall()
            self._connection.pgconn.send_prepare(_NAME, _APPEND)
            _result(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.lost += 1


def _result(connection: Line) -> PGresult:
    """Of what was sent.  Raises psycopg.Error."""
    result: PGresult
    [result] = connection.wait(execute(connection.pgconn))
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise error_from_result(result)
    return result


def _numbers(array: bytes) -> list[int | None]:
    """The elements of an array in text form, which is empty for NULL."""
    words = array[1:-1].split(b",") if array else []
    return [None if word == b"NULL" else int(word) for word in words]
