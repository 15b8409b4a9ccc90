"""Projections are made anew beside the live ones, whatever happens meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

import aggregates
import handlers
import projections
from host_agent import shared
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import long_work
from ledger.upkeep import rebuild as module
from ledger.upkeep.long_work import BusyError, Checkmark, WorkProgress
from ledger.upkeep.rebuild import RebuildError, rebuild
from projections.base import LoggedEvent, Projection, Row
from projections.catalog import ALL
from projections.hosts import HOSTS
from projections.running import projector as projector_module
from projections.running.projector import Projector
from projections.running.runner import connect
from projections.running.tables import ProjectionError
from tests.store.following import register, tracked, wait_until
from tests.store.test_migrations import catalog as schema_of
from tests.store.test_projector import TABLES, fill, tables

DEADLINE_S = 30.0


VIEWS = """
SELECT c.relname, c.relnamespace, c.reloptions, c.relacl, pg_get_viewdef(c.oid)
  FROM pg_class AS c WHERE c.relname = 'beside' OR c.relnamespace = to_regnamespace('theirs')
 ORDER BY c.relname
"""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector_module, "STEP_POSITIONS", 3)
    monkeypatch.setattr(projector_module, "READ_POSITIONS", 1)


def anew(
    dsn: str,
    *projections: Projection,
    watch: Callable[[WorkProgress], None] = lambda _: None,
) -> Checkmark:
    return long_work.run(dsn, "rebuild", rebuild(dsn, projections or ALL), watch)


#: In a history without looks, at its end.
WITHOUT_ROWS = {"mailbox", "remnants", "findings", "looks"}


class StoppedError(Exception):
    """Somebody stops the work."""


def stop_after(done: int) -> Callable[[WorkProgress], None]:
    def watch(progress: WorkProgress) -> None:
        if progress.done >= done:
            raise StoppedError

    return watch


def telling(folded: list[int]) -> Projection:
    """Hosts, where each fold is told."""

    def fold(row: Row | None, event: LoggedEvent) -> Any:
        folded.append(event.position)
        return HOSTS.fold(row, event)

    return replace(HOSTS, fold=fold)


@pytest.fixture
def live(database_url: str) -> Iterator[Projector]:
    """Who follows the log meanwhile."""
    with connect(database_url) as connection:
        yield Projector(connection, ALL)


# --- what comes out ---------------------------------------------------------------------------


def test_a_rebuild_gives_what_following_gave_in_the_same_schema(
    database_url: str, recorder: LedgerRecorder, db: psycopg.Connection[Any], live: Projector
) -> None:
    for seed in range(6, 12):  # together they leave something in each table
        fill(recorder, range(seed, seed + 1))
        live.catch_up()
    before, schema = tables(db), schema_of(database_url)
    identity = "SELECT 'operations'::regclass::oid"
    old = db.execute(identity).fetchone()

    step = anew(database_url)

    assert tables(db) == before
    assert [name for name in TABLES if not before[name] and name not in WITHOUT_ROWS] == []
    assert schema_of(database_url) == schema
    assert db.execute(identity).fetchone() != old
    assert step[:2] == (recorder.max_notification_id(),) * 2
    assert db.execute("SELECT DISTINCT position, rebuilds FROM tracking").fetchall() == [
        (step.done, 1)
    ]
    assert db.execute("SELECT * FROM rebuild.tracking").fetchall() == []


def test_rights_and_parameters_of_a_table_survive(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("GRANT SELECT ON hosts TO PUBLIC")
    db.execute("GRANT UPDATE (fence_reason) ON hosts TO PUBLIC")
    db.execute("ALTER TABLE hosts SET (fillfactor = 70)")
    query = """SELECT relacl::text, reloptions, relowner, (SELECT attacl::text FROM pg_attribute
                WHERE attrelid = c.oid AND attname = 'fence_reason')
                 FROM pg_class AS c WHERE oid = 'hosts'::regclass"""
    before = db.execute(query).fetchone()

    anew(database_url, HOSTS)

    assert db.execute(query).fetchone() == before
    assert before is not None
    assert all(before)


def test_readers_see_the_old_rows_until_the_end_and_then_the_new_ones(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("UPDATE hosts SET service_version = 99")  # what a rebuild is to mend
    seen: list[Any] = []

    def read(_: WorkProgress | None = None) -> None:
        query = "SELECT service_version FROM hosts ORDER BY host"
        seen.append(db.execute(query, prepare=True).fetchall())

    anew(database_url, HOSTS, watch=read)
    read()

    # The last step is told after the swap.
    assert len(seen) > 3
    assert seen[:-2] == [[(99,), (99,)]] * (len(seen) - 2)
    assert seen[-2:] == [[(8,), (7,)]] * 2


def test_what_happens_during_a_rebuild_is_in_the_old_table_and_in_the_new(
    ledger: Ledger, database_url: str, hosts: int, db: psycopg.Connection[Any], live: Projector
) -> None:
    happened: list[int] = []

    def happen(_: WorkProgress) -> None:
        if len(happened) < 5:
            version = 100 + len(happened)
            happened.append(register(ledger, "new", version))
            live.catch_up()
            assert live.positions["hosts"] == happened[-1]
            query = "SELECT service_version FROM hosts WHERE host = 'new'"
            assert db.execute(query).fetchone() == (version,)

    step = anew(database_url, HOSTS, watch=happen)

    assert step.done == happened[-1] == hosts + 5
    live.catch_up()
    assert tracked(db, "hosts") == live.positions["operations"] == hosts + 5
    assert db.execute("SELECT max(service_version) FROM hosts").fetchone() == (104,)


def test_who_follows_forgets_the_rows_of_the_old_table(
    ledger: Ledger, database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    def wrong(row: Row | None, event: LoggedEvent) -> Row | None:
        epoch = (row or {"epoch": 100})["epoch"]
        return {**(HOSTS.fold(row, event) or {}), "epoch": epoch + 1}

    with connect(database_url) as connection:
        follower = Projector(connection, [replace(HOSTS, fold=wrong)])
        register(ledger, "h0", 10)
        follower.catch_up()
        anew(database_url, HOSTS)
        last = register(ledger, "h0", 11)
        wait_until(lambda: (follower.step(), follower.positions["hosts"] == last)[1])

    assert db.execute("SELECT epoch FROM hosts WHERE host = 'h0'").fetchone() == (1,)


# --- stopping, going on, refusing -------------------------------------------------------------


def test_a_stopped_rebuild_goes_on_where_it_was(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    folded: list[int] = []
    with pytest.raises(StoppedError):
        anew(database_url, telling(folded), watch=stop_after(6))
    [stopped] = long_work.under_way(db)
    assert (stopped.done, stopped.total, stopped.running) == (6, hosts, False)
    assert str(stopped) == "rebuild: 6 of 9 events (66 %), stopped"

    step = anew(database_url, telling(folded))

    assert folded == list(range(1, hosts + 1))
    assert step.done == hosts
    assert long_work.under_way(db) == []


KILLED = """
import sys
from ledger.upkeep import long_work, rebuild
from projections.running import projector
from projections.hosts import HOSTS

