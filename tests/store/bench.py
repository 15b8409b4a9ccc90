"""Throughput of the log beside the library's own recorder, in one run on one server.

    python -m tests.store.bench [SECONDS]

Single-event appends from 1, 8 and 64 threads, ours and the stock recorder's (its default
mode, the one that keeps order), interleaved; then the projections: from zero, and the time
from an append's answer until it can be read.  Run it from the top of the tree.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import structlog
from eventsourcing.persistence import ApplicationRecorder, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from aggregates.base import About
from ledger import migrations
from ledger.embedded import EmbeddedPostgres
from ledger.mapping import IndexedEvent
from ledger.store import LedgerRecorder
from projections.catalog import ALL
from projections.projector import Projector
from projections.runner import Runner, connect
from tests.store.histories import Watched, stored_events
from tests.world import World

BODY = b'{"detail": "' + b"x" * 350 + b'"}'
TOPIC = "Bench.SomethingOfUsualLengthHappened"
WRITERS = (1, 8, 64)


@contextlib.contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="attachment-ledger-bench-") as home:
        Path(home).chmod(0o711)
        with EmbeddedPostgres(fsync=True) as postgres:
            yield postgres.start(Path(home))


def stock_recorder(dsn: str, writers: int) -> PostgresApplicationRecorder:
    host = parse_qs(urlsplit(dsn).query)["host"][0]
    store = PostgresDatastore(
        dbname="postgres", host=host, port=5432, user="ledger", password="", pool_size=writers
    )
    recorder = PostgresApplicationRecorder(store, events_table_name="stock_events")
    recorder.create_table()
    return recorder


def append_rate(recorder: ApplicationRecorder, writers: int, seconds: float) -> float:
    """Events per second, single-event appends, each waited for."""
    stop, counts = threading.Event(), []

    def work() -> None:
        count = 0
        while not stop.is_set():
            recorder.insert_events([StoredEvent(uuid4(), 1, TOPIC, BODY)])
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work) for _ in range(writers)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - start)


def compare_appends(dsn: str, seconds: float) -> None:
    ours = LedgerRecorder(dsn)
    for writers in WRITERS:
        stock = stock_recorder(dsn, writers)
        pairs = [
            (append_rate(stock, writers, seconds), append_rate(ours, writers, seconds))
            for _ in range(3)
        ]
        stock.datastore.close()
        theirs, own = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        say(f"append, {writers:3} writers: stock {theirs:7.0f}/s  ledger {own:7.0f}/s")
    ours.close()


def fill(recorder: LedgerRecorder, worlds: int) -> None:
    """Attach and detach histories, as the engine writes them, each with ids of its own."""
    world = World()
    Watched(world)
    world.done(world.attach())
    world.done(world.detach())
    template = stored_events(world)
    ids = {str(event.originator_id) for event, _ in template} | {world.volumes[0]}
    for _ in range(worlds):
        fresh = {old: str(uuid4()) for old in ids}
        recorder.writer.submit([_renamed(event, fresh) for event, _ in template], template[0][1])
    recorder.insert_events([StoredEvent(uuid4(), 1, TOPIC, BODY)])


def _renamed(event: IndexedEvent, fresh: dict[str, str]) -> IndexedEvent:
    state = event.state.decode()
    for old, new in fresh.items():
        state = state.replace(old, new)
    about = event.about
    changed = {n: fresh.get(v, v) if v else v for n, v in vars(about).items()}
    return IndexedEvent(
        fresh[str(event.originator_id)],
        event.originator_version,
        event.topic,
        state.encode(),
        About(**changed),
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def timed(what: Callable[[], object]) -> float:
    start = time.monotonic()
    what()
    return time.monotonic() - start


def project(dsn: str) -> None:
    recorder = LedgerRecorder(dsn)
    fill(recorder, 1000)
    with connect(dsn) as connection:
        projector = Projector(connection, ALL)
        seconds = timed(projector.catch_up)
        head, _ = projector.positions()
        say(f"projections from zero: {head} events, {head / seconds:.0f}/s")
    runner = Runner(dsn, ALL)
    runner.start()
    runner.wait_for(head, 60)
    waits = []
    for _ in range(300):
        [position] = recorder.insert_events([StoredEvent(uuid4(), 1, TOPIC, BODY)])
        waits.append(timed(lambda position=position: runner.wait_for(position, 10)))  # type: ignore[misc]
    waits.sort()
    say(f"answer to readable: p50 {waits[150] * 1e3:.2f} ms, p99 {waits[296] * 1e3:.2f} ms")
    runner.stop()
    recorder.close()


def main(seconds: float) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with server() as dsn:
        migrations.upgrade(dsn)
        compare_appends(dsn, seconds)
    with server() as dsn:
        migrations.upgrade(dsn)
        project(dsn)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
