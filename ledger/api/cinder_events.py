"""What Cinder calls on Nova beside swaps: assisted snapshots, and external events.

Neither is supported yet; Cinder is told so in the forms it understands, instead of a 404
that it would take for a wrong endpoint.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from aiohttp import web

from ledger.api.call import Call, answer
from ledger.api.problem import ApiError
from ledger.api.schemas_nova import AssistedSnapshotBody, ExternalEventsBody


async def assisted_snapshot(call: Call) -> web.StreamResponse:
    """POST /os-assisted-volume-snapshots: refused, for multi-attach volumes always (S3)."""
    body = (await call.json(AssistedSnapshotBody)).snapshot
    volume = await call.ask_cinder(lambda: call.components.cinder.volume(body.volume_id))
    kind = " of multi-attach volumes" if volume.multiattach else ""
    raise ApiError(
        400,
        "not_supported",
        f"Assisted volume snapshots{kind} are not supported here (volume {volume.id}).",
    )


async def external_events(call: Call) -> web.StreamResponse:
    """POST /os-server-external-events: every event is answered as failed, with why."""
    events = (await call.json(ExternalEventsBody)).events
    shown: list[dict[str, Any]] = []
    for event in events:
        row = await call.components.queries.instance(event.server_uuid)
        known = row is not None and not row["deleted"]
        # 404: there is no such server.  422: nothing here reacts to such an event.
        code = HTTPStatus.UNPROCESSABLE_ENTITY if known else HTTPStatus.NOT_FOUND
        shown.append({**event.model_dump(exclude_unset=True), "status": "failed", "code": code})
    return answer({"events": shown}, HTTPStatus.MULTI_STATUS)
