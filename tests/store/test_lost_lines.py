"""A line to PostgreSQL that breaks is no refusal: what was asked is asked again, and done once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import DatabaseError, IntegrityError, OperationalError, StoredEvent
from psycopg_pool import PoolTimeout

from ledger.log import schema
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from projections.database_connections import READ_ATTEMPTS, DbConnection
from projections.reads.database_trouble import is_away, is_lost
from projections.reads.queries import Queries, read_pool
from tests.doubles.cut_lines import CutLines, Lost
from tests.stack import eventually
from tests.store.test_crash import Cluster, _alive, cluster  # noqa: F401 - a fixture

STREAM = UUID("7d8f2f0e-6f63-4f55-9a53-0a5f6d2f8a11")


def event(version: int = 1, stream: UUID = STREAM) -> StoredEvent:
    return StoredEvent(stream, version, "T", b"{}")


def stored(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    query = "SELECT position, originator_version FROM events ORDER BY position"
    return db.execute(query).fetchall()


@pytest.fixture
def cut(lines: CutLines) -> Iterator[LedgerRecorder]:
    """A recorder whose lines can be cut."""
    with Ledger(lines.dsn) as ledger:
        yield ledger.log_recorder


# --- appends ----------------------------------------------------------------------------------


def test_a_line_that_a_crash_ends_between_two_appends_costs_none(
    cut: LedgerRecorder, lines: CutLines, db: psycopg.Connection[Any]
) -> None:
    """The last words of the server are unread then, and the connection counts as open."""
    for version in (1, 2, 3):
        assert cut.insert_events([event(version)]) == [version]
        assert lines.drop_all()
    assert stored(db) == [(1, 1), (2, 2), (3, 3)]


def test_a_backend_that_is_killed_costs_the_appends_of_others_nothing(
    cluster: Cluster,  # noqa: F811
) -> None:
    schema.upgrade(cluster.dsn)
    with Ledger(cluster.dsn) as ledger, psycopg.connect(cluster.dsn) as other:
        recorder = ledger.log_recorder
        assert recorder.insert_events([event(1)]) == [1]
        backend = recorder.writer._connect().info.backend_pid
        os.kill(other.info.backend_pid, signal.SIGKILL)
        eventually(lambda: not _alive(backend), "the end of the writer's backend")
        eventually(lambda: _is_back(cluster.dsn), "the server takes connections again")
        assert recorder.insert_events([event(2)]) == [2]
        assert [each.originator_version for each in recorder.select_events(STREAM)] == [1, 2]


def _is_back(dsn: str) -> bool:
    """How long a server needs after a crash is the machine's."""
    with suppress(psycopg.OperationalError), psycopg.connect(dsn):
        return True
    return False


@pytest.mark.parametrize("lost", ["request", "answer", "late"])
def test_an_append_whose_line_is_cut_meanwhile_is_stored_once(
    lost: Lost, cut: LedgerRecorder, lines: CutLines, db: psycopg.Connection[Any]
) -> None:
    assert cut.insert_events([event(1)]) == [1]
    lines.lose_next_append(lost)
    assert cut.insert_events([event(2), event(3)]) == [2, 3]
    if lost == "late":
        lines.let_in()
    assert cut.insert_events([event(4)]) == [4]
    assert stored(db) == [(position, position) for position in (1, 2, 3, 4)]


