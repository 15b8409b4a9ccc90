"""What the tests of the log share: a ledger, a context, and small aggregates' events."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from aggregates.base import Actor, EventContext
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.archive import Archive
from ledger.upkeep.retention import archive
from projections.catalog import ALL
from projections.running.runner import catch_up, connect
from tests.store.following import register
from tests.store.looking import Cloud, cloud_of
from tests.store.months import Past, day


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with Ledger(database_url) as ledger:
        yield ledger


@pytest.fixture
def recorder(ledger: Ledger) -> LedgerRecorder:
    return ledger.log_recorder


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def context() -> EventContext:
    return EventContext(
        actor=Actor(name="ada", user_id="u1", project_id="p1", roles=("admin", "member")),
        request_id=f"req-{uuid4()}",
        cause="api",
        operation_id=str(uuid4()),
    )


@pytest.fixture
def past(recorder: LedgerRecorder, database_url: str, db: psycopg.Connection[Any]) -> Past:
    return Past(recorder, database_url, db)


@pytest.fixture
def files(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


@pytest.fixture
def archived(past: Past, files: Archive, db: psycopg.Connection[Any]) -> Archive:
    list(archive(db, files, day(6)))
    return files


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as a new process has it: an event loop of an earlier test may have taken it away."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def projecting(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as connection:
        yield connection


@pytest.fixture
def hosts(ledger: Ledger, database_url: str) -> int:
    """Nine registrations, projected; the position of the last one."""
    for number in range(9):
        last = register(ledger, f"h{number % 2}", number)
    catch_up(database_url, ALL)
    return last


# --- looks ---------------------------------------------------------------------------------------


@pytest.fixture
def cloud(database_url: str) -> Iterator[Cloud]:
    with cloud_of(database_url) as made:
        yield made


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in steps of two, each of which is noted."""
    for name in ("reads.PAGE_ROWS", "cinder_side.PAGE_ROWS", "ids.CHUNK", "cases.BATCH"):
        monkeypatch.setattr(f"ledger.reconcile.{name}", 2)
    monkeypatch.setattr("ledger.upkeep.long_work.NOTE_INTERVAL_S", 0.0)
