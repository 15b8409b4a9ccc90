"""Looks that something that was done asks for."""

from __future__ import annotations

import psycopg
import structlog

from ledger.http.call import Call

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def look_again(call: Call, scope: dict[str, str], why: str, cause: str) -> None:
    """Something happened that a look should see to; whoever did it does not wait for that."""
    try:
        await call.bulkheads.agents(call.components.looker.ask, scope, why, call.context(cause))
    except psycopg.Error as error:
        _log.warning("look_not_asked", why=why, error=str(error), **scope)
