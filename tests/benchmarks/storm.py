"""Rows 10 and 11: everything at once, and a restart in the middle of it.

Requests are sent over CLIENTS connections, each as soon as the one before it was answered,
with an Idempotency-Key each; a lost answer is asked for again.

Row 10: all operations are accepted while the hosts take commands and report nothing, so that at
last all are open at once; then the hosts answer, and the operations end.

Row 11: the same again, and `kill -9` the moment the last one is in the log: most wait for their
host, the last ones for the ledger itself.  The service is started again, and when it has done
what is due the hosts answer.  Nothing may be lost, and nothing done twice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.hosts import names, servers_of
from tests.benchmarks.line import Line
from tests.benchmarks.region import (
    ADMIN,
    DEADLINE_S,
    Region,
    Sample,
    Shape,
    cpu_between,
    cpu_s,
    region,
)
from tests.stack import eventually

SHAPES = {Size.QUICK: Shape(200, 8), Size.FULL: Shape(1_000, 10)}
CLIENTS = 100
AGAIN_S = 0.2
#: Of the operations in order of time so many are left out at either end, more than there are
#: connections in the quick size: beginning and tail are not the steady state.  The rest is cut
#: into fifths.
LEFT_OUT = 0.1


def figures(size: Size) -> Iterator[Figure]:
    """Rows 10 and 11."""
    with region(SHAPES[size]) as where:
        yield from _storm(where)
        yield from _restart(where)


# ----------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Attach:
    """One request; the volume is made for it, and its id is the request's key too."""

    storm: str
    server_id: str

    @property
    def volume_id(self) -> str:
        return str(uuid5(NAMESPACE_URL, f"{self.storm}/{self.server_id}"))


def _attaches(where: Region, storm: str) -> list[Attach]:
    """A volume for each server; hosts take turns, as they do in a storm."""
    by_host = [servers_of(host, where.shape.servers) for host in names(where.shape.hosts)]
    wanted = [Attach(storm, server_id) for turn in zip(*by_host, strict=True) for server_id in turn]
    where.seed([one.volume_id for one in wanted])
    return wanted


async def _accept(port: int, wanted: Sequence[Attach]) -> None:
    """Have all of them accepted."""
    left = iter(wanted)

    async def client() -> None:
        line = Line(port, ADMIN)
        for one in left:
            await _accepted(line, one)
        line.close()

    async with asyncio.TaskGroup() as clients:
        for _ in range(min(CLIENTS, len(wanted))):
            clients.create_task(client())


async def _accepted(line: Line, one: Attach) -> None:
    """Ask until it is answered; "later" (503) is no answer either."""
    path = f"/v2.1/servers/{one.server_id}/os-volume_attachments"
    body = {"volumeAttachment": {"volumeId": one.volume_id, "device": None}}
    while True:
        with suppress(OSError, EOFError):
            status, told = await line.ask("POST", path, body, Idempotency_Key=one.volume_id)
            assert status in (200, 202, 503), (status, told)
            if status != 503:
                return
        await asyncio.sleep(AGAIN_S)


# ----------------------------------------------------------------------------- the rows


