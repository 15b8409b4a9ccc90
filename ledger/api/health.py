"""What a deployment asks: alive, ready, and in numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from aiohttp import web

from ledger.api.agent_batches import AGENT_BATCHER
from ledger.api.call import Call, answer
from ledger.api.components import Check, Components
from ledger.api.metrics import CONTENT_TYPE_LATEST, METRICS
from ledger.api.schemas import Health

#: Projections that are behind for longer make a process not ready.
LAG_S_MAX = 30.0
CHECK_S_MAX = 5.0

_log = structlog.get_logger(__name__)


async def health(call: Call) -> web.StreamResponse:
    """GET /healthz: the process answers."""
    del call
    return answer(Health(status="ok", checks={}))


async def ready(call: Call) -> web.StreamResponse:
    """GET /readyz: what the process needs is there; 503 names what is not."""
    components = call.components
    checks: Mapping[str, Check] = {
        "database": lambda: _database(components),
        "projections": lambda: _projections(components),
        **components.checks,
    }
    found = dict(
        zip(
            checks, await asyncio.gather(*(_asked(check) for check in checks.values())), strict=True
        )
    )
    failing = any(found.values())
    status = HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK
    return answer(Health(status="failing" if failing else "ok", checks=found), status)


async def metrics(call: Call) -> web.StreamResponse:
    """GET /metrics."""
    components = call.components
    head, tracking, counts, hosts = await asyncio.gather(
        components.queries.head(),
        components.queries.tracking(),
        components.queries.counts(),
        components.queries.hosts_by_state(components.settings.host_down_after_s),
    )
    page = call.request.app[METRICS].show(
        head=head["position"],
        tracking=tracking,
        counts=counts,
        hosts=hosts,
        agents=call.request.app[AGENT_BATCHER].connected,
        held=call.holds.count,
    )
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _asked(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_S_MAX:g} s"
    except Exception as error:  # noqa: BLE001 - a check that fails is an answer
        _log.warning("check_failed", exc_info=error)
        return f"the check failed: {type(error).__name__}"


async def _database(components: Components) -> str | None:
    await components.queries.head()
    return None


async def _projections(components: Components) -> str | None:
    late = [row for row in await components.queries.tracking() if row["lag_s"] > LAG_S_MAX]
    names = ", ".join(f"{row['projection']} ({row['lag_s']:.0f} s)" for row in late)
    return f"behind for more than {LAG_S_MAX:g} s: {names}" if late else None
