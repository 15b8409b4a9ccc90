"""What the API is built on; `ledger.bootstrap` fills it in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry

from host_agent.shared.contract.ports import Cinder
from ledger.auth.keystone_login import KeystoneLogin
from ledger.auth.policy import Policy
from ledger.auth.tokens import Authenticator
from ledger.config import Settings
from ledger.core.images import Images
from ledger.core.requests import Requests
from ledger.core.service import Service
from ledger.core.wakeups import Subscription, Wakeups
from ledger.http.limits.reading import UserQueries
from ledger.http.problem import RETRY_AFTER_S, ApiError
from ledger.log.clock import DatabaseClock
from ledger.log.writer import Writer
from ledger.nova_beside.adopting import Adopting
from ledger.nova_beside.passing import Nova
from ledger.reconcile.asking import LookRequests
from ledger.reconcile.findings import Findings
from projections.reads.queries import Queries
from projections.running.runner import ProjectionRunner

#: Says what is wrong, None if nothing is.
Check = Callable[[], Awaitable[str | None]]

#: How long a place may be held for a caller that is gone.
SWEEP_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Components:
    """One process's parts.

    `inner` are the `queries` of what is no user's request: they go first.
    `runner` must be started and `wakeups` entered.  `cinder` is only asked whose a volume
    or a snapshot is, and whether it knows the new flow.  `checks` are what /readyz asks beside
    database and projections, by name (dispatcher, Cinder); what `warnings` find keeps nobody from
    working.  `nova`: to whom requests are passed on; `adopting`: who takes its hosts over, if one
    is watched.  `keystone_login` is there for people in
    browsers, where Keystone is asked.  `registry` is what /metrics shows beside its own numbers.
    """

    requests: Requests
    service: Service
    findings: Findings
    writer: Writer
    queries: UserQueries
    inner: Queries
    wakeups: Wakeups
    runner: ProjectionRunner
    cinder: Cinder
    images: Images
    settings: Settings
    authenticator: Authenticator
    clock: DatabaseClock
    nova: Nova | None = None
    adopting: Adopting | None = None
    keystone_login: KeystoneLogin | None = None
    policy: Policy = field(default_factory=Policy)
    looker: LookRequests
    checks: Mapping[str, Check] = field(default_factory=dict)
    warnings: Mapping[str, Check] = field(default_factory=dict)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


class Holds:
    """Requests that are held open, long polls and streams: bounded, ended at shutdown."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: dict[Subscription, web.Request] = {}
        self.count = 0
        self.closing = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold one more.  Raises ApiError 503 if there are as many as there may be."""
        if self.count >= self._count_max:
            raise ApiError(
                503,
                "too_many_streams",
                f"This process holds {self.count} requests open, its limit; try another one.",
                Retry_After=RETRY_AFTER_S,
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    @contextmanager
    def waiting(self, request: web.Request, watch: Subscription) -> Iterator[None]:
        """Wake `watch` also when waiting is of no use any more."""
        self._waiting[watch] = request
        try:
            yield
        finally:
            del self._waiting[watch]

    async def open(self, _: web.Application) -> AsyncIterator[None]:
        """For as long as the application serves: let those go whose callers are gone."""
        sweeping = asyncio.create_task(self._sweep(), name="holds")
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping

    async def close(self, _: web.Application) -> None:
        """Let all go."""
        self.closing.set()
        for watch in self._waiting:
            watch.event.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            for watch, request in self._waiting.items():
                if is_gone(request):
                    watch.event.set()


def is_gone(request: web.Request) -> bool:
    """Whether the caller has closed the connection."""
    transport = request.transport
    return transport is None or transport.is_closing()


COMPONENTS: web.AppKey[Components] = web.AppKey("components", Components)
HOLDS: web.AppKey[Holds] = web.AppKey("holds", Holds)
