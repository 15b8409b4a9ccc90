"""What a crash leaves: every acknowledged append whole, every other one whole or absent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import OperationalError, StoredEvent

import sql
from ledger.log import schema
from ledger.log import writer as writer_module
from ledger.log.chain import ChainCheckpoint, ChainRow, Verifier
from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import UnknownOutcomeError
from ledger.trial.embedded import EmbeddedPostgres
from tests.stack import eventually
from tests.store.test_tailing import start_writers

DEADLINE_S = 60
APPEND_SIZE = 3  # load.py's


def check_log(dsn: str, acknowledged: list[int]) -> list[tuple[Any, ...]]:
    """No gap, no part of an append, nothing changed, and everything that was acknowledged.

    Returns position, append, stream and version of each event.
    """
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # one moment
        rows = connection.execute(
            "SELECT position, append_id, originator_id, originator_version FROM events"
            " ORDER BY position"
        ).fetchall()
        query = sql.query("log", "chained")
        chained = connection.execute(query, {"after": 0, "upto": len(rows)}).fetchall()
        [head] = connection.execute("SELECT position, chain FROM log_head").fetchall()
    positions = [row[0] for row in rows]
    assert positions == list(range(1, len(rows) + 1))
    assert head[0] == len(rows)
    assert set(Counter(row[1] for row in rows).values()) <= {APPEND_SIZE}
    assert len({row[2:] for row in rows}) == len(rows)
    assert set(acknowledged) <= set(positions)
    verifier = Verifier()
    verifier.feed(ChainRow(*row) for row in chained)
    verifier.finish(ChainCheckpoint(*head))
    return rows


class Appenders:
    """Threads that append until they are stopped; any error of theirs is the test's."""

    def __init__(self, recorder: LedgerRecorder, threads: int) -> None:
        self._recorder = recorder
        self._acknowledged: list[int] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._futures = [self._pool.submit(self._append) for _ in range(threads)]

    def _append(self) -> None:
        while not self._stop.is_set():
            stream = uuid4()
            events = [StoredEvent(stream, version, "T", b"{}") for version in (1, 2, 3)]
            self._acknowledged.extend(self._recorder.insert_events(events))

    def wait_for_more(self, positions: int) -> None:
        target = len(self._acknowledged) + positions
        eventually(lambda: len(self._acknowledged) >= target, "more appends")

    def stop(self) -> list[int]:
        self._stop.set()
        for future in self._futures:
            future.result(DEADLINE_S)
        return self._acknowledged


def test_kill_9_of_a_writing_process_leaves_whole_appends(database_url: str) -> None:
    process = start_writers(database_url, threads=8)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(100)]
    process.kill()
    rest, _ = process.communicate(timeout=DEADLINE_S)

    whole = [line for line in (*lines, *rest.splitlines(keepends=True)) if line.endswith("\n")]
    acknowledged = [int(word) for line in whole for word in line.split()]

    assert process.returncode == -signal.SIGKILL
    assert len(acknowledged) >= 300
    check_log(database_url, acknowledged)


def test_a_killed_backend_costs_no_append_and_no_false_conflict(
    recorder: LedgerRecorder, database_url: str, db: psycopg.Connection[Any]
) -> None:
    appenders = Appenders(recorder, 4)
    for _ in range(5):
        appenders.wait_for_more(30)
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'attachment-ledger writer'"
            " AND datname = current_database()"
        )
    appenders.wait_for_more(30)
    acknowledged = appenders.stop()

    check_log(database_url, acknowledged)
    assert len(acknowledged) == db.execute("SELECT count(*) FROM events").fetchone()[0]  # type: ignore[index]


def test_an_answer_lost_after_the_commit_is_found_again(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch, db: psycopg.Connection[Any]
) -> None:
    send = recorder.writer._send
    lost: list[int] = []

    def lose_the_first_answer(batch: list[writer_module.Append]) -> None:
        if lost:
            send(batch)
            return
        lost.append(1)
        send([replace(append, answer=Future()) for append in batch])
        recorder.writer._disconnect()
        raise psycopg.OperationalError("the connection went away")

    monkeypatch.setattr(recorder.writer, "_send", lose_the_first_answer)

    assert recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")]) == [1]
    assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_an_append_without_an_answer_ends_at_its_deadline(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(batch: list[writer_module.Append]) -> None:
        for append in batch:
            append.sent = True
        recorder.writer._disconnect()
        raise psycopg.OperationalError("no answer")

    monkeypatch.setattr(writer_module, "APPEND_DEADLINE_S", 0.3)
    monkeypatch.setattr(recorder.writer, "_send", no_answer)
    with pytest.raises(UnknownOutcomeError, match="may have been stored"):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")])


def test_an_append_that_was_never_sent_says_that_nothing_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "APPEND_DEADLINE_S", 0.3)
    writer = writer_module.Writer("host=/nonexistent")
    with pytest.raises(OperationalError, match="nothing stored"):
        writer.append([StoredEvent(uuid4(), 1, "T", b"{}")])
    writer.close()


