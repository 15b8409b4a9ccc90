"""Projections follow the log exactly once, whoever follows."""

from __future__ import annotations

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from psycopg.rows import dict_row

from aggregates.base import Event
from aggregates.host import Host, host_uuid
from aggregates.operation import Operation, OperationState
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from projections.base import LoggedEvent, Projection, Row, upcast
from projections.catalog import ALL
from projections.hosts import HOSTS
from projections.operations import OPERATIONS, Followed
from projections.running import projector as projector_module
from projections.running import tables as tables_module
from projections.running.projector import Projector
from projections.running.runner import catch_up, connect
from projections.running.tables import Tables, prepare
from tests.store.following import poisoned, register, tracked, wait_until
from tests.store.histories import LOCK, MAPPER, Folded, logged, scenario, stored_events

TABLES = [
    "instances",
    "mappings",
    "attachments",
    "spans",
    "operations",
    "mailbox",
    "parked",
    "hosts",
    "remnants",
    "findings",
    "looks",
]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three positions, or fewer, in reads of two."""
    monkeypatch.setattr(projector_module, "STEP_POSITIONS", 3)
    monkeypatch.setattr(projector_module, "STEP_ROWS", 2)
    monkeypatch.setattr(projector_module, "READ_POSITIONS", 2)


def tables(connection: psycopg.Connection[Any]) -> dict[str, list[Row]]:
    prepare(connection)
    with connection.cursor(row_factory=dict_row) as cursor:
        return {
            name: cursor.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall()
            for name in TABLES
        }


def fill(recorder: LedgerRecorder, seeds: range) -> int:
    """Store what happened in some worlds; their servers and volumes have the same ids."""
    last = 0
    for seed in seeds:
        renamed: dict[UUID, UUID] = {}
        for event, context in stored_events(scenario(seed).world):
            id_ = renamed.setdefault(UUID(str(event.originator_id)), uuid4())
            last = recorder.insert_events([replace(event, originator_id=id_)], context=context)[-1]
    return last


def test_tables_equal_the_folds_of_the_log(
    recorder: LedgerRecorder, projecting: psycopg.Connection[Any], small_batches: None
) -> None:
    watched = scenario(5)
    for event, context in stored_events(watched.world):
        recorder.insert_events([event], context=context)

    Projector(projecting, ALL).catch_up()

    check_same(tables(projecting), watched.folded)


def check_same(stored: dict[str, list[Row]], folded: Folded) -> None:
    for projection in ALL:
        rows = {row[projection.key]: row for row in stored[projection.table]}
        expected = {row[projection.key]: row for row in folded.table(projection.name)}
        assert set(rows) == set(expected)
        for key, row in expected.items():
            # Times differ: the folded ones are the simulated clock's.
            timeless = {n: v for n, v in row.items() if not n.endswith("_at") and n != "spans"}
            assert timeless == {name: rows[key][name] for name in timeless}
    assert len(stored["spans"]) == len(folded.derived("spans"))
    assert stored["mailbox"] == sorted(
        folded.derived("mailbox"), key=lambda row: (row["operation_id"], row["run"])
    )


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_whoever_goes_on_gives_the_same_after_each_event(
    recorder: LedgerRecorder,
    database_url: str,
    db: psycopg.Connection[Any],
    processes: int,
    seed: int,
) -> None:
    """One has in memory what it goes on from; two take turns, so that neither has."""
    watched, folded = scenario(seed), Folded()
    with connect(database_url) as one, connect(database_url) as two:
        projectors = [Projector(each, ALL) for each in (one, two)[:processes]]
        for event, context in watched.world.store.log:
            stored = MAPPER.to_stored_event(event)
            [position] = recorder.insert_events([stored], context=context)
            projectors[position % processes].catch_up()
            folded.fold(logged(position, event, context, datetime.now(UTC)))
            if type(event) in Operation.TRANSITIONS:
                check_same(tables(db), folded)


def test_an_operation_that_cannot_be_shown_holds_back_its_projection_alone(
    recorder: LedgerRecorder, projecting: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for event, context in stored_events(scenario(5).world):
        last = recorder.insert_events([event], context=context)[-1]
    row = Followed.row

    def broken(followed: Followed) -> Row:
        if followed.operation.state is OperationState.FINISHED:
            raise ValueError("no such view")
        return row(followed)

    monkeypatch.setattr(Followed, "row", broken)
    projector = Projector(projecting, ALL)
    projector.catch_up()
    assert set(projector.holds) == {"operations"}
    positions = dict(projector.positions)
    assert positions.pop("operations") < last
    assert set(positions.values()) == {last}

    monkeypatch.setattr(Followed, "row", row)
    wait_until(lambda: (projector.step(), projector.positions["operations"] == last)[1])


def test_a_state_that_cannot_be_folded_anew_holds_back_its_projection_where_it_is_needed(
    recorder: LedgerRecorder,
    projecting: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an event that is behind its position: what was projected is not taken back."""
    monkeypatch.setattr(projector_module, "HOLD_FIRST_S", 60.0)
    events = stored_events(scenario(5).world)
    begun = next(event.originator_id for event, _ in events if event.topic in OPERATIONS.topics)
    first, _, needs, *_ = (n for n, (e, _) in enumerate(events, 1) if e.originator_id == begun)
    for number, (event, context) in enumerate(events, 1):
        if number == needs:
            Projector(projecting, ALL).catch_up()
        recorder.insert_events([event], context=context)

    def fold(followed: Followed | None, event: LoggedEvent) -> Followed:
        if event.position == first:
            raise ValueError("cannot fold this")
        shown: Followed = OPERATIONS.fold(followed, event)
        return shown

    others = [projection for projection in ALL if projection is not OPERATIONS]
    projector = Projector(projecting, [*others, replace(OPERATIONS, fold=fold)])
    projector.catch_up()
    for _ in range(20):
        projector.step()
    assert projector.positions["operations"] == needs - 1
    assert projector.positions["hosts"] == len(events)
    why = projector.holds["operations"].error.why
    assert re.fullmatch(rf"position {needs} \(.+\), by position {first} \(.+\): ValueError", why)
    assert caplog.text.count("projection_held") == 1


