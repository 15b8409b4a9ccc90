"""Rooms: threads of their own for those who ask another service, which may hang.

Only so many are inside at once, and of one asker so many; who asks has so many seconds in all.  Who
waits for a place needs no thread, and is passed by those of other askers if its own asker has its
share.  Used for Cinder (ledger.http.limits.bulkheads, ledger.core.dispatcher) and Keystone
(ledger.auth.keystone).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from host_agent.shared.platform.lines import within

P = ParamSpec("P")
T = TypeVar("T")


class FullError(Exception):
    """There was no place in time; `share` of this asker's are inside, and `total` in all."""

    def __init__(self, share: int, total: int) -> None:
        super().__init__(f"{share} of this asker's are inside, {total} in all")
        self.share = share
        self.total = total


class Room:
    """At most `threads` inside at once, and `per_asker` of one asker."""

    def __init__(self, name: str, threads: int, per_asker: int) -> None:
        self._free = threads
        self._per_asker = per_asker
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._inside = Counter[str]()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(not place.done() for _, place in self._waiting)

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
        await self._enter(asker, place_s)
        try:
            return await in_thread(self._threads, _bounded, ask, ask_s)
        finally:
            self._leave(asker)

    async def _enter(self, asker: str, place_s: float | None) -> None:
        if self._has_place(asker):
            self._take(asker)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((asker, place))
        try:
            async with asyncio.timeout(place_s):
                await place
        except BaseException as error:
            self._give_up(asker, place)
            if not isinstance(error, TimeoutError):
                raise
            raise FullError(self._inside[asker], self._inside.total()) from None

    def _has_place(self, asker: str) -> bool:
        return self._free > 0 and self._inside[asker] < self._per_asker

    def _take(self, asker: str) -> None:
        self._free -= 1
        self._inside[asker] += 1

    def _give_up(self, asker: str, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._leave(asker)  # it was given in the same moment
            return
        with suppress(ValueError):
            self._waiting.remove((asker, place))

    def _leave(self, asker: str) -> None:
        """To the first that waits, of an asker that may have it."""
        self._free += 1
        self._inside[asker] -= 1
        if not self._inside[asker]:
            del self._inside[asker]
        for each in self._waiting:
            if not each[1].done() and self._has_place(each[0]):
                self._waiting.remove(each)
                self._take(each[0])
                each[1].set_result(None)
                return

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
