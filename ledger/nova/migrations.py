"""Nova's migrations: operations that take a server to another host, under Nova's names.

A migration's number is the position in the log at which its operation started, its uuid is
the operation's id.  `migrate` and `resize` are one flow, and a migration of type "resize".
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from aiohttp import web

from aggregates.errors import OperatorActError
from aggregates.operation import SERVER, OperationState, Outcome
from ledger.auth.rules import NAMES
from ledger.config import PAGE_ITEMS_MAX
from ledger.http import microversions
from ledger.http.call import Call, answer, canonical
from ledger.http.paging import next_page, no_marker, nova_limit, page_of
from ledger.http.parameters import period
from ledger.http.problem import ApiError, not_found
from ledger.http.versions import base
from ledger.native.server_row import server_row
from ledger.nova.schemas_nova import ForceCompleteBody

TYPES = {"live_migrate": "live-migration", "resize": "resize", "evacuate": "evacuation"}
IN_PROGRESS = frozenset({"preparing", "running", "post-migrating"})
#: So many are read at once, and are the longest list before there were pages (2.59).
ROWS_READ_MAX = PAGE_ITEMS_MAX + 1

Row = dict[str, Any]


async def migrations(call: Call) -> web.StreamResponse:
    """GET /os-migrations: of all kinds, newest first."""
    query = dict(call.request.query)
    paged = call.version >= microversions.MIGRATION_UUID
    wanted = _matching(query)
    _refuse_hosts(call, query)
    limit = nova_limit(call) if paged else ROWS_READ_MAX
    project_id = None if call.permits(f"{call.rules[0]}:all_projects") else call.own_project
    before = await _position_of(call, query["marker"]) if "marker" in query else None
    server_id = query.get("instance_uuid")
    found: list[Row] = []
    while server_id is None or canonical(server_id):
        rows = await call.components.queries.moves(
            list(TYPES),
            server_id=server_id,
            project_id=project_id,
            after=before,
            limit=ROWS_READ_MAX,
        )
        found += filter(wanted, rows)
        if len(found) > limit or len(rows) < ROWS_READ_MAX:
            break
        before = rows[-1]["started_position"]
    page, more = page_of(found, limit)
    shown: Row = {"migrations": [_listed(call, row) for row in page]}
    if paged and more:
        shown["migrations_links"] = next_page(call, page[-1]["operation_id"])
    return answer(shown)


async def server_migrations(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/migrations: live ones in progress (2.23)."""
    microversions.refuse_before(call.version, microversions.SERVER_MIGRATIONS)
    server_id = str((await server_row(call))["server_id"])
    rows = await call.components.queries.moves(["live_migrate"], server_id=server_id)
    shown = [_shown(call, row) for row in rows if status_of(row) in IN_PROGRESS]
    return answer({"migrations": shown})


