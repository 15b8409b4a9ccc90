"""/v1/remnants: what operators' acts may have left behind, and seeing to it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from aggregates.remnant import Remnant, RemnantKind, RemnantState
from ledger.http.call import Call, answer
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.native.drift.schemas_remnants import (
    Remnants,
    RemnantShown,
    RemnantsQuery,
    RemnantSummary,
)

Row = dict[str, Any]

_NO_REMNANT = "Remnant {} could not be found."
_K = RemnantKind
_DETAILS = {
    _K.ATTACHMENT: "attachment {attachment_id} of volume {volume_id} in Cinder",
    _K.CONNECTION: "devices and sessions of volume {volume_id} on host {host}",
    _K.DISK: "the disk of volume {volume_id} in guest {server_id} on host {host}",
    _K.GUEST: "guest {server_id} on host {host}",
    _K.VOLUME: "volume {volume_id} in Cinder",
    _K.MIGRATION: "Cinder's migration of volume {volume_id}, which waits to hear its end",
}


async def remnants(call: Call) -> web.StreamResponse:
    """GET /v1/remnants, newest first."""
    query = call.query(RemnantsQuery)
    limit = page_limit(call, query.limit)
    rows = await call.components.queries.remnants(
        state=query.state, server_id=query.server, host=query.host, limit=limit, after=query.after
    )
    last = rows[-1]["left_position"] if len(rows) == limit else None
    return answer(Remnants(remnants=[_shown(row) for row in rows], next=last))


async def acknowledge(call: Call, *, reason: str) -> web.StreamResponse:
    """POST acknowledge: somebody has seen to it, and says how."""
    remnant_id = call.id("remnant_id", _NO_REMNANT)
    row = await _row(call, remnant_id)
    if row["state"] != RemnantState.OPEN:
        why = f"Remnant {remnant_id} was acknowledged before: {row['acknowledged_reason']}"
        raise ApiError(409, "acknowledged", why)
    await call.operate(call.components.service.acknowledge, remnant_id, reason)
    return answer(_shown(await _row(call, remnant_id)))


def summary(remnant: Remnant) -> RemnantSummary:
    """One that an act has just left, or would."""
    assert remnant.left is not None, "an act makes them by leaving them"
    row = {**vars(remnant.left), "kind": remnant.left.what, "remnant_id": str(remnant.id)}
    return RemnantSummary.model_validate(_worded(row))


async def _row(call: Call, remnant_id: str) -> Row:
    row = await call.components.queries.remnant(remnant_id)
    if row is None:
        raise not_found("remnant_not_found", _NO_REMNANT.format(remnant_id))
    return row


def _shown(row: Row) -> RemnantShown:
    return RemnantShown.model_validate(_worded(row))


def _worded(row: Row) -> Row:
    known = {name: value or "(of unknown id)" for name, value in row.items()}
    return {**row, "detail": _DETAILS[RemnantKind(row["kind"])].format(**known)}
