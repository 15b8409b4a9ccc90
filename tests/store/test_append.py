"""The one write path: what is accepted, what is refused, and that neither is ever partial."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import (
    DatabaseError,
    IntegrityError,
    ProgrammingError,
    StoredEvent,
)

from aggregates.attachment import Attachment
from aggregates.base import EventContext
from aggregates.host import Host, host_uuid
from aggregates.volume import Volume
from host_agent.shared.platform.telemetry import call_seconds
from ledger.http.probes.metrics import registry_of
from ledger.log import writer as writer_module
from ledger.log.application import ConflictError, Ledger
from ledger.log.mapper import IndexedEvent
from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import UnknownOutcomeError, Writer
from ledger.telemetry import StepNumbers
from tests.stack import eventually


def stored(stream: UUID, *versions: int, topic: str = "T") -> list[StoredEvent]:
    return [
        StoredEvent(originator_id=stream, originator_version=version, topic=topic, state=b"{}")
        for version in versions
    ]


def log_of(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT position, originator_id, originator_version FROM events ORDER BY position"
    ).fetchall()


def test_several_aggregates_are_stored_in_one_append(
    ledger: Ledger, db: psycopg.Connection[Any], context: EventContext
) -> None:
    attachment, volume = ledger.load_many((Attachment, uuid4()), (Volume, uuid4()))
    attachment.record(
        Attachment.AttachmentCreated, volume_id=str(volume.id), server_id=str(uuid4())
    )
    volume.claim(str(uuid4()), server_id=str(uuid4()))

    assert ledger.save(attachment, volume, context=context) == 2

    appends = db.execute("SELECT DISTINCT append_id, recorded_at FROM events").fetchall()
    assert len(appends) == 1


def test_one_stale_aggregate_refuses_the_whole_append(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    volume, other = ledger.load(Volume, uuid4()), ledger.load(Volume, uuid4())
    stale = ledger.load(Volume, volume.id)
    for each in (volume, stale, other):
        each.claim(str(uuid4()), server_id=str(uuid4()))
    ledger.save(volume)

    with pytest.raises(ConflictError):
        ledger.save(other, stale)

    assert [row[1] for row in log_of(db)] == [volume.id]


def test_what_was_decided_by_a_host_is_refused_once_the_host_has_moved(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    """No intent for a host stands behind a fence that its decision did not know of."""
    host = ledger.load(Host, host_uuid("compute-1"))
    host.register("compute-1", 1, {})
    ledger.save(host)
    volume, known = ledger.load_many((Volume, uuid4()), (Host, host.id))
    volume.claim(str(uuid4()), server_id=str(uuid4()))
    host.fence("dead", "power is off")
    ledger.save(host)

    with pytest.raises(ConflictError):
        ledger.save(volume, known)

    assert {row[1] for row in log_of(db)} == {host.id}
    volume, known = ledger.load_many((Volume, volume.id), (Host, host.id))
    volume.claim(str(uuid4()), server_id=str(uuid4()))
    assert ledger.save(volume, known) == 3


@pytest.mark.parametrize("versions", [(4,), (3, 3), (3, 5), (4, 3), (2, 3), (0,), (-1,)])
def test_a_stream_takes_only_the_versions_that_follow(
    recorder: LedgerRecorder, versions: tuple[int, ...]
) -> None:
    stream = uuid4()
    recorder.insert_events(stored(stream, 1, 2))

    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(stream, *versions))

    assert len(recorder.select_events(stream)) == 2
    assert recorder.insert_events(stored(stream, 3, 4)) == [3, 4]


@pytest.mark.parametrize("first", [2, 7, -1])
def test_an_empty_stream_begins_at_zero_or_one_and_nowhere_else(
    recorder: LedgerRecorder, first: int
) -> None:
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(uuid4(), first))
    assert recorder.insert_events(stored(uuid4(), 0) + stored(uuid4(), 1)) == [1, 2]


@contextmanager
def log_locked(writer: Writer, db: psycopg.Connection[Any]) -> Iterator[None]:
    """Until the end of the block the writer waits for the lock of the log, to store nothing."""
    with ThreadPoolExecutor(1) as pool, db.transaction():
        db.execute("SELECT FROM log_head FOR UPDATE")
        waiting = pool.submit(writer.probe)
        eventually(lambda: _waits(db), "the writer at the lock")
        yield
    waiting.result(10)


def _waits(db: psycopg.Connection[Any]) -> bool:
    [(waits,)] = db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
    return bool(waits)


def _batch(
    writer: Writer, db: psycopg.Connection[Any], appends: list[list[StoredEvent]]
) -> list[Any]:
    """Let the writer find all the appends at once, as under load."""
    with ThreadPoolExecutor(len(appends)) as pool:
        futures: list[Future[list[int]]] = []
        with log_locked(writer, db):
            for events in appends:
                futures.append(pool.submit(writer.append, events))
                eventually(lambda: len(writer._queue) == len(futures), "the append in the queue")
        return [future.exception() or future.result() for future in futures]


def test_a_refused_append_disturbs_no_other_of_its_batch(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    moved, one, two = uuid4(), uuid4(), uuid4()
    recorder.insert_events(stored(moved, 1))

    first, refused, second = _batch(
        recorder.writer,
        db,
        [stored(one, 1, 2), stored(uuid4(), 1) + stored(moved, 1), stored(two, 1)],
    )

    assert first == [2, 3]
    assert isinstance(refused, IntegrityError)
    assert second == [4]


def test_appends_of_one_stream_go_into_batches_of_their_own_in_their_order(
    recorder: LedgerRecorder, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = uuid4()
    batches = []
    send = recorder.writer._send

    def watching(batch: list[writer_module.Append]) -> None:
        batches.append([len(append.events) for append in batch])
        send(batch)

    monkeypatch.setattr(recorder.writer, "_send", watching)
    results = _batch(
        recorder.writer,
        db,
        [stored(stream, 1), stored(stream, 2, 3), stored(uuid4(), 1), stored(stream, 4, 5, 6)],
    )
    assert results == [[1], [3, 4], [2], [5, 6, 7]]
    assert batches == [[0], [1, 1], [2], [3]]


def test_appends_share_a_batch_that_rely_on_the_same_stream_but_not_with_one_that_moves_it(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = uuid4()
    recorder.insert_events(stored(host, 1))
    relying = [writer_module.encode(stored(uuid4(), 1), None, {host: 1}) for _ in range(4)]
    moving = writer_module.encode(stored(host, 2), None)
    writer = recorder.writer
    writer._queue.extend([relying[0], relying[1], moving, relying[2], relying[3]])
    batches = []
    while writer._queue:
        batches.append(writer._pick())
        writer._store(batches[-1])
    assert batches == [relying[:2], [moving], relying[2:]]
    refused = [append.answer.exception(0) is not None for append in (*relying, moving)]
    assert refused == [False, False, True, True, False]


def test_an_append_is_refused_if_what_it_relies_on_has_moved(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    relied_on = uuid4()
    recorder.insert_events(stored(relied_on, 1))
    for version in (0, 2):
        with pytest.raises(IntegrityError):
            recorder.insert_events(stored(uuid4(), 1), relied_on={relied_on: version})

    assert recorder.insert_events(stored(uuid4(), 1), relied_on={relied_on: 1}) == [2]
    assert recorder.insert_events(stored(uuid4(), 1), relied_on={uuid4(): 0}) == [3]
    assert recorder.insert_events(stored(relied_on, 2), relied_on={relied_on: 1}) == [4]


def test_appends_may_rely_on_the_same_in_one_batch_but_who_moves_it_waits(
    recorder: LedgerRecorder,
) -> None:
    writer, relied_on = recorder.writer, uuid4()
    relying = [writer_module.encode(stored(uuid4(), 1), None, {relied_on: 0}) for _ in range(3)]
    moving = writer_module.encode(stored(relied_on, 1), None)
    writer._queue.extend([relying[0], relying[1], moving, relying[2]])
    assert writer._pick() == relying[:2]
    assert writer._pick() == [moving]
    assert writer._pick() == relying[2:]


def test_the_database_stores_no_stream_of_two_appends_of_one_batch_twice(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    """The writer sees to it that there is none; if it did not, nothing would be stored."""
    stream = uuid4()
    appends = [writer_module.encode(stored(stream, 1), None) for _ in range(2)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        recorder.writer._send(appends)
    assert log_of(db) == []


def test_an_append_sent_again_is_answered_with_its_old_positions(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    stream = uuid4()
    recorder.insert_events(stored(uuid4(), 1))
    append = writer_module.encode(stored(stream, 1, 2), None)
    recorder.writer._send([append])
    recorder.insert_events(stored(stream, 3))
    again = replace(append, answer=Future())

    recorder.writer._send([again])

    assert append.answer.result(0) == again.answer.result(0) == 2
    assert len(log_of(db)) == 4


def test_another_append_with_the_same_versions_is_a_conflict(recorder: LedgerRecorder) -> None:
    stream = uuid4()
    recorder.insert_events(stored(stream, 1, 2))
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(stream, 1, 2))


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_an_append_the_database_cannot_store_fails_alone(
    recorder: LedgerRecorder, db: psycopg.Connection[Any], text: str
) -> None:
    poison: list[StoredEvent] = [
        IndexedEvent(originator_id=uuid4(), originator_version=1, topic=text, state=b"{}")
    ]

    good, bad, fine = _batch(recorder.writer, db, [stored(uuid4(), 1), poison, stored(uuid4(), 1)])

    assert isinstance(bad, DatabaseError)
    assert (good, fine) == ([1], [2])


def test_what_is_appended_is_counted(recorder: LedgerRecorder, db: psycopg.Connection[Any]) -> None:
    writer = recorder.writer
    writer.append(stored(uuid4(), 1))
    _batch(writer, db, [stored(uuid4(), 1, 2), stored(uuid4(), *range(1, 31))])

    registry = registry_of(writer, StepNumbers(), call_seconds())
    told = registry.get_sample_value
    assert told("ledger_append_seconds_count") == 3
    assert 0 < (told("ledger_append_seconds_sum") or 0) < 60
    assert told("ledger_append_batch_appends_sum") == 3
    assert told("ledger_append_batch_events_sum") == 33
    events = "ledger_append_batch_events_bucket"
    assert [told(events, {"le": size}) for size in ("1.0", "20.0", "50.0")] == [1, 1, 2]


def test_positions_have_no_gap_after_refusals(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    stream = uuid4()
    recorder.insert_events(stored(stream, 1))
    for _ in range(3):
        with pytest.raises(IntegrityError):
            recorder.insert_events(stored(stream, 1))
    recorder.insert_events(stored(stream, 2))
    assert [row[0] for row in log_of(db)] == [1, 2]


def test_recorded_at_never_goes_back_even_if_the_clock_does(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    recorder.insert_events(stored(uuid4(), 1))
    db.execute("UPDATE log_head SET recorded_at = recorded_at + interval '1 hour'")
    recorder.insert_events(stored(uuid4(), 1))
    recorder.insert_events(stored(uuid4(), 1))
    times = [at for (at,) in db.execute("SELECT recorded_at FROM events ORDER BY position")]
    assert times == sorted(times)
    assert (times[1] - times[0]).total_seconds() >= 3600


def test_a_batch_is_bounded(
    recorder: LedgerRecorder, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_EVENTS_MAX", 3)
    sizes = []
    send = recorder.writer._send

    def counting(batch: list[writer_module.Append]) -> None:
        sizes.append(sum(len(append.events) for append in batch))
        send(batch)

    monkeypatch.setattr(recorder.writer, "_send", counting)
    lengths = [2, 5, 2, 5]
    appends = [stored(uuid4(), *range(1, length + 1)) for length in lengths]
    results = _batch(recorder.writer, db, appends)
    assert results == [[1, 2], [3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    assert sizes == [0, *lengths]  # a single larger append still goes, alone


def test_an_empty_append_and_a_huge_one_are_refused(recorder: LedgerRecorder) -> None:
    with pytest.raises(ProgrammingError):
        recorder.writer.append([])
    with pytest.raises(ProgrammingError):
        recorder.writer.append(stored(uuid4(), *range(1, writer_module.APPEND_EVENTS_MAX + 2)))


def test_closing_stores_what_is_queued(database_url: str, db: psycopg.Connection[Any]) -> None:
    recorder = LedgerRecorder(database_url)
    writer = recorder.writer
    with ThreadPoolExecutor(21) as pool:
        with log_locked(writer, db):
            futures = [pool.submit(writer.append, stored(uuid4(), 1)) for _ in range(20)]
            eventually(lambda: len(writer._queue) == 20, "the appends in the queue")
            closing = pool.submit(recorder.close)
            eventually(writer._closing.is_set, "closing")
            with pytest.raises(ProgrammingError, match="closed"):
                writer.append(stored(uuid4(), 1))
        closing.result(10)
    assert sorted(future.result(0)[0] for future in futures) == list(range(1, 21))
    assert len(log_of(db)) == 20


def test_who_is_interrupted_while_waiting_takes_the_append_back(
    recorder: LedgerRecorder, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with log_locked(recorder.writer, db):
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                recorder.insert_events(stored(uuid4(), 1))
        [lost] = recorder.writer._queue
        assert lost.answer.cancelled()
    assert recorder.insert_events(stored(uuid4(), 1)) == [1]
    assert len(log_of(db)) == 1


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_fault_of_the_writer_ends_neither_it_nor_a_wait_for_it(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recorder.writer, "_send", lambda _batch: 1 // 0)
        with pytest.raises(UnknownOutcomeError):
            recorder.insert_events(stored(uuid4(), 1))
    assert recorder.insert_events(stored(uuid4(), 1)) == [1]


def test_metadata_stands_beside_each_event(
    ledger: Ledger, db: psycopg.Connection[Any], context: EventContext
) -> None:
    attachment, volume_id, server_id = Attachment(uuid4()), str(uuid4()), str(uuid4())
    attachment.record(Attachment.AttachmentCreated, volume_id=volume_id, server_id=server_id)
    ledger.save(attachment, context=context)

    row = db.execute(
        "SELECT attachment_id::text, volume_id::text, server_id::text, host,"
        " operation_id::text, request_id, cause, actor, user_id, project_id, roles,"
        " body ->> 'volume_id' FROM event_log"
    ).fetchone()

    assert row == (
        *(str(attachment.id), volume_id, server_id, None),
        *(context.operation_id, context.request_id, "api", "ada", "u1", "p1"),
        *(["admin", "member"], volume_id),
    )


def test_saving_nothing_appends_nothing(ledger: Ledger) -> None:
    assert ledger.save(Volume(uuid4())) == 0
    assert ledger.recorder.max_notification_id() is None


def test_retrying_runs_the_change_again_until_it_fits(ledger: Ledger) -> None:
    volume_id, runs = uuid4(), []

    def change() -> int:
        volume = ledger.load(Volume, volume_id)
        runs.append(volume.version)
        if len(runs) == 1:
            rival = ledger.load(Volume, volume_id)
            rival.record(Volume.Held, server_id="s", attachment_id="a")
            ledger.save(rival)
        volume.record(Volume.Held, server_id="s", attachment_id="b")
        return ledger.save(volume)

    assert ledger.retrying(change) == 2
    assert runs == [0, 1]


def test_retrying_gives_up_after_a_bounded_number_of_conflicts(ledger: Ledger) -> None:
    runs = []

    def change() -> None:
        runs.append(1)
        raise ConflictError

    with pytest.raises(ConflictError):
        ledger.retrying(change)
    assert len(runs) == 8
