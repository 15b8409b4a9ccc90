"""POST /v2.1/servers/{id}/action and DELETE /v2.1/servers/{id}: Nova's server actions.

A table: what each action's body may say, which flow it begins and with what, or what it changes
without one.  Each is answered when it is accepted; the operation is in the headers.  A destination
that nobody named is chosen here (`placement`), and checked again when it is accepted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from aiohttp import web

from aggregates import errors
from handlers.requests.actions import ActOnServer
from host_agent.shared.contract.definition import size_of
from ledger.auth.policy import Target
from ledger.http import microversions
from ledger.http.call import Call, answer, refuse_unless
from ledger.http.problem import ApiError
from ledger.http.schemas import Asked
from ledger.native import accepting, sources
from ledger.native.placement import destination
from ledger.native.server_row import server_row
from ledger.nova.flavors import size_wanted
from ledger.nova.servers import edits as server_edits
from ledger.nova.servers import schemas_actions as schemas
from ledger.nova.servers.edits import edited
from ledger.nova.servers.servers import rebuilt

Row = dict[str, Any]
Extras = Callable[[Call, Row, Any], Awaitable[Row]]
Edits = Callable[[Call, Row, Any], server_edits.Edit]


async def server_action(call: Call) -> web.StreamResponse:
    """POST action: one of `ACTIONS`."""
    data = await call.shown_object()
    if len(data) != 1:
        raise ApiError(400, "invalid", "A request must have exactly one action.")
    [(name, body)] = data.items()
    action = ACTIONS.get(name)
    if name in NOT_HERE:
        await server_row(call)  # as in Nova: of what is not there, that comes first
        raise ApiError(400, "not_supported", f"Action {name} is not supported: {NOT_HERE[name]}.")
    if action is None:
        raise ApiError(400, "no_such_action", f"There is no such action: {name[:64]}")
    call = call.under(action.rule)
    row = await server_row(call)
    asked = action.asked(body, call.version)
    if action.edit is not None:
        await edited(call, action.edit(call, row, asked))
        return web.Response(status=action.status)
    _refuse_host(call, action, row, asked)
    extras = await action.extras(call, row, asked)
    fields = {"flow": action.flow, **extras}
    request = ActOnServer(server_id=str(row["server_id"]), **fields)
    headers = await accepting.begun(call, request)
    if name == "rebuild":  # alone in being answered with the server
        whole = {"server": await rebuilt(call, await server_row(call))}
        return answer(whole, HTTPStatus.ACCEPTED, headers)
    if name == "evacuate" and call.version < microversions.EVACUATE_WITHOUT_PASSWORD:
        return answer({"adminPass": asked.adminPass}, HTTPStatus.OK, headers)
    return web.Response(status=action.status, headers=headers)


def _refuse_host(call: Call, action: Action, row: Row, asked: Any) -> None:
    """Raises ApiError 403 if a host is named by who may not."""
    if action.host_rule and getattr(asked, "host", None) is not None:
        whose = Target(row["project_id"], row["user_id"])
        refuse_unless(call.components.policy, call.identity, (action.host_rule,), whose)


async def server_delete(call: Call) -> web.StreamResponse:
    """DELETE: the server is gone once nothing is at work at it; what it has is released later.

    The operation that the headers name begins then.
    """
    server_id = str((await server_row(call))["server_id"])
    key, context = accepting.idempotency_key(call), call.context()
    delete, fleet = call.components.requests.delete, await accepting.fleet(call)
    done = await accepting.accepted(call, lambda: delete(server_id, context, fleet, key))
    headers = accepting.headers(done.operation_id)
    return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)


async def _elsewhere(call: Call, row: Row, wanted: str | None, *, migration: bool = False) -> str:
    """The host that is wanted, or the best of those that can have the server's volumes."""
    mappings = await call.components.queries.mappings(str(row["server_id"]))
    sharing = any(mapping["multiattach"] for mapping in mappings)
    return await destination(
        call, wanted, without=row["host"], migration=migration, sharing=sharing
    )


# ---------------------------------------------------------------------- what each one says


async def _live(call: Call, row: Row, asked: schemas.MigrateLive) -> Row:
    return {"destination": await _elsewhere(call, row, asked.host, migration=True)}


async def _cold(call: Call, row: Row, asked: schemas.Migrate | None) -> Row:
    wanted = asked.host if asked else None
    return {"destination": await _elsewhere(call, row, wanted)}


async def _resize(call: Call, row: Row, asked: schemas.Resize) -> Row:
    size = size_wanted(call.components.settings.flavors, asked.flavorRef)
    if size == size_of(row["definition"]):
        raise ApiError(400, "same_flavor", "When resizing, instances must change flavor!")
    host = await _elsewhere(call, row, None)
    kept = {"disk_config": asked.disk_config}
    return {"destination": host, "vcpus": size[0], "memory_mb": size[1], **kept}


async def _evacuate(call: Call, row: Row, asked: schemas.Evacuate) -> Row:
    stopped = {"running": False} if call.version >= microversions.EVACUATE_TO_STOPPED else {}
    return {"destination": await _elsewhere(call, row, asked.host), **stopped}


async def _unshelve(call: Call, row: Row, asked: schemas.Unshelve | None) -> Row:
    wanted = asked.host if asked else None
    return {"destination": await _elsewhere(call, row, wanted)}


async def _offload(call: Call, row: Row, asked: None) -> Row:
    """Shelving offloads at once, so no server is left that could be offloaded."""
    del call, asked
    raise errors.VmStateError(
        action="shelveOffload", server_id=row["server_id"], vm_state=row["vm_state"]
    )


