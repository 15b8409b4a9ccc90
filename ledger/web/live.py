"""What moves by itself on a page: the same part of it, made anew, as server-sent events.

The page's script asks for the page again, as a stream (`Accept: text/event-stream`).  So it is the
same route with the same query, the same rules, and the same answers of the API.  Whoever waits is
woken by what the process hears of the log anyway (ledger.core.wakeups), and asks nothing in
between. Those who wake together and look at the same page with the same rights have one answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

import psycopg
import structlog
from aiohttp import web

from aggregates.errors import DomainError
from ledger.auth.tokens import AuthError
from ledger.core.wakeups import ANY_EVENT, Subscription
from ledger.http.call import Call
from ledger.http.limits.batching import Batched
from ledger.http.problem import ApiError
from ledger.native.log.events import HEARTBEAT_S, SEND_S_MAX
from ledger.web.browser import EVENT_STREAM, refuse_gone

#: However much happens, a page is made anew no more often; one that asks much, in so many of these.
PAUSE_S = 1.0
#: Nothing tells that a host is silent, or that time has passed: after so long it is made anew, too.
AGE_S = 60.0

#: Of so many streams the pages are made at the same time.
PAGES_AT_ONCE = 100

#: The reader is gone, may not see it any more, or has to come again: it has begun, so no answer can
#: say which.
_ENDS = (ConnectionError, TimeoutError, AuthError, ApiError, DomainError, psycopg.Error)

_log = structlog.get_logger(__name__)


Make = Callable[[], Awaitable[str]]


class Together:
    """What a process's streams ask, of the same page and with the same rights only once.

    A page that is slow to be made is in the way of nobody who looks at another one.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(PAGES_AT_ONCE)
        self._pages: WeakValueDictionary[object, Batched[Make, str]] = WeakValueDictionary()

    def page(self, key: object) -> Batched[Make, str]:
        """Makes the page for all that ask at once; `key`: who looks, and at which.

        It is the same for as long as somebody has it.
        """
        return self._pages.setdefault(key, Batched(self._make, sys.maxsize))

    async def _make(self, asked: Sequence[Make]) -> Sequence[str]:
        async with self._room:
            return [await asked[0]()] * len(asked)


TOGETHER: web.AppKey[Together] = web.AppKey("console_together", Together)


async def stream(call: Call, make: Make, pauses: int) -> web.StreamResponse:
    """The part that moves, now and whenever something has happened, until one side ends it.

    `pauses`: at most once in so many of PAUSE_S.  Raises ApiError before it begins: 503 if there
    are as many streams as there may be.
    """
    page = call.request.app[TOGETHER].page((call.identity, call.request.path_qs))
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"})
    with (
        call.holds.one(),
        call.components.wakeups.watch(ANY_EVENT) as changed,
        call.holds.waiting(call.request, changed),
    ):
        first = await page.ask(make)
        await response.prepare(call.request)
        try:
            await _send(response, first)
            while await _wait(call, response, changed, pauses * PAUSE_S):
                await refuse_gone(call)
                await _send(response, await page.ask(make))
        except _ENDS as error:
            _log.info("console_stream_ended", why=type(error).__name__)
    return response


async def _wait(
    call: Call, response: web.StreamResponse, changed: Subscription, pause_s: float
) -> bool:
    """True when it is to be made anew: something has happened, or its ages are wrong by now."""
    loop = asyncio.get_running_loop()
    old_at = loop.time() + AGE_S
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await call.holds.closing.wait()
    while _may_go_on(call):
        if await changed.wait(HEARTBEAT_S) or loop.time() >= old_at:
            return _may_go_on(call)
        await refuse_gone(call)  # though nothing happens: a token has an end
        await _write(response, ": still here\n\n")
    return False


def _may_go_on(call: Call) -> bool:
    return call.permitted and not call.ended


async def _send(response: web.StreamResponse, html: str) -> None:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    await _write(response, f"{lines}\n")


async def _write(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(SEND_S_MAX):
        await response.write(text.encode())
