"""What of /v1 exists for a caller: everything, or what concerns their project's servers."""

from __future__ import annotations

from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.native.server_row import no_server


async def sees_server(call: Call, server_id: str) -> bool:
    """Whether this server exists for the caller.  ApiError 403 if the policy keeps it apart."""
    if call.identity.everywhere:
        return True
    row = await call.components.queries.instance(server_id)
    return row is not None and call.sees(row["project_id"], row["user_id"])


async def refuse_foreign_server(call: Call, server_id: str | None) -> None:
    """Lists over all servers are the operators'; others name one of theirs."""
    if call.identity.everywhere:
        return
    if server_id is None:
        raise ApiError(
            403,
            "server_wanted",
            "Lists over all servers need the role admin or operator.",
            hint="Name one of your servers: ?server=ID.",
        )
    if not await sees_server(call, server_id):
        raise no_server(server_id)


def refuse_host_filter(call: Call, host: str | None) -> None:
    """Asking host by host would tell where a server is.  Raises ApiError 403."""
    if host is not None and not call.identity.everywhere:
        raise ApiError(403, "forbidden", "To filter by host needs the role admin or operator.")


def refuse_past(call: Call) -> None:
    """Whose a server was at a moment is not known.  Raises ApiError 403."""
    if not call.identity.everywhere:
        raise ApiError(403, "forbidden", "Reads as of a moment need the role admin or operator.")
