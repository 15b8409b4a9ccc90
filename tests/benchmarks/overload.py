"""Row 19: twice as much as it can do, for minutes, and then no more than usual.

Requests come at a rate of their own, whatever becomes of those before them: a cycle is a server
that is free, an attach, and when that has ended, its detach.  Clients try again what was answered
with 503 or 429, after the time that the answer says, for GIVE_UP_S; the hosts try again as they do
in a storm.  First a number of clients that each do one cycle after the other find what the service
can do; of that, half is what is usual, before and after.

What is measured is the time until an attach was answered, all its tries together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from tests.benchmarks.figures import Figure, Size, percentile
from tests.benchmarks.hosts import names, servers_of
from tests.benchmarks.line import Line
from tests.benchmarks.region import USER, Region, Shape, region

SHAPE = Shape(200, 10)
#: Seconds: of the search for what it can do, of what is usual before, of too much.
PHASES = {Size.QUICK: (15.0, 15.0, 60.0), Size.FULL: (60.0, 60.0, 600.0)}
CLIENTS = 40
USUAL, TOO_MUCH = 0.5, 2.0
GIVE_UP_S = 60.0
#: What is usual is so again when the p99 of WINDOW_S is no more than so many times that of before.
AGAIN, WINDOW_S, AGAIN_S_MAX = 2.0, 5.0, 180.0
_ASKED_S = 20
_WRONG = """
SELECT (SELECT count(*) FROM operations WHERE outcome IS DISTINCT FROM 'completed')
     + (SELECT count(*) - count(DISTINCT volume_id) FROM attachments WHERE state <> 'deleted')
"""


@dataclass
class Seen:
    """What clients have met since a moment."""

    began: float = field(default_factory=time.monotonic)
    lasted_s: float = 0.0  # known when it is over
    answered: list[tuple[float, float]] = field(default_factory=list)  # when asked; seconds
    ended: list[float] = field(default_factory=list)  # when a cycle did
    answers: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    without_a_server: int = 0

    def p99(self, since: float = 0.0) -> float:
        took = [s for asked, s in self.answered if asked >= since]
        return percentile(took, 0.99) if took else float("inf")

    @property
    def rate(self) -> float:
        return len(self.ended) / self.lasted_s

    @property
    def last_beside_first(self) -> float:
        """The cycles of the last fifth of the time, beside those of the first."""
        fifth = self.lasted_s / 5
        first = sum(at < self.began + fifth for at in self.ended)
        return sum(at >= self.began + 4 * fifth for at in self.ended) / max(1, first)


class Clients:
    """All of them, with their connections."""

    def __init__(self, where: Region) -> None:
        self._port = where.port
        self._lines: list[Line] = []
        hosts = [servers_of(host, where.shape.servers) for host in names(where.shape.hosts)]
        self._free = deque(server for turn in zip(*hosts, strict=True) for server in turn)
        where.seed([volume_of(server) for server in self._free])
        self._tasks = set[asyncio.Task[None]]()
        self._keys: dict[str, str] = {}  # of an attach, by server: given up, it may yet be done
        self.seen = Seen()

    async def one_after_the_other(self, seconds: float) -> Seen:
        """What CLIENTS get done that each wait for the end of what they asked for."""
        seen, until = self._anew(), time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await self._cycle(self._free.popleft(), seen)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        seen.lasted_s = time.monotonic() - seen.began
        return seen

    async def at_a_rate(self, rate: float, seconds: float) -> Seen:
        """Cycles that begin at a rate; returns when the time is over, whatever is under way."""
        seen = self._anew()
        until, due = seen.began + seconds, seen.began
        while (due := due + random.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not self._free:
                seen.without_a_server += 1
                continue
            task = asyncio.create_task(self._cycle(self._free.popleft(), seen))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        seen.lasted_s = time.monotonic() - seen.began
        return seen

    async def end(self) -> None:
        """Until nothing is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def _anew(self) -> Seen:
        self.seen = Seen()
        return self.seen

    async def _cycle(self, server: str, seen: Seen) -> None:
        line, volume = (
            self._lines.pop() if self._lines else Line(self._port, USER),
            volume_of(server),
        )
        path = f"/v2.1/servers/{server}/os-volume_attachments"
        body = {"volumeAttachment": {"volumeId": volume, "device": None}}
        asked = time.monotonic()
        key = self._keys.setdefault(server, str(uuid4()))
        if await self._had(line, "POST", path, body, seen, key):
            del self._keys[server]
            seen.answered.append((asked, time.monotonic() - asked))
            await self._ended(line)
            key = str(uuid4())  # one for all tries: what was accepted unheard is not done again
            while not await self._had(line, "DELETE", f"{path}/{volume}", None, seen, key):
                pass
            await self._ended(line)
            self.seen.ended.append(time.monotonic())
        self._free.append(server)
        self._lines.append(line)

    async def _had(
        self, line: Line, method: str, path: str, body: Any, seen: Seen, key: str
    ) -> bool:
        """Whether it was accepted, before it was given up."""
        until = time.monotonic() + GIVE_UP_S
        while time.monotonic() < until:
            wait_s = 0.5
            with suppress(OSError, EOFError):
                status, told = await line.ask(method, path, body, Idempotency_Key=key)
                seen.answers[str(status)] += 1
                if status in (200, 202):
                    return True
                assert status in (429, 503), (status, told)
                said = line.said(b"retry-after")
                seen.answers[f"{status} without Retry-After"] += not said
                wait_s = float(said or 1)
            await asyncio.sleep(wait_s * random.uniform(1, 1.5))
        seen.given_up += 1
        return False

    async def _ended(self, line: Line) -> None:
        path = line.said(b"x-attachment-ledger-operation").decode()
        while True:
            with suppress(OSError, EOFError):
                status, told = await line.ask("GET", f"{path}?wait_s={_ASKED_S}")
                if status == 200 and told["state"] == "finished":
                    assert told["outcome"] == "completed", told
                    return
            if wait_s := float(line.said(b"retry-after") or 0):
                await asyncio.sleep(wait_s * random.uniform(1, 1.5))