async def _reboot(call: Call, row: Row, asked: schemas.Reboot) -> Row:
    del call
    hard = asked.type == "HARD"
    if not hard and row["vm_state"] != "active":  # Nova: nobody would answer a soft one
        raise errors.VmStateError(
            action="reboot", server_id=row["server_id"], vm_state=row["vm_state"]
        )
    return {"force": hard, "running": True}


async def _rebuild(call: Call, row: Row, asked: schemas.Rebuild) -> Row:
    """Of a server without a root volume its disks are the host's: there is nothing to write to."""
    if not asked.imageRef:
        return {}
    image_id = _image_id(asked.imageRef)
    mappings = await call.components.queries.mappings(str(row["server_id"]))
    root = next((m["volume_id"] for m in mappings if m["boot_index"] == 0 and m["volume_id"]), None)
    if root is None:
        text = "This server has no root volume: the ledger has no images to rebuild it with."
        raise ApiError(400, "image", text)
    written = await call.ask_cinder(lambda: sources.refuse_on_root(call, image_id, str(root)))
    return {"flow": "reimage", "image": image_id} if written else {}


def _image_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise ApiError(400, "invalid", "imageRef: must be the id of an image.") from None


async def _plain(call: Call, row: Row, asked: None) -> Row:
    del call, row, asked
    return {}


@dataclass(frozen=True)
class Action:
    """`rule`: of the policy, Nova's; `host_rule`: for who names the host, besides.

    `body` None: whatever is sent says nothing; `nullable`: null will do.  `edit`: what is done
    instead of a flow.
    """

    flow: str
    rule: str
    body: type[Asked] | None = None
    extras: Extras = _plain
    nullable: bool = False
    status: HTTPStatus = HTTPStatus.ACCEPTED
    host_rule: str | None = None
    edit: Edits | None = None

    def asked(self, body: Any, version: microversions.Version) -> Any:
        if self.body is None or (body is None and self.nullable):
            return None
        asked = self.body.model_validate(body, strict=True)
        schemas.refuse_unknown(asked, version)
        return asked


def _edit(
    rule: str, edit: Edits, body: type[Asked] | None = None, *, nullable: bool = False
) -> Action:
    """An action that no flow is for."""
    return Action("", rule, body, nullable=nullable, edit=edit)


_MIGRATE = "os_compute_api:os-migrate-server:migrate"
_SERVERS, _SHELVE = "os_compute_api:servers", "os_compute_api:os-shelve"
_LOCK = "os_compute_api:os-lock-server"

ACTIONS: dict[str, Action] = {
    "os-migrateLive": Action(
        "live_migrate",
        f"{_MIGRATE}_live",
        schemas.MigrateLive,
        _live,
        host_rule=f"{_MIGRATE}_live:host",
    ),
    "migrate": Action(
        "resize", _MIGRATE, schemas.Migrate, _cold, nullable=True, host_rule=f"{_MIGRATE}:host"
    ),
    "resize": Action("resize", f"{_SERVERS}:resize", schemas.Resize, _resize),
    "confirmResize": Action(
        "confirm_resize", f"{_SERVERS}:confirm_resize", status=HTTPStatus.NO_CONTENT
    ),
    "revertResize": Action("revert_resize", f"{_SERVERS}:revert_resize"),
    "evacuate": Action(
        "evacuate", "os_compute_api:os-evacuate", schemas.Evacuate, _evacuate, status=HTTPStatus.OK
    ),
    "shelve": Action("shelve", f"{_SHELVE}:shelve"),
    "shelveOffload": Action("shelve", f"{_SHELVE}:shelve_offload", extras=_offload),
    "unshelve": Action(
        "unshelve",
        f"{_SHELVE}:unshelve",
        schemas.Unshelve,
        _unshelve,
        nullable=True,
        host_rule=f"{_SHELVE}:unshelve_to_host",
    ),
    "os-start": Action("start", f"{_SERVERS}:start"),
    "os-stop": Action("stop", f"{_SERVERS}:stop"),
    "pause": Action("pause", "os_compute_api:os-pause-server:pause"),
    "unpause": Action("unpause", "os_compute_api:os-pause-server:unpause"),
    "reboot": Action("reboot", f"{_SERVERS}:reboot", schemas.Reboot, _reboot),
    "rebuild": Action("rebuild", f"{_SERVERS}:rebuild", schemas.Rebuild, _rebuild),
    "lock": _edit(f"{_LOCK}:lock", server_edits.lock, schemas.Lock, nullable=True),
    "unlock": _edit(f"{_LOCK}:unlock", server_edits.unlock),
    "os-resetState": _edit(
        "os_compute_api:os-admin-actions:reset_state", server_edits.reset_state, schemas.ResetState
    ),
}

#: One of these has to permit a request before it is read which action it wants.
RULES = tuple(action.rule for action in ACTIONS.values())


def _not_here(why: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, why)


#: Nova's other actions, and why there are none of them here.
NOT_HERE: dict[str, str] = {
    **_not_here("use pause, stop or shelve", "suspend", "resume"),
    **_not_here("the ledger has no images", "createImage", "createBackup", "rescue", "unrescue"),
    **_not_here("the ledger has no soft deletion", "forceDelete", "restore"),
    **_not_here(
        "the ledger has no networks",
        *("addFixedIp", "removeFixedIp", "addFloatingIp", "removeFloatingIp"),
        *("addSecurityGroup", "removeSecurityGroup", "resetNetwork", "injectNetworkInfo"),
    ),
    **_not_here(
        "consoles belong to the host",
        *("os-getConsoleOutput", "os-getVNCConsole", "os-getSPICEConsole"),
        *("os-getSerialConsole", "os-getRDPConsole"),
    ),
    **_not_here(
        "the ledger changes nothing inside a guest",
        *("changePassword", "trigger_crash_dump"),
    ),
}
