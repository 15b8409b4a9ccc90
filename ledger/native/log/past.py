"""POST /v1/history/import: what Nova's database has of the time before the ledger observed it.

The ledger has no access to that database: an operator reads it (`ledger.nova_beside.script`).  A
row that is refused does not stop the others, and one that the log has is not recorded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from aggregates.errors import DomainError
from handlers.results.observed import CLOCKS_APART
from ledger.http.call import Call, answer
from ledger.http.problem import ApiError, invalid_input
from ledger.native.log.schemas_events import DeletedRow, DeletedRows, RowRefused, RowsRecorded
from ledger.nova_beside.observer import seen_between


async def import_past(call: Call) -> web.StreamResponse:
    """Record soft-deleted mappings.  They change no state, and no list of a moment."""
    body = await call.json(DeletedRows)
    now = datetime.fromtimestamp(call.components.clock(), UTC)
    if datetime.fromisoformat(body.read_at) > now + CLOCKS_APART:
        text = f"'read_at' is in the future, by the ledger's clock: {body.read_at}."
        raise ApiError(400, "moment_to_come", text)
    found = [_checked(row, body.read_at) for row in body.rows]
    read = {"revision": body.revision, "read_at": body.read_at}
    rows = [{**row.model_dump(), **read} for row in found if isinstance(row, DeletedRow)]
    done, position = await call.bulkheads.operators(
        call.components.service.record_deleted,
        rows,
        seen_between(None, now.isoformat()),
        call.context("operator"),
    )
    await call.written(position)
    return answer(_told(found, done))


def _checked(row: Any, read_at: str) -> DeletedRow | str:
    """Or why it is refused."""
    try:
        known = DeletedRow.model_validate(row)
    except ValidationError as error:
        return invalid_input(error)
    created, deleted = map(datetime.fromisoformat, (known.created_at, known.deleted_at))
    if (last := max(created, deleted)) > datetime.fromisoformat(read_at) + CLOCKS_APART:
        return f"{last.isoformat()} is after the reading, {read_at}."
    if deleted < created - CLOCKS_APART:
        return f"deleted_at, {known.deleted_at}, is before created_at, {known.created_at}."
    return known


def _told(found: list[DeletedRow | str], done: Iterable[bool | DomainError]) -> RowsRecorded:
    """`done`: of each row that was not refused before."""
    results = iter(done)
    ends = [str(row) if isinstance(row, str) else next(results) for row in found]
    taken = [row for row, end in zip(found, ends, strict=True) if isinstance(end, bool)]
    created = [
        datetime.fromisoformat(row.created_at) for row in taken if isinstance(row, DeletedRow)
    ]
    return RowsRecorded(
        recorded=ends.count(True),
        known=ends.count(False),
        refused=[
            RowRefused(row=number, why=str(end))
            for number, end in enumerate(ends)
            if not isinstance(end, bool)
        ],
        oldest=min(created, default=None),
    )
