"""What Cinder calls on Nova beside swaps: assisted snapshots, and external events.

Of events that a volume has grown is heard.  Of the rest, and of snapshots, Cinder is told that
they are not supported, in the forms it understands, instead of a 404 that it would take for a
wrong endpoint.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

from aiohttp import web

from ledger.api import microversions
from ledger.api.call import Call, answer
from ledger.api.problem import ApiError
from ledger.api.schemas_nova import AssistedSnapshotBody, ExternalEvent, ExternalEventsBody

#: Nova's events, and from which version on each is known (its server_external_events).
EVENTS: dict[str, microversions.Version] = {
    "network-changed": microversions.MIN,
    "network-vif-plugged": microversions.MIN,
    "network-vif-unplugged": microversions.MIN,
    "network-vif-deleted": microversions.MIN,
    "volume-extended": (2, 51),
    "power-update": (2, 76),
    "accelerator-request-bound": (2, 82),
    "volume-reimaged": (2, 93),
}
#: Whose tag says what it is about: a volume, a power state, a request.
_TAGGED = frozenset({"volume-extended", "power-update", "accelerator-request-bound"})


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
    """POST /os-server-external-events: each event has a code of its own, as nova-api gives them
    (its os-server-external-events, create).

    404: there is no such server.  400: it does not say what it is about.  422: the server is on no
    host, which is to see it; or nothing here reacts to such an event.  200: it is seen to, or
    there is nothing to do; what comes of it, the server's actions show.  An event that the version
    does not know is a 400 of the whole request.
    """
    events = (await call.json(ExternalEventsBody)).events
    for event in events:
        if event.name not in EVENTS or call.version < EVENTS[event.name]:
            raise ApiError(400, "invalid", f"events: {event.name[:64]} is no event in this version")
    shown: list[dict[str, Any]] = []
    for event in events:
        code = await _code(call, event)
        status = "completed" if code == HTTPStatus.OK else "failed"
        shown.append({**event.model_dump(exclude_unset=True), "status": status, "code": code})
    whole = all(event["code"] == HTTPStatus.OK for event in shown)
    return answer({"events": shown}, HTTPStatus.OK if whole else HTTPStatus.MULTI_STATUS)


async def _code(call: Call, event: ExternalEvent) -> HTTPStatus:
    row = await call.components.queries.instance(event.server_uuid)
    if row is None or row["deleted"]:
        return HTTPStatus.NOT_FOUND
    if event.name in _TAGGED and event.tag is None:
        return HTTPStatus.BAD_REQUEST
    if event.name != "volume-extended" or row["host"] is None:
        return HTTPStatus.UNPROCESSABLE_ENTITY
    context, volume_id = call.context(), _volume_id(event)
    done = await call.ask_cinder(
        lambda: call.components.requests.grow(event.server_uuid, volume_id, context)
    )
    if done is not None:
        await call.written(done.position)
    return HTTPStatus.OK


def _volume_id(event: ExternalEvent) -> str:
    try:
        return str(UUID(event.tag))
    except ValueError:
        raise ApiError(400, "invalid", "events: the tag must be the id of a volume.") from None
