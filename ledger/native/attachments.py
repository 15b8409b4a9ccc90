"""/v1/attachments: which are open, where, since when; and which were, at a moment."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ledger.http import redaction
from ledger.http.call import Call, answer, refuse_unknowable
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.http.redaction import redacted
from ledger.native.schemas import Order
from ledger.native.schemas_attachments import (
    Attachments,
    AttachmentsAt,
    AttachmentShown,
    AttachmentsQuery,
    Made,
    SpanShown,
)
from ledger.native.scope import refuse_foreign_server, refuse_host_filter, refuse_past, sees_server
from projections.reads.queries import Cursor

Row = dict[str, Any]


async def attachments(call: Call) -> web.StreamResponse:
    """GET /v1/attachments, in the order they were made."""
    query = call.query(AttachmentsQuery)
    if (query.at, query.since, query.known_at) != (None, None, None):
        return await _attachments_at(call, query)
    await refuse_foreign_server(call, query.server)
    refuse_host_filter(call, query.host)
    limit = page_limit(call, query.limit)
    rows = await call.components.queries.attachments(
        volume_id=query.volume,
        server_id=query.server,
        host=query.host,
        legacy=_legacy(query),
        open_only=query.open,
        limit=limit,
        page=Cursor(query.after, query.order is Order.NEWEST),
    )
    return answer(
        Attachments(
            attachments=[_shown(call, row) for row in rows],
            next=rows[-1]["created_position"] if len(rows) == limit else None,
        )
    )


async def _attachments_at(call: Call, query: AttachmentsQuery) -> web.StreamResponse:
    """Which attachments were on a host at the moment, or between two; a span says since when."""
    few = query.volume is not None or query.host is not None or query.flow is Made.OLD
    if not few or query.after is not None:
        text = "With 'at' or 'since', give 'volume', 'host' or 'flow=old', and no cursor."
        raise ApiError(400, "invalid", text)
    refuse_past(call)
    await refuse_unknowable(call, query.at, query.known_at)
    rows = await call.components.queries.attachments_at(
        query.at,
        since=query.since,
        known_at=query.known_at,
        host=query.host,
        volume_id=query.volume,
        server_id=query.server,
        legacy=_legacy(query),
        limit=page_limit(call, query.limit),
    )
    spans = [SpanShown.model_validate({**row, "flow": _flow(row)}) for row in rows]
    return answer(AttachmentsAt(at=query.at, known_at=query.known_at, attachments=spans))


async def attachment(call: Call) -> web.StreamResponse:
    """GET /v1/attachments/{id}; those that are deleted, too."""
    return answer(_shown(call, await attachment_row(call)))


async def attachment_row(call: Call) -> Row:
    """The attachment of the path, if it exists for the caller.  ApiError 404."""
    message = "Attachment {} could not be found."
    attachment_id = call.id("attachment_id", message)
    row = await call.components.queries.attachment(attachment_id)
    if row is None or not await sees_server(call, row["server_id"]):
        raise not_found("attachment_not_found", message.format(attachment_id))
    return row


def _shown(call: Call, row: Row) -> AttachmentShown:
    shown = redacted(call.identity, redaction.attachment, row)
    nowhere: Row = {"origin": row["origin"], "after": None, "before": row["created_at"]}
    first: Row = next(iter(row["spans"]), {"from_seen": nowhere if row["origin"] else None})
    seen = {"from_seen": first.get("from_seen")}
    return AttachmentShown.model_validate({**shown, **seen, "flow": _flow(row)})


def _flow(row: Row) -> Made:
    return Made.OLD if row["legacy"] else Made.NEW


def _legacy(query: AttachmentsQuery) -> bool | None:
    return None if query.flow is None else query.flow is Made.OLD
