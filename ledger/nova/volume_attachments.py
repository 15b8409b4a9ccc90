"""/v2.1/servers/{id}/os-volume_attachments, as Nova has it, microversion by microversion.

`{volume_id}` in the path is the volume's id.  An attachment is shown when its mapping is
bound and not before, so no answer ever lacks an attachment id (LP 2160224).

Cinder asks us whether a user may delete an attachment (CVE-2023-2088), and takes a 404, or
another attachment's id, for a yes.  So `volume_attachment` answers for as long as a host may
have the volume, a deleted server's too; and with 409, which Cinder takes for a no, wherever
this service does not know: in a move and in a swap, where one answer could not name both
attachments; of a server that it does not know, or may not show; of a volume that a host shows
in the guest though nothing here put it there; and while the server's host is silent.  Cinder
asks as the user, in a version that names attachments; older ones are answered as Nova does.

Attach answers when the volume is reserved and the mapping bound, not when the host is done;
if that takes longer than BIND_DEADLINE_S, with 202 and what is known.  The operation's
address is in the headers of every answer that started one.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from aggregates import errors
from aggregates.mapping import BlockDeviceMapping
from handlers.requests import edits
from handlers.requests.accept import AttachVolume, DetachVolume, SwapVolume
from host_agent.shared.contract.ports import PortError
from ledger.agents.contact import is_alive
from ledger.auth.rules import SWAP_FOR_CINDER
from ledger.core.requests import Accepted
from ledger.http import microversions
from ledger.http.call import Call, answer
from ledger.http.paging import nova_limit, nova_number
from ledger.http.problem import ApiError, not_found
from ledger.native import accepting
from ledger.native.server_row import named_server, seen, server_row
from ledger.nova.schemas_nova import (
    Attach,
    AttachBody,
    AttachmentUpdate,
    AttachmentUpdateBody,
    refuse_newer,
)

#: How long an attach waits for Cinder's reservation before it answers as accepted.
BIND_DEADLINE_S = 60.0

_UPDATE = "os_compute_api:os-volumes-attachments:update"
_SWAP = "os_compute_api:os-volumes-attachments:swap"

Row = dict[str, Any]


async def volume_attachments(call: Call) -> web.StreamResponse:
    """GET: the bound mappings of a server, in the order they were bound."""
    limit = nova_limit(call) or call.components.settings.limits.page_items_max  # Nova's `limited`
    offset = nova_number(call, "offset", 0)
    server = await server_row(call)
    rows = await call.components.queries.mappings(
        str(server["server_id"]), limit, offset, legacy=_shows_legacy(call)
    )
    return answer({"volumeAttachments": [_shown(row, call.version) for row in rows]})


async def volume_attachment(call: Call) -> web.StreamResponse:
    """GET {volume_id}."""
    server_id = named_server(call)
    volume_id = _volume_id(call, server_id)
    row = await call.components.queries.pair(server_id, volume_id)
    if call.version >= microversions.ATTACHMENT_ID:
        _refuse_doubt(call, server_id, volume_id, row)
    row = seen(call, server_id, row)
    if row["bdm_id"] is None or (row["legacy"] and not _shows_legacy(call)):
        return await _not_shown(call, server_id, volume_id)
    return answer({"volumeAttachment": _shown(row, call.version)})


async def volume_attachment_create(call: Call) -> web.StreamResponse:
    """POST: attach."""
    body = (await call.json(AttachBody)).volumeAttachment
    refuse_newer(body, call.version)
    key = accepting.idempotency_key(call)
    server = await server_row(call)
    request = AttachVolume(
        server_id=str(server["server_id"]),
        volume_id=body.volumeId,
        device=body.device,
        tag=body.tag,
        delete_on_termination=body.delete_on_termination,
        shelved_allowed=call.version >= microversions.VOLUMES_OF_SHELVED,
        multiattach_allowed=call.version >= microversions.MULTIATTACH,
        is_root=body.is_root,
    )
    context, fleet = call.context(), await accepting.fleet(call, server, attaches=True)

    def attach() -> Accepted:
        view = accepting.refuse_foreign_volume(call, body.volumeId)
        return call.components.requests.attach(request, context, fleet, key, view)

    done = await accepting.accepted(call, attach, asks_cinder=True)
    row = await accepting.bound(call, done, BIND_DEADLINE_S)
    accepting.refuse_failed(call, row)
    headers = accepting.headers(done.operation_id)
    if call.version >= microversions.ASYNC_ATTACH:
        return web.Response(status=HTTPStatus.ACCEPTED, headers=headers)
    status = HTTPStatus.OK if row["bound"] else HTTPStatus.ACCEPTED
    return answer({"volumeAttachment": _created(call, row, body)}, status, headers)


async def volume_attachment_update(call: Call) -> web.StreamResponse:
    """PUT {volume_id}: delete_on_termination (2.85); with another volume's id, a swap."""
    body = (await call.json(AttachmentUpdateBody)).volumeAttachment
    refuse_newer(body, call.version)
    server_id = named_server(call)
    old = call.version < microversions.UPDATE
    swaps = old or body.volumeId != _volume_id(call, server_id)
    call = call.under(_SWAP if swaps else _UPDATE)  # as Nova: who may swap may do both
    server_id = str((await server_row(call))["server_id"])
    row = await _mapping(call, server_id)
    headers: dict[str, str] = {}
    if not old:
        _refuse_immutable(body, row)
        await _update(call, body, row)
    if swaps:
        headers = await _swapped(call, body.volumeId, row)
    return web.Response(status=HTTPStatus.ACCEPTED, headers=headers)