@pytest.mark.parametrize("lost", ["answer", "late"])
def test_a_lost_append_is_known_again_when_others_have_gone_on_from_it(
    lost: Lost,
    cut: LedgerRecorder,
    lines: CutLines,
    recorder: LedgerRecorder,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is first, the append or another process's, one of them is stored, and both know."""
    cut.insert_events([event(1)])
    others: list[Any] = []

    def meanwhile(_: float) -> None:
        version = 3 if lost == "answer" else 2
        others.append(recorder.insert_events([event(version)]))

    monkeypatch.setattr(cut.writer, "_pause", meanwhile)
    lines.lose_next_append(lost)
    if lost == "answer":
        assert cut.insert_events([event(2)]) == [2]
    else:
        with pytest.raises(IntegrityError):
            cut.insert_events([event(2)])
        lines.let_in()
    assert len(others) == 1
    assert stored(db) == ([(1, 1), (2, 2), (3, 3)] if lost == "answer" else [(1, 1), (2, 2)])


def test_what_the_database_does_refuse_is_refused_at_once(cut: LedgerRecorder) -> None:
    with pytest.raises(DatabaseError, match="the database refuses this append: "):
        cut.insert_events([StoredEvent(uuid4(), 1, "no\0text", b"{}")])
    assert cut.insert_events([event(1)]) == [1]


# --- reads ------------------------------------------------------------------------------------

READS: dict[str, Callable[[LedgerRecorder], Any]] = {
    "a stream": lambda log: log.select_events(STREAM),
    "streams": lambda log: log.select_streams({STREAM: None}),
    "notifications": lambda log: log.select_notifications(1, 10),
    "the head": lambda log: log.max_notification_id(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_of_the_log_that_meets_lost_lines_is_answered(
    read: Callable[[LedgerRecorder], Any], cut: LedgerRecorder, lines: CutLines
) -> None:
    cut.insert_events([event(1)])
    before = read(cut)
    for _ in range(3):
        assert lines.drop_all(), "there was one to read by"
        assert read(cut) == before


def test_a_line_that_the_pool_was_making_may_be_dead_too(
    cut: LedgerRecorder, lines: CutLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes into the pool when that was emptied, and is the next that is asked."""
    fetch, deaths = cut._fetch, iter([True, True])

    def all_made() -> bool:  # else there might be a third one
        stats = cut._pool.get_stats()
        return stats["pool_available"] == stats["pool_size"]

    def fetched(*asked: Any) -> Any:
        if next(deaths, False):
            fetch(*asked)
            eventually(all_made, "no line is being made")
            assert lines.drop_all()
        return fetch(*asked)

    monkeypatch.setattr(cut, "_fetch", fetched)
    assert cut.max_notification_id() is None


async def test_reads_that_meet_lost_lines_are_answered(lines: CutLines) -> None:
    async with read_pool(lines.dsn) as pool:
        queries = Queries(pool)
        for _ in range(3):
            assert (await queries.head())["position"] == 0
            assert lines.drop_all(), "there was one to read by"


def test_what_was_given_up_does_not_run_on_in_the_server(
    database_url: str, db: psycopg.Connection[Any]
) -> None:
    """Else each attempt of a slow query is one more that makes all of them slower."""
    with DbConnection.connect(database_url, autocommit=True) as given_up:
        backend = given_up.info.backend_pid
        given_up.answer_s = 0.1
        with pytest.raises(psycopg.OperationalError, match="given up"):
            given_up.execute("SELECT pg_sleep(600)")
    works = "SELECT FROM pg_stat_activity WHERE pid = %s"
    eventually(lambda: not db.execute(works, (backend,)).fetchall(), "the end of the query")


# --- what counts as lost ----------------------------------------------------------------------


def broken() -> psycopg.DatabaseError:
    """As libpq's result of a call says it (psycopg.errors.error_from_result)."""
    return psycopg.DatabaseError("server closed the connection unexpectedly")


def test_an_error_without_a_code_of_the_servers_is_a_lost_line() -> None:
    assert is_lost(broken())
    assert is_lost(psycopg.OperationalError("consuming input failed"))
    assert not is_lost(psycopg.errors.UniqueViolation("duplicate key"))
    assert not is_lost(psycopg.errors.AdminShutdown("terminating"))  # the server said so
    assert is_away(psycopg.errors.AdminShutdown("terminating"))
    assert not is_away(psycopg.errors.UndefinedTable("no such table"))


@pytest.mark.parametrize("kind", [psycopg.ProgrammingError, psycopg.DataError])
def test_what_psycopg_does_not_send_is_not_lost(kind: type[psycopg.Error]) -> None:
    assert not is_lost(kind("PostgreSQL text fields cannot contain NUL (0x00) bytes"))


@pytest.mark.parametrize(
    ("error", "attempts"), [(broken(), READ_ATTEMPTS), (PoolTimeout("no line in 10 s"), 1)]
)
def test_a_read_that_stays_lost_is_told_as_a_database_that_is_away(
    error: Exception, attempts: int, recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no line could be had, whoever asks has waited already."""
    tries: list[int] = []

    def lost(*_: Any) -> Any:
        tries.append(1)
        raise error

    monkeypatch.setattr(recorder, "_fetch", lost)
    with pytest.raises(OperationalError):
        recorder.max_notification_id()
    assert len(tries) == attempts
