"""Closed months go to files that any tool can read, and that prove themselves."""

from __future__ import annotations

import gzip
import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent

import ledger.upkeep.archive
from ledger.log.chain import BrokenChainError
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.archive import Archive, ArchivedEvent
from ledger.upkeep.retention import RetentionError, archive, detach, restore
from tests.store.months import Past, backdate, day, table

Db = psycopg.Connection[Any]
APRIL, JUNE = day(4), day(6)


def test_an_archive_has_every_event_of_the_closed_months_as_the_table_has_it(
    past: Past, archived: Archive, db: Db
) -> None:
    months = archived.months()
    assert [month.month for month in months] == ["2026-03", "2026-04", "2026-05"]
    assert [month.last for month in months] == [past.march, past.april, past.may]
    found = [(*row, chain) for month in months for row, chain in archived.events(month)]
    assert found == table(db)[: past.may]
    for month in months:
        archived.check(month)


def test_an_archive_is_read_by_any_tool(past: Past, archived: Archive, db: Db) -> None:
    manifest = json.loads((archived.directory / "events-2026-04.json").read_text())
    with gzip.open(archived.directory / manifest["file"], "rt") as file:
        lines = [json.loads(line) for line in file]
    assert [line["position"] for line in lines] == list(range(past.march + 1, past.april + 1))
    assert manifest["events"] == len(lines)
    topics = dict(db.execute("SELECT position, topic FROM events").fetchall())
    assert all(line["topic"] == topics[line["position"]] for line in lines)
    assert {json.loads(line["body"])["flow"] for line in lines if "OperationS" in line["topic"]}


def test_only_months_that_are_over_are_archived(past: Past, files: Archive, db: Db) -> None:
    """June is not over as long as the log has no event of July, whatever the clock says."""
    list(archive(db, files, day(12)))
    assert [month.month for month in files.months()] == ["2026-03", "2026-04", "2026-05"]


def test_months_are_added_and_what_is_there_stays(past: Past, files: Archive, db: Db) -> None:
    list(archive(db, files, APRIL))
    assert [month.month for month in files.months()] == ["2026-03"]
    written = {path: path.stat().st_mtime_ns for path in files.directory.iterdir()}
    list(archive(db, files, JUNE))
    assert [month.month for month in files.months()] == ["2026-03", "2026-04", "2026-05"]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert list(archive(db, files, JUNE)) == []


def test_a_month_that_was_broken_off_does_not_count_and_is_written_again(
    past: Past, files: Archive, db: Db
) -> None:
    steps = archive(db, files, JUNE)
    next(steps)
    steps.close()
    assert files.months() == []
    list(archive(db, files, JUNE))
    assert len(files.months()) == 3
    assert not list(files.directory.glob(".*.part"))


def test_a_log_that_was_changed_is_not_archived(past: Past, files: Archive, db: Db) -> None:
    db.execute("UPDATE events SET actor = 'nobody' WHERE position = %s", (past.march + 2,))
    with pytest.raises(BrokenChainError) as found:
        list(archive(db, files, JUNE))
    assert found.value.first == past.march + 2
    assert [month.month for month in files.months()] == ["2026-03"]


def test_bodies_are_kept_byte_by_byte(recorder: LedgerRecorder, db: Db, files: Archive) -> None:
    bodies = [b'{ "a" : 1.0 }', b"\xff\x00", b"", b'"\\u0000\xc3\xa9"', b"{}"]
    for body in bodies:
        recorder.insert_events([StoredEvent(uuid4(), 1, "T.Happened", body)])
    backdate(db, (4, day(3, 9)), (5, day(4, 9)))
    list(archive(db, files, JUNE))
    [month] = files.months()
    assert [row.body for row, _ in files.events(month)] == bodies[:4]


def test_links_that_reach_over_a_month_s_end_take_its_last_events_along(
    recorder: LedgerRecorder, db: Db, files: Archive
) -> None:
    """Only a log that is older than its chain has such."""
    for _ in range(6):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b"{}")])
    db.execute("UPDATE events SET chain = NULL WHERE position NOT IN (2, 5, 6)")
    backdate(db, (3, day(3, 9)), (5, day(4, 9)), (6, day(5, 9)))
    list(archive(db, files, APRIL))
    assert [(month.month, month.last) for month in files.months()] == [("2026-03", 2)]
    list(archive(db, files, JUNE))
    assert [(month.month, month.last) for month in files.months()] == [
        ("2026-03", 2),
        ("2026-04", 5),
    ]


def test_an_archive_of_another_log_is_refused(archived: Archive, db: Db) -> None:
    whole = table(db)[1:]
    db.execute("UPDATE events SET append_id = gen_random_uuid() WHERE position = 1")
    for work in (archive(db, archived, JUNE), detach(db, archived, JUNE), restore(db, archived)):
        with pytest.raises(RetentionError, match="another log"):
            list(work)
    assert table(db)[1:] == whole


def test_a_month_counts_only_when_it_was_read_back(
    past: Past, files: Archive, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk is not what was to be written there."""
    right = ledger.upkeep.archive._line

    def line(event: ArchivedEvent) -> bytes:
        return right(event).replace(b'"alice"', b'"bob"')

    monkeypatch.setattr(ledger.upkeep.archive, "_line", line)
    with pytest.raises(BrokenChainError):
        list(archive(db, files, JUNE))
    assert files.months() == []