async def volume_attachment_delete(call: Call) -> web.StreamResponse:
    """DELETE {volume_id}: detach; answered when it is accepted."""
    key = accepting.idempotency_key(call)
    server = await server_row(call)
    server_id = str(server["server_id"])
    request = DetachVolume(
        server_id=server_id,
        volume_id=_volume_id(call, server_id),
        shelved_allowed=call.version >= microversions.VOLUMES_OF_SHELVED,
        root_allowed=call.version >= microversions.ROOT_VOLUMES,
    )
    context, fleet = call.context(), await accepting.fleet(call, server)
    done = await accepting.accepted(
        call,
        lambda: call.components.requests.detach(request, context, fleet, key),
        asks_cinder=True,
        wait_s=accepting.DELETE_WAIT_S,
    )
    return web.Response(status=HTTPStatus.ACCEPTED, headers=accepting.headers(done.operation_id))


# ------------------------------------------------------------------------------ requests


def _volume_id(call: Call, server_id: str) -> str:
    return call.id("volume_id", f"Instance {server_id} is not attached to volume {{}}")


def _shows_legacy(call: Call) -> bool:
    """Nova does not show what has no attachment in Cinder where it would have to name it."""
    return call.version < microversions.ATTACHMENT_ID


async def _mapping(call: Call, server_id: str) -> Row:
    volume_id = _volume_id(call, server_id)
    row = await call.components.queries.mapping(server_id, volume_id)
    if row is None:
        raise _not_attached(server_id, volume_id)
    return row


def _not_attached(server_id: str, volume_id: str) -> ApiError:
    message = f"Instance {server_id} is not attached to volume {volume_id}"
    return not_found("not_attached", message)


async def _not_shown(call: Call, server_id: str, volume_id: str) -> web.Response:
    """404, unless a Nova beside us has something else to say: it may have had the server before.

    Of one that was handed over it is known that it had it, and what it says is over.
    """
    if call.version < microversions.ATTACHMENT_ID or call.nova is None:
        raise _not_attached(server_id, volume_id)
    if await call.bulkheads.users(call.components.requests.came_from, server_id) is not None:
        raise _not_attached(server_id, volume_id)
    said = await call.nova.whole(call.request)
    if said.status == HTTPStatus.OK:
        return said.response(call.request)
    if said.status != HTTPStatus.NOT_FOUND:
        raise ApiError(
            409,
            "nova_not_known",
            f"Volume {volume_id} is not attached to instance {server_id} here, but Nova answers "
            f"{said.status} to the same request, so it may have it.",
        )
    raise _not_attached(server_id, volume_id)