class Cluster:
    """A server of this test's own, with fsync, that may be killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._server = EmbeddedPostgres(fsync=True)
        self.dsn = self._server.start(home)

    def kill(self) -> None:
        """kill -9 of the postmaster and of all its children."""
        pid_file = self.home / "cluster" / "postmaster.pid"
        postmaster = int(pid_file.read_text().splitlines()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pids = (postmaster, *map(int, children))
        eventually(lambda: not any(map(_alive, pids)), "the end of all processes")

    def start(self) -> None:
        self._server.stop()  # lets go of the one that was killed
        self._server = EmbeddedPostgres(fsync=True)
        self.dsn = self._server.start(self.home)

    def stop(self) -> None:
        self._server.stop()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    home = Path(tempfile.mkdtemp(prefix="attachment-ledger-crash-"))
    home.chmod(0o711)  # as root the server runs as another account
    cluster = Cluster(home)
    yield cluster
    cluster.stop()
    shutil.rmtree(home)


class Tail:
    """A reader that remembers its position, and every event that it was shown."""

    def __init__(self, dsn: str) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._recorder = LedgerRecorder(dsn)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            last = self.seen[-1][0] if self.seen else 0
            with contextlib.suppress(OperationalError):  # the server is down
                page = self._recorder.select_notifications(last, 100, inclusive_of_start=False)
                self.seen += [(n.id, n.originator_id, n.originator_version) for n in page]

    def wait_for_more(self, events: int) -> None:
        target = len(self.seen) + events
        eventually(lambda: len(self.seen) >= target, "more events")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self._recorder.close()


class Writers:
    """Processes that append; what they say was acknowledged is in files."""

    def __init__(self, dsn: str, home: Path) -> None:
        self._dsn, self._home = dsn, home
        self._outputs: list[Path] = []
        self._running: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self._outputs.append(self._home / f"acknowledged-{len(self._outputs)}")
        with self._outputs[-1].open("w") as output:
            self._running.append(start_writers(self._dsn, threads=4, stdout=output))

    def kill_oldest(self) -> None:
        process = self._running.pop(0)
        assert process.poll() is None, "it should have gone on"
        process.kill()
        process.wait(DEADLINE_S)

    def kill_all(self) -> list[int]:
        """The positions that were acknowledged to any of them."""
        while self._running:
            self.kill_oldest()
        lines = [line for path in self._outputs for line in path.read_text().splitlines(True)]
        return [int(word) for line in lines if line.endswith("\n") for word in line.split()]


def backends(dsn: str) -> int:
    """Of writers: what was sent before its client was killed may still be stored."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'attachment-ledger writer'"
    )
    with psycopg.connect(dsn) as connection:
        [(count,)] = connection.execute(query).fetchall()
    return int(count)


def test_kill_9_of_processes_and_of_postgresql_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """Several writing processes, one of them killed in each round, and the server as well;
    a reader that goes on through all of it is shown what the log has in the end, once each.
    """
    schema.upgrade(cluster.dsn)
    writers, tail = Writers(cluster.dsn, tmp_path), Tail(cluster.dsn)
    for _ in range(3):
        writers.start()
    for _ in range(3):
        tail.wait_for_more(300)
        writers.kill_oldest()
        writers.start()
        tail.wait_for_more(300)
        cluster.kill()
        cluster.start()
    tail.wait_for_more(300)
    acknowledged = writers.kill_all()
    eventually(lambda: not backends(cluster.dsn), "the end of what the killed ones had sent")

    log = [(position, *rest) for position, _, *rest in check_log(cluster.dsn, acknowledged)]
    eventually(lambda: len(tail.seen) >= len(log), "the reader at the end")
    tail.stop()
    assert tail.seen == log
    assert len(acknowledged) > 1000