def test_a_projection_that_another_process_is_at_stops_no_other(
    ledger: Ledger, database_url: str, projecting: psycopg.Connection[Any]
) -> None:
    register(ledger, "h")
    projector = Projector(projecting, ALL)
    projector.catch_up()
    with psycopg.connect(database_url) as other:
        other.execute(LOCK, {"names": ["hosts"]})
        position = register(ledger, "i")
        projector.catch_up()
        positions = dict(projector.positions)
    assert positions.pop("hosts") == position - 1
    assert set(positions.values()) == {position}
    projector.catch_up()
    assert projector.positions["hosts"] == position


def test_a_row_is_updated_where_it_stands(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    """And what lies outside of it, and is the same, is not stored again."""
    large = "".join(str(uuid4()) for _ in range(200))

    def fold(row: Row | None, event: LoggedEvent) -> Any:
        return {**(HOSTS.fold(row, event) or {}), "fence_reason": large}

    db.execute("CREATE TABLE done (what text)")
    db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO done VALUES (TG_OP); RETURN NULL; END $$"
    )
    db.execute(
        "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON hosts"
        " FOR EACH ROW EXECUTE FUNCTION note()"
    )
    [(outside,)] = db.execute(
        "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'hosts'::regclass"
    ).fetchall()
    stored = []
    for number in range(2):
        register(ledger, "h", number)
        catch_up(database_url, [replace(HOSTS, fold=fold)])
        stored.append(db.execute(f"SELECT DISTINCT chunk_id FROM {outside}").fetchall())

    assert db.execute("SELECT what FROM done").fetchall() == [("INSERT",), ("UPDATE",)]
    assert stored[0] == stored[1] != []


def counting(folded: list[int]) -> Projection:
    """Hosts, where folds are told, and a row counts the events that are in it."""

    def fold(row: Row | None, event: LoggedEvent) -> Any:
        folded.append(event.position)
        new = HOSTS.fold(row, event)
        assert new is not None
        return {**new, "epoch": (row or {"epoch": 0})["epoch"] + 1}

    return replace(HOSTS, fold=fold)


def test_of_several_projectors_each_event_counts_exactly_once(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any], small_batches: None
) -> None:
    folded: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        with connect(database_url) as connection:
            projector = Projector(connection, [counting(folded)])
            while not stop.is_set():
                projector.step()

    with ThreadPoolExecutor(3) as pool:
        followers = [pool.submit(follow) for _ in range(3)]
        for number in range(120):
            last = register(ledger, f"h{number % 4}", number)
        wait_until(lambda: tracked(db, "hosts") == last)
        stop.set()
        for follower in followers:
            follower.result(10)

    assert set(folded) == set(range(1, last + 1))
    rows = db.execute("SELECT epoch FROM hosts").fetchall()
    assert rows == [(30,)] * 4


