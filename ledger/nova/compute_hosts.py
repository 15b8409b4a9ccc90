"""Hosts as Nova's clients know them: os-services, os-hypervisors, os-availability-zone.

A host is one service, `nova-compute`, and one hypervisor.  Both have the id of the host's aggregate
from 2.53 on, and before a number made of it.  `forced_down` is a fence, whose evidence is the word
of a controller that the settings name; of anybody else it is refused.  To delete one is to forget
the host.  What a host could hold nobody tells the ledger: such fields are null, never a guess.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from aiohttp import web

from aggregates.host import host_uuid
from ledger.agents.contact import is_alive, unknown_host
from ledger.http import microversions
from ledger.http.call import Call, answer, canonical, caught_up
from ledger.http.paging import next_page, nova_limit, page_of
from ledger.http.parameters import boolean
from ledger.http.problem import ApiError, not_found
from ledger.native.hosts import forget_host, let_go
from ledger.nova.migrations import instant
from ledger.nova.schemas_hosts import ServiceNamed, ServiceUpdate
from ledger.nova.servers.state import ZONE

BINARY = "nova-compute"

#: As many bits as a number of JSON surely has.
_NUMBER_BITS = 53

Row = dict[str, Any]


# ------------------------------------------------------------------------------- services


async def services(call: Call) -> web.StreamResponse:
    """GET /os-services."""
    query = call.request.query
    wanted = {name: query[name] for name in ("host", "binary") if query.get(name)}
    shown = [_service(call, row) for row in await call.components.queries.hosts()]
    return answer({"services": [each for each in shown if wanted.items() <= each.items()]})


async def service_update(call: Call) -> web.StreamResponse:
    """PUT /os-services/{id}: no servers are to come to the host, or they may again; it is down.

    From 2.53 on; before, the id is an action, and the body says which host.
    """
    if call.version < microversions.HYPERVISOR_UUID:
        return await _act(call)
    body = await call.json(ServiceUpdate)
    row = await _host_of(call, "service_id", "Service {} not found.")
    if body.status is None and body.forced_down is None:
        message = "No updates were requested. Fields 'status' or 'forced_down' should be specified."
        raise ApiError(400, "invalid", message)
    if body.status == "enabled" and body.disabled_reason:
        message = "Specifying 'disabled_reason' with status 'enabled' is invalid."
        raise ApiError(400, "invalid", message)
    if body.forced_down is not None:
        await _force(call, row, down=body.forced_down)
    if body.status is not None:
        await _set(call, row["host"], body.status, body.disabled_reason)
    again = await call.components.queries.host(row["host"])
    if again is None:  # it was handed back meanwhile
        raise unknown_host(row["host"])
    return answer({"service": _service(call, again)})


async def service_delete(call: Call) -> web.StreamResponse:
    """DELETE /os-services/{id}: the host is gone for good, and is forgotten."""
    row = await _host_of(call, "service_id", "Service {} not found.")
    await forget_host(call, row, "compute service deleted")
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def _act(call: Call) -> web.StreamResponse:
    """PUT /os-services/enable, disable, disable-log-reason, force-down (up to 2.52)."""
    action = call.request.match_info["service_id"]
    body = await call.json(ServiceNamed)
    if body.binary != BINARY:
        message = (
            f"Updating a {body.binary} service is not supported. Only nova-compute services can be "
            "updated."
        )
        raise ApiError(400, "invalid", message)
    row = await call.components.queries.host(body.host)
    if row is None:
        raise unknown_host(body.host)
    if action == "force-down" and call.version >= microversions.FORCED_DOWN:
        return await _forced(call, row, body)
    status = {"enable": "enabled", "disable": "disabled", "disable-log-reason": "disabled"}
    if action not in status:
        raise not_found("no_such_action", "Unknown action")
    if action == "disable-log-reason" and not body.disabled_reason:
        raise ApiError(400, "invalid", "Missing disabled reason field")
    reason = body.disabled_reason if action == "disable-log-reason" else None
    await _set(call, body.host, status[action], reason)
    shown: Row = {"host": body.host, "binary": BINARY, "status": status[action]}
    return answer({"service": shown | ({"disabled_reason": reason} if reason else {})})


async def _set(call: Call, host: str, status: str, reason: str | None) -> None:
    await call.operate(
        call.components.service.change_host,
        host,
        lambda each: each.disable(reason) if status == "disabled" else each.enable(),
    )


async def _forced(call: Call, row: Row, body: ServiceNamed) -> web.StreamResponse:
    """PUT /os-services/force-down."""
    if body.forced_down is None:
        raise ApiError(400, "invalid", "Missing forced_down field")
    await _force(call, row, down=body.forced_down)
    shown = {"host": row["host"], "binary": BINARY, "forced_down": body.forced_down}
    return answer({"service": shown})


async def _force(call: Call, row: Row, *, down: bool) -> None:
    """Fence the host by a controller's word, or let it come back.  ApiError 403, 409.

    Whether its agent answers does not matter: a controller powers the host off, and says so within
    a second.  Should the agent show afterwards that guests run there, no fence of before covers
    them.
    """
    host, actor = row["host"], call.identity.actor
    if actor.user_id not in call.components.settings.fencing.controllers:
        raise _no_controller(host, actor.name)
    if not down:
        await _refuse_evacuating(call, host)
    since = row["seen_at"].isoformat(timespec="seconds") if row["seen_at"] else "never"
    controller = str(actor.user_id)
    reason = f"forced {'down' if down else 'up'} by {actor.name}"
    evidence = f"word of controller {controller}; the agent was last in contact: {since}"
    position = await call.operate(
        call.components.service.change_host,
        host,
        lambda each: (
            each.force_down(controller, reason, evidence) if down else each.force_up(reason)
        ),
    )
    if down:
        await let_go(call, host, position)


def _no_controller(host: str, name: str) -> ApiError:
    return ApiError(
        403,
        "no_controller",
        f"User {name} may not declare host {host} down or up by forced_down: only the users in "
        "fencing.controllers of the settings may. Fence the host with evidence: "
        f"POST /v1/hosts/{host}/fence.",
    )


async def _refuse_evacuating(call: Call, host: str) -> None:
    """ApiError 409 while servers leave the host, as in Nova: its fence is what they rest on."""
    await caught_up(call)
    if under_way := await call.components.queries.evacuating(host):
        raise ApiError(
            409,
            "evacuating",
            f"Host {host} cannot be forced up: {len(under_way)} servers are still being evacuated "
            f"from it, by operation {under_way[0]} among others. Try again when they are done.",
        )


def _service(call: Call, row: Row) -> Row:
    shown: Row = {
        "id": _id(call, row),
        "binary": BINARY,
        "host": row["host"],
        "zone": ZONE,
        "status": _status(row),
        "state": _state(call, row),
        "updated_at": instant(row["seen_at"]) if row["seen_at"] else None,
        "disabled_reason": row["disabled_reason"],
    }
    if call.version >= microversions.FORCED_DOWN:
        shown["forced_down"] = row["fenced"]
    return shown


def _status(row: Row) -> str:
    return "disabled" if row["disabled"] else "enabled"


def _state(call: Call, row: Row) -> str:
    return "up" if is_alive(call.components, row["seen_at"]) and not row["fenced"] else "down"


def _id(call: Call, row: Row) -> str | int:
    return ids_of(row)[0 if call.version >= microversions.HYPERVISOR_UUID else 1]


def ids_of(row: Row) -> tuple[str, int]:
    """A host's id, and the number that is its id before 2.53."""
    known = host_uuid(row["host"])
    return str(known), known.int >> (128 - _NUMBER_BITS)


