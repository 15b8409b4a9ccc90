"""The server that a request is about."""

from __future__ import annotations

from typing import Any

from ledger.http.call import Call
from ledger.http.problem import ApiError, not_found

Row = dict[str, Any]

_NO_SERVER = "Instance {} could not be found."


async def server_row(call: Call, *, deleted: bool = False) -> Row:
    """The server of the path, if it exists for the caller; a `deleted` one too.  ApiError 404."""
    server_id = named_server(call)
    row = await call.components.queries.instance(server_id)
    if row is not None and row["deleted"] and not deleted:
        row = None
    return seen(call, server_id, row)


def named_server(call: Call) -> str:
    """The server id of the path.  ApiError 404."""
    return call.id("server_id", _NO_SERVER)


def seen(call: Call, server_id: str, row: Row | None) -> Row:
    """A row with the server's `project_id`, if the server exists for the caller.  ApiError 404."""
    if row is None or not call.sees(row["project_id"], row.get("user_id")):
        raise no_server(server_id)
    return row


def no_server(server_id: str) -> ApiError:
    """There is none, or none for the caller."""
    return not_found("server_not_found", _NO_SERVER.format(server_id))
