"""Rows 1 to 3: appends beside the stock library's recorder, and beside COPY.

Every writer is a thread that appends one event after the other and waits for each, as the
requests of an API do.  The event is one of ours with all that ours carry: whom it concerns
(five indexes more than the stock table has), why it is there and who asked.

Stock is the library's default recorder, which keeps the order of the log, with a connection
for each writer.  COPY puts the very rows that our writers have just stored, in one
transaction, into a table with the same columns and indexes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import ApplicationRecorder
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from aggregates.base import About, Actor, EventContext
from aggregates.volume import Volume
from ledger.log import schema
from ledger.log.mapper import IndexedEvent, JSONBody, LedgerMapper
from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import encode
from tests.benchmarks.figures import Figure, Size, interleaved, percentile
from tests.benchmarks.servers import server

SECONDS = {Size.QUICK: 1.5, Size.FULL: 5.0}
ROUNDS = 3
WARM_UP_S = 0.3
MANY, VERY_MANY = 64, 256  # writers
COPIED_EVENTS = 20_000
AGGREGATE_EVENTS = 2_000

BODY = b'{"detail": "' + b"x" * 350 + b'"}'
CONTEXT = EventContext(
    actor=Actor(name="ada", user_id="u1", project_id="p1", roles=("member", "reader")),
    request_id=f"req-{uuid4()}",
    cause="api",
    operation_id=str(uuid4()),
)
_ABOUTS = itertools.cycle(
    [
        About(
            attachment_id=str(uuid4()),
            volume_id=str(uuid4()),
            server_id=str(uuid4()),
            host=f"compute-{number % 50}",
        )
        for number in range(1000)
    ]
)
#: The link that append_events makes: what the function is without the hash chain.
CHAIN = """
        SELECT sha256(link || string_agg(event_bytes(e), '' ORDER BY e.position))
          INTO link
          FROM event_rows(new_events, head, now_at, NULL) AS e;
"""


class Run(NamedTuple):
    """What some writers did in some seconds."""

    per_second: float
    p99_ms: float


def figures(size: Size) -> Iterator[Figure]:
    seconds = SECONDS[size]
    with server() as dsn:
        recorder = LedgerRecorder(dsn)
        try:
            yield from _beside_stock(dsn, recorder, seconds)
            yield from _beside_copy(dsn, recorder, seconds)
            yield from _chain(dsn, recorder, seconds)
        finally:
            recorder.close()
        yield _processes(dsn, seconds)
    yield from _aggregates()


def _beside_stock(dsn: str, recorder: LedgerRecorder, seconds: float) -> Iterator[Figure]:
    with stock(dsn, MANY) as theirs:
        runs = [(run(theirs, MANY, seconds), run(recorder, MANY, seconds)) for _ in range(ROUNDS)]
        yield _ratio(1, f"append, {MANY} writers", runs, target=15)
        yield Figure(
            row=1,
            name=f"append, {MANY} writers, p99",
            value=median(own.p99_ms for _, own in runs),
            unit="ms",
            target=20,
            compared_with=f"stock: {median(other.p99_ms for other, _ in runs):.0f} ms",
        )
        runs = [(run(theirs, 1, seconds), run(recorder, 1, seconds)) for _ in range(ROUNDS)]
        yield _ratio(3, "append, one writer", runs, target=1.5)


def _ratio(row: int, name: str, runs: list[tuple[Run, Run]], target: float) -> Figure:
    other = median(other.per_second for other, _ in runs)
    own = median(own.per_second for _, own in runs)
    return Figure(
        row=row,
        name=name,
        value=median(own.per_second / other.per_second for other, own in runs),
        unit="x stock",
        target=target,
        more_is_better=True,
        compared_with=f"ours {own:.0f}/s, stock {other:.0f}/s",
    )


def _beside_copy(dsn: str, recorder: LedgerRecorder, seconds: float) -> Iterator[Figure]:
    run(recorder, VERY_MANY, WARM_UP_S)
    own, copied = interleaved(
        ROUNDS,
        lambda: run(recorder, VERY_MANY, seconds).per_second,
        lambda: copy_rate(dsn),
    )
    yield Figure(
        row=2,
        name=f"append, {VERY_MANY} writers",
        value=100 * own / copied,
        unit="% of COPY",
        target=25,
        more_is_better=True,
        compared_with=f"ours {own:.0f}/s, COPY {copied:.0f}/s",
    )


def _chain(dsn: str, recorder: LedgerRecorder, seconds: float) -> Iterator[Figure]:
    with without_chain(dsn) as bare:
        run(bare, MANY, WARM_UP_S)
        without, own = interleaved(
            ROUNDS,
            lambda: run(bare, MANY, seconds).per_second,
            lambda: run(recorder, MANY, seconds).per_second,
        )
    yield Figure(
        row=1,
        name=f"rate with the hash chain, {MANY} writers",
        value=100 * own / without,
        unit="% of without",
        compared_with=f"with {own:.0f}/s, without {without:.0f}/s",
    )


def _processes(dsn: str, seconds: float) -> Figure:
    """Two service processes at once, as where several serve: they share the log's lock."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        futures = [pool.submit(_run_apart, dsn, seconds) for _ in range(2)]
        rates = [future.result() for future in futures]
    return Figure(
        row=1, name=f"append, 2 processes of {MANY} writers", value=sum(rates), unit="events/s"
    )


