"""/v1: building servers, and repairing how their volumes are connected.

A server is built with its volumes attached before it starts.  What is on a host is not for
everybody to name: kernels and hosts are the operators' to choose.  What disks may be made of is
`ledger.native.sources`.
"""

from __future__ import annotations

from http import HTTPStatus
from uuid import UUID

from aiohttp import web

from aggregates.errors import DomainError
from handlers.requests.actions import ActOnServer
from handlers.requests.build import BootDisk, BuildServer
from host_agent.shared.contract.definition import Machine
from ledger.agents.contact import unknown_host
from ledger.core.requests import Fleet
from ledger.http.call import Call, answer
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError
from ledger.native import accepting, sources
from ledger.native.accepting import begun
from ledger.native.placement import destination
from ledger.native.schemas_servers import (
    Build,
    DiskWanted,
    Many,
    ManyBegun,
    NoBody,
    OneOfMany,
    Started,
)
from ledger.native.server_row import server_row
from projections.reads.queries import Servers

#: How long a build waits for its volumes to be reserved and bound before it answers.
BIND_WAIT_S = 5.0


async def build(call: Call) -> web.StreamResponse:
    """POST /v1/servers: a new server with its volumes."""
    body = await call.json(Build)
    _refuse_reserved(call, body)
    if not body.disks and body.kernel is None:
        raise ApiError(
            400,
            "no_disks",
            "A server boots from a volume, and 'disks' has none.",
            hint="Name the root volume: server create --volume ID. An operator may give a kernel.",
        )
    actor = call.identity.actor
    disks = tuple(_disk(disk, actor.project_id) for disk in body.disks)
    found = await call.ask_cinder(lambda: sources.looked(call, disks))
    server_id, headers = await begin(
        call,
        BuildServer(
            name=body.name,
            host=await destination(call, body.host, sharing=found.sharing),
            machine=Machine(
                vcpus=body.vcpus,
                memory_mb=body.memory_mb,
                firmware=body.firmware.value,
                kernel=body.kernel,
                initrd=body.initrd,
                cmdline=body.cmdline,
            ),
            disks=found.disks,
            project_id=actor.project_id,
        ),
    )
    return _started(server_id, headers)


async def begin(call: Call, request: BuildServer) -> tuple[str, dict[str, str]]:
    """Have a server built: its id, and the headers that name the operation."""
    key, context = accepting.idempotency_key(call), call.context()
    fleet = await accepting.fleet(call, attaches=True)
    done = await accepting.accepted(
        call,
        lambda: call.components.requests.build(request, context, fleet, key),
        asks_cinder=True,
    )
    row = await accepting.bound(call, done, BIND_WAIT_S)
    return str(row["server_id"]), accepting.headers(done.operation_id)


async def server_refresh(call: Call) -> web.StreamResponse:
    """POST /v1/servers/{id}/refresh: connection information fetched anew, and applied."""
    return await _repair(call, "refresh")


async def server_convert(call: Call) -> web.StreamResponse:
    """POST /v1/servers/{id}/convert: from Cinder's old calls to attachments (S1)."""
    return await _repair(call, "convert")


async def refresh(call: Call) -> web.StreamResponse:
    """POST /v1/refresh: all servers with volumes, of a host or of the fleet, by pages."""
    return await _repair_many(call, "refresh", "servers_with_volumes")


async def convert(call: Call) -> web.StreamResponse:
    """POST /v1/convert: all servers with volumes by Cinder's old calls, as `refresh`.

    Of the fleet also those that are offloaded.
    """
    return await _repair_many(call, "convert", "servers_on_old_flow")


async def _repair_many(call: Call, flow: str, which: Servers) -> web.StreamResponse:
    body = await call.json(Many)
    limit = page_limit(call, body.limit)
    if body.host is not None and await call.components.queries.host(body.host) is None:
        raise unknown_host(body.host)
    ids = await call.components.queries.servers(which, body.host, body.after, limit=limit)
    fleet = await accepting.fleet(call)
    done = await accepting.each(ids, lambda server_id: _begin(call, flow, server_id, fleet))
    await call.written((await call.components.queries.head())["position"])
    following = None if len(done) == len(ids) < limit else done[-1].server_id
    return answer(ManyBegun(servers=done, next=following), HTTPStatus.ACCEPTED)


async def _repair(call: Call, flow: str) -> web.StreamResponse:
    if call.request.can_read_body:
        await call.json(NoBody)
    server_id = str((await server_row(call))["server_id"])
    return _started(server_id, await begun(call, ActOnServer(server_id=server_id, flow=flow)))


async def _begin(call: Call, flow: str, server_id: str, fleet: Fleet) -> OneOfMany:
    """Begin one of many: one that is refused does not stop the others."""
    request, context = ActOnServer(server_id=server_id, flow=flow), call.context()
    try:
        done = await call.ask_cinder(lambda: call.components.requests.act(request, context, fleet))
    except DomainError as refused:
        return OneOfMany(server_id=UUID(server_id), refused=str(refused))
    return OneOfMany(server_id=UUID(server_id), operation_id=UUID(done.operation_id))


def _started(server_id: str, headers: dict[str, str]) -> web.Response:
    operation_id = headers["X-Attachment-Ledger-Operation"].rpartition("/")[2]
    started = Started(server_id=UUID(server_id), operation_id=UUID(operation_id))
    return answer(started, HTTPStatus.ACCEPTED, headers)


def _refuse_reserved(call: Call, body: Build) -> None:
    """Raises ApiError 403 for what a project's member may not name."""
    if call.identity.everywhere:
        return
    named = {
        "host": body.host,
        "kernel": body.kernel,
        "initrd": body.initrd,
    }
    for name, value in named.items():
        if value:
            raise ApiError(403, "forbidden", f"To give '{name}' needs the role admin or operator.")


def _disk(disk: DiskWanted, project_id: str | None) -> BootDisk:
    create = None
    if disk.create is not None:
        create = {**disk.create.model_dump(exclude_none=True), "project_id": project_id}
    return BootDisk(
        volume_id=disk.volume_id,
        create=create,
        boot_index=disk.boot_index,
        device=disk.device,
        tag=disk.tag,
        delete_on_termination=disk.delete_on_termination,
    )