async def _host_of(call: Call, name: str, message: str) -> Row:
    """The host whose id is in the path.  ApiError 404, and 400 for what is no UUID (2.53)."""
    text = call.request.match_info[name]
    if call.version >= microversions.HYPERVISOR_UUID and canonical(text) is None:
        raise ApiError(400, "invalid", f"Invalid uuid {text[:100]}")
    wanted = canonical(text) or text
    for row in await call.components.queries.hosts():
        if wanted == str(_id(call, row)):
            return row
    raise not_found("host_not_found", message.format(text[:100]))


# ---------------------------------------------------------------------------- hypervisors


async def hypervisors(call: Call) -> web.StreamResponse:
    """GET /os-hypervisors."""
    return await _hypervisors(call, detail=False)


async def hypervisors_detail(call: Call) -> web.StreamResponse:
    """GET /os-hypervisors/detail."""
    return await _hypervisors(call, detail=True)


async def hypervisor(call: Call) -> web.StreamResponse:
    """GET /os-hypervisors/{id}."""
    row = await _host_of(call, "hypervisor_id", "Hypervisor with ID '{}' could not be found.")
    guests = await call.components.queries.on_hosts([row["host"]])
    return answer({"hypervisor": _hypervisor(call, row, guests, detail=True)})


async def _hypervisors(call: Call, *, detail: bool) -> web.StreamResponse:
    rows = await call.components.queries.hosts()
    pattern = call.request.query.get("hypervisor_hostname_pattern")
    more = False
    if pattern is not None:
        rows = _named(call, rows, pattern)
    elif call.version >= microversions.HYPERVISOR_PAGES:
        rows, more = _paged(call, rows)
    guests = await call.components.queries.on_hosts([row["host"] for row in rows])
    shown: Row = {"hypervisors": [_hypervisor(call, row, guests, detail=detail) for row in rows]}
    if more:
        shown["hypervisors_links"] = next_page(call, shown["hypervisors"][-1]["id"])
    return answer(shown)


