"""Row 16: what a page of the console weighs, how soon it begins, and what an open one costs.

The service runs as it is shipped, with ten thousand operations under way.  Time to the first
byte is until the head of the answer is there; nothing of a page is sent before it is made.  A page
that is open is asked for as its script does; what it costs is the service's CPU time from a change
of the log until each open page has had it, less what a change costs with none open.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from http import HTTPStatus
from pathlib import Path
from statistics import median
from uuid import uuid4

import aiohttp
import psycopg

from aggregates.instance import Instance
from ledger.log.application import Ledger
from ledger.trial.cloud import free_port
from tests.benchmarks.agents import ADMIN, Service
from tests.benchmarks.figures import Figure, Size, percentile
from tests.benchmarks.light_agent import PROJECT
from tests.benchmarks.servers import server
from tests.doubles.running_cinder import running_cinder

OPEN = 10_000
AT_ONCE = 100
SAMPLES = {Size.QUICK: 100, Size.FULL: 500}
PAGES = {"overview": "/ui/", "operations": "/ui/operations", "log": "/ui/log"}
FIRST_BYTE_P99_MS = 200.0
#: Tabs of the same page and person, or each of another page; and the changes they are shown.
TABS, CHANGES = 50, 10
DEADLINE_S = 60.0
_HEAD = {"X-Auth-Token": ADMIN}
_STREAM = {**_HEAD, "Accept": "text/html, text/event-stream"}


def figures(size: Size) -> Iterator[Figure]:
    with server() as dsn, Ledger(dsn) as ledger:
        _fill(dsn, ledger)
        yield from asyncio.run(_measured(dsn, ledger, SAMPLES[size]))


def _instance() -> Instance:
    made = Instance(uuid4())
    made.observe(name="vm", host="compute-1", power_state="running", owner=(PROJECT, "user"))
    return made


def _fill(dsn: str, ledger: Ledger) -> None:
    """As many operations under way as there are servers; each is a host's turn."""
    for _ in range(OPEN // AT_ONCE):
        ledger.save(*(_instance() for _ in range(AT_ONCE)))
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            """INSERT INTO operations (operation_id, flow, server_id, volume_ids, host, state,
                   lanes, steps, unwinding, bound, request_id, started_at, started_position,
                   updated_at, position, pivot_passed)
               SELECT gen_random_uuid(), 'attach', gen_random_uuid(), ARRAY[gen_random_uuid()],
                      'compute-' || n %% 1000, 'running', '[]', '[]', false, false, 'req-' || n,
                      clock_timestamp(), n, clock_timestamp(), n, false
                 FROM generate_series(1, %s) AS n""",
            [OPEN],
        )
        db.execute("ANALYZE")


async def _measured(dsn: str, ledger: Ledger, samples: int) -> list[Figure]:
    with running_cinder() as cinder, tempfile.TemporaryDirectory() as home, ExitStack() as held:
        service = Service(Path(home), dsn, cinder, 0, free_port(held))
        try:
            await service.start()
            async with aiohttp.ClientSession() as http:
                pages = [await _page(service, http, *each, samples) for each in PAGES.items()]
                return [each for page in pages for each in page] + [
                    await _open(service, ledger, "each another page", _others()),
                    await _open(service, ledger, "all the same page", ["/ui/"] * TABS),
                ]
        finally:
            service.kill()


async def _page(
    service: Service, http: aiohttp.ClientSession, name: str, path: str, samples: int
) -> list[Figure]:
    times, text = [], b""
    for _ in range(samples):
        began = time.perf_counter()
        async with http.get(service.url(path), headers=_HEAD) as answer:
            times.append((time.perf_counter() - began) * 1e3)
            assert answer.status == HTTPStatus.OK
            text = await answer.read()
    files = 0
    for file in sorted(set(re.findall(rb"/ui/files/[a-z.-]+", text))):
        async with http.get(service.url(file.decode())) as answer:
            files += len(await answer.read())
    beside = f"{len(text) / 1e3:.1f} KB of it is the page; the browser caches the other files"
    p50 = f"p50 {percentile(times, 0.5):.1f} ms"
    first, heavy = f"console, {name}: first byte p99", f"console, {name}: size"
    return [
        Figure(
            row=16,
            name=f"{first}, {OPEN:,} operations under way",
            value=percentile(times, 0.99),
            unit="ms",
            target=FIRST_BYTE_P99_MS,
            compared_with=p50,
        ),
        Figure(
            row=16,
            name=heavy,
            value=(len(text) + files) / 1e3,
            unit="KB",
            compared_with=beside,
        ),
    ]


def _others() -> list[str]:
    return [f"/ui/operations?host=compute-{number}" for number in range(TABS)]


async def _open(service: Service, ledger: Ledger, how: str, paths: Sequence[str]) -> Figure:
    """CPU time for each open page and change."""
    none = await _changes_s(service, ledger, [])
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None)
            )
        )
        streams = [
            await stack.enter_async_context(http.get(service.url(path), headers=_STREAM))
            for path in paths
        ]
        await asyncio.gather(*map(_part, streams))
        some = await _changes_s(service, ledger, streams)
    return Figure(
        row=16,
        name=f"console, an open page: CPU for each change, {TABS} tabs, {how}",
        value=(some - none) * 1e3 / len(paths),
        unit="ms",
        compared_with=f"a change with no page open: {none * 1e3:.1f} ms",
    )


async def _changes_s(
    service: Service, ledger: Ledger, streams: Sequence[aiohttp.ClientResponse]
) -> float:
    """The median of the service's CPU seconds from a change until each of these has it."""
    spent = []
    for _ in range(CHANGES):
        before = service.cpu_s
        await asyncio.to_thread(ledger.save, _instance())
        await asyncio.gather(*map(_part, streams), asyncio.sleep(SETTLED_S))
        spent.append(service.cpu_s - before)
    return median(spent)


#: Pages are made anew once in a second, and each change is to be alone.
SETTLED_S = 2.5


async def _part(stream: aiohttp.ClientResponse) -> None:
    """The next part of the page, to its end."""
    begun = False
    async with asyncio.timeout(DEADLINE_S):
        while line := await stream.content.readline():
            begun = begun or line.startswith(b"data:")
            if begun and not line.strip():
                return
    raise EOFError("the stream has ended")