def volume_of(server: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"overload/{server}"))


def figures(size: Size) -> Iterator[Figure]:
    with region(SHAPE) as where:
        where.order("answer")
        yield from asyncio.run(_measured(where, *PHASES[size]))


async def _measured(
    where: Region, search_s: float, usual_s: float, too_much_s: float
) -> Sequence[Figure]:
    clients = Clients(where)
    await clients.one_after_the_other(search_s / 3)
    can = (await clients.one_after_the_other(search_s)).rate
    usual = await clients.at_a_rate(USUAL * can, usual_s)
    with where.sampled() as samples:
        much = await clients.at_a_rate(TOO_MUCH * can, too_much_s)
        again_s = await _again(clients, USUAL * can, AGAIN * usual.p99(), time.monotonic())
        await clients.end()
    memory = max(sample.memory_bytes for sample in samples) / 2**20
    [(wrong,)] = where.rows(_WRONG)
    return [*_shown(can, usual, much, again_s, wrong, memory)]


async def _again(clients: Clients, rate: float, p99: float, over: float) -> float:
    """How long it takes until the p99 of a window is as usual; AGAIN_S_MAX if it does not."""
    while (passed := time.monotonic() - over) < AGAIN_S_MAX:
        window = await clients.at_a_rate(rate, WINDOW_S)
        asked = time.monotonic()
        while not window.answered or len(window.answered) + window.given_up < rate * WINDOW_S / 2:
            await asyncio.sleep(0.1)
            if time.monotonic() - asked > WINDOW_S:
                break
        if window.p99() <= p99:
            return passed
    return AGAIN_S_MAX


def _shown(
    can: float, usual: Seen, much: Seen, again_s: float, wrong: int, memory: float
) -> Iterator[Figure]:
    def figure(name: str, value: float, unit: str, **more: Any) -> Figure:
        return Figure(row=19, name=f"overload: {name}", value=value, unit=unit, **more)

    answers = ", ".join(f"{count} {what}" for what, count in sorted(much.answers.items()))
    mute = sum(count for what, count in much.answers.items() if "without" in what)
    yield figure("what the service can do", can, "cycles/s", compared_with=f"{CLIENTS} clients")
    yield figure(
        "cycles/s at twice that",
        much.rate / can,
        "x",
        target=0.8,
        more_is_better=True,
        compared_with=f"{answers}; {much.given_up} given up, {much.without_a_server} not sent",
    )
    yield figure("of these the last fifth beside the first", much.last_beside_first, "x")
    yield figure("refused without Retry-After", mute, "", target=0)
    yield figure("p99 of an attach's answer at half of it", 1e3 * usual.p99(), "ms")
    yield figure("the same at twice", 1e3 * much.p99(), "ms")
    yield figure(
        "then at half again: until the p99 is below twice what it was",
        again_s,
        "s",
        target=GIVE_UP_S,
        compared_with=f"clients come again for {GIVE_UP_S:.0f} s",
    )
    yield figure("operations that did not succeed, volumes attached twice", wrong, "", target=0)
    yield figure("peak memory of the service", memory, "MiB", target=400)
