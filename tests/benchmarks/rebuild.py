"""Row 4: projections made anew from the whole log, beside the stock library's runner.

The log is of lives of attachments, as service, engine and agents write them: attached,
moved live to another host, detached; between those, hundreds of others live.  The library
projects the same events, fewer of them, into the same columns and indexes.

A rebuild is timed as the command does it: from the first event to the swap, with indexes
and statistics.  "Events" are those of the log, wanted or not, of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from uuid import uuid4

import psycopg

from aggregates.base import About, EventContext
from ledger.log.mapper import IndexedEvent
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import long_work
from ledger.upkeep.rebuild import rebuild
from projections.attachments import ATTACHMENTS
from projections.base import Projection
from projections.catalog import ALL
from projections.operations import OPERATIONS
from projections.running.runner import ProjectionRunner, catch_up
from tests.benchmarks.figures import Figure, Size, interleaved, percentile
from tests.benchmarks.servers import server
from tests.benchmarks.stock_projection import Stock
from tests.store.histories import Watched, stored_events
from tests.world import OTHER, World

LIVES = {Size.QUICK: 4_000, Size.FULL: 20_000}
STOCK_LIVES = {Size.QUICK: 150, Size.FULL: 600}
AT_ONCE = 400  # lives
REPEATS = 3
THREADS = 16
LATENCIES = 300
TARGET = 100.0

Append = list[IndexedEvent]


def chapters() -> tuple[list[Append], EventContext, set[str]]:
    """One life in three appends, the context of all, and the ids that are its own."""
    world = World()
    Watched(world)
    ends = [0]
    migrate = partial(world.act, "live_migrate", destination=OTHER)
    for ask in (world.attach, migrate, world.detach):
        world.done(ask())
        ends.append(len(world.store.log))
    events = stored_events(world)
    ids = {str(event.originator_id) for event, _ in events} | {world.volumes[0]}
    return [[e for e, _ in events[a:b]] for a, b in pairwise(ends)], events[0][1], ids


def renamed(event: IndexedEvent, fresh: dict[str, str]) -> IndexedEvent:
    """The event with other ids."""
    state = event.state.decode()
    for old, new in fresh.items():
        state = state.replace(old, new)
    about = {name: fresh.get(id_, id_) if id_ else id_ for name, id_ in vars(event.about).items()}
    return IndexedEvent(
        fresh[str(event.originator_id)],
        event.originator_version,
        event.topic,
        state.encode(),
        About(**about),
    )


def lives(parts: Sequence[Append], ids: set[str], count: int) -> Iterator[Append]:
    """Appends of many lives, each chapter of one some hundred lives after the last."""
    fresh = [{old: str(uuid4()) for old in ids} for _ in range(count)]
    for begun in range(count + AT_ONCE * len(parts)):
        for nth, part in enumerate(parts):
            life = begun - nth * AT_ONCE
            if 0 <= life < count:
                yield [renamed(event, fresh[life]) for event in part]


def fill(recorder: LedgerRecorder, count: int) -> None:
    parts, context, ids = chapters()
    with ThreadPoolExecutor(THREADS) as pool:
        store = partial(recorder.insert_events, context=context)
        for _ in pool.map(store, lives(parts, ids, count)):
            pass


def stock_fill(stock: Stock, count: int) -> None:
    parts, _, ids = chapters()
    stock.store(list(lives(parts, ids, count)))


def events_per_second(dsn: str, projections: Sequence[Projection]) -> float:
    begun = time.perf_counter()
    step = long_work.run(dsn, "rebuild", rebuild(dsn, projections), lambda _: None)
    return step.done / (time.perf_counter() - begun)


def stock_events_per_second(stock: Stock) -> float:
    begun = time.perf_counter()
    events = stock.project()
    return events / (time.perf_counter() - begun)


def readable_after(dsn: str, recorder: LedgerRecorder) -> list[float]:
    """Seconds from an append's answer until its events can be read, one at a time."""
    runner = ProjectionRunner(dsn, ALL)
    runner.start()
    parts, context, ids = chapters()
    taken = []
    for events in lives(parts, ids, LATENCIES // len(parts)):
        for event in events:
            [position] = recorder.insert_events([event], context=context)
            begun = time.perf_counter()
            runner.projected(position).result(10)
            taken.append(time.perf_counter() - begun)
    runner.stop()
    return taken[-LATENCIES:]


def agree(dsn: str, stock: Stock) -> None:
    """Both have made the same of the lives: each is deleted in the end."""
    with psycopg.connect(dsn) as connection:
        ours = connection.execute(
            "SELECT state, count(*) FROM attachments GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert [state for state, _ in ours] == [state for state, _ in stock.rows()] == ["deleted"]


def figures(size: Size) -> Iterator[Figure]:
    with server() as dsn:
        recorder, stock = LedgerRecorder(dsn), Stock(dsn)
        fill(recorder, LIVES[size])
        stock_fill(stock, STOCK_LIVES[size])
        catch_up(dsn, ALL)
        theirs, attachments, operations, everything = interleaved(
            REPEATS,
            partial(stock_events_per_second, stock),
            partial(events_per_second, dsn, [ATTACHMENTS]),
            partial(events_per_second, dsn, [OPERATIONS]),
            partial(events_per_second, dsn, ALL),
        )
        agree(dsn, stock)
        waits = readable_after(dsn, recorder)
        recorder.close()
    yield Figure(
        row=4,
        name="rebuild of a projection from zero (attachments)",
        value=attachments / theirs,
        unit="x",
        target=TARGET,
        more_is_better=True,
        compared_with=f"ProjectionRunner {theirs:,.0f} events/s, ledger {attachments:,.0f}",
    )
    for name, rate in (("operations", operations), ("all projections at once", everything)):
        yield Figure(row=4, name=f"the same, {name}", value=rate, unit="events/s")
    for share in (0.5, 0.99):
        yield Figure(
            row=4,
            name=f"answer to readable, p{share * 100:.0f}",
            value=percentile(waits, share) * 1e3,
            unit="ms",
        )