def _run_apart(dsn: str, seconds: float) -> float:
    recorder = LedgerRecorder(dsn)
    run(recorder, MANY, WARM_UP_S)
    rate = run(recorder, MANY, seconds).per_second
    recorder.close()
    return rate


def _aggregates() -> Iterator[Figure]:
    """CPU of what happens to one event besides SQL, on aggregates of ours."""
    mapper = LedgerMapper(JSONBody())
    server_id, attachment_id = str(uuid4()), str(uuid4())

    def decide() -> list[IndexedEvent]:
        volume = Volume(uuid4())
        for _ in range(AGGREGATE_EVENTS):
            volume.record(Volume.Held, server_id=server_id, attachment_id=attachment_id)
        stored = [mapper.to_stored_event(event) for event in volume.collect_events()]
        encode(stored, CONTEXT)
        return stored

    stored = decide()
    decided, folded = interleaved(
        2 * ROUNDS,
        lambda: _cpu_us(decide),
        lambda: _cpu_us(lambda: Volume.evolve(UUID(int=0), map(mapper.to_domain_event, stored))),
    )
    yield Figure(
        row=1,
        name="aggregate layer: command to encoded event",
        value=decided,
        unit="us CPU per event",
        target=25,
    )
    yield Figure(
        row=1, name="aggregate layer: stored event folded", value=folded, unit="us CPU per event"
    )


def _cpu_us(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) / AGGREGATE_EVENTS * 1e6


def event() -> IndexedEvent:
    """The first of a new aggregate; whom it concerns occurs in others as well."""
    return IndexedEvent(uuid4(), 1, "Attachment.ConnectorUpdated", BODY, next(_ABOUTS))


def run(recorder: ApplicationRecorder, writers: int, seconds: float) -> Run:
    """Append from so many threads for so long."""
    stop = threading.Event()

    def work() -> list[float]:
        taken = []
        while not stop.is_set():
            events = [event()]
            begun = time.perf_counter()
            recorder.insert_events(events, context=CONTEXT)
            taken.append(time.perf_counter() - begun)
        return taken

    begun = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        futures = [pool.submit(work) for _ in range(writers)]
        time.sleep(seconds)
        stop.set()
    waits = [wait for future in futures for wait in future.result()]
    return Run(len(waits) / (time.perf_counter() - begun), percentile(waits, 0.99) * 1e3)


@contextmanager
def stock(dsn: str, writers: int) -> Iterator[PostgresApplicationRecorder]:
    """The library's recorder on the same server, connected."""
    host = parse_qs(urlsplit(dsn).query)["host"][0]
    store = PostgresDatastore("postgres", host, 5432, "ledger", "", pool_size=writers)
    recorder = PostgresApplicationRecorder(store, events_table_name="stock_events")
    recorder.create_table()
    run(recorder, writers, WARM_UP_S)
    yield recorder
    store.close()


def copy_rate(dsn: str) -> float:
    """Rows per second of one COPY of the newest events, committed."""
    with psycopg.connect(dsn) as db, db.cursor() as cursor:
        newest = f"SELECT * FROM events ORDER BY position DESC LIMIT {COPIED_EVENTS}"
        with cursor.copy(f"COPY ({newest}) TO STDOUT (FORMAT binary)".encode()) as out:
            rows = b"".join(out)
        cursor.execute("CREATE TABLE copied (LIKE events INCLUDING ALL)")
        db.commit()
        begun = time.perf_counter()
        with cursor.copy("COPY copied FROM STDIN (FORMAT binary)") as into:
            into.write(rows)
        db.commit()
        taken = time.perf_counter() - begun
        cursor.execute("DROP TABLE copied")
    return COPIED_EVENTS / taken


@contextmanager
def without_chain(dsn: str) -> Iterator[LedgerRecorder]:
    """Another log on the same server, whose append function makes no links."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE DATABASE unchained")
    unchained = urlsplit(dsn)._replace(path="/unchained")
    other = f"{unchained.scheme}://{unchained.netloc}{unchained.path}?{unchained.query}"
    schema.upgrade(other)
    with psycopg.connect(other) as db:
        [(definition,)] = db.execute(
            "SELECT pg_get_functiondef('append_events'::regproc)"
        ).fetchall()
        assert CHAIN in definition
        db.execute(definition.replace(CHAIN, "\n").encode())
    recorder = LedgerRecorder(other)
    yield recorder
    recorder.close()