def watch(progress):
    print(progress.done, flush=True)
    if progress.done == 6:
        sys.stdin.read()

projector.STEP_POSITIONS = 3
long_work.run(sys.argv[1], "rebuild", rebuild.rebuild(sys.argv[1], [HOSTS]), watch)
"""


def test_a_killed_rebuild_refuses_no_one_and_is_gone_on_with(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)] == ["0\n", "3\n", "6\n"]
        [running] = long_work.under_way(db)
        assert running.running
        with pytest.raises(BusyError, match="rebuild"):
            anew(database_url, HOSTS)
    finally:
        child.kill()
        child.communicate()
    gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%% rebuild'"
    while db.execute(gone).fetchone() != (0,):
        pass  # PostgreSQL sees that the connection is closed

    folded: list[int] = []
    anew(database_url, telling(folded))

    assert folded == list(range(7, hosts + 1))
    assert db.execute("SELECT service_version FROM hosts").fetchall() == [(8,), (7,)]


def test_what_other_code_has_begun_is_thrown_away(
    database_url: str, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    with pytest.raises(StoppedError):
        anew(database_url, telling(folded), watch=stop_after(6))
    monkeypatch.setattr(module, "_code", lambda: "other")
    folded.clear()

    anew(database_url, telling(folded))

    assert folded == list(range(1, hosts + 1))


@pytest.mark.parametrize(
    ("package", "changed"),
    [
        (aggregates, "operation.py"),
        (handlers, "engine/engine.py"),
        (projections, "running/tables.py"),
        (shared, "contract/lane.py"),
    ],
)
def test_rows_depend_on_the_code_of_all_that_makes_them(
    package: ModuleType, changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, copy = module._code(), tmp_path / "copy"
    shutil.copytree(package.__path__[0], copy)
    monkeypatch.setattr(package, "__path__", [str(copy)])
    assert module._code() == before
    with (copy / changed).open("a") as file:
        file.write("# changed\n")
    assert module._code() != before


def test_a_rebuild_of_something_else_begins_anew(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    with pytest.raises(StoppedError):
        anew(database_url, HOSTS, watch=stop_after(6))
    before = tables(db)
    anew(database_url)
    assert tables(db) == before
    assert db.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'rebuild'").fetchone() == (
        1,
    )


def test_an_event_that_cannot_be_folded_ends_it_and_the_old_rows_stay(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    def fold(row: Row | None, event: LoggedEvent) -> Any:
        if event.position == 5:
            raise ValueError("cannot fold this")
        return HOSTS.fold(row, event)

    before = tables(db)
    with pytest.raises(ProjectionError, match="hosts fails at position 5"):
        anew(database_url, replace(HOSTS, fold=fold))
    assert tables(db) == before
    anew(database_url, HOSTS)
    assert tables(db) == before


def test_an_index_may_take_longer_than_any_other_statement(
    database_url: str, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends one whose client has given up, so each run would begin it anew."""
    do = module._Rebuild._do

    def slowly(self: Any, query: str) -> None:
        if query == "indexes":
            self._connection.execute("SELECT pg_sleep(1.5)")
        do(self, query)

    monkeypatch.setattr(module._Rebuild, "_do", slowly)
    monkeypatch.setattr(module, "LONG_ANSWER_S", 1.0)
    assert anew(database_url, HOSTS).done == hosts