async def server_migration(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/migrations/{id} (2.23)."""
    microversions.refuse_before(call.version, microversions.SERVER_MIGRATIONS)
    row = await _live(call)
    if status_of(row) not in IN_PROGRESS:
        raise not_found(
            "migration_not_found",
            f"Live migration {row['started_position']} for server {row['server_id']} is not in "
            "progress.",
        )
    return answer({"migration": _shown(call, row)})


async def server_migration_abort(call: Call) -> web.StreamResponse:
    """DELETE /servers/{id}/migrations/{id}: the guest stays where it is (2.24)."""
    microversions.refuse_before(call.version, microversions.ABORT)
    row = await _live(call)
    if status_of(row) not in IN_PROGRESS:
        raise _not_abortable(row, status_of(row))
    try:
        acted = await call.bulkheads.operators(
            call.components.service.act,
            str(row["operation_id"]),
            "unwind",
            "the live migration was aborted",
            call.context("operator"),
        )
    except OperatorActError:  # the guest has moved meanwhile
        raise _not_abortable(row, "post-migrating") from None
    await call.written(acted.position)
    return web.Response(status=HTTPStatus.ACCEPTED)


async def server_migration_action(call: Call) -> web.StreamResponse:
    """POST /servers/{id}/migrations/{id}/action: force_complete, which is not done here."""
    microversions.refuse_before(call.version, microversions.FORCE_COMPLETE)
    await call.json(ForceCompleteBody)
    await _live(call)
    raise ApiError(
        400, "not_supported", "Live migrations cannot be forced to complete here; abort this one."
    )


# ------------------------------------------------------------------------------- status


def status_of(row: Row) -> str:
    """Nova's name for how far the operation is."""
    if row["state"] == OperationState.PARKED:
        return "error"
    if row["state"] == OperationState.FINISHED:
        return _ended(row)
    return _under_way(row)


def _ended(row: Row) -> str:
    flow, outcome = row["flow"], row["outcome"]
    if outcome != Outcome.COMPLETED:
        if outcome == Outcome.CANCELLED and not row["pivot_passed"]:
            return "cancelled"
        return "failed" if outcome == Outcome.FAILED and flow != "resize" else "error"
    if flow == "resize":
        return _settled(row)
    return "completed" if flow == "live_migrate" else "done"


def _settled(row: Row) -> str:
    """What became of a resize: a later operation of the server tells."""
    names = {
        "confirm_resize": ("confirming", "confirmed"),
        "revert_resize": ("reverting", "reverted"),
    }
    if row["settled_flow"] is None:
        return "finished"
    during, after = names[row["settled_flow"]]
    return after if row["settled_outcome"] == Outcome.COMPLETED else during


def _under_way(row: Row) -> str:
    if row["pivot_passed"]:
        return "post-migrating"
    if row["flow"] != "live_migrate":
        return "migrating" if row["flow"] == "resize" else "pre-migrating"
    moving = any(step["lane"] == SERVER and step["status"] == "running" for step in row["steps"])
    return "running" if moving or row["unwinding"] else "preparing"


# ------------------------------------------------------------------------------ requests


def _refuse_hosts(call: Call, query: Row) -> None:
    """Asking host by host would tell what is not shown.  ApiError 403."""
    if {"host", "source_compute"} & query.keys():
        call.under(_host_rule(call))


def _shows_hosts(call: Call) -> bool:
    """Whether names of hosts are the caller's: of a list Nova asks that apart."""
    rule = _host_rule(call)
    return rule not in NAMES or call.permits(rule)


def _host_rule(call: Call) -> str:
    return f"{call.rules[0]}:host"


def _matching(query: Row) -> Callable[[Row], bool]:
    since, before = period(query)

    def fits(row: Row) -> bool:
        shown = {
            "status": status_of(row),
            "migration_type": TYPES[row["flow"]],
            "source_compute": row["host"],
            "user_id": row["user_id"],
            "project_id": row["project_id"],
        }
        host = query.get("host")
        return (
            all(query.get(name, value) == value for name, value in shown.items())
            and (host is None or host in {row["host"], row["destination"]})
            and (since is None or row["updated_at"] >= since)
            and (before is None or row["updated_at"] <= before)
        )

    return fits


async def _position_of(call: Call, marker: str) -> int:
    known = canonical(marker)
    row = await call.components.queries.operation(known) if known else None
    own = row is not None and (
        call.permits(f"{call.rules[0]}:all_projects") or row["owner_id"] == call.own_project
    )
    if not own or row is None or row["flow"] not in TYPES:
        raise no_marker(marker)
    return int(row["started_position"])


async def _live(call: Call) -> Row:
    """The live migration of the path.  ApiError 404."""
    server_id = str((await server_row(call))["server_id"])
    number = call.request.match_info["migration_id"]
    rows = await call.components.queries.moves(["live_migrate"], server_id=server_id)
    row = next((each for each in rows if str(each["started_position"]) == number), None)
    if row is None:
        message = f"Migration {number[:100]} not found for instance {server_id}"
        raise not_found("migration_not_found", message)
    return row


def _not_abortable(row: Row, status: str) -> ApiError:
    return ApiError(
        400,
        "migration_state",
        f"Migration {row['started_position']} state of instance {row['server_id']} is {status}. "
        "Cannot abort live migration while the migration is in this state.",
        operation=str(row["operation_id"]),
    )


# ------------------------------------------------------------------------------- answers


def _listed(call: Call, row: Row) -> Row:
    """As os-migrations shows it."""
    shown = {
        **_common(call, row),
        "instance_uuid": str(row["server_id"]),
        "old_instance_type_id": None,
        "new_instance_type_id": None,
    }
    if call.version >= microversions.SERVER_MIGRATIONS:
        shown["migration_type"] = TYPES[row["flow"]]
        if row["flow"] == "live_migrate" and shown["status"] in IN_PROGRESS:
            shown["links"] = _links(call, row)
    return shown


def _shown(call: Call, row: Row) -> Row:
    """As a server's migrations show it, with how far its memory has come."""
    total, done = row["total_bytes"] or 0, row["done_bytes"] or 0
    return {
        **_common(call, row),
        "server_uuid": str(row["server_id"]),
        "memory_total_bytes": total,
        "memory_processed_bytes": done,
        "memory_remaining_bytes": max(0, total - done),
        "disk_total_bytes": 0,
        "disk_processed_bytes": 0,
        "disk_remaining_bytes": 0,
    }


def _common(call: Call, row: Row) -> Row:
    source, destination = row["host"], row["destination"]
    if not _shows_hosts(call):
        source = destination = None
    shown = {
        "id": row["started_position"],
        "status": status_of(row),
        "source_compute": source,
        "source_node": source,
        "dest_compute": destination,
        "dest_node": destination,
        "dest_host": destination,
        "created_at": instant(row["started_at"]),
        "updated_at": instant(row["updated_at"]),
    }
    if call.version >= microversions.MIGRATION_UUID:
        shown["uuid"] = str(row["operation_id"])
    if call.version >= microversions.MIGRATION_USER:
        shown |= {"user_id": row["user_id"], "project_id": row["project_id"]}
    return shown


def _links(call: Call, row: Row) -> list[Row]:
    path = f"servers/{row['server_id']}/migrations/{row['started_position']}"
    return [
        {"rel": "self", "href": f"{base(call)}/v2.1/{path}"},
        {"rel": "bookmark", "href": f"{base(call)}/{path}"},
    ]


def instant(at: datetime) -> str:
    """As Nova writes times in migrations and instance actions."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
