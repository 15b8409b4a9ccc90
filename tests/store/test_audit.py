"""The log proves itself: what was done to it behind the ledger's back is found, and where."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import psycopg
import pytest
from eventsourcing.persistence import StoredEvent

from ledger.log.chain import BrokenChainError, ChainCheckpoint
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.verify import AuditError, Statement, head, verify
from tests.store.months import proven, rechain

Db = psycopg.Connection[Any]
EVENTS = 12


@pytest.fixture
def log(recorder: LedgerRecorder) -> LedgerRecorder:
    """Events that were appended one by one: each has a link of its own."""
    for number in range(EVENTS):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b'{"n":%d}' % number)])
    return recorder


def test_a_log_that_nobody_touched_is_proven_to_its_end(log: LedgerRecorder, db: Db) -> None:
    before = head(db)
    assert before.checkpoint.position == EVENTS
    assert proven(db) == before
    stream = uuid4()
    log.insert_events([StoredEvent(stream, n, "T.Happened", b"{}") for n in (1, 2, 3)])
    now = proven(db, held=[before])
    assert now == proven(db, since=before) == head(db)
    assert now.checkpoint.position == EVENTS + 3
    assert proven(db, since=now, held=[before, now]) == now


def test_an_empty_log_is_proven(db: Db) -> None:
    assert proven(db).checkpoint.position == 0


def test_events_that_come_meanwhile_are_left_for_the_next_time(log: LedgerRecorder, db: Db) -> None:
    steps = verify(db)
    next(steps)
    log.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b"{}")])
    *_, (statement, total) = steps
    assert statement.checkpoint.position == total == EVENTS


SET = "UPDATE events SET {} WHERE position = 5"
TAMPERING = {
    "body": SET.format("body = '{}'"),
    "actor": SET.format("actor = 'nobody'"),
    "time": SET.format("recorded_at = recorded_at + interval '1 microsecond'"),
    "volume": SET.format("volume_id = gen_random_uuid()"),
    "link": SET.format("chain = decode(repeat('ab', 32), 'hex')"),
    "removed": "DELETE FROM events WHERE position = 5",
    "moved": (
        "UPDATE events SET position = CASE position WHEN 5 THEN 7 WHEN 7 THEN 5 END + 100"
        " WHERE position IN (5, 7); UPDATE events SET position = position - 100"
        " WHERE position > 100"
    ),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_what_was_changed_is_found_and_named(log: LedgerRecorder, db: Db, how: str) -> None:
    db.execute(TAMPERING[how].encode())
    with pytest.raises(BrokenChainError) as found:
        proven(db)
    assert (found.value.first, found.value.last) == (5, 5)


@pytest.mark.parametrize("position", [-1, 0, EVENTS + 1, EVENTS + 7])
@pytest.mark.parametrize("counted", [False, True])
def test_an_event_that_was_added_is_found(
    log: LedgerRecorder, db: Db, position: int, counted: bool
) -> None:
    """Whoever loads its stream would take it, wherever in the table it is."""
    db.execute(
        "INSERT INTO events (position, originator_id, originator_version, topic, body,"
        " recorded_at, append_id) VALUES (%s, gen_random_uuid(), 1, 'T.Forged', '{}', now(),"
        " gen_random_uuid())",
        (position,),
    )
    if counted:
        db.execute("UPDATE log_head SET position = greatest(position, %s)", (position,))
    with pytest.raises(BrokenChainError) as found:
        proven(db)
    assert found.value.first in {position, EVENTS + 1}


def test_events_that_were_cut_off_are_missed_by_who_holds_a_checkpoint(
    log: LedgerRecorder, db: Db
) -> None:
    kept = head(db)
    db.execute("DELETE FROM events WHERE position > 9")
    with pytest.raises(BrokenChainError):
        proven(db)
    db.execute(
        "UPDATE log_head SET (position, chain) ="
        " (SELECT position, chain FROM events WHERE position = 9)"
    )
    assert proven(db).checkpoint.position == 9  # by itself it is whole
    with pytest.raises(BrokenChainError, match="ends before the checkpoint") as found:
        proven(db, held=[kept])
    assert (found.value.first, found.value.last) == (10, EVENTS)


def test_a_chain_that_was_made_anew_is_not_that_of_the_checkpoint(
    log: LedgerRecorder, db: Db
) -> None:
    kept = head(db)
    db.execute(SET.format("body = '{}'").encode())
    rechain(db)
    assert proven(db) != kept
    with pytest.raises(BrokenChainError, match="made again") as found:
        proven(db, held=[kept])
    assert (found.value.first, found.value.last) == (1, EVENTS)


def test_what_is_before_a_checkpoint_is_not_looked_at_again(log: LedgerRecorder, db: Db) -> None:
    early = next(statement for statement, _ in verify(db))
    kept = Statement(early.checkpoint, None, early.log)
    log.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b"{}")])
    db.execute(SET.format("body = '{}'").encode())
    proven(db, since=kept)
    db.execute("UPDATE events SET body = '[]' WHERE position = %s", (EVENTS + 1,))
    with pytest.raises(BrokenChainError) as found:
        proven(db, since=kept)
    assert found.value.first == EVENTS + 1


def test_a_checkpoint_of_another_log_is_refused(log: LedgerRecorder, db: Db) -> None:
    foreign = Statement(ChainCheckpoint(3, bytes(32)), None, uuid4())
    with pytest.raises(AuditError, match="another log"):
        proven(db, held=[foreign])
    with pytest.raises(AuditError, match="another log"):
        proven(db, since=foreign)


def test_a_checkpoint_survives_being_written_down(log: LedgerRecorder, db: Db) -> None:
    kept = head(db)
    assert Statement.parse(orjson.dumps(kept.as_json())) == kept
    for text in (b"", b"{}", b"[]", b'{"log":null,"position":1,"chain":"zz","recorded_at":null}'):
        with pytest.raises(AuditError, match="no checkpoint"):
            Statement.parse(text)