# --- the swap ---------------------------------------------------------------------------------


def test_the_swap_waits_for_a_gap_between_long_readers(
    database_url: str,
    hosts: int,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    ledger: Ledger,
) -> None:
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT * FROM hosts")
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            """Meanwhile others read, something happens, and then the reader is done."""
            pauses.append(seconds)
            assert len(db.execute("SELECT * FROM hosts").fetchall()) == 2
            register(ledger, "late", len(pauses))
            if len(pauses) == 2:
                reader.rollback()

        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pause))
        step = anew(database_url, HOSTS)

    assert len(pauses) == 2
    assert step.done == hosts + 2
    assert db.execute("SELECT count(*) FROM hosts").fetchone() == (3,)


def test_nobody_advances_a_projection_while_its_table_is_swapped(
    ledger: Ledger,
    database_url: str,
    hosts: int,
    live: Projector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    different = module._Rebuild._different
    stood: list[int] = []

    def meanwhile(self: Any) -> list[str]:
        if self._connection.info.transaction_status is TransactionStatus.INTRANS:
            register(ledger, "late")
            live.step()
            live.look()
            stood.append(live.positions["hosts"])
        return different(self)

    monkeypatch.setattr(module._Rebuild, "_different", meanwhile)
    anew(database_url, HOSTS)

    assert stood == [hosts]
    live.catch_up()
    assert set(live.positions.values()) == {hosts + 1}


def test_views_on_the_old_table_read_the_new_one_and_keep_their_rights(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("CREATE SCHEMA theirs")
    db.execute("CREATE VIEW theirs.hosts WITH (security_barrier=true) AS SELECT host FROM hosts")
    db.execute("CREATE VIEW beside AS SELECT h.host FROM hosts AS h JOIN theirs.hosts USING (host)")
    db.execute("GRANT SELECT ON beside TO PUBLIC")
    before = db.execute(VIEWS).fetchall()
    anew(database_url, HOSTS)
    assert db.execute(VIEWS).fetchall() == before
    assert db.execute("SELECT FROM beside").fetchall()
    db.execute("DELETE FROM hosts")
    assert db.execute("SELECT FROM beside").fetchall() == []


def test_what_else_depends_on_the_old_table_is_named_and_nothing_is_lost(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("CREATE MATERIALIZED VIEW their_copy AS SELECT host FROM hosts")
    with pytest.raises(RebuildError, match="their_copy"):
        anew(database_url, HOSTS)
    db.execute("DROP MATERIALIZED VIEW their_copy")
    folded: list[int] = []
    anew(database_url, telling(folded))
    assert folded == []


def test_a_migration_in_the_middle_is_noticed(
    database_url: str, hosts: int, db: psycopg.Connection[Any]
) -> None:
    def migrate(progress: WorkProgress) -> None:
        if progress.done == 6:
            db.execute("ALTER TABLE hosts ADD COLUMN mood text")

    with pytest.raises(RebuildError, match="hosts"):
        anew(database_url, HOSTS, watch=migrate)
    anew(database_url, HOSTS)
    assert db.execute("SELECT host, mood FROM hosts ORDER BY host").fetchall() == [
        ("h0", None),
        ("h1", None),
    ]


# --- the command ------------------------------------------------------------------------------
