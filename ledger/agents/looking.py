"""Looks that the service requests by itself after something happened."""

from __future__ import annotations

import psycopg
import structlog

from ledger.http.call import Call

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def look_again(call: Call, scope: dict[str, str], why: str, cause: str) -> None:
    """Request a look after an event; the caller does not wait for it."""
    try:
        await call.bulkheads.agents(call.components.looker.ask, scope, why, call.context(cause))
    except psycopg.Error as error:
        _log.warning("look_not_asked", why=why, error=str(error), **scope)