def _refuse_doubt(call: Call, server_id: str, volume_id: str, row: Row | None) -> None:
    """Raises ApiError 409 where 404, or the attachment of `row`, would be more than is known."""
    if row is None or not call.identity.sees(row["project_id"]):
        raise ApiError(
            409,
            "server_not_known",
            f"This service does not know instance {server_id}, so it cannot tell whether volume "
            f"{volume_id} is attached to it. Find out who owns the instance; with "
            "observe.pass_on_to this service asks Nova itself.",
        )
    other = next(
        (each for each in row["connected"] if each["attachment_id"] != row["attachment_id"]), None
    )
    if other is not None:
        raise ApiError(
            409,
            "two_attachments",
            f"Volume {volume_id} has attachment {other['attachment_id']} to instance {server_id}, "
            f"made or kept by operation {other['operation_id']}. Until that ends, neither "
            "may be deleted: wait for the operation, or confirm or revert the resize.",
            operation=str(other["operation_id"]),
        )
    if row["bdm_id"] is None and not row["deleted"] and row["host"] is not None:
        _refuse_unseen(call, server_id, volume_id, row)


def _refuse_unseen(call: Call, server_id: str, volume_id: str, row: Row) -> None:
    """Raises ApiError 409 unless the server's host shows that its guest has not got the volume."""
    if row["shown"]:
        raise ApiError(
            409,
            "shown_by_host",
            f"Instance {server_id} has a disk of volume {volume_id} that nothing here attached.",
        )
    if not is_alive(call.components, row["host_seen_at"]):
        raise ApiError(
            409,
            "host_silent",
            f"The host of instance {server_id} is silent, so this service cannot tell "
            f"whether volume {volume_id} is attached to it.",
            hint="Try again when the host's agent is in contact; see /v1/hosts.",
        )


async def _update(call: Call, body: AttachmentUpdate, row: Row) -> None:
    if body.delete_on_termination is not None:
        edit = partial(
            edits.set_delete_on_termination,
            server_id=str(row["server_id"]),
            volume_id=str(row["volume_id"]),
            value=body.delete_on_termination,
        )
        bdm_id, context = str(row["bdm_id"]), call.context()
        position = await call.bulkheads.users(
            call.components.requests.edit, BlockDeviceMapping, bdm_id, edit, context
        )
        await call.written(position)


async def _swapped(call: Call, new_volume_id: str, row: Row) -> dict[str, str]:
    """Begin the swap that Cinder asks for, or a user where the settings allow it.

    LP 2112187: without Cinder's migration behind it, a swap loses what Cinder knows.
    """
    by_cinder = call.permits(SWAP_FOR_CINDER)
    by_users = call.components.settings.swap_by_users
    if not (by_cinder or by_users):
        raise errors.NotMigratingError(volume_id=row["volume_id"])
    key = accepting.idempotency_key(call)
    try:
        await call.ask_cinder(lambda: accepting.refuse_foreign_volume(call, new_volume_id))
    except (ApiError, PortError) as error:
        raise _unknown_new_volume(error) from None
    request = SwapVolume(
        server_id=str(row["server_id"]),
        volume_id=str(row["volume_id"]),
        new_volume_id=new_volume_id,
        by_cinder=by_cinder,
        by_users=by_users,
    )
    context, fleet = call.context(), await accepting.fleet(call)
    try:
        done = await accepting.accepted(
            call,
            lambda: call.components.requests.swap(request, context, fleet, key),
            asks_cinder=True,
        )
    except PortError as error:
        raise _unknown_new_volume(error) from None
    # S1: "fail API call if we can't create that attachment".
    accepting.refuse_failed(call, await accepting.bound(call, done, BIND_DEADLINE_S))
    return accepting.headers(done.operation_id)


def _unknown_new_volume(error: ApiError | PortError) -> Exception:
    """It is named in the body, so not finding it is no 404."""
    return ApiError(400, "not_found", str(error)) if error.code == "not_found" else error


def _refuse_immutable(body: AttachmentUpdate, row: Row) -> None:
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


# ------------------------------------------------------------------------------- answers


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
    if version >= microversions.ROOT_VOLUMES:
        shown["boot_index"] = row["boot_index"]
    return shown


def _device(name: str | None) -> str | None:
    return f"/dev/{name}" if name else None
