"""What Cinder calls on Nova beside swaps: assisted snapshots, and external events.

Of events is heard that a volume has grown, or has its image.  Of the rest Cinder is told that they
are not supported, in the form it understands, instead of a 404 that it would take for a wrong
endpoint.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any
from uuid import UUID

import orjson
from aiohttp import web

from aggregates.errors import DomainError
from handlers.requests.snapshots import SnapshotInUse
from ledger.http import microversions
from ledger.http.call import Call, answer, shown
from ledger.http.problem import ApiError
from ledger.native import accepting
from ledger.nova.schemas_nova import (
    AssistedSnapshotBody,
    ExternalEvent,
    ExternalEventsBody,
    SnapshotDeletion,
)
from ledger.nova_beside.whose import ours_among

Row = dict[str, Any]

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
#: Of all others nobody here wants to know.
_HEARD = frozenset({"volume-extended", "volume-reimaged"})
#: Whose tag says what it is about: a volume, a power state, a request.
_TAGGED = frozenset({"volume-extended", "power-update", "accelerator-request-bound"})


async def assisted_snapshot(call: Call) -> web.StreamResponse:
    """POST /os-assisted-volume-snapshots: the guest is to write to a file that Cinder has made."""
    body = (await call.json(AssistedSnapshotBody)).snapshot
    info = body.create_info
    request = SnapshotInUse(
        flow="snapshot",
        volume_id=body.volume_id,
        snapshot_id=info.snapshot_id,
        files={"file": info.new_file},
    )
    await _begin(call, request)
    return answer({"snapshot": {"id": info.id, "volumeId": body.volume_id}})


async def assisted_deletion(call: Call) -> web.StreamResponse:
    """DELETE /os-assisted-volume-snapshots/{id}: the guest is to do without a file."""
    snapshot_id = call.id("snapshot_id", "Snapshot {} could not be found.")
    try:
        fields = orjson.loads(call.request.query.get("delete_info", ""))
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ApiError(400, "invalid", "delete_info: a JSON object is wanted.")
    info = SnapshotDeletion.model_validate(shown(fields), strict=True)
    request = SnapshotInUse(
        flow="delete_snapshot",
        volume_id=info.volume_id,
        snapshot_id=snapshot_id,
        files={"merge": info.file_to_merge, "into": info.merge_target_file},
    )
    await _begin(call, request)
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def _begin(call: Call, request: SnapshotInUse) -> None:
    """What is in the way is a 400 here, as in Nova (its LP 1919487): Cinder gives up by it."""
    context, fleet = call.context(), await accepting.fleet(call)
    try:
        done = await call.ask_cinder(
            lambda: call.components.requests.snapshot(request, context, fleet)
        )
    except DomainError as refused:
        raise ApiError(400, refused.code, str(refused)) from None
    await call.written(done.position)


async def external_events(call: Call) -> web.StreamResponse:
    """POST /os-server-external-events: each event has a code of its own, as nova-api gives them
    (its os-server-external-events, create).

    404: there is no such server.  400: it does not say what it is about.  422: the server is on no
    host, which is to see it; or nothing here reacts to such an event.  200: it is seen to, or
    there is nothing to do; what comes of it, the server's actions show.  An event that the version
    does not know is a 400 of the whole request.  Those of servers of a Nova beside us are its.
    """
    events = (await call.json(ExternalEventsBody)).events
    for event in events:
        if event.name not in EVENTS or call.version < EVENTS[event.name]:
            raise ApiError(400, "invalid", f"events: {event.name[:64]} is no event in this version")
    told = await _told_to_nova(call, events)
    answered = [told.get(n) or _answered(e, await _code(call, e)) for n, e in enumerate(events)]
    whole = all(event["code"] == HTTPStatus.OK for event in answered)
    return answer({"events": answered}, HTTPStatus.OK if whole else HTTPStatus.MULTI_STATUS)


async def _told_to_nova(call: Call, events: list[ExternalEvent]) -> dict[int, Row]:
    """What a Nova beside us says of the events of its servers, by their places."""
    if call.nova is None:
        return {}
    ours = await ours_among(call.components, [event.server_uuid for event in events])
    theirs = {n: event for n, event in enumerate(events) if event.server_uuid not in ours}
    if not theirs:
        return {}
    sent = [event.model_dump(exclude_unset=True) for event in theirs.values()]
    said = await call.nova.whole(call.request, orjson.dumps({"events": sent}))
    if said.status in {HTTPStatus.OK, HTTPStatus.MULTI_STATUS}:
        return dict(zip(theirs, said.object()["events"], strict=True))  # all, in their order
    return {n: _answered(event, said.status) for n, event in theirs.items()}


def _answered(event: ExternalEvent, code: int) -> Row:
    status = "completed" if code == HTTPStatus.OK else "failed"
    return {**event.model_dump(exclude_unset=True), "status": status, "code": code}


async def _code(call: Call, event: ExternalEvent) -> HTTPStatus:
    row = await call.components.queries.instance(event.server_uuid)
    if row is None or row["deleted"]:
        return HTTPStatus.NOT_FOUND
    if event.name in _TAGGED and event.tag is None:
        return HTTPStatus.BAD_REQUEST
    if event.name not in _HEARD or row["host"] is None:
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if event.name == "volume-reimaged":
        return await _reimaged(call, event, row)
    try:
        context, volume_id = call.context(), str(UUID(event.tag))
    except ValueError:
        return HTTPStatus.BAD_REQUEST
    done = await call.ask_cinder(
        lambda: call.components.requests.grow(event.server_uuid, volume_id, context)
    )
    if done is not None:
        await call.written(done.position)
    return HTTPStatus.OK


async def _reimaged(call: Call, event: ExternalEvent, server: Row) -> HTTPStatus:
    """Who waits for it looks at the volume now; else nobody wants to know, as in Nova."""
    service, context = call.components.service, call.context()
    flows = {id_: claim["flow"] for id_, claim in server["claims"].items()}
    for operation_id in (id_ for id_, flow in flows.items() if flow == "reimage"):
        with suppress(DomainError):  # it has seen so itself
            done = await call.bulkheads.users(
                service.act, operation_id, "retry", f"Cinder told: {event.name}", context
            )
            await call.written(done.position)
    return HTTPStatus.OK
