"""Rooms: threads of their own for those who ask another service, which may hang.

Only so many are inside at once, and of one asker so many; who asks has so many seconds in all.  Who
waits for a place needs no thread, and is passed by those of other askers if its own asker has its
share.  Used for Cinder (ledger.http.limits.bulkheads, ledger.core.dispatcher) and Keystone
(ledger.auth.keystone); places alone for the database (ledger.http.limits.reading).

They go in by turns, until the first of them has waited LATE_S: then more comes than can be done.
By turns all would wait as long as they may, to be refused, or to be served at last when nobody
wants the answer any more; so the last goes in first.  Those it passes are refused in time, and told
to come again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from typing import ParamSpec, TypeVar

from host_agent.shared.platform.lines import within

P = ParamSpec("P")
T = TypeVar("T")

#: Who waits so long for a place, of those who do not wait for ever, is late.  What comes in
#: meanwhile has to be served within the deadline of the last of them (decision 0112).
LATE_S = 2.0


class FullError(Exception):
    """There was no place in time; `share` of this asker's are inside, and `total` in all."""

    def __init__(self, share: int, total: int) -> None:
        super().__init__(f"{share} of this asker's are inside, {total} in all")
        self.share = share
        self.total = total


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    """Who waits for a place in a `line`; since `late_at` it is too long (the loop's time)."""

    asker: str
    place: asyncio.Future[None]
    late_at: float
    line: deque[_Waiting]


class Places:
    """At most `count` inside at once, and `per_asker` of one asker."""

    def __init__(self, count: int, per_asker: int) -> None:
        self._free = count
        self._per_asker = per_asker
        self._inside = Counter[str]()
        self._first: deque[_Waiting] = deque()
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(not each.place.done() for each in (*self._first, *self._waiting))

    @property
    def inside(self) -> int:
        """How many are inside."""
        return self._inside.total()

    def is_late(self, asker: str) -> bool:
        """Whether the first of this asker's in the queue is late: more comes than can be done."""
        first = next((each for each in self._waiting if each.asker == asker), None)
        return first is not None and first.late_at <= asyncio.get_running_loop().time()

    async def enter(self, asker: str, place_s: float | None, *, first: bool = False) -> None:
        """Wait for a place; `leave` it afterwards.  `first`: by turns, and before all who are not.

        Raises FullError if there is none in `place_s` seconds.
        """
        if self._has_place(asker):
            self._take(asker)
            return
        loop = asyncio.get_running_loop()
        late_at = inf if place_s is None else loop.time() + LATE_S
        line = self._first if first else self._waiting
        mine = _Waiting(asker, loop.create_future(), late_at, line)
        line.append(mine)
        try:
            async with asyncio.timeout(place_s):
                await mine.place
        except BaseException as error:
            self._give_up(mine)
            if not isinstance(error, TimeoutError):
                raise
            raise FullError(self._inside[asker], self._inside.total()) from None

    def _has_place(self, asker: str) -> bool:
        return self._free > 0 and self._inside[asker] < self._per_asker

    def _take(self, asker: str) -> None:
        self._free -= 1
        self._inside[asker] += 1

    def _give_up(self, mine: _Waiting) -> None:
        if mine.place.done() and not mine.place.cancelled():
            self.leave(mine.asker)  # it was given in the same moment
            return
        with suppress(ValueError):
            mine.line.remove(mine)

    def leave(self, asker: str) -> None:
        """To one that waits, of an asker that may have it."""
        self._free += 1
        self._inside[asker] -= 1
        if not self._inside[asker]:
            del self._inside[asker]
        if next_one := self._next():
            next_one.line.remove(next_one)
            self._take(next_one.asker)
            next_one.place.set_result(None)

    def _next(self) -> _Waiting | None:
        """The first of those who may go in; if that is late, the last of them."""

        def may(each: _Waiting) -> bool:
            return not each.place.done() and self._has_place(each.asker)

        if before_all := next(filter(may, self._first), None):
            return before_all
        first = next(filter(may, self._waiting), None)
        if first is None or first.late_at > asyncio.get_running_loop().time():
            return first
        return next(filter(may, reversed(self._waiting)))


class Room(Places):
    """The same, with a thread for each who is inside."""

    def __init__(self, name: str, threads: int, per_asker: int) -> None:
        super().__init__(threads, per_asker)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def let_in(
        self,
        asker: str,
        ask: Callable[[], T],
        *,
        place_s: float | None = None,
        ask_s: float | None = None,
    ) -> T:
        """What `ask` returns, in a thread, with `ask_s` seconds for all its calls.

        Raises FullError if there is no place in `place_s` seconds, and what `ask` raises.
        """
        await self.enter(asker, place_s)
        try:
            return await in_thread(self._threads, _bounded, ask, ask_s)
        finally:
            self.leave(asker)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def in_thread(
    threads: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """As asyncio.to_thread does: with the request's context, so that its logs have its id."""
    context = copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, lambda: context.run(work, *args, **kwargs))


def _bounded(ask: Callable[[], T], ask_s: float | None) -> T:
    with nullcontext() if ask_s is None else within(ask_s):
        return ask()
