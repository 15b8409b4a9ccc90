"""The mark of a table only grows, and no row is beyond it: two projectors, any interleaving.

A projector at a step lets another one work at chosen moments: before it reads events or rows,
before it writes.  All in one thread, so each interleaving is the same every time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from ledger.cli import shell
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from projections.attachments import ATTACHMENTS
from projections.base import Derived, LoggedEvent, Projection, Row
from projections.catalog import ALL
from projections.hosts import HOSTS
from projections.instances import INSTANCES
from projections.mappings import MAPPINGS
from projections.running import projector as projector_module
from projections.running.projector import Projector
from projections.running.runner import ProjectionRunner, catch_up, connect
from projections.running.tables import ProjectionError, RowBeyondMarkError
from projections.running.writes import Mark, Replacement, TablePlace, advance, columns
from tests.store.following import register, tracked, wait_until
from tests.store.histories import LOCK
from tests.store.test_projector import counting, fill, tables
from tests.tiers import every

SEEDS = every(4, range(8))
Moment = Callable[[str], None]


@pytest.fixture
def one(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as connection:
        yield connection


@pytest.fixture
def two(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as connection:
        yield connection


def interrupt(projector: Projector, patch: pytest.MonkeyPatch, moment: Moment) -> None:
    """Call `moment("read" | "rows" | "write")` whenever the projector is about to do that."""
    write = advance
    read = projector._reader.read

    def reading(after: int, until: int) -> Any:
        moment("read")
        return read(after, until)

    def writing(cursor: Any, *arguments: Any) -> list[str]:
        if cursor is projector._cursor:
            moment("write")
        return write(cursor, *arguments)

    patch.setattr(projector._reader, "read", reading)
    patch.setattr(projector_module, "advance", writing)
    for table in projector._tables.values():
        patch.setattr(table, "_stored", _loading(table._stored, moment))


def _loading(stored: Any, moment: Moment) -> Any:
    def loading(keys: set[str], position: int) -> Any:
        moment("rows")
        return stored(keys, position)

    return loading


def at_first(kind: str, deed: Callable[[], object]) -> Moment:
    """Does it at the first such moment, and never again."""
    done: list[str] = []

    def moment(now: str) -> None:
        if now == kind and not done:
            done.append(now)
            deed()

    return moment


# --- the invariant ----------------------------------------------------------------------------


class Watch:
    """Fails when a mark goes back or a row is beyond its mark; to be asked at any moment."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self._db = db
        self._marks: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        query = "SELECT projection, rebuilds, position FROM tracking"
        for name, *mark in self._db.execute(query).fetchall():
            assert tuple(mark) >= self._marks.get(name, (0, 0)), name
            self._marks[name] = (mark[0], mark[1])
        for projection in ALL:
            beyond = compose.SQL(
                "SELECT r.position FROM {} AS r, tracking AS t"
                " WHERE t.projection = {} AND r.position > t.position"
            ).format(compose.Identifier(projection.table), projection.name)
            assert self._db.execute(beyond).fetchall() == []


def emptied(db: psycopg.Connection[Any]) -> None:
    """As before anything was projected."""
    for table in (name for p in ALL for name in (p.table, *(d.table for d in p.derived))):
        db.execute(compose.SQL("DELETE FROM {}").format(compose.Identifier(table)))
    db.execute("UPDATE tracking SET position = 0, rebuilds = rebuilds + 1")


