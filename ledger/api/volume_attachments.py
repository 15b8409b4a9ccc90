"""/v2.1/servers/{id}/os-volume_attachments, as Nova has it, microversion by microversion.

`{volume_id}` in the path is the volume's id.  An attachment is shown when its mapping is
bound and not before, so no answer ever lacks an attachment id (LP 2160224); Cinder relies
on that when it asks us whether a user may delete an attachment (CVE-2023-2088).

Attach answers when the volume is reserved and the mapping bound, not when the host is done;
if that takes longer than BIND_DEADLINE_S, with 202 and what is known.  The operation's
address is in the headers of every answer that started one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web

from aggregates.errors import ClaimedError
from aggregates.operation import OperationState, Outcome
from handlers.accept import AttachVolume, Contact, DetachVolume
from ledger.api import microversions
from ledger.api.call import Call, answer, late
from ledger.api.hosts import contact_of
from ledger.api.problem import ApiError, not_found, unexpected
from ledger.api.schemas_nova import Attach, AttachBody, Update, UpdateBody, refuse_newer
from ledger.api.servers import server_row
from ledger.service import Accepted
from ledger.wakeups import operation_key

#: How long an attach waits for Cinder's reservation before it answers as accepted.
BIND_DEADLINE_S = 60.0

#: How long a request waits for an operation in its way before it is refused (409).
CLAIM_WAIT_S = 2.0

_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}\Z")
_log = structlog.get_logger(__name__)

Row = dict[str, Any]


async def volume_attachments(call: Call) -> web.StreamResponse:
    """GET: the bound mappings of a server, in the order they were bound."""
    limit, offset = _paging(call)
    server = await server_row(call)
    rows = await call.services.queries.mappings(str(server["server_id"]), limit, offset)
    return answer({"volumeAttachments": [_shown(row, call.version) for row in rows]})


async def volume_attachment(call: Call) -> web.StreamResponse:
    """GET {volume_id}."""
    server_id = str((await server_row(call))["server_id"])
    return answer({"volumeAttachment": _shown(await _mapping(call, server_id), call.version)})


async def volume_attachment_create(call: Call) -> web.StreamResponse:
    """POST: attach."""
    body = (await call.json(AttachBody)).volumeAttachment
    refuse_newer(body, call.version)
    key = _idempotency_key(call)
    server = await server_row(call)
    await _refuse_foreign_volume(call, body.volumeId)
    request = AttachVolume(
        server_id=str(server["server_id"]),
        volume_id=body.volumeId,
        device=body.device,
        tag=body.tag,
        delete_on_termination=body.delete_on_termination,
        multiattach_allowed=call.version >= microversions.MULTIATTACH,
    )
    accepted = await _accepted(call, call.services.service.attach, request, key)
    await call.written(accepted.position)
    row = await _bound(call, accepted)
    if call.version >= microversions.ASYNC_ATTACH:
        return web.Response(status=HTTPStatus.ACCEPTED, headers=_headers(accepted.operation_id))
    status = HTTPStatus.OK if row["bound"] else HTTPStatus.ACCEPTED
    shown = {"volumeAttachment": _created(call, row, body)}
    return answer(shown, status, _headers(accepted.operation_id))


async def volume_attachment_update(call: Call) -> web.StreamResponse:
    """PUT {volume_id}: delete_on_termination (2.85), or a swap, which only Cinder may ask."""
    body = (await call.json(UpdateBody)).volumeAttachment
    refuse_newer(body, call.version)
    server_id = str((await server_row(call))["server_id"])
    row = await _mapping(call, server_id)
    if call.version < microversions.UPDATE or body.volumeId != str(row["volume_id"]):
        raise ApiError(
            409,
            "not_migrating",
            f"volume {row['volume_id']} is not migrating; this API should only be called by Cinder",
        )
    _refuse_immutable(body, row)
    if body.delete_on_termination is not None:
        position = await asyncio.to_thread(
            call.services.service.set_delete_on_termination,
            str(row["bdm_id"]),
            body.delete_on_termination,
            call.context(),
        )
        await call.written(position)
    return web.Response(status=HTTPStatus.ACCEPTED)


async def volume_attachment_delete(call: Call) -> web.StreamResponse:
    """DELETE {volume_id}: detach; answered when it is accepted."""
    key = _idempotency_key(call)
    server_id = str((await server_row(call))["server_id"])
    request = DetachVolume(server_id=server_id, volume_id=_volume_id(call, server_id))
    accepted = await _accepted(call, call.services.service.detach, request, key)
    await call.written(accepted.position)
    return web.Response(status=HTTPStatus.ACCEPTED, headers=_headers(accepted.operation_id))


# ------------------------------------------------------------------------------ requests


def _paging(call: Call) -> tuple[int, int]:
    query, most = call.request.query, call.services.settings.limits.page_items_max
    for name in query:
        if name not in {"limit", "offset"} and call.version >= microversions.QUERY_STRICT:
            raise ApiError(400, "invalid", unexpected(name))
    numbers = {}
    for name in ("limit", "offset"):
        text = query.get(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 10):  # noqa: PLR2004
            raise ApiError(
                400,
                "invalid",
                f"Invalid input for query parameters {name}. Value: {text[:100]}. "
                f"'{text[:100]}' does not match '^[0-9]*$'",
            )
        numbers[name] = int(text)
    return min(numbers["limit"] or most, most), numbers["offset"]


def _volume_id(call: Call, server_id: str) -> str:
    return call.id("volume_id", f"Instance {server_id} is not attached to volume {{}}")


async def _mapping(call: Call, server_id: str) -> Row:
    volume_id = _volume_id(call, server_id)
    row = await call.services.queries.mapping(server_id, volume_id)
    if row is None:
        message = f"Instance {server_id} is not attached to volume {volume_id}"
        raise not_found("not_attached", message)
    return row


def _idempotency_key(call: Call) -> str | None:
    key = call.request.headers.get("Idempotency-Key")
    if key is not None and not _IDEMPOTENCY_KEY.match(key):
        message = "Idempotency-Key: 1 to 255 visible ASCII characters are wanted"
        raise ApiError(400, "idempotency_key", message)
    return key


async def _refuse_foreign_volume(call: Call, volume_id: str) -> None:
    """We ask Cinder as a service that sees all volumes, so their project is ours to check."""
    if call.identity.everywhere:
        return
    view = await asyncio.to_thread(call.services.cinder.volume, volume_id)
    if view.project_id is None:
        _log.warning("volume_without_project", volume=volume_id)
    if not call.identity.sees(view.project_id):
        raise not_found("not_found", f"Volume {volume_id} could not be found.")


def _refuse_immutable(body: Update, row: Row) -> None:
    """Only delete_on_termination can be changed; repeating the rest is no change."""
    shown = {
        "id": str(row["volume_id"]),
        "serverId": str(row["server_id"]),
        "device": _device(row["device_name"]),
        "tag": row["tag"],
    }
    for name, value in shown.items():
        if name in body.model_fields_set and getattr(body, name) != value:
            raise ApiError(400, "immutable", f"The {name} property is not mutable")


def _contacts(call: Call) -> Any:
    """Contact of hosts, for the worker thread that decides."""
    loop = asyncio.get_running_loop()

    def contact(host: str) -> Contact:
        return asyncio.run_coroutine_threadsafe(contact_of(call.services, host), loop).result()

    return contact


async def _accepted(
    call: Call, ask: Callable[..., Accepted], request: AttachVolume | DetachVolume, key: str | None
) -> Accepted:
    """Have the request accepted; if an operation is in its way, once more when that ends.

    Cinder says `in-use`, or `available`, a moment before our operation is over: a client
    that waits for that and asks at once must not be told that it comes too early.
    """

    async def attempt() -> Accepted:
        return await asyncio.to_thread(ask, request, call.context(), _contacts(call), key)

    try:
        return await attempt()
    except ClaimedError as claimed:
        operation_id = claimed.fields["operation_id"]

        async def ended() -> OperationState | None:
            row = await call.services.queries.operation(operation_id)
            return row["state"] if row and row["state"] != OperationState.RUNNING else None

        state = await call.until(operation_key(operation_id), ended, CLAIM_WAIT_S)
        if state != OperationState.FINISHED:
            raise
        return await attempt()


# ------------------------------------------------------------------------------- answers


async def _bound(call: Call, accepted: Accepted) -> Row:
    """The operation, once the volume is reserved and bound, or at the deadline.

    Raises what went wrong if it is over without that.
    """

    async def look() -> Row | None:
        row = await call.services.queries.operation(accepted.operation_id)
        settled = row is not None and (row["bound"] or row["state"] != OperationState.RUNNING)
        return row if settled else None

    row = await call.until(operation_key(accepted.operation_id), look, BIND_DEADLINE_S)
    row = row or await call.services.queries.operation(accepted.operation_id)
    if row is None:  # repeated, and accepted just now by a process whose projections are late
        raise late()
    if row["state"] == OperationState.PARKED or (
        row["state"] == OperationState.FINISHED and row["outcome"] != Outcome.COMPLETED
    ):
        raise _failed(row)
    return row


#: Where a failed attach is the caller's to mend; everything else is a 500.
_STATUS_OF_FAILURE = {
    "refused": HTTPStatus.BAD_REQUEST,
    "not_found": HTTPStatus.NOT_FOUND,
    "forbidden": HTTPStatus.FORBIDDEN,
    "cancelled": HTTPStatus.CONFLICT,
    "host_fenced": HTTPStatus.CONFLICT,
    "cinder_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}


def _failed(row: Row) -> ApiError:
    """The first error of the operation as an answer; Cinder's refusals in Cinder's words."""
    error = row["error"] or {"code": "cancelled", "message": "The operation was cancelled."}
    status = _STATUS_OF_FAILURE.get(error["code"], HTTPStatus.INTERNAL_SERVER_ERROR)
    operation_id = str(row["operation_id"])
    return ApiError(
        status, error["code"], error["message"], operation=operation_id, **_headers(operation_id)
    )


def _headers(operation_id: str) -> dict[str, str]:
    path = f"/v1/operations/{operation_id}"
    return {"X-Attachment-Ledger-Operation": path, "Link": f'<{path}>; rel="monitor"'}


def _created(call: Call, row: Row, body: Attach) -> Row:
    """Nova's answer to an attach; it never lost its `id`, not even at 2.89."""
    lane = row["lanes"][0]
    shown = {
        "id": body.volumeId,
        "volumeId": body.volumeId,
        "serverId": str(row["server_id"]),
        "device": _device(lane["device_name"]),
    }
    if call.version >= microversions.TAG_SHOWN:
        shown["tag"] = lane["tag"]
    if call.version >= microversions.DELETE_ON_TERMINATION:
        shown["delete_on_termination"] = lane["delete_on_termination"]
    return shown


def _shown(row: Row, version: microversions.Version) -> Row:
    """A bound mapping as list and show have it."""
    shown: Row = {"volumeId": str(row["volume_id"]), "serverId": str(row["server_id"])}
    if version < microversions.ATTACHMENT_ID:
        shown["id"] = shown["volumeId"]
    device = _device(row["device_name"])
    if device is not None or version >= microversions.TAG_SHOWN:
        shown["device"] = device
    if version >= microversions.TAG_SHOWN:
        shown["tag"] = row["tag"]
    if version >= microversions.DELETE_ON_TERMINATION:
        shown["delete_on_termination"] = row["delete_on_termination"]
    if version >= microversions.ATTACHMENT_ID:
        shown["attachment_id"] = str(row["attachment_id"])
        shown["bdm_uuid"] = str(row["bdm_id"])
    return shown


def _device(name: str | None) -> str | None:
    return f"/dev/{name}" if name else None
