"""What if events were folded in the transaction that stores them?  (docs/decisions/0113)

    python -m tests.benchmarks.together [--rounds 3] [--seconds 3]

The service's writer beside one that, in the transaction of each batch, folds the events that it
has at hand and writes the rows, with the same projector; then an answer is readable when it is
given, and nobody waits.  What is stored are the lives of attachments as service, engine and agents
write them, one event an append, from 64 threads.  The time that the log's lock is held is metered
at the writer.  `--serve ...` runs a program of ours with that writer, for row 9 (`beside`).
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock
from uuid import uuid4

import orjson

from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import Append, Writer
from projections.base import LoggedEvent, upcast
from projections.catalog import ALL
from projections.lines import Line
from projections.running.projector import Projector
from projections.running.reader import Batch, Reader
from projections.running.runner import ProjectionRunner
from tests.benchmarks.append import MANY, stock
from tests.benchmarks.rebuild import chapters, renamed
from tests.benchmarks.servers import server


class AtHand(Reader):
    """Reads what was just stored from memory."""

    def __init__(self) -> None:  # no connection
        self.head, self.events = 0, list[LoggedEvent]()

    def read(self, after: int, until: int) -> Batch:
        return Batch(self.head, [one for one in self.events if after < one.position <= until])


class FoldingWriter(Writer):
    """Stores a batch and its rows in one transaction."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._projector: Projector | None = None
        self.locked_s = 0.0

    def _connect(self) -> Line:
        fresh = self._connection is None
        connection = super()._connect()
        if fresh:
            self._reader = AtHand()
            self._projector = Projector(connection, ALL, self._reader)
            self._projector._seen = True
            connection.execute("SET synchronous_commit = on")
        return connection

    def _send(self, batch: list[Append]) -> None:
        connection = self._connect()
        began = time.perf_counter()
        stored = [replace(append, answer=Future()) for append in batch]
        with connection.transaction():
            super()._send(stored)
            self._project([one for one in stored if one.events and not one.answer.exception()])
        self.locked_s += time.perf_counter() - began
        for append, done in zip(batch, stored, strict=True):
            if refused := done.answer.exception():
                append.answer.set_exception(refused)
            else:
                append.answer.set_result(done.answer.result())

    def _project(self, stored: list[Append]) -> None:
        projector, reader = self._projector, self._reader
        assert projector is not None
        if not stored:
            return
        if min(one.answer.result() for one in stored) != reader.head + 1:
            projector.look()  # another process has stored: its rows are there
        now = datetime.now(UTC)
        reader.events = [event for one in stored for event in _logged(one, now)]
        reader.head = max(one.position for one in reader.events)
        assert projector.step(), "nobody else is at it"


def _logged(append: Append, now: datetime) -> Iterator[LoggedEvent]:
    for position, row in enumerate(append.events, append.answer.result()):
        _, stream, version, topic, state, _, _, _, host, operation, *_ = row
        body = orjson.loads(state)
        yield LoggedEvent(
            position,
            now,
            topic,
            str(stream),
            version,
            host,
            operation and str(operation),
            upcast(topic, body),
            body.pop("seen", None),
        )


class Readable(ProjectionRunner):
    """What there is to wait for when all is readable at once."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def projected(self, position: int) -> Future[int]:
        done = Future[int]()
        done.set_result(position)
        return done


def lives(seconds: float) -> Iterator[list[Any]]:
    """Lives of attachments, event by event; made before the time is taken."""
    parts, _, ids = chapters()
    for _ in range(int(seconds * 400)):
        fresh = {old: str(uuid4()) for old in ids}
        yield [renamed(event, fresh) for part in parts for event in part]


def rate(
    recorder: Any, given: list[list[Any]], seconds: float, runner: ProjectionRunner | None = None
) -> float:
    """Events a second, from so many threads, each at a life of its own; readable in the end."""
    context = chapters()[1]
    todo, lock, stop = iter(given), threading.Lock(), threading.Event()

    def work() -> int:
        stored = 0
        while not stop.is_set():
            with lock:
                life = next(todo)
            for event in life:
                if stop.is_set():
                    break
                position = recorder.insert_events([event], context=context)[0]
                stored += 1
            if runner is not None:
                runner.wait_for(position, 60)
        return stored

    began = time.perf_counter()
    with ThreadPoolExecutor(MANY) as pool:
        futures = [pool.submit(work) for _ in range(MANY)]
        time.sleep(seconds)
        stop.set()
    return sum(future.result() for future in futures) / (time.perf_counter() - began)


def throughput(rounds: int, seconds: float) -> None:
    with server() as dsn, server() as other, stock(dsn, MANY) as theirs:
        apart, runner = LedgerRecorder(dsn), ProjectionRunner(dsn, ALL)
        runner.start()
        with mock.patch("ledger.log.recorder.Writer", FoldingWriter):
            together = LedgerRecorder(other)
        found: dict[str, list[float]] = {"stock": [], "apart": [], "together": []}
        for _ in range(rounds):
            everything = list(lives(3 * seconds))
            third = len(everything) // 3
            found["stock"].append(rate(theirs, everything[:third], seconds))
            found["apart"].append(rate(apart, everything[third : 2 * third], seconds, runner))
            locked = together.writer.locked_s  # type: ignore[attr-defined]
            found["together"].append(rate(together, everything[2 * third :], seconds))
            locked = together.writer.locked_s - locked  # type: ignore[attr-defined]
            rates = {name: round(rates[-1]) for name, rates in found.items()}
            sys.stdout.write(f"events/s {rates}; the log was locked {locked / seconds:.0%}\n")
        runner.stop()
        apart.close()
        together.close()
    medians = {name: round(statistics.median(rates)) for name, rates in found.items()}
    sys.stdout.write(f"medians {medians}\n")


def serve(program: str, *arguments: str) -> None:
    sys.argv = [program, *arguments]
    with (
        mock.patch("ledger.log.recorder.Writer", FoldingWriter),
        mock.patch("ledger.bootstrap.ProjectionRunner", Readable),
    ):
        runpy.run_module(program, run_name="__main__")


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    throughput(asked.rounds, asked.seconds)


if __name__ == "__main__":
    main()
