"""What of a server is changed without an operation: name, metadata, tags, lock, shown state.

Nothing of it reaches a host.  What may be said is in tables (`properties`) and schemas;
what becomes of it, and whom a lock holds up, in `handlers.requests.edits`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from aiohttp import web
from pydantic import TypeAdapter

from aggregates.base import EventContext
from aggregates.instance import Instance
from handlers.requests import edits
from ledger.auth.policy import Target
from ledger.http import microversions
from ledger.http.call import Call, answer
from ledger.http.problem import ApiError
from ledger.native.server_row import server_row
from ledger.nova.servers import schemas_create, schemas_edits
from ledger.nova.servers.servers import changed, links_of, metadata_of, refuse_own_metadata

Row = dict[str, Any]
Edit = Callable[[Instance, EventContext], None]

_TAG: TypeAdapter[str] = TypeAdapter(schemas_create.ServerTag)


async def edited(call: Call, edit: Edit) -> Row:
    """Have the server of the path changed; as it is then.  Raises ApiError, DomainError."""
    row = await server_row(call)
    ask = partial(call.components.requests.edit, Instance, str(row["server_id"]), edit)
    position = await call.bulkheads.users(ask, call.context())
    await call.written(position)
    return await server_row(call) if position else row


async def server_update(call: Call) -> web.StreamResponse:
    """PUT /servers/{id}: what is kept of it and shown."""
    await server_row(call)  # as in Nova: of what is not there, that comes first
    wanted = schemas_create.update(await call.shown_object(), call.version)
    row = await edited(call, partial(edits.update, wanted=wanted))
    return answer({"server": await changed(call, row)})


# ---------------------------------------------------------------------------- metadata


async def metadata_add(call: Call) -> web.StreamResponse:
    """POST /servers/{id}/metadata: these, too."""
    return await _metadata(call, whole=False)


async def metadata_replace(call: Call) -> web.StreamResponse:
    """PUT /servers/{id}/metadata: these, and no others."""
    return await _metadata(call, whole=True)


async def _metadata(call: Call, *, whole: bool) -> web.StreamResponse:
    await server_row(call)
    items = (await call.json(schemas_edits.MetadataBody)).metadata
    refuse_own_metadata(items)
    row = await edited(call, partial(edits.set_metadata, items=items, whole=whole))
    return answer({"metadata": metadata_of(call, row)})


async def metadata_item_set(call: Call) -> web.StreamResponse:
    """PUT /servers/{id}/metadata/{key}."""
    await server_row(call)
    items = (await call.json(schemas_edits.MetadataItemBody)).meta
    if call.request.match_info["key"] not in items:
        raise ApiError(400, "invalid", "Request body and URI mismatch")
    refuse_own_metadata(items)
    await edited(call, partial(edits.set_metadata, items=items, whole=False))
    return answer({"meta": items})


async def metadata_item_delete(call: Call) -> web.StreamResponse:
    """DELETE /servers/{id}/metadata/{key}."""
    key = call.request.match_info["key"]
    refuse_own_metadata([key])
    await edited(call, partial(edits.drop_metadata, key=key))
    return web.Response(status=HTTPStatus.NO_CONTENT)


# -------------------------------------------------------------------------------- tags


async def tags_replace(call: Call) -> web.StreamResponse:
    """PUT /servers/{id}/tags (2.26): these, and no others."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    await server_row(call)
    tags = (await call.json(schemas_edits.TagsBody)).tags
    row = await edited(call, partial(edits.set_tags, tags=tags))
    return answer({"tags": row["tags"]})


async def tags_delete(call: Call) -> web.StreamResponse:
    """DELETE /servers/{id}/tags (2.26)."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    await edited(call, partial(edits.set_tags, tags=[]))
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def tag_add(call: Call) -> web.StreamResponse:
    """PUT /servers/{id}/tags/{tag} (2.26): 201, or 204 if it had it."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    row, tag = await server_row(call), call.request.match_info["tag"]
    _TAG.validate_python(tag)
    await edited(call, partial(edits.add_tag, tag=tag))
    if tag in row["tags"]:
        return web.Response(status=HTTPStatus.NO_CONTENT)
    where = f"{links_of(call, str(row['server_id']))[0]['href']}/tags/{quote(tag, safe='')}"
    return web.Response(status=HTTPStatus.CREATED, headers={"Location": where})


async def tag_delete(call: Call) -> web.StreamResponse:
    """DELETE /servers/{id}/tags/{tag} (2.26)."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    await edited(call, partial(edits.drop_tag, tag=call.request.match_info["tag"]))
    return web.Response(status=HTTPStatus.NO_CONTENT)


# ----------------------------------------------------------------------- server actions


def lock(call: Call, row: Row, asked: Any) -> Edit:
    """`lock`: only operators change the server from now on."""
    del call, row
    return partial(edits.lock, reason=asked.locked_reason if asked else None)


def unlock(call: Call, row: Row, asked: Any) -> Edit:
    """`unlock`: what another one locked, by Nova's rule for that."""
    del asked
    whose = Target(row["project_id"], row["user_id"])
    return partial(edits.unlock, overrides=call.permits(edits.OVERRIDE_RULE, whose))


def reset_state(call: Call, row: Row, asked: Any) -> Edit:
    """`os-resetState`: what the server shows."""
    del call, row
    return partial(edits.reset_state, state=asked.state)