def _named(call: Call, rows: list[Row], pattern: str) -> list[Row]:
    if {"limit", "marker"} & set(call.request.query):
        raise ApiError(
            400,
            "invalid",
            "Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not "
            "supported.",
        )
    found = [row for row in rows if pattern.lower() in row["host"].lower()]  # as Nova's LIKE
    if not found:
        message = f"No hypervisor matching '{pattern[:100]}' could be found."
        raise not_found("host_not_found", message)
    return found


def _paged(call: Call, rows: list[Row]) -> tuple[list[Row], bool]:
    marker, limit = call.request.query.get("marker"), nova_limit(call)
    if marker is not None:
        ids = [str(_id(call, row)) for row in rows]
        if marker not in ids:
            raise ApiError(400, "marker_not_found", f"marker [{marker[:100]}] not found")
        rows = rows[ids.index(marker) + 1 :]
    return page_of(rows, limit)


def _hypervisor(call: Call, row: Row, guests: dict[str, Row], *, detail: bool) -> Row:
    there = guests.get(row["host"], {"servers": [], "vcpus": 0, "memory_mb": 0})
    shown: Row = {
        "id": _id(call, row),
        "hypervisor_hostname": row["host"],
        "state": _state(call, row),
        "status": _status(row),
    }
    if detail:
        shown |= {
            "hypervisor_type": "QEMU",
            "hypervisor_version": None,
            "host_ip": (row["connector"] or {}).get("ip"),
            "service": {
                "id": _id(call, row),
                "host": row["host"],
                "disabled_reason": row["disabled_reason"],
            },
            **_of_version(call, there),
        }
    asked = boolean("with_servers", call.request.query.get("with_servers", "false"))
    if asked and (there["servers"] or call.version >= microversions.SERVERS_OF_NONE):
        shown["servers"] = there["servers"]
    return shown


def _of_version(call: Call, there: Row) -> Row:
    """What became of capacity at 2.88: it is placement's to say."""
    if call.version >= microversions.HYPERVISOR_UPTIME:
        return {"uptime": None}
    unknown = ("vcpus", "memory_mb", "local_gb", "local_gb_used", "free_ram_mb", "free_disk_gb")
    return {
        **dict.fromkeys((*unknown, "disk_available_least")),
        "vcpus_used": there["vcpus"],
        "memory_mb_used": there["memory_mb"],
        "running_vms": len(there["servers"]),
        "current_workload": 0,
        "cpu_info": {} if call.version >= microversions.CPU_INFO else "",
    }


# ---------------------------------------------------------------------------------- zones


async def zones(call: Call) -> web.StreamResponse:
    """GET /os-availability-zone: the one there is."""
    rows = await call.components.queries.hosts()
    return answer({"availabilityZoneInfo": [_zone(rows, hosts=None)]})


async def zones_detail(call: Call) -> web.StreamResponse:
    """GET /os-availability-zone/detail: with its hosts that take servers."""
    rows = await call.components.queries.hosts()
    hosts = {
        row["host"]: {
            BINARY: {
                "available": _state(call, row) == "up",
                "active": True,
                "updated_at": instant(row["seen_at"]) if row["seen_at"] else None,
            }
        }
        for row in rows
        if not row["disabled"]
    }
    return answer({"availabilityZoneInfo": [_zone(rows, hosts=hosts)]})


def _zone(rows: list[Row], *, hosts: Row | None) -> Row:
    """A zone is available while one of its hosts is enabled, as Nova has it."""
    available = any(not row["disabled"] for row in rows)
    return {
        "zoneName": ZONE,
        "zoneState": {"available": available},
        "hosts": hosts if available else None,
    }


async def aggregates(call: Call) -> web.StreamResponse:
    """GET /os-aggregates: hosts are not grouped here; clients ask before they show a hypervisor."""
    del call
    return answer({"aggregates": []})