def _storm(where: Region) -> Iterator[Figure]:
    wanted = _attaches(where, "storm")
    after = where.head()
    where.order("hold")
    before = where.cpu_of_others()
    with where.sampled() as samples:
        began = time.time()
        asyncio.run(_accept(where.port, wanted))
        accepted_at = time.time()
        where.order("answer")
        where.wait_for_end()
        ended_at = time.time()
    n, spent = (
        len(wanted),
        {
            "service": samples[-1].cpu_s - samples[0].cpu_s,
            **{name: total - before[name] for name, total in where.cpu_of_others().items()},
        },
    )
    begun, bound, completed = where.begun(after), where.bound(after), where.completed(after)
    assert len(begun) == len(bound) == n, "each request is one operation, and makes one mapping"
    yield Figure(
        row=10,
        name="storm: operations that ended in success",
        value=len(completed) / n,
        unit="of 1",
        target=1,
        more_is_better=True,
        compared_with=f"{n} operations over {where.shape.hosts} hosts, all open at once",
    )
    yield from _constant("accepted", bound, samples)
    yield from _constant("ended", completed, samples)
    yield Figure(
        row=10,
        name="storm: accepted and reserved, hosts silent",
        value=n / (accepted_at - began),
        unit="/s",
    )
    yield Figure(
        row=10,
        name="storm: carried out and ended, once hosts answer",
        value=n / (ended_at - accepted_at),
        unit="/s",
    )
    parts = ", ".join(f"{name} {1000 * total / n:.1f}" for name, total in spent.items())
    yield Figure(
        row=10,
        name="storm: CPU per operation, all processes",
        value=1000 * sum(spent.values()) / n,
        unit="ms",
        compared_with=parts,
    )
    yield Figure(
        row=10,
        name="storm: peak memory of the service",
        value=max(sample.memory_bytes for sample in samples) / 2**20,
        unit="MiB",
        compared_with=f"{samples[0].memory_bytes / 2**20:.0f} MiB before",
    )


def _constant(what: str, times: list[float], samples: list[Sample]) -> Iterator[Figure]:
    """By how much the last fifth of the steady part is faster or slower than the first."""
    out = int(len(times) * LEFT_OUT)
    steady = times[out : len(times) - out]
    fifth = len(steady) // 5
    fifths = ((steady[0], steady[fifth]), (steady[-1 - fifth], steady[-1]))
    first, last = (fifth / (end - begin) for begin, end in fifths)
    yield Figure(
        row=10,
        name=f"storm: {what}/s, difference between last and first fifth",
        value=abs(last / first - 1),
        unit="of 1",
        target=0.2,
        compared_with=f"{first:.0f}/s first, {last:.0f}/s last",
    )
    first, last = (1000 * cpu_between(samples, *each) / fifth for each in fifths)
    yield Figure(
        row=10,
        name=f"storm: the service's CPU for each {what}, last fifth",
        value=last,
        unit="ms",
        compared_with=f"{first:.1f} ms in the first fifth",
    )


def _restart(where: Region) -> Iterator[Figure]:
    wanted = _attaches(where, "restart")
    n, after = len(wanted), where.head()
    where.order("hold")
    clients = threading.Thread(target=lambda: asyncio.run(_accept(where.port, wanted)))
    clients.start()
    eventually(lambda: len(where.begun(after)) == n, "all are in the log", DEADLINE_S)
    where.service.kill()
    head, due = where.head(), where.due()
    began = time.time()
    where.start_service()
    eventually(where.ready, "the service is ready again", DEADLINE_S)
    took_s = {"it is ready": time.time() - began}
    beside = (
        f"kill -9 with {n} operations under way, {due} of them due;"
        f" {cpu_s(where.service.pid):.1f} s of CPU until it is ready"
    )
    eventually(lambda: not where.due(), "all that was due is done", DEADLINE_S)
    done_s = time.time() - began
    clients.join()
    took_s["the first event"] = where.first_event_at(head) - began
    took_s["the first command at a host"] = float(where.said_by_hosts()) - began
    where.order("answer")
    where.wait_for_end()
    for name, value in took_s.items():
        yield Figure(
            row=11,
            name=f"restart: from the start of the process until {name}",
            value=value,
            unit="s",
            target=5,
            compared_with=beside,
        )
    yield Figure(
        row=11,
        name="restart: until all due work is done",
        value=done_s,
        unit="s",
        compared_with="5 s of it is the wait for a reservation with unknown outcome",
    )
    lost = n - len(where.completed(after))
    yield Figure(
        row=11,
        name="restart: attaches lost or done twice",
        value=lost + where.doubled(),
        unit="",
        target=0,
    )
