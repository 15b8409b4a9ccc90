"""The one write path: what is accepted, what is refused, and that neither is ever partial."""

from __future__ import annotations

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
from aggregates.base import Context
from aggregates.volume import Volume
from ledger import writer as writer_module
from ledger.application import ConflictError, Ledger
from ledger.mapping import IndexedEvent
from ledger.store import LedgerRecorder
from ledger.writer import QueueFullError, Writer


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
    ledger: Ledger, db: psycopg.Connection[Any], context: Context
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


def _batch(writer: Writer, appends: list[list[StoredEvent]]) -> list[Any]:
    """Let the writer find all the appends at once, as under load."""
    with writer._changed:  # the condition's lock is re-entrant: the writer's thread waits
        futures = [writer.submit(events) for events in appends]
    return [future.exception(10) or future.result() for future in futures]


def test_a_refused_append_disturbs_no_other_of_its_batch(recorder: LedgerRecorder) -> None:
    moved, one, two = uuid4(), uuid4(), uuid4()
    recorder.insert_events(stored(moved, 1))

    first, refused, second = _batch(
        recorder.writer,
        [stored(one, 1, 2), stored(uuid4(), 1) + stored(moved, 1), stored(two, 1)],
    )

    assert first == [2, 3]
    assert isinstance(refused, IntegrityError)
    assert second == [4]


def test_appends_of_one_stream_go_into_batches_of_their_own_in_their_order(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = uuid4()
    batches = []
    send = recorder.writer._send

    def watching(batch: list[writer_module.Append]) -> None:
        batches.append([len(append.columns) for append in batch])
        send(batch)

    monkeypatch.setattr(recorder.writer, "_send", watching)
    results = _batch(
        recorder.writer,
        [stored(stream, 1), stored(stream, 2, 3), stored(uuid4(), 1), stored(stream, 4, 5, 6)],
    )
    assert results == [[1], [3, 4], [2], [5, 6, 7]]
    assert batches == [[1, 1], [2], [3]]


def test_the_database_refuses_a_stream_in_two_appends_of_one_batch(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    stream = uuid4()
    appends = [writer_module.encode(stored(stream, version), None) for version in (1, 2)]
    with pytest.raises(psycopg.errors.RaiseException, match="two appends"):
        recorder.writer._connect().execute(
            writer_module._APPEND, writer_module._parameters(appends), binary=True
        )
    assert log_of(db) == []


def test_an_append_sent_again_is_answered_with_its_old_positions(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    stream = uuid4()
    recorder.insert_events(stored(uuid4(), 1))
    append = writer_module.encode(stored(stream, 1, 2), None)
    recorder.writer._send([append])
    recorder.insert_events(stored(stream, 3))
    again = writer_module.Append(append.columns, append.streams, append.deadline)

    recorder.writer._send([again])

    assert append.future.result() == again.future.result() == [2, 3]
    assert len(log_of(db)) == 4


def test_another_append_with_the_same_versions_is_a_conflict(recorder: LedgerRecorder) -> None:
    stream = uuid4()
    recorder.insert_events(stored(stream, 1, 2))
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(stream, 1, 2))


def test_an_append_the_database_cannot_store_fails_alone(recorder: LedgerRecorder) -> None:
    poison: list[StoredEvent] = [
        IndexedEvent(originator_id=uuid4(), originator_version=1, topic="a\x00b", state=b"{}")
    ]

    good, bad, fine = _batch(recorder.writer, [stored(uuid4(), 1), poison, stored(uuid4(), 1)])

    assert isinstance(bad, DatabaseError)
    assert (good, fine) == ([1], [2])


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


def test_the_queue_is_bounded(recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_APPENDS_MAX", 2)
    writer = recorder.writer
    with writer._changed:
        futures = [writer.submit(stored(uuid4(), 1)) for _ in range(2)]
        with pytest.raises(QueueFullError, match="Nothing was stored"):
            writer.submit(stored(uuid4(), 1))
    assert [future.result(10) for future in futures] == [[1], [2]]


def test_a_batch_is_bounded(recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "BATCH_EVENTS_MAX", 3)
    sizes = []
    send = recorder.writer._send

    def counting(batch: list[writer_module.Append]) -> None:
        sizes.append(sum(len(append.columns) for append in batch))
        send(batch)

    monkeypatch.setattr(recorder.writer, "_send", counting)
    lengths = [2, 5, 2, 5]
    appends = [stored(uuid4(), *range(1, length + 1)) for length in lengths]
    results = _batch(recorder.writer, appends)
    assert results == [[1, 2], [3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    assert sizes == lengths  # a single larger append still goes, alone


def test_an_empty_append_and_a_huge_one_are_refused(recorder: LedgerRecorder) -> None:
    with pytest.raises(ProgrammingError):
        recorder.writer.submit([])
    with pytest.raises(ProgrammingError):
        recorder.writer.submit(stored(uuid4(), *range(1, writer_module.APPEND_EVENTS_MAX + 2)))


def test_closing_stores_what_is_queued(database_url: str, db: psycopg.Connection[Any]) -> None:
    recorder = LedgerRecorder(database_url)
    futures = [recorder.writer.submit(stored(uuid4(), 1)) for _ in range(200)]
    recorder.close()
    assert sorted(future.result(0)[0] for future in futures) == list(range(1, 201))
    with pytest.raises(ProgrammingError, match="closed"):
        recorder.writer.submit(stored(uuid4(), 1))


def test_a_cancelled_append_that_was_not_sent_is_not_stored(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    with recorder.writer._changed:
        cancelled, kept = (recorder.writer.submit(stored(uuid4(), 1)) for _ in range(2))
        assert cancelled.cancel()
    kept.result(10)
    assert len(log_of(db)) == 1


def test_metadata_stands_beside_each_event(
    ledger: Ledger, db: psycopg.Connection[Any], context: Context
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
