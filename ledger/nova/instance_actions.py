"""Nova's instance actions: what was done to a server, from its operations and the log.

An action's id is the request id that began it.  Its events are the results of the steps:
each try of each, in the order they were recorded.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from aiohttp import web

from aggregates.operation import Operation, OperationState, Outcome
from ledger.auth.policy import Target
from ledger.http import microversions
from ledger.http.call import Call, answer, canonical
from ledger.http.paging import next_page, no_marker, nova_limit, page_of
from ledger.http.parameters import period
from ledger.http.problem import not_found
from ledger.native.server_row import server_row
from ledger.nova.migrations import instant

#: Events of the log that are read for one action.
EVENTS_MAX = 1000

#: Nova's rule of who is shown where events were, and what went wrong there.
_EVENTS = "os_compute_api:os-instance-actions:events"

NAMES = {
    "attach": "attach_volume",
    "attach_offloaded": "attach_volume",
    "detach": "detach_volume",
    "swap": "swap_volume",
    "migrate_volume": "swap_volume",
    "boot": "create",
    "reimage": "rebuild",
    "live_migrate": "live-migration",
    "confirm_resize": "confirmResize",
    "revert_resize": "revertResize",
    "refresh": "refresh_volume_attachment",
    "convert": "convert_volume_attachment",
    "convert_offloaded": "convert_volume_attachment",
    "convert_resized": "convert_volume_attachment",
}

Row = dict[str, Any]


async def instance_actions(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/os-instance-actions: newest first, in pages from 2.58."""
    server_id = str((await _server(call))["server_id"])
    query = dict(call.request.query)
    paged = call.version >= microversions.ACTION_PAGES
    if not paged:
        rows = await call.components.queries.operations_of_server(server_id)
        return answer({"instanceActions": [_shown(call, row) for row in rows]})
    since, until = period(query)
    limit = nova_limit(call)
    rows = await call.components.queries.operations_of_server(
        server_id,
        since=since,
        until=until,
        after=await _position_of(call, server_id, query),
        limit=limit + 1,
    )
    page, more = page_of(rows, limit)
    shown: Row = {"instanceActions": [_shown(call, row) for row in page]}
    if more:
        shown["links"] = next_page(call, page[-1]["operation_id"])
    return answer(shown)


async def instance_action(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/os-instance-actions/{request_id}."""
    server = await _server(call)
    request_id = call.request.match_info["request_id"]
    rows = await call.components.queries.operations_of_server(
        str(server["server_id"]), request_id=request_id, limit=1
    )
    if not rows:
        raise not_found("action_not_found", f"Action {request_id[:100]} not found")
    shown = _shown(call, rows[0])
    if call.version >= microversions.EVENTS_FOR_ALL or call.permits(_EVENTS, _whose(server)):
        operation_id = str(rows[0]["operation_id"])
        log = await call.components.queries.events(("operation_id", operation_id), limit=EVENTS_MAX)
        shown["events"] = _events(call, server, log)
    return answer({"instanceAction": shown})


def _whose(server: Row) -> Target:
    return Target(server["project_id"], server["user_id"])


async def _server(call: Call) -> Row:
    return await server_row(call, deleted=call.version >= microversions.ACTIONS_OF_DELETED)


async def _position_of(call: Call, server_id: str, query: Row) -> int | None:
    """Behind what a page begins: an operation, as our own links say it, for one request may have
    led to several of a server; or all that a request has led to.
    """
    if "marker" not in query:
        return None
    marker, queries = query["marker"], call.components.queries
    if known := canonical(marker):
        row = await queries.operation(known)
        rows = [row] if row is not None and str(row["server_id"]) == server_id else []
    else:
        rows = await queries.operations_of_server(server_id, request_id=marker)
    if not rows:
        raise no_marker(marker)
    return int(rows[-1]["started_position"])


# ------------------------------------------------------------------------------- answers


def _shown(call: Call, row: Row) -> Row:
    wrong = row["state"] == OperationState.PARKED or row["outcome"] in {
        Outcome.FAILED,
        Outcome.CANCELLED,
    }
    shown = {
        "action": NAMES.get(row["flow"], row["flow"]),
        "instance_uuid": str(row["server_id"]),
        "request_id": row["request_id"],
        "user_id": row["user_id"],
        "project_id": row["project_id"],
        "start_time": instant(row["started_at"]),
        "message": "Error" if wrong else None,
    }
    if call.version >= microversions.ACTION_PAGES:
        shown["updated_at"] = instant(row["updated_at"])
    return shown


_RESULTS = {
    Operation.StepSucceeded.TOPIC: "Success",
    Operation.StepRetried.TOPIC: "Error",
    Operation.StepFailed.TOPIC: "Error",
}


def _events(call: Call, server: Row, log: list[Row]) -> list[Row]:
    """Newest first, as Nova lists them."""
    begun: dict[int, Row] = {}  # by run
    steps: dict[str, Row] = {}  # of the plan, by name
    shown: list[Row] = []
    for event in log:
        body = event["body"]
        if event["topic"] == Operation.OperationStarted.TOPIC:
            stages = body["plan"]["stages"]
            steps = {step["name"]: step for stage in stages for step in stage["steps"]}
        elif event["topic"] == Operation.RunStarted.TOPIC:
            begun[body["run"]] = event
        elif event["topic"] in _RESULTS:
            run, step = begun.get(body["run"]), steps[body["step"]]
            if run is None:  # its month is being detached: of an operation, page by page
                continue
            place = "compute" if run["body"]["host"] else "ledger"
            took = timedelta(milliseconds=body.get("took_ms", 0))
            shown.append(
                {
                    "event": f"{place}_{step['undo'] if body['undo'] else step['do']}",
                    "start_time": instant(max(run["recorded_at"], event["recorded_at"] - took)),
                    "finish_time": instant(event["recorded_at"]),
                    "result": _RESULTS[event["topic"]],
                    **_particulars(call, server, run["body"]["host"], body.get("error")),
                }
            )
    return shown[::-1]


def _particulars(call: Call, server: Row, host: str | None, error: Row | None) -> Row:
    """What only some may see, or some versions have."""
    more: Row = {}
    if call.permits(_EVENTS, _whose(server)):
        more["traceback"] = None
        if call.version >= microversions.EVENT_HOST:
            more["host"] = host
    if call.version >= microversions.EVENT_HOST:
        text = f"{server['project_id'] or ''}{host or ''}"
        more["hostId"] = hashlib.sha224(text.encode()).hexdigest() if host else ""
    details = call.version >= microversions.EVENT_DETAILS
    if details and call.permits(f"{_EVENTS}:details", _whose(server)):
        more["details"] = error["message"] if error else None
    return more
