"""What a deployment asks: alive, ready, and in numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import psycopg
import structlog
from aiohttp import web
from eventsourcing.persistence import PersistenceError

from ledger.agents.batches import AGENT_BATCHER
from ledger.http.call import Call, answer
from ledger.http.components import COMPONENTS, HOLDS, Check, Components
from ledger.http.probes.metrics import (
    CONTENT_TYPE_LATEST,
    METRICS,
    Counted,
    DriftCounts,
    of_process,
)
from ledger.http.schemas import Health, ReadyQuery
from projections.reads.database_trouble import in_words
from projections.reads.queries import Queries
from projections.running.projector import REMEDY

#: Projections that are behind for longer make a process not ready.
LAG_S_MAX = 30.0
CHECK_S_MAX = 5.0
APPEND_S_MAX = 3.0
#: The checks of services beside this one (ledger.http.probes.neighbours).
NEIGHBOURS = frozenset({"cinder", "keystone"})
#: For how long what was found is told again.
ANSWER_AGE_S = 1.0

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def health(call: Call) -> web.StreamResponse:
    """GET /healthz: the process answers."""
    del call
    return answer(Health(status="ok", checks={}))


async def ready(call: Call) -> web.StreamResponse:
    """GET /readyz: what the process needs to do its work is there; 503 names what is not.

    A neighbour that is away is away for all processes, and each still serves agents, operators and
    readers: who takes processes out by the answer asks without neighbours.
    """
    asked = call.query(ReadyQuery)
    found = await call.request.app[READINESS].found()
    passed = frozenset() if asked.neighbours else NEIGHBOURS
    failing = any(text for name, text in found.checks.items() if name not in passed)
    status = HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK
    health = Health(
        status="failing" if failing else "ok",
        checks=found.checks,
        warnings=[*call.components.clock.trouble(), *found.warnings],
    )
    return answer(health, status)


async def metrics(call: Call) -> web.StreamResponse:
    """GET /metrics."""
    page = await call.request.app[METRICS_PAGE].found()
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def metrics_page(app: web.Application) -> Remembered[bytes]:
    """The page, counted at most every ANSWER_AGE_S."""
    components = app[COMPONENTS]

    async def count() -> bytes:
        counted, ready = await asyncio.gather(_counted(components), app[READINESS].found())
        found = of_process(
            components.clock,
            ready.checks,
            agents=app[AGENT_BATCHER].connected,
            held=app[HOLDS].count,
            stale_policy=components.policy.stale,
        )
        return app[METRICS].page([*found, *(counted.samples() if counted else ())])

    return Remembered(count)


async def _counted(components: Components) -> Counted | None:
    """None if the database cannot be asked; which check says so is /readyz's to tell."""
    queries = components.inner
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return Counted(
                *await asyncio.gather(
                    queries.head(),
                    queries.tracking(),
                    queries.counts(),
                    queries.hosts_by_state(components.settings.host_down_after_s),
                    queries.agents_by_version(),
                    _drift(queries),
                )
            )
    except (TimeoutError, psycopg.Error) as error:
        _log.warning("not_counted", why=type(error).__name__)
        return None


async def _drift(queries: Queries) -> DriftCounts:
    return DriftCounts(
        *await asyncio.gather(
            queries.drift_counts(),
            queries.looks_by_outcome(),
            queries.last_looks(),
            queries.held_back(),
        )
    )


class InThread:
    """A check that blocks, in a thread of its own: one that hangs is in nobody's way, and those
    that wait behind it are given up with who asked for them.
    """

    def __init__(self, check: Callable[[], str | None]) -> None:
        self._check = check
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="readiness")

    async def __call__(self) -> str | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._check)

    def close(self) -> None:
        """Begin no more; one that hangs is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Remembered(Generic[T]):
    """What is looked for at most every ANSWER_AGE_S, however many ask: they need no token.

    Who asks while it is looked for waits for that.
    """

    def __init__(self, look: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._look = look
        self._looking: asyncio.Task[T] | None = None
        self._until = 0.0

    async def found(self) -> T:
        now = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now >= self._until):
            self._looking = asyncio.create_task(self._looked(), name="remembered")
        return await asyncio.shield(self._looking)

    async def _looked(self) -> T:
        try:
            return await self._look()
        finally:
            self._until = asyncio.get_running_loop().time() + ANSWER_AGE_S


@dataclass(frozen=True)
class HealthReport:
    """What is wrong, by check, None where nothing is; and what else is to be mended."""

    checks: dict[str, str | None]
    warnings: list[str]


class Readiness(Remembered[HealthReport]):
    """Whether the process can do its work."""

    def __init__(self, components: Components) -> None:
        super().__init__(self._ask)
        self._components = components
        self._append = InThread(self._appends)

    async def close(self, _: web.Application) -> None:
        """No append is tried any more."""
        self._append.close()

    async def _ask(self) -> HealthReport:
        checks: Mapping[str, Check] = {
            "database": self._database,
            "projections": self._projections,
            **self._components.checks,
        }
        warnings = {"policy": self._components.policy.check, **self._components.warnings}
        found = await asyncio.gather(*map(_asked, (*checks.values(), *warnings.values())))
        warned = zip(warnings, found[len(checks) :], strict=True)
        return HealthReport(
            dict(zip(checks, found[: len(checks)], strict=True)),
            [f"{name}: {text}" for name, text in warned if text],
        )

    async def _database(self) -> str | None:
        """Whether events can be stored, which ends in an append like any other; or be read."""
        if self._components.settings.read_only:
            await self._components.inner.head()
            return None
        if missing := await self._components.inner.missing_rights():
            return f"rights are missing: {', '.join(missing)}"
        if trouble := self._trouble():  # what an append of nothing need not meet: a full disk
            return trouble
        try:
            async with asyncio.timeout(APPEND_S_MAX):
                return await self._append()
        except TimeoutError:
            return self._trouble() or f"an append takes longer than {APPEND_S_MAX:g} s"

    def _trouble(self) -> str | None:
        trouble = self._components.writer.trouble.now()
        return trouble and f"events cannot be stored: {trouble}"

    def _appends(self) -> str | None:
        try:
            self._components.writer.probe()
        except PersistenceError as error:
            return self._trouble() or f"events cannot be stored: {type(error).__name__}"
        return None

    async def _projections(self) -> str | None:
        if trouble := self._components.runner.trouble:
            return f"this process projects nothing: {trouble}"
        found = []
        for row in await self._components.inner.tracking():
            name = row["projection"]
            if row["held"] is not None:
                found.append(f"{name} is held back by {row['held']}. {REMEDY.format(name)}")
            elif row["lag_s"] > LAG_S_MAX:
                found.append(f"{name} is behind by {row['lag_s']:.0f} s")
        return "; ".join(found) or None


async def _asked(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_S_MAX:g} s"
    except psycopg.Error as error:
        return f"the database cannot be asked: {in_words(error)}"
    except Exception as error:  # noqa: BLE001 - a check that fails is an answer
        _log.warning("check_failed", exc_info=error)
        return f"the check failed: {type(error).__name__}"


METRICS_PAGE: web.AppKey[Remembered[bytes]] = web.AppKey("metrics_page", Remembered)
READINESS: web.AppKey[Readiness] = web.AppKey("readiness", Readiness)
