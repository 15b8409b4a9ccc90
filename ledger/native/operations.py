"""/v1/operations: flows under way, what is left of parked ones, and acting on them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from aggregates.errors import HostUnvouchedError
from aggregates.operation import OperationState
from handlers.flows import FLOWS
from ledger.agents.looking import look_again
from ledger.core.wakeups import ended_key
from ledger.http import redaction
from ledger.http.call import Call, answer, refuse_detached, refuse_to_come
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.http.redaction import redacted
from ledger.native.drift.remnants import summary
from ledger.native.drift.schemas_remnants import OperationActed
from ledger.native.flows import unknown_flow
from ledger.native.schemas import (
    ActQuery,
    OperationQuery,
    Operations,
    OperationShown,
    OperationsQuery,
    OperationSummary,
)
from ledger.native.scope import refuse_foreign_server, refuse_host_filter

_NO_OPERATION = "Operation {} could not be found."

Row = dict[str, Any]


async def operations(call: Call) -> web.StreamResponse:
    """GET /v1/operations, newest first."""
    query = call.query(OperationsQuery)
    if query.flow is not None and query.flow not in FLOWS:
        raise unknown_flow(400, "invalid", query.flow)
    await refuse_foreign_server(call, query.server)
    refuse_host_filter(call, query.host)
    limit = page_limit(call, query.limit)
    after = query.after
    if query.at is not None:
        await refuse_to_come(call, query.at)
        begun = 1 + await call.components.queries.position_at(query.at)
        after = min(after or begun, begun)
    rows = await call.components.queries.operations(
        state=query.state,
        flow=query.flow,
        server_id=query.server,
        volume_id=query.volume,
        host=query.host,
        limit=limit,
        after=after,
    )
    return answer(
        Operations(
            operations=[OperationSummary.model_validate(_summary(call, row)) for row in rows],
            next=rows[-1]["started_position"] if len(rows) == limit else None,
        )
    )


async def operation(call: Call) -> web.StreamResponse:
    """GET /v1/operations/{id}: at once, when it is finished or parked (`wait_s`), or as it was."""
    query = call.query(OperationQuery)
    operation_id = call.id("operation_id", _NO_OPERATION)
    if query.at is not None:
        return answer(_shown(call, await _row_at(call, operation_id, query), past=True))
    last: Row = {}

    async def look() -> Row | None:
        nonlocal last
        row = await call.components.queries.operation(operation_id, named=False)
        last = _seen(call, operation_id, row)
        return last if last["state"] != OperationState.RUNNING else None

    await call.hold(ended_key(operation_id), look, query.wait_s)
    [row] = await call.components.queries.with_persons([last])
    return answer(_shown(call, row))


#: Acts that may leave something in Cinder or on a host.
LEAVING = frozenset({"skip", "give_up"})


async def act(
    call: Call, name: str, *, reason: str, lane: int = 0, step: str = ""
) -> web.StreamResponse:
    """POST actions: retry, skip, unwind or give up; answered when it can be read."""
    dry_run = call.query(ActQuery).dry_run
    operation_id = str((await operation_row(call))["operation_id"])
    for host in await call.components.queries.in_doubt():  # what it ends may begin what waited
        raise HostUnvouchedError(host=host)
    acted = await call.bulkheads.operators(
        call.components.service.act,
        operation_id,
        name,
        reason,
        call.context("operator"),
        lane=lane,
        step=step,
        dry_run=dry_run,
    )
    await call.written(acted.position)
    row = await operation_row(call)
    if name in LEAVING and not dry_run:
        await look_again(call, {"server": row["server_id"]}, name, "operator")
    shown = _shown(call, row)
    remnants = [summary(remnant) for remnant in acted.remnants]
    return answer(OperationActed(**dict(shown), dry_run=dry_run, remnants=remnants))


async def _row_at(call: Call, operation_id: str, query: OperationQuery) -> Row:
    """The operation as it was at a moment.  ApiError 404 if it had not begun."""
    assert query.at is not None, "who asks for one"
    if query.wait_s:
        raise ApiError(400, "invalid", "'wait_s' is for what is still to come: leave 'at' out.")
    await refuse_to_come(call, query.at)
    with refuse_detached():
        row = await call.components.queries.operation_at(operation_id, query.at)
    return _seen(call, operation_id, row)


async def operation_row(call: Call) -> Row:
    """The operation of the path, if it exists for the caller.  ApiError 404."""
    operation_id = call.id("operation_id", _NO_OPERATION)
    return _seen(call, operation_id, await call.components.queries.operation(operation_id))


def _seen(call: Call, operation_id: str, row: Row | None) -> Row:
    if row is None or not call.sees(row["owner_id"]):
        raise not_found("operation_not_found", _NO_OPERATION.format(operation_id))
    return row


# ------------------------------------------------------------------------------- view


def _summary(call: Call, row: Row) -> Row:
    row = redacted(call.identity, redaction.operation, row)
    return {**row, "why": _why(row), "at": _at(row)}


def _at(row: Row) -> Row | None:
    """The step it is at; what is undone stands behind what was done."""
    if row["state"] == OperationState.FINISHED:
        return None
    steps = [step for step in row["steps"] if step["undo"] == row["unwinding"]]
    return next((step for step in steps if step["status"] not in {"done", "skipped"}), None)


def _why(row: Row) -> str | None:
    """What stands in the way, or went wrong first; None for what goes well."""
    errors = [left["error"] for left in row["left_steps"] or () if left["error"]]
    if not errors and row["outcome"] != "completed" and row["error"]:
        errors = [row["error"]]
    return str(errors[0]["message"]) if errors else None


def _shown(call: Call, row: Row, *, past: bool = False) -> OperationShown:
    """`past`: it is acted on as it is now, and not as it was."""
    summary = _summary(call, row)
    return OperationShown.model_validate(
        {
            **summary,
            "error": summary["error"] if row["outcome"] != "completed" else None,
            "left": summary["left_steps"] or [],
            "acts": [] if past else _acts(row),
        }
    )


def _acts(row: Row) -> list[str]:
    """What an operator may try; the log has the last word."""
    match row["state"]:
        case OperationState.PARKED:
            unwind = () if row["pivot_passed"] else ("unwind",)
            return ["retry", "skip", *unwind, "give_up"]
        case OperationState.RUNNING:
            waits = any(
                step["retry_at"] for step in row["steps"] if step["undo"] == row["unwinding"]
            )
            undoable = not row["unwinding"] and not row["pivot_passed"]
            return ["retry"] * waits + ["unwind"] * undoable
    return []
