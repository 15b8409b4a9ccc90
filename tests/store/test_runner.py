"""A process keeps its projections current, and tells who waits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ledger.log.application import Ledger
from projections.catalog import ALL
from projections.hosts import HOSTS
from projections.running import runner as runner_module
from projections.running.projector import Projector
from projections.running.runner import NotProjectingError, ProjectionRunner, catch_up
from tests.store.following import poisoned, register, tracked, wait_until


@pytest.fixture
def runner(database_url: str) -> Iterator[ProjectionRunner]:
    runner = ProjectionRunner(database_url, ALL)
    runner.start()
    yield runner
    runner.stop()


def test_who_waits_for_a_position_then_reads_it(
    ledger: Ledger, runner: ProjectionRunner, db: psycopg.Connection[Any]
) -> None:
    for number in range(20):
        position = register(ledger, "h", number)
        runner.projected(position).result(10)
        assert db.execute("SELECT service_version FROM hosts").fetchone() == (number,)


def test_a_process_may_wait_for_what_another_one_projects(
    ledger: Ledger, database_url: str, runner: ProjectionRunner, db: psycopg.Connection[Any]
) -> None:
    other = ProjectionRunner(database_url, ALL)
    other.start()
    try:
        for number in range(20):
            position = register(ledger, f"h{number}")
            other.projected(position).result(10)
            runner.projected(position).result(10)
            assert db.execute("SELECT count(*) FROM hosts").fetchone() == (number + 1,)
    finally:
        other.stop()


def test_waiting_for_what_never_comes_ends(runner: ProjectionRunner) -> None:
    with pytest.raises(TimeoutError):
        runner.projected(10**9).result(0.05)


def test_stopping_tells_who_waits(runner: ProjectionRunner) -> None:
    waiting = runner.projected(10**9)
    runner.stop()
    with pytest.raises(NotProjectingError):
        waiting.result(1)
    with pytest.raises(NotProjectingError):
        runner.projected(10**9).result(1)


def test_a_lost_connection_is_made_anew(
    ledger: Ledger, runner: ProjectionRunner, db: psycopg.Connection[Any]
) -> None:
    runner.projected(register(ledger, "h")).result(10)
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'attachment-ledger projections'"
        " AND datname = current_database()"
    )
    runner.projected(register(ledger, "i")).result(10)


def test_an_outage_is_not_longer_by_more_than_a_second(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests wait for the projections: their pauses may not grow with the outage."""
    runner, pauses = ProjectionRunner(database_url, ALL), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            runner._stopping.set()

    def refused(_: str) -> None:
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(runner_module, "connect", refused)
    monkeypatch.setattr(runner._stopping, "wait", pause)
    runner._run()
    assert len(pauses) == 10
    assert max(pauses) <= 1


def test_a_held_projection_is_not_waited_for(ledger: Ledger, database_url: str) -> None:
    others = [projection for projection in ALL if projection is not HOSTS]
    runner = ProjectionRunner(database_url, [*others, poisoned(1)])
    runner.start()
    try:
        runner.projected(register(ledger, "h")).result(10)
    finally:
        runner.stop()


def test_what_one_process_cannot_fold_another_one_does(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    others = [projection for projection in ALL if projection is not HOSTS]
    kinds = ([*others, poisoned(1)], ALL)
    runners = [ProjectionRunner(database_url, kind) for kind in kinds]
    for each in runners:
        each.start()
    try:
        for number in range(30):
            last = register(ledger, "h", number)
        wait_until(lambda: tracked(db, "hosts") == last)
    finally:
        for each in runners:
            each.stop()


def test_who_was_beaten_takes_up_at_once_what_the_other_process_leaves_behind(
    ledger: Ledger,
    database_url: str,
    projecting: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "POLL_INTERVAL_S", 30.0)
    others = [projection for projection in ALL if projection is not HOSTS]
    runner, projector = ProjectionRunner(database_url, ALL), Projector(projecting, ALL)
    runner_module._listen(projecting)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(runner._watch, projecting, projector)
        register(ledger, "h")
        catch_up(database_url, others)
        watching.result(10)
