"""Threads for what blocks, kept apart so that nobody's wait is another's.

What a request does beside its queries blocks: it loads, decides and appends (ledger.core.requests,
ledger.core.service), and some ask Cinder first.  A Cinder that hangs holds whoever asks it, so
those have threads of their own, only so many for each project, and so many seconds in all.  Agents
and operators have theirs, too: a report or a fence never waits for users' requests, nor for Cinder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from aiohttp import web

from ledger.http.problem import RETRY_AFTER_S, ApiError, some_time
from ledger.rooms import FullError, Room, in_thread

P = ParamSpec("P")
T = TypeVar("T")

#: Threads of users' requests that ask no Cinder.
USER_THREADS = 16
#: Threads of agents: registrations, reports and what they ask under their locks.
AGENT_THREADS = 8
#: Threads of operators: fences, and acts on operations.
OPERATOR_THREADS = 4
#: Requests that may ask Cinder at once, a thread each.
CINDER_THREADS = 16
#: Of these, those of one project.
CINDER_THREADS_PER_PROJECT = 8
#: How long a request waits for one of them.
CINDER_PLACE_S = 20.0
#: How long a request may ask Cinder, all its calls and their repetitions together.
CINDER_ASK_S = 20.0
#: Large bodies that are read and worked on at once; each takes some six times its size in memory.
LARGE_BODIES_AT_ONCE = 2
#: How long one waits to be read.
LARGE_BODY_PLACE_S = 20.0


class CinderRoom(Room):
    """Where requests ask Cinder: so many at once, and of one project."""

    def __init__(
        self, threads: int = CINDER_THREADS, per_project: int = CINDER_THREADS_PER_PROJECT
    ) -> None:
        super().__init__("cinder", threads, per_project)

    async def run(self, project: str, ask: Callable[[], T]) -> T:
        """Do what may ask Cinder.  Raises ApiError 503 if there is no place in CINDER_PLACE_S."""
        try:
            return await self.let_in(project, ask, place_s=CINDER_PLACE_S, ask_s=CINDER_ASK_S)
        except FullError as full:
            raise _cinder_busy(full) from None

    def refuse_late(self, project: str) -> None:
        """Raises the same ApiError if those of the project who wait already wait too long."""
        if self.is_late(project):
            raise _cinder_busy(FullError(self._inside[project], self.inside))


def _cinder_busy(full: FullError) -> ApiError:
    return ApiError(
        503,
        "cinder_busy",
        f"The service waits for Cinder: {full.share} requests of this project, "
        f"and {full.total} in all, are not answered by it yet. Nothing was done.",
        hint="Try again in a moment; the check 'cinder' of /readyz says how Cinder is.",
        Retry_After=some_time(),
    )


class LargeBodies:
    """Places for bodies that take much memory to read and to work on.

    A host has one of them at a time: one that sends its bodies byte by byte is not to keep all
    others from registering.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)
        self._hosts = set[str]()

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """Have a place.  Raises ApiError 503 if the host has or waits for one already, or there is
        none in LARGE_BODY_PLACE_S.
        """
        if host in self._hosts:
            raise _too_many_bodies(f"The service reads another large body of host {host}.")
        self._hosts.add(host)
        try:
            await self._enter()
            try:
                yield
            finally:
                self._places.release()
        finally:
            self._hosts.remove(host)

    async def _enter(self) -> None:
        try:
            async with asyncio.timeout(LARGE_BODY_PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            text = f"The service reads {LARGE_BODIES_AT_ONCE} large bodies, its limit; try again."
            raise _too_many_bodies(text) from None


def _too_many_bodies(text: str) -> ApiError:
    return ApiError(503, "too_many_bodies", text, Retry_After=RETRY_AFTER_S)


class Bulkheads:
    """The threads of one process's API.

    The loop's own are none of them: in these names of hosts are looked up, the database's, too, and
    requests in threads wait for what is read from it.
    """

    def __init__(self) -> None:
        self.cinder = CinderRoom()
        self.large_bodies = LargeBodies()
        self._users = ThreadPoolExecutor(USER_THREADS, thread_name_prefix="users")
        self._agents = ThreadPoolExecutor(AGENT_THREADS, thread_name_prefix="agents")
        self._operators = ThreadPoolExecutor(OPERATOR_THREADS, thread_name_prefix="operators")

    async def users(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread of the users' who ask no Cinder."""
        return await in_thread(self._users, work, *args, **kwargs)

    async def agents(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread of the agents'."""
        return await in_thread(self._agents, work, *args, **kwargs)

    async def operators(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread of the operators'."""
        return await in_thread(self._operators, work, *args, **kwargs)

    async def open(self, _: web.Application) -> AsyncIterator[None]:
        """For as long as the application serves."""
        yield
        self.cinder.close()
        for threads in (self._users, self._agents, self._operators):
            threads.shutdown(wait=False, cancel_futures=True)


BULKHEADS: web.AppKey[Bulkheads] = web.AppKey("bulkheads", Bulkheads)