def test_rows_are_read_again_only_if_another_process_has_been_at_them(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    stored = Tables._stored

    def note(tables: Tables, keys: Any, position: int) -> dict[str, Any]:
        asked.append({*keys})
        return stored(tables, keys, position)

    monkeypatch.setattr(Tables, "_stored", note)
    with connect(database_url) as one, connect(database_url) as two:
        first, second = Projector(one, [counting([])]), Projector(two, [counting([])])
        register(ledger, "h", 1)
        first.catch_up()
        register(ledger, "h", 2)
        first.catch_up()
        assert asked == [{"h"}, set()]
        register(ledger, "h", 3)
        second.catch_up()
        register(ledger, "h", 4)
        first.catch_up()
        assert asked == [{"h"}, set(), {"h"}, {"h"}]
        assert one.execute("SELECT epoch FROM hosts").fetchall() == [(4,)]


def test_no_more_rows_are_kept_than_allowed(
    ledger: Ledger, projecting: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "ROWS_KEPT_MAX", 2)
    projector = Projector(projecting, [counting([])])
    for version in range(3):
        for number in range(7):
            register(ledger, f"h{number}", version)
            projector.catch_up()
            assert len(projector._tables["hosts"]._kept) <= 4
    assert projecting.execute("SELECT epoch FROM hosts").fetchall() == [(3,)] * 7


def test_keys_may_be_any_text(ledger: Ledger, projecting: psycopg.Connection[Any]) -> None:
    names = ["", "a,b", 'say "h"', "back\\slash", "{braces}", "NULL", "a'b", "100%"]
    for version in (1, 2):
        for name in names:
            register(ledger, name, version)
        Projector(projecting, [HOSTS]).catch_up()
    rows = projecting.execute("SELECT host, service_version FROM hosts").fetchall()
    assert sorted(rows) == sorted((name, 2) for name in names)


def test_an_event_that_cannot_be_folded_holds_back_its_projection_alone(
    ledger: Ledger,
    projecting: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(5):
        last = register(ledger, "h", number)
    others = [projection for projection in ALL if projection is not HOSTS]
    projector = Projector(projecting, [*others, poisoned(3)])

    with caplog.at_level(logging.ERROR):
        projector.catch_up()

    positions = dict(projector.positions)
    assert positions.pop("hosts") == 2
    assert set(positions.values()) == {last}
    assert set(projector.holds) == {"hosts"}
    assert "projection hosts fails at position 3 (Host.HostRegistered)" in caplog.text
    row = projecting.execute("SELECT service_version FROM hosts").fetchone()
    assert row == (1,)

    mended = Projector(projecting, ALL)
    mended.catch_up()
    assert mended.positions["hosts"] == last


def test_a_held_projection_is_tried_again_and_goes_on_when_it_can(
    ledger: Ledger, projecting: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector_module, "HOLD_FIRST_S", 0.05)
    for number in range(3):
        last = register(ledger, "h", number)
    broken = [True]

    def fold(row: Row | None, event: LoggedEvent) -> Any:
        if event.position == 2 and broken:
            raise ValueError("not yet")
        return HOSTS.fold(row, event)

    projector = Projector(projecting, [replace(HOSTS, fold=fold)])
    projector.catch_up()
    assert set(projector.holds) == {"hosts"}
    broken.clear()

    wait_until(lambda: (projector.step(), projector.positions["hosts"] == last)[1])

    assert projector.holds == {}


def test_a_row_that_the_table_refuses_holds_back_its_projection_alone(
    ledger: Ledger, projecting: psycopg.Connection[Any]
) -> None:
    last = register(ledger, "h")

    def fold(row: Row | None, event: LoggedEvent) -> Row:
        return {**event.stamp, "host": event.host, "service_version": "many"}

    others = [projection for projection in ALL if projection is not HOSTS]
    projector = Projector(projecting, [*others, replace(HOSTS, fold=fold)])
    projector.catch_up()

    assert set(projector.holds) == {"hosts"}
    assert projector.positions["operations"] == last


def test_text_with_a_nul_is_projected_with_a_replacement(
    ledger: Ledger, projecting: psycopg.Connection[Any]
) -> None:
    host = Host(host_uuid("h"))
    host.register("h", 1, {"says": "a\x00b"})
    ledger.save(host)
    Projector(projecting, [HOSTS]).catch_up()
    assert projecting.execute("SELECT capabilities ->> 'says' FROM hosts").fetchone() == (
        "a\ufffdb",
    )


def test_a_new_projection_catches_up_with_the_others_and_joins_them(
    ledger: Ledger, projecting: psycopg.Connection[Any], small_batches: None
) -> None:
    for number in range(10):
        last = register(ledger, "h", number)
    old = [projection for projection in ALL if projection is not HOSTS]
    Projector(projecting, old).catch_up()

    projector = Projector(projecting, ALL)
    projector.catch_up()

    assert set(projector.positions.values()) == {last}


def test_topics_unknown_to_this_code_are_passed_over(
    recorder: LedgerRecorder, projecting: psycopg.Connection[Any]
) -> None:
    recorder.insert_events([StoredEvent(uuid4(), 1, "Newer.Happened", b"{}")])
    projector = Projector(projecting, ALL)
    projector.catch_up()
    assert set(projector.positions.values()) == {1}
    assert upcast("Newer.Happened", {"class_version": 3, "a": 1}) == {"a": 1}


class Upcasting(Event):
    """Version 2 calls `old` `new`."""

    class_version = 2

    @staticmethod
    def upcast_v1_v2(state: dict[str, Any]) -> None:
        state["new"] = state.pop("old")


def test_projections_see_bodies_in_their_newest_form() -> None:
    assert upcast("Upcasting", {"old": 1}) == {"new": 1}
    assert upcast("Upcasting", {"class_version": 2, "new": 1}) == {"new": 1}


def test_in_memory_and_stored_folds_know_the_same_tables() -> None:
    declared = {p.table for p in ALL} | {d.table for p in ALL for d in p.derived}
    assert declared == set(TABLES)
    assert all(Folded().table(p.name) == [] for p in ALL)
