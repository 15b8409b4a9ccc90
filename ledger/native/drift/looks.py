"""/v1/drift/runs: looks, under way and over, asking for one now, and having one rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from aggregates.base import EventContext
from aggregates.look import LookState
from handlers.drift.classes import BY_NAME
from ledger.http.call import Call, answer
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.native.drift.findings import refuse_unknown
from ledger.native.drift.schemas_drift import (
    LookAsked,
    Looks,
    LookShown,
    LooksQuery,
    LookStanding,
)
from ledger.native.hosts import host_row_of
from ledger.native.server_row import no_server

Row = dict[str, Any]

_log = structlog.get_logger(__name__)
_NO_LOOK = "Look {} could not be found."
_IS = {
    LookStanding.ASKED.value: "asked for and not begun",
    LookStanding.UNDER_WAY.value: "under way",
    LookStanding.STOPPED.value: "stopped",
    LookStanding.ENDED.value: "over",
}


async def looks(call: Call) -> web.StreamResponse:
    """GET /v1/drift/runs, newest first."""
    query = call.query(LooksQuery)
    limit = page_limit(call, query.limit)
    queries = call.components.queries
    # These first: one that begins in between is in both, and not in neither.
    asked = await queries.looks_asked(limit)
    rows = await queries.looks(state=query.state, limit=limit, after=query.after)
    last = rows[-1]["began_position"] if len(rows) == limit else None
    shown = [_shown(row) for row in rows]
    return answer(Looks(asked=[_shown(row) for row in asked], looks=shown, next=last))


async def look(call: Call) -> web.StreamResponse:
    """GET /v1/drift/runs/{id}: from when it is asked for."""
    return answer(_shown(await _row(call)))


async def stop(call: Call, *, reason: str) -> web.StreamResponse:
    """POST stop: it rests where it is, until it is resumed or another look begins."""
    return await _acted(call, LookState.UNDER_WAY, call.components.findings.stop_look, reason)


async def resume(call: Call, *, reason: str) -> web.StreamResponse:
    """POST resume: it goes on where it was stopped."""
    return await _acted(call, LookState.STOPPED, call.components.findings.resume_look, reason)


async def _acted(
    call: Call, only: LookState, act: Callable[[str, str, EventContext], int], reason: str
) -> web.StreamResponse:
    row = await _row(call)
    if row["state"] != only:
        raise ApiError(
            409,
            "look_state",
            f"Look {row['look_id']} is {_IS[row['state']]}, not {_IS[only]}.",
            hint=f"See how far it is: GET /v1/drift/runs/{row['look_id']}",
        )
    await call.operate(act, row["look_id"], reason)
    return answer(_shown(await _row(call)))


async def _row(call: Call) -> Row:
    """The look of the path.  ApiError 404."""
    look_id = call.id("look_id", _NO_LOOK)
    row = await call.components.queries.look(look_id)
    if row is None:
        raise not_found("look_not_found", _NO_LOOK.format(look_id))
    return row


async def ask(
    call: Call, *, believe: list[str], reason: str | None, **whose: str | None
) -> web.StreamResponse:
    """POST /v1/drift/runs: a look now, at everything or at one host, server or volume."""
    scope = {kind: which for kind, which in whose.items() if which is not None}
    if len(scope) > 1:
        raise ApiError(400, "invalid", "Name at most one of host, server, volume.")
    _refuse_belief(believe, reason)
    await _refuse_nothing(call, scope)
    ask = partial(call.components.looker.ask, believe=believe, reason=reason)
    look_id = await call.bulkheads.operators(ask, scope, "asked", call.context("operator"))
    return answer(LookAsked.model_validate({"look_id": look_id, "scope": scope}), 202)


def _refuse_belief(believe: list[str], reason: str | None) -> None:
    """Without a reason, or of what no look finds.  ApiError 400."""
    for name in believe:
        refuse_unknown(name)
        if BY_NAME[name].row is None:
            raise ApiError(400, "invalid", f"No look finds {name}: the log itself says so.")
    if bool(believe) is not bool(reason):
        raise ApiError(400, "invalid", "'believe' and 'reason' are given together, or neither is.")


async def _refuse_nothing(call: Call, scope: dict[str, str]) -> None:
    """A look at what is not known would find nothing wrong.  ApiError 404."""
    if "host" in scope:
        await host_row_of(call, scope["host"])
    if "server" in scope and await call.components.queries.instance(scope["server"]) is None:
        raise no_server(scope["server"])


def _shown(row: Row) -> LookShown:
    eta_s, left = None, None
    if row["state"] == LookState.UNDER_WAY and row["total"]:
        left = max(row["total"] - row["done"], 0)
    if left is not None and row["rate"]:
        eta_s = left / row["rate"]
    return LookShown.model_validate({**row, "eta_s": eta_s, "held_back": held_back(row)})


def held_back(look: Mapping[str, Any]) -> list[str]:
    """A text for each class that was suppressed, as `look` has it (GET /v1/drift/runs/{id})."""
    return [_of_class(look, name, count) for name, count in sorted((look["braked"] or {}).items())]


def _of_class(look: Mapping[str, Any], name: str, count: int) -> str:
    scope = "".join(f" --{kind} {which}" for kind, which in look["scope"].items())
    some = (look["examples"] or {}).get(name, [])
    named = f" ({', '.join(some)}{', ...' if count > len(some) else ''})" if some else ""
    return (
        f"{name}: {count} new findings are suppressed, too many for one look to be believed"
        f"{named}. Find out why there are so many. Only if they are true: "
        f"attachment-ledger drift run{scope} --accept-many {name} --reason TEXT"
    )
