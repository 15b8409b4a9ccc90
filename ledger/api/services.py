"""What the API is built on; `ledger.bootstrap` fills it in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry

from host_agent.ports import Cinder
from ledger.api.problem import RETRY_AFTER_S, ApiError
from ledger.auth import Authenticator
from ledger.config import Settings
from ledger.requests import Requests
from ledger.service import Service
from ledger.wakeups import Wakeups
from projections.queries import Queries
from projections.runner import Runner

#: Says what is wrong, None if nothing is.
Check = Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, kw_only=True)
class Services:
    """One process's parts.

    `runner` must be started and `wakeups` entered.  `cinder` is only asked whose a volume
    is, and whether it knows the new flow.  `checks` are what /readyz asks beside database
    and projections, by name (schema, dispatcher).  `registry` is what /metrics shows beside
    its own numbers.
    """

    requests: Requests
    service: Service
    queries: Queries
    wakeups: Wakeups
    runner: Runner
    cinder: Cinder
    settings: Settings
    authenticator: Authenticator
    checks: Mapping[str, Check] = field(default_factory=dict)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


class Holds:
    """Requests that are held open, long polls and streams: bounded, ended at shutdown."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
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


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
HOLDS: web.AppKey[Holds] = web.AppKey("holds", Holds)
