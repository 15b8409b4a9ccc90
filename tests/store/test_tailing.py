"""Who follows the log by position sees every event once, in order, whoever writes."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent

from ledger.log.recorder import LedgerRecorder

ROOT = Path(__file__).parents[2]
LOAD = Path(__file__).with_name("load.py")
DEADLINE_S = 60


def start_writers(
    dsn: str, threads: int, appends: int | None = None, stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.Popen[str]:
    args = [sys.executable, str(LOAD), dsn, str(threads), *([str(appends)] if appends else [])]
    environ = {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(args, cwd=ROOT, env=environ, stdout=stdout, text=True)


def test_a_tailing_reader_misses_nothing_under_writers_of_several_processes(
    database_url: str, recorder: LedgerRecorder
) -> None:
    seen: list[int] = []
    expected = 2 * 8 * 60 * 3 + 4 * 60
    done = threading.Event()

    def tail() -> None:
        while len(seen) < expected and not done.is_set():
            page = recorder.select_notifications(
                seen[-1] if seen else None, 100, inclusive_of_start=False
            )
            seen.extend(notification.id for notification in page)

    reader = threading.Thread(target=tail)
    reader.start()
    processes = [start_writers(database_url, threads=8, appends=60) for _ in range(2)]
    own = [threading.Thread(target=_append_singles, args=(recorder, 60)) for _ in range(4)]
    for thread in own:
        thread.start()
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    for thread in own:
        thread.join()
    reader.join(DEADLINE_S)
    done.set()

    assert [process.returncode for process in processes] == [0, 0]
    assert seen == list(range(1, expected + 1))
    for line in "".join(outputs).splitlines():
        first, second, third = map(int, line.split())
        assert (second, third) == (first + 1, first + 2)


def _append_singles(recorder: LedgerRecorder, appends: int) -> None:
    for _ in range(appends):
        recorder.insert_events([StoredEvent(uuid4(), 1, "Test.Happened", b"{}")])


def test_positions_become_visible_in_order_even_if_a_batch_commits_late(
    recorder: LedgerRecorder, db: psycopg.Connection[Any], database_url: str
) -> None:
    """The next writer waits for the lock of the log, so nothing overtakes."""
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(database_url) as late:
            late.execute("SELECT position FROM log_head FOR UPDATE")
            event = StoredEvent(uuid4(), 1, "Test.Happened", b"{}")
            future = pool.submit(recorder.insert_events, [event])
            with pytest.raises(TimeoutError):
                future.result(0.3)
            assert recorder.max_notification_id() is None
        assert future.result(10) == [1]


def test_a_subscription_follows_across_processes(
    database_url: str, recorder: LedgerRecorder
) -> None:
    process = start_writers(database_url, threads=2, appends=5)
    with recorder.subscribe(gt=0, topics=["Test.Happened"]) as subscription:
        seen = [next(subscription).id for _ in range(30)]
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert seen == list(range(1, 31))
