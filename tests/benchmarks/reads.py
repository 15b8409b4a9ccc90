"""Rows 5 and 6: what an auditor asks, on a long history and on one a tenth as long.

Each question is put by the very method that the API uses, to both histories in turns, each
time about another volume, server, attachment, host or moment.  Warm: every question was
asked once before it is measured.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

import psycopg

from projections.attachments import ATTACHMENTS
from projections.reads.queries import Queries, read_pool
from projections.running.runner import catch_up
from tests.benchmarks.figures import Figure, Size, percentile
from tests.benchmarks.history import OLD_HOST, fill
from tests.benchmarks.servers import server

LIVES = {Size.QUICK: 100_000, Size.FULL: 1_000_000}
SHORTER = 10
SAMPLES = 200
ROUNDS = 5
LAST = 100
HISTORY_P99_MS, HELD_P50_MS, OPEN_P50_MS = 10.0, 0.5, 3.0
#: Medians on the longer history by those on the shorter one; noise alone makes some of it.
FLAT = 1.5

HISTORY = (5, 0.99, HISTORY_P99_MS)
OPEN = (6, 0.5, OPEN_P50_MS)
#: Of each question: row of the table, percentile and its target in ms.
TARGETS = {
    "history of a volume": HISTORY,
    "history of a server": HISTORY,
    "history of an attachment": HISTORY,
    "last 100 events of a host": HISTORY,
    "last 100 events of an old host": HISTORY,
    "who held a volume at a moment": (6, 0.5, HELD_P50_MS),
    "open on a host at a moment": OPEN,
    "open on an old host at a moment": OPEN,
}

Ask = Callable[[], Awaitable[Any]]


class Subjects(NamedTuple):
    """What is asked about, drawn from a history; moments lie within it."""

    volumes: list[str]
    servers: list[str]
    attachments: list[str]
    hosts: list[str]
    moments: list[datetime]


def draw(dsn: str) -> Subjects:
    with psycopg.connect(dsn) as db:
        rows = db.execute(
            "SELECT volume_id::text, server_id::text, attachment_id::text, host FROM spans"
            " WHERE host <> %s ORDER BY md5(attachment_id::text) LIMIT %s",
            (OLD_HOST, SAMPLES),
        ).fetchall()
        found = db.execute("SELECT min(from_at), max(from_at) FROM spans").fetchone()
    assert found is not None, "there is a history"
    began, ended = found
    chance = random.Random(1)
    moments = [began + chance.uniform(0.1, 0.9) * (ended - began) for _ in range(SAMPLES)]
    volumes, servers, attachments, hosts = (list(column) for column in zip(*rows, strict=True))
    return Subjects(volumes, servers, attachments, hosts, moments)


def questions(queries: Queries, about: Subjects) -> dict[str, list[Ask]]:
    """Each question, SAMPLES times, about something else each time."""

    def history(subject: Any, name: str, **more: Any) -> Ask:
        async def asked() -> None:
            await queries.events((subject, name), **more)
            await queries.detached_to()

        return asked

    def at(moment: datetime, **about: Any) -> Ask:
        return lambda: queries.attachments_at(moment, **about)

    last = {"newest_first": True, "limit": LAST}
    return {
        "history of a volume": [history("volume_id", each) for each in about.volumes],
        "history of a server": [history("server_id", each) for each in about.servers],
        "history of an attachment": [history("attachment_id", each) for each in about.attachments],
        "last 100 events of a host": [history("host", each, **last) for each in about.hosts],
        "last 100 events of an old host": [history("host", OLD_HOST, **last)] * SAMPLES,
        "who held a volume at a moment": [
            at(moment, volume_id=each)
            for each, moment in zip(about.volumes, about.moments, strict=True)
        ],
        "open on a host at a moment": [
            at(moment, host=each) for each, moment in zip(about.hosts, about.moments, strict=True)
        ],
        "open on an old host at a moment": [at(moment, host=OLD_HOST) for moment in about.moments],
    }


class Times(list[list[float]]):
    """Rounds of samples, in ms.  A percentile is the median of the rounds' own."""

    def at(self, share: float) -> float:
        return median(percentile(samples, share) for samples in self)

    def __str__(self) -> str:
        return f"p50 {self.at(0.5):.2f}, p99 {self.at(0.99):.2f} ms"


async def took_ms(ask: Ask) -> float:
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1e3


async def compare(shorter: str, longer: str) -> dict[str, tuple[Times, Times]]:
    """How long each question took on both, by turns."""
    async with read_pool(shorter) as one, read_pool(longer) as other:
        less, more = questions(Queries(one), draw(shorter)), questions(Queries(other), draw(longer))
        times = {name: (Times(), Times()) for name in less}
        for name, both in times.items():
            for number in range(1 + ROUNDS):
                asked = zip(less[name], more[name], strict=True)
                pairs = [(await took_ms(a), await took_ms(b)) for a, b in asked]
                if number:  # the first time it was not warm
                    for found, samples in zip(both, zip(*pairs, strict=True), strict=True):
                        found.append(list(samples))
    return times


def figures(size: Size) -> Iterator[Figure]:
    with server() as shorter, server() as longer:
        events = [prepare(shorter, LIVES[size] // SHORTER), prepare(longer, LIVES[size])]
        times = asyncio.run(compare(shorter, longer))
    beside = "p50 and p99 at {:,} events: {}; at {:,}: {}"
    for name, (less, more) in times.items():
        row, share, target = TARGETS[name]
        both = beside.format(events[0], less, events[1], more)
        yield Figure(
            row=row,
            name=f"{name}, p{share:.0%}".removesuffix("%"),
            value=more.at(share),
            unit="ms",
            target=target,
            compared_with=both,
        )
        yield Figure(
            row=row,
            name=f"{name}, ten times as many events",
            value=more.at(0.5) / less.at(0.5),
            unit="x the time",
            target=FLAT,
            compared_with="p50 at a tenth",
        )


def prepare(dsn: str, lives: int) -> int:
    """A history and the projection that answers what was at a moment; how many events."""
    events = fill(dsn, lives)
    catch_up(dsn, [ATTACHMENTS])
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("VACUUM ANALYZE spans")
    return events
