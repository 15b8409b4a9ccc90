"""The hash chain: what was stored verifies; whatever is done to it later shows, and where."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql as sql_

import sql
from aggregates.base import EventContext
from aggregates.volume import Volume
from ledger.log.application import Ledger
from ledger.log.chain import (
    GENESIS,
    BrokenChainError,
    ChainCheckpoint,
    ChainRow,
    StoredRow,
    Verifier,
    decode,
    encode,
    link,
)
from ledger.log.recorder import LedgerRecorder

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
TIMES = st.datetimes(datetime(1999, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ROWS = st.builds(
    StoredRow,
    position=st.integers(1, 2**63 - 1),
    originator_id=st.uuids(),
    originator_version=st.integers(0, 2**63 - 1),
    topic=TEXT,
    body=st.binary(),
    recorded_at=TIMES,
    attachment_id=st.none() | st.uuids(),
    volume_id=st.none() | st.uuids(),
    server_id=st.none() | st.uuids(),
    host=st.none() | TEXT,
    operation_id=st.none() | st.uuids(),
    request_id=st.none() | TEXT,
    cause=st.none() | TEXT,
    actor=st.none() | TEXT,
    user_id=st.none() | TEXT,
    project_id=st.none() | TEXT,
    roles=st.none() | st.lists(TEXT),
    append_id=st.uuids(),
)


EVENT = StoredRow(
    position=1,
    originator_id=UUID(int=1),
    originator_version=1,
    topic="T",
    body=b"{}",
    recorded_at=datetime(2030, 1, 1, tzinfo=UTC),
    attachment_id=None,
    volume_id=None,
    server_id=None,
    host=None,
    operation_id=None,
    request_id=None,
    cause=None,
    actor=None,
    user_id=None,
    project_id=None,
    roles=None,
    append_id=UUID(int=7),
)


def log(*sizes: int, changed: int = 0) -> list[ChainRow]:
    """A log made by calls that stored so many events each, the one at `changed` another."""
    rows: list[ChainRow] = []
    chain = GENESIS.chain
    for size in sizes:
        positions = range(len(rows) + 1, len(rows) + size + 1)
        bodies = (b"{}" if position != changed else b'{"a":1}' for position in positions)
        pairs = zip(positions, bodies, strict=True)
        events = [encode(EVENT._replace(position=at, body=body)) for at, body in pairs]
        chain = link(chain, events)
        rows += [ChainRow(each, None) for each in events[:-1]]
        rows.append(ChainRow(events[-1], chain))
    return rows


def verify(rows: list[ChainRow], start: ChainCheckpoint = GENESIS) -> ChainCheckpoint:
    verifier = Verifier(start)
    verifier.feed(rows)
    return verifier.checkpoint


@given(ROWS)
def test_the_canonical_form_gives_the_event_back(row: StoredRow) -> None:
    assert decode(encode(row)) == row


@given(ROWS, ROWS)
def test_different_events_have_different_forms(one: StoredRow, other: StoredRow) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_what_is_no_canonical_form_is_refused() -> None:
    whole = encode(EVENT)
    for spoilt in (whole[:-1], whole[:50], whole[:14], whole[1:], whole + b"x", b""):
        with pytest.raises(ValueError, match=r"row|event has"):
            decode(spoilt)


def test_a_log_verifies_in_one_go_and_in_pieces() -> None:
    rows = log(1, 3, 2, 1)
    whole = verify(rows)
    verifier = Verifier()
    for row in rows:
        verifier.feed([row])
    assert whole == verifier.checkpoint == ChainCheckpoint(7, rows[-1].chain or b"")
    verifier.finish(whole)


def test_a_log_verifies_from_any_checkpoint_to_any_other() -> None:
    rows = log(1, 3, 2, 1)
    first = verify(rows[:4])
    assert first.position == 4
    assert verify(rows[4:], first) == verify(rows)


INTACT = log(2, 3, 2)
CHANGED = log(2, 3, 2, changed=4)
TAMPERED = {
    "changed": ([*INTACT[:3], CHANGED[3], *INTACT[4:]], (3, 5)),
    "removed": ([*INTACT[:3], *INTACT[4:]], (4, 4)),
    "first removed": (INTACT[1:], (1, 1)),
    "added": ([*INTACT[:3], *INTACT[2:]], (3, 3)),
    "swapped": ([*INTACT[:2], INTACT[3], INTACT[2], *INTACT[4:]], (3, 3)),
    "swapped whole calls": ([*INTACT[5:], *INTACT[:5]], (1, 1)),
    "link removed": ([*INTACT[:4], INTACT[4]._replace(chain=None), *INTACT[5:]], (3, 7)),
    "link changed": ([*INTACT[:4], INTACT[4]._replace(chain=bytes(32)), *INTACT[5:]], (3, 5)),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampering_shows_and_where(what: str) -> None:
    rows, where = TAMPERED[what]
    with pytest.raises(BrokenChainError) as raised:
        verify(rows)
    assert (raised.value.first, raised.value.last) == where


def test_a_new_chain_over_other_events_misses_the_checkpoint_that_an_auditor_holds() -> None:
    held = verify(INTACT[:5])
    verify(CHANGED)
    assert verify(CHANGED[:5]) != held
    with pytest.raises(BrokenChainError):
        verify(CHANGED[5:], held)


@pytest.mark.parametrize("kept", [0, 2, 4, 5, 6])
def test_a_log_that_lost_its_end_is_not_the_log(kept: int) -> None:
    head = verify(INTACT)
    verifier = Verifier()
    verifier.feed(INTACT[:kept])
    with pytest.raises(BrokenChainError) as raised:
        verifier.finish(head)
    assert raised.value.first == verifier.checkpoint.position + 1


def rows_of(db: psycopg.Connection[Any], after: int = 0) -> list[ChainRow]:
    query = sql.query("log", "chained")
    return [ChainRow(*row) for row in db.execute(query, {"after": after, "upto": 10**9})]


def head_of(db: psycopg.Connection[Any]) -> ChainCheckpoint:
    [(position, chain)] = db.execute("SELECT position, chain FROM log_head").fetchall()
    return ChainCheckpoint(position, chain)


def test_the_database_has_the_same_canonical_form(
    ledger: Ledger, db: psycopg.Connection[Any], context: EventContext
) -> None:
    """Checked by decoding it: what comes out is what the columns say."""
    volume = Volume(uuid4())
    volume.record(Volume.Held, server_id=str(uuid4()), attachment_id=str(uuid4()))
    ledger.save(volume, context=replace(context, request_id="Ünï—✓"))
    ledger.recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"\x00\xff")])

    columns = sql_.SQL(", ").join(map(sql_.Identifier, StoredRow._fields))
    query = sql_.SQL("SELECT {} FROM events ORDER BY position").format(columns)
    stored = [StoredRow(*row) for row in db.cursor(binary=True).execute(query)]

    canonical = [row.canonical for row in rows_of(db)]
    assert [decode(form) for form in canonical] == stored
    assert [encode(row) for row in stored] == canonical


def test_the_environment_does_not_choose_the_encoding(
    database_url: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with Ledger(database_url) as ledger:
        ledger.recorder.insert_events([StoredEvent(uuid4(), 1, "Ü", b"{}")])
    assert [decode(row.canonical).topic for row in rows_of(db)] == ["Ü"]
    assert verify(rows_of(db)) == head_of(db)


def test_whoever_appends_by_hand_need_not_think_of_the_encoding(
    database_url: str, db: psycopg.Connection[Any]
) -> None:
    by_hand = (
        "SELECT head FROM append_events(ARRAY[(0, %(id)s, 0)::appended_stream],"
        " ARRAY[(0, gen_random_uuid(), %(id)s, 1, 'Ü', '{}'::bytea, NULL, NULL, NULL, NULL,"
        " NULL, NULL, NULL, NULL, NULL, NULL, NULL)::appended_event])"
    )
    with psycopg.connect(database_url, client_encoding="LATIN1") as latin:
        latin.execute(by_hand, {"id": uuid4()})
    assert [decode(row.canonical).topic for row in rows_of(db)] == ["Ü"]
    assert verify(rows_of(db)) == head_of(db)


def test_the_log_verifies_whatever_was_refused_or_sent_again(
    recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    stream = uuid4()
    recorder.insert_events([StoredEvent(stream, n, "T", b"{}") for n in (1, 2, 3)])
    middle = head_of(db)
    with pytest.raises(IntegrityError):
        recorder.insert_events([StoredEvent(stream, 3, "T", b"{}")])
    assert head_of(db) == middle
    recorder.insert_events([StoredEvent(stream, 4, "T", b"{}")])

    assert verify(rows_of(db)) == head_of(db)
    assert verify(rows_of(db, middle.position), middle) == head_of(db)


@pytest.mark.parametrize("column", StoredRow._fields)
def test_a_change_of_any_column_shows(
    column: str, recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    for _ in range(3):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")])
    verify(rows_of(db))

    [before] = rows_of(db)[1:2]
    other = OTHER_VALUES.get(column, "other")
    change = sql_.SQL("UPDATE events SET {} = {} WHERE position = 2")
    db.execute(change.format(sql_.Identifier(column), sql_.Literal(other)))

    assert rows_of(db)[1] != before
    with pytest.raises(BrokenChainError):
        verify(rows_of(db))


OTHER_VALUES: dict[str, Any] = {
    "position": 17,
    "originator_version": 17,
    "body": b"other",
    "recorded_at": datetime(2020, 1, 1, tzinfo=UTC),
    "roles": ["other"],
    **{name: uuid4() for name in StoredRow._fields if name.endswith("_id")},
    **dict.fromkeys(("request_id", "user_id", "project_id"), "other"),
}