@pytest.mark.deep
def test_any_interleaving_of_two_projectors_gives_the_same_tables(
    recorder: LedgerRecorder,
    database_url: str,
    db: psycopg.Connection[Any],
    one: psycopg.Connection[Any],
    two: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a third that keeps rows of `tracking` locked now and then, as a rebuild does, so that
    projections stand apart.
    """
    monkeypatch.setattr(projector_module, "STEP_POSITIONS", 5)
    monkeypatch.setattr(projector_module, "READ_POSITIONS", 2)
    head = fill(recorder, range(2))
    catch_up(database_url, ALL)
    undisturbed, watch = tables(db), Watch(db)
    overtaken = 0
    for seed in SEEDS:
        emptied(db)
        chance = random.Random(seed)
        first, second = Projector(one, ALL), Projector(two, ALL)
        with psycopg.connect(database_url) as locking, monkeypatch.context() as patch:
            interrupt(first, patch, _trouble(second, locking, watch, chance))
            while first.projected < head:
                first.step()
                overtaken += first.overtaken
                watch.look()
        assert first.holds == second.holds == {}, seed
        assert set(first.positions.values()) == {head}
        assert tables(db) == undisturbed, seed
    assert overtaken > len(SEEDS)


def _trouble(
    other: Projector, locking: psycopg.Connection[Any], watch: Watch, chance: random.Random
) -> Moment:
    def moment(_: str) -> None:
        match chance.randrange(6):
            case 0:
                other.step()
            case 1:
                other.look()
                other.step()
            case 2:
                locking.rollback()
                name = chance.choice(ALL).name
                locking.execute(LOCK, {"names": [name]})
            case 3:
                locking.rollback()
            case _:
                return
        watch.look()

    return moment


def test_who_was_beaten_with_one_group_does_not_count_the_events_of_the_next_twice(
    ledger: Ledger,
    database_url: str,
    db: psycopg.Connection[Any],
    one: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = counting([])
    for number in range(3):
        register(ledger, "h", number)
    catch_up(database_url, [counted])
    projector = Projector(one, [counted, INSTANCES])  # at 3 and at 0
    for number in range(3):
        last = register(ledger, "h", number)

    def meanwhile() -> None:
        catch_up(database_url, [counted, INSTANCES])
        for number in range(3):
            register(ledger, "h", number)

    interrupt(projector, monkeypatch, at_first("write", meanwhile))
    projector.step()
    assert tracked(db, "hosts") == last  # nobody has been beyond

    projector.catch_up()
    assert tracked(db, "hosts") == tracked(db, "instances") == last + 3
    assert db.execute("SELECT epoch FROM hosts").fetchall() == [(last + 3,)]


def test_a_group_that_falls_apart_is_not_folded_from_where_it_was_before(
    ledger: Ledger,
    database_url: str,
    db: psycopg.Connection[Any],
    one: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of one are refused; when it is tried by itself, another process is faster with all."""
    counted = counting([])
    refused = replace(
        ATTACHMENTS, topics=HOSTS.topics, fold=lambda row, event: event.stamp, derived=()
    )
    projector = Projector(one, [refused, counted])
    for number in range(3):
        register(ledger, "h", number)
    writes: list[str] = []

    def moment(now: str) -> None:
        writes.extend([now] * (now == "write"))
        if now == "write" and len(writes) == 2:
            catch_up(database_url, [ATTACHMENTS, counted])
            for number in range(3):
                register(ledger, "h", number)

    interrupt(projector, monkeypatch, moment)
    projector.step()
    assert (len(writes), projector.overtaken) == (2, True)
    projector.catch_up()
    assert tracked(db, "hosts") == 6
    assert db.execute("SELECT epoch FROM hosts").fetchall() == [(6,)]


def ordered(row: Row | None, event: LoggedEvent) -> Any:
    """A fold that cannot take an event twice, or without the one before."""
    expected = (row or {"service_version": -1})["service_version"] + 1
    if event.body["service_version"] != expected:
        raise ValueError("not the event that comes next")
    return HOSTS.fold(row, event)


@pytest.mark.parametrize("moment", ["read", "rows", "write"])
def test_rows_that_another_process_has_advanced_are_no_error(
    moment: str,
    ledger: Ledger,
    database_url: str,
    one: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict: Projection = replace(HOSTS, fold=ordered)
    register(ledger, "h", 0)
    catch_up(database_url, [strict])
    projector = Projector(one, [strict])
    last = register(ledger, "h", 1)

    interrupt(projector, monkeypatch, at_first(moment, lambda: catch_up(database_url, [strict])))
    projector.step()

    assert projector.overtaken
    assert projector.holds == {}
    assert projector.positions == {"hosts": last}
    assert caplog.text == ""


def test_a_row_that_another_process_has_removed_is_no_error(
    recorder: LedgerRecorder,
    database_url: str,
    one: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mapping's row ends with it, so that a later look finds none to fold into."""
    monkeypatch.setattr(projector_module, "STEP_POSITIONS", 1)
    head = fill(recorder, range(1))
    projector = Projector(one, [MAPPINGS])

    def moment(now: str) -> None:
        if now == "rows":
            catch_up(database_url, ALL)

    interrupt(projector, monkeypatch, moment)
    while projector.projected < head:
        projector.step()
        assert projector.holds == {}


def test_what_a_crash_of_the_database_took_back_counts_as_projected_only_when_it_is_again(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    """A projecting connection does not wait for the disk."""
    may_fold = threading.Event()
    may_fold.set()

    def fold(row: Row | None, event: LoggedEvent) -> Any:
        may_fold.wait()
        return HOSTS.fold(row, event)

    runner = ProjectionRunner(database_url, [replace(HOSTS, fold=fold)])
    runner.start()
    try:
        last = register(ledger, "h", 0)
        runner.projected(last).result(10)
        may_fold.clear()
        db.execute("WITH gone AS (DELETE FROM hosts) UPDATE tracking SET position = 0")
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'attachment-ledger projections'"
            " AND datname = current_database()"
        )
        wait_until(lambda: not runner.projected(last).done())
        may_fold.set()
        runner.projected(last).result(10)
    finally:
        may_fold.set()
        runner.stop()


# --- in SQL -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [0, 1, 2])
def test_the_write_moves_no_mark_back(
    to: int, ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    for number in range(2):
        register(ledger, "h", number)
    catch_up(database_url, [HOSTS])
    before = tables(db)["hosts"]

    with psycopg.RawCursor(db) as cursor:
        place = _place(db)
        gone = Replacement(place, [{"host": "h"}], [])
        assert advance(cursor, {"hosts": Mark(2, 0)}, to, [gone], "") == []

    assert tracked(db, "hosts") == 2
    assert tables(db)["hosts"] == before


def test_the_write_replaces_no_row_that_is_beyond_where_it_was_folded_from(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    register(ledger, "h", 0)
    register(ledger, "h", 1)
    catch_up(database_url, [HOSTS])
    db.execute("UPDATE tracking SET position = 1")  # as a fault once did
    before = tables(db)["hosts"]

    with psycopg.RawCursor(db) as cursor:
        again = Replacement(_place(db), [], before)
        with pytest.raises(psycopg.errors.NotNullViolation):
            advance(cursor, {"hosts": Mark(1, 0)}, 2, [again], "")

    assert tracked(db, "hosts") == 1
    assert tables(db)["hosts"] == before


def _place(db: psycopg.Connection[Any]) -> TablePlace:
    return TablePlace("hosts", "hosts", "host", "text", columns(db, "hosts"))


# --- who cannot go on -------------------------------------------------------------------------


def test_a_row_beyond_the_mark_is_not_folded_and_a_rebuild_mends_it(
    ledger: Ledger,
    database_url: str,
    db: psycopg.Connection[Any],
    one: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(3):
        last = register(ledger, "h", number)
    catch_up(database_url, ALL)
    before = tables(db)
    db.execute("UPDATE tracking SET position = 1 WHERE projection = 'hosts'")

    projector = Projector(one, ALL)
    projector.catch_up()

    command = "attachment-ledger projection rebuild hosts"
    held = "position 2 (Host.HostRegistered): RowBeyondMarkError"
    assert isinstance(projector.holds["hosts"].error.__cause__, RowBeyondMarkError)
    assert command in caplog.text
    where = ["--database-url", database_url]
    assert shell.main(["projection", "list", *where]) == 0
    out, err = capsys.readouterr()
    assert held in out
    assert command in err

    assert shell.main([*command.split()[1:], *where]) == 0
    assert tables(db) == before
    assert db.execute("SELECT DISTINCT position, held FROM tracking").fetchall() == [(last, None)]


def no_row_follows(row: Row) -> list[Row]:
    raise KeyError(row["host"])


@pytest.mark.parametrize(
    "broken",
    [
        replace(HOSTS, derived=(Derived("mailbox", no_row_follows),)),
        replace(HOSTS, fold=lambda row, event: {**event.stamp, "host": "\udc80"}),
    ],
    ids=["what follows from a row", "what cannot be sent"],
)
def test_whatever_fails_on_the_way_to_the_tables_holds_back_its_projection_alone(
    broken: Projection, ledger: Ledger, one: psycopg.Connection[Any]
) -> None:
    last = register(ledger, "h")
    others = [projection for projection in ALL if projection is not HOSTS]
    projector = Projector(one, [*others, broken])
    projector.catch_up()

    assert set(projector.holds) == {"hosts"}
    assert projector.positions["operations"] == last


def test_what_holds_a_projection_back_is_noted_until_it_goes_on(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any], one: psycopg.Connection[Any]
) -> None:
    def fold(row: Row | None, event: LoggedEvent) -> Any:
        raise ValueError("with a secret in it")

    register(ledger, "h", 0)
    Projector(one, [replace(HOSTS, fold=fold)]).catch_up()
    query = "SELECT held FROM tracking WHERE projection = 'hosts'"
    assert db.execute(query).fetchone() == ("position 1 (Host.HostRegistered): ValueError",)

    catch_up(database_url, [HOSTS])  # another process's code can
    assert db.execute(query).fetchone() == (None,)


def test_who_is_mistaken_about_where_a_projection_is_notes_nothing(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any], one: psycopg.Connection[Any]
) -> None:
    register(ledger, "h", 0)
    projector = Projector(one, [HOSTS])
    marks = dict(projector._marks)
    catch_up(database_url, [HOSTS])
    projector._hold(ProjectionError("hosts", 1, None), marks)
    assert {held for (held,) in db.execute("SELECT held FROM tracking")} == {None}
