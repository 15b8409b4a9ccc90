"""Processes that follow one log, for minutes, under load and faults: `make nightly`.

The invariant (`projections.running.projector`) is looked at all the time, and in the end the tables
are what a rebuild makes of the log.  PROJECTING_S: for how many seconds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import long_work
from ledger.upkeep.rebuild import rebuild
from projections.catalog import ALL
from tests.stack import DEADLINE_S, eventually
from tests.store.histories import LOCK
from tests.store.test_interleavings import Watch
from tests.store.test_projector import fill, tables

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("PROJECTING_S", "180"))
PROCESSES = 2
LOADING_THREADS = 2
PAUSE_S_MAX = 1.0
#: How far somebody comes between two faults.
UNDISTURBED_POSITIONS = 100


class Processes:
    """Followers of the log, of which any may be killed or paused."""

    def __init__(self, dsn: str, log: Path) -> None:
        self._dsn, self.log = dsn, log
        self._running = [self._start() for _ in range(PROCESSES)]
        self._paused_until: dict[int, float] = {}

    def _start(self) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("projecting.py"))
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as out:
            return subprocess.Popen([sys.executable, program, self._dsn], env=environ, stderr=out)

    def kill(self, number: int) -> None:
        process = self._running[number]
        assert process.poll() is None, self.log.read_text()
        process.kill()
        process.wait()
        self._running[number] = self._start()

    def pause(self, number: int, seconds: float) -> None:
        self._running[number].send_signal(signal.SIGSTOP)
        self._paused_until[number] = time.monotonic() + seconds

    def resume(self, now: float) -> None:
        """Those whose time is over."""
        for number in [n for n, until in self._paused_until.items() if until <= now]:
            del self._paused_until[number]
            self._running[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    running = Processes(database_url, tmp_path / "log")
    yield running
    running.stop()


class Faults:
    """One at a time, at random."""

    def __init__(self, processes: Processes, dsn: str, chance: random.Random) -> None:
        self._processes, self._dsn, self._chance = processes, dsn, chance
        self._db = psycopg.connect(dsn, autocommit=True)
        self._pool = ThreadPoolExecutor(1)
        self._rebuilding: Future[Any] | None = None
        self.done = Counter[str]()

    def next(self) -> None:
        faults = [self.kill, self.pause, self.pause, self.cut, self.lock, self.lock, self.rebuild]
        fault = self._chance.choice(faults)
        fault()
        self.done[fault.__name__] += 1

    def kill(self) -> None:
        self._processes.kill(self._chance.randrange(PROCESSES))

    def pause(self) -> None:
        number = self._chance.randrange(PROCESSES)
        self._processes.pause(number, self._chance.uniform(0, PAUSE_S_MAX))

    def cut(self) -> None:
        """The connections of all that project."""
        self._db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'attachment-ledger projections'"
            " AND datname = current_database()"
        )

    def lock(self) -> None:
        """Keep one projection from being written for a while, so that they stand apart."""
        with psycopg.connect(self._dsn) as locking:
            name = self._chance.choice(ALL).name
            locking.execute(LOCK, {"names": [name]})
            time.sleep(self._chance.uniform(0, 0.3))

    def rebuild(self) -> None:
        if self._rebuilding is not None and not self._rebuilding.done():
            return
        if self._rebuilding is not None and (error := self._rebuilding.exception()):
            assert isinstance(error, psycopg.OperationalError), error  # its connection was cut
        chosen = self._chance.sample(ALL, 2)
        work = rebuild(self._dsn, chosen)
        watch = lambda _: None  # noqa: E731
        self._rebuilding = self._pool.submit(long_work.run, self._dsn, "rebuild", work, watch)

    def end(self) -> None:
        self._pool.shutdown()
        self._processes.resume(float("inf"))
        self._db.close()


def load(dsn: str, first_seed: int, stop: threading.Event) -> int:
    """Append what happens in one world after the other; how many."""
    recorder = LedgerRecorder(dsn)
    seed = first_seed
    while not stop.is_set():
        fill(recorder, range(seed, seed + 1))
        seed += LOADING_THREADS
    recorder.close()
    return seed


@pytest.mark.nightly
def test_two_processes_under_load_and_faults_end_with_what_a_rebuild_makes(
    processes: Processes, database_url: str, db: psycopg.Connection[Any]
) -> None:
    stop, watch = threading.Event(), Watch(db)
    faults = Faults(processes, database_url, random.Random())
    with ThreadPoolExecutor(LOADING_THREADS) as pool:
        loads = [pool.submit(load, database_url, n, stop) for n in range(LOADING_THREADS)]
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                faults.next()
                target = furthest(db) + UNDISTURBED_POSITIONS
                while furthest(db) < target:
                    processes.resume(time.monotonic())
                    watch.look()
                    assert held(db) == []
                    assert time.monotonic() < end + DEADLINE_S, processes.log.read_text()[-3000:]
        finally:
            stop.set()
            faults.end()
        for each in loads:
            each.result()
    assert set(faults.done) == {"kill", "pause", "cut", "lock", "rebuild"}
    behind = "SELECT 1 FROM tracking AS t, log_head AS h WHERE t.position < h.position"
    eventually(lambda: db.execute(behind).fetchall() == [], "all are at the head of the log")
    watch.look()
    assert held(db) == []
    followed = tables(db)
    long_work.run(database_url, "rebuild", rebuild(database_url, ALL), lambda _: None)
    assert tables(db) == followed
    assert " fails at position " not in processes.log.read_text()


def furthest(db: psycopg.Connection[Any]) -> int:
    [(position,)] = db.execute("SELECT max(position) FROM tracking").fetchall()
    return int(position or 0)


def held(db: psycopg.Connection[Any]) -> list[Any]:
    query = "SELECT projection, position, held FROM tracking WHERE held IS NOT NULL"
    return db.execute(query).fetchall()
