"""/v2.1/servers: as much of a server as clients need to name it and to list its volumes.

Servers come from what agents see, or are built (`server_create`, or /v1); this service
has no images or networks, and says so in the form that clients can print.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from aiohttp import web

from host_agent.shared.contract.definition import name_of, size_of
from ledger.auth.policy import Target
from ledger.http import microversions, redaction
from ledger.http.call import Call, answer, canonical
from ledger.http.paging import next_page, no_marker, nova_limit, page_of
from ledger.http.parameters import check, invalid
from ledger.http.problem import ApiError
from ledger.http.versions import base
from ledger.native.server_row import no_server, server_row
from ledger.nova import flavors
from ledger.nova.parameters_nova import SERVERS
from ledger.nova.servers import filters as server_filters
from ledger.nova.servers import state as server_state
from ledger.nova_beside.passing import Nova
from ledger.nova_beside.whose import ours_among
from projections.reads.server_lists import PATTERNS, Order, PatternError, ServerFilter

#: Nova's rule of who is shown a server's host.
_HOST_RULE = "os_compute_api:os-extended-server-attributes"

#: Pages of Nova's that have nothing but what is ours, one after the other.
PAGES_MAX = 1_000

#: Before the keys of metadata that say what is so, and that nobody sets.
OWN_METADATA = "attachment-ledger:"

#: What no server here has, and clients look for from that version on.
_NONE_HERE: tuple[tuple[microversions.Version, str, object], ...] = (
    (microversions.TRUSTED_CERTIFICATES, "trusted_image_certificates", None),
    (microversions.PINNED_ZONE_SHOWN, "pinned_availability_zone", None),  # there is one zone alone
    (microversions.SCHEDULER_HINTS, "scheduler_hints", {}),
)


Row = dict[str, Any]


async def servers(call: Call) -> web.StreamResponse:
    """GET /servers."""
    return await _listed(call, _brief)


async def servers_detail(call: Call) -> web.StreamResponse:
    """GET /servers/detail."""
    return await _listed(call, _described)


async def server(call: Call) -> web.StreamResponse:
    """GET /servers/{id}; a name is no id, and 404 makes clients look it up by name.

    A client that deletes a server takes 404 for a sign that its volumes are free.  So one that is
    being deleted is shown until they are, or until nobody works on that any more.
    """
    row = await server_row(call, deleted=True)
    if row["deleted"]:
        if server_state.task_state(row) != server_state.DELETING:
            raise no_server(row["server_id"])
        row = {**row, "vm_state": row["base_vm_state"]}
    return answer({"server": await shown(call, row)})


# ------------------------------------------------------------------------------ pages


async def _listed(call: Call, view: Callable[[Call, Row], Awaitable[Row]]) -> web.StreamResponse:
    """A page: of a Nova beside us, until it has no more; then of ours.

    Where Nova's page has nothing but what is ours by now, its next one is asked for: to clients an
    empty page is the last.
    """
    limit, marker, asked = nova_limit(call), await _marker(call), _asked(call)
    theirs: list[Row] = []
    if call.nova is not None and marker is None:
        told = await _theirs(call, call.nova)
        if isinstance(told, web.StreamResponse):
            return told
        theirs = told
    room = max(0, limit - len(theirs))
    rows, more = await _rows(call, asked, marker, room) if asked else ([], False)
    listed: Row = {"servers": [*theirs, *[await view(call, row) for row in rows]]}
    if more or (theirs and not room):
        listed["servers_links"] = next_page(call, listed["servers"][-1]["id"])
    return answer(listed)


async def _theirs(call: Call, nova: Nova) -> web.StreamResponse | list[Row]:
    """Nova's last page, without those that it lists still and that are ours by now.

    Or the answer, which is Nova's own: a refusal, or a page after which it has more.  ApiError 502.
    """
    request = call.request
    for _ in range(PAGES_MAX):
        said = await nova.whole(request)
        if said.status != HTTPStatus.OK:
            return said.response(call.request)
        page = said.object()
        listed = page["servers"]
        ours = await ours_among(call.components, [each["id"] for each in listed])
        kept = [each for each in listed if each["id"] not in ours]
        more = "servers_links" in page
        if more and not ours:
            return said.response(call.request)
        if more and kept:
            links = next_page(call, kept[-1]["id"])  # a marker says whose it is: not one of ours
            return answer({"servers": kept, "servers_links": links})
        if not more:
            return kept
        request = call.request.clone(
            rel_url=call.request.rel_url.update_query(marker=listed[-1]["id"])
        )
    raise ApiError(502, "nova_broken", "Nova's list of servers does not end.")


def _asked(call: Call) -> tuple[ServerFilter, Order] | None:
    """What is asked for of ours; None: none of ours can be that.  ApiError 400, 403.

    By what only a Nova beside us has, it filters and sorts its own.
    """
    if call.nova is not None:
        if server_filters.only_novas(call.request.query):
            return None
        check(call, SERVERS)
    wanted, order = server_filters.listed(call), server_filters.order(call)
    return None if wanted is None else (replace(wanted, ours=call.nova is not None), order)


async def _rows(
    call: Call, asked: tuple[ServerFilter, Order], marker: str | None, limit: int
) -> tuple[list[Row], bool]:
    """So many of ours, and whether there are more.  ApiError 400."""
    wanted, order = asked
    try:
        rows = await call.components.queries.instances(
            wanted, server_filters.WORDS, order=order, marker=marker, limit=limit + 1
        )
    except PatternError as error:
        given = {name: text for name in PATTERNS if (text := getattr(wanted, name)) is not None}
        raise invalid(", ".join(given), ", ".join(given.values()), f"{error}.") from None
    return page_of(rows, limit)


async def _marker(call: Call) -> str | None:
    """Of ours; None: our first page is wanted, or Nova's next one.  ApiError 400."""
    marker = call.request.query.get("marker")
    if marker is None:
        return None
    server_id = canonical(marker)
    if call.nova is not None and not await ours_among(call.components, filter(None, [server_id])):
        return None
    row = await call.components.queries.instance(server_id) if server_id else None
    if row is None or not call.identity.sees(row["project_id"]):
        raise no_marker(marker)
    return str(row["server_id"])


# ------------------------------------------------------------------------------- view


async def _brief(call: Call, row: Row) -> Row:
    """A server as Nova lists it without its details."""
    server_id = str(row["server_id"])
    return {"id": server_id, "name": row["name"], "links": links_of(call, server_id)}


def links_of(call: Call, server_id: str) -> list[dict[str, str]]:
    """Where a server is: itself, and for all versions."""
    path = f"servers/{server_id}"
    return [
        {"rel": "self", "href": f"{base(call)}/v2.1/{path}"},
        {"rel": "bookmark", "href": f"{base(call)}/{path}"},
    ]


#: What Nova's answers to a change leave out below 2.75.
_NOT_AFTER_CHANGE = ("OS-EXT-", "OS-SRV-USG:", "os-extended-volumes:")
_NOR_THESE = {"config_drive", "key_name", "security_groups"}


async def changed(call: Call, row: Row) -> Row:
    """A server as it is shown to who has changed it."""
    whole = await shown(call, row)
    if call.version >= microversions.CHANGES_SHOWN_WHOLE:
        return whole
    return {
        name: value
        for name, value in whole.items()
        if name not in _NOR_THESE and not name.startswith(_NOT_AFTER_CHANGE)
    }


async def rebuilt(call: Call, row: Row) -> Row:
    """A server as it is shown to who has had it rebuilt: what Nova would put into it anew, too."""
    more = {"key_name": microversions.REBUILT_KEY, "user_data": microversions.REBUILT_USER_DATA}
    none = {name: None for name, since in more.items() if call.version >= since}
    return {**await changed(call, row), **none}


async def shown(call: Call, row: Row) -> Row:
    """A server as Nova shows it alone at the request's microversion."""
    groups: Row = {"server_groups": []} if call.version >= microversions.SERVER_GROUPS else {}
    return {**await _described(call, row), **groups}


async def _described(call: Call, row: Row) -> Row:
    """A server as Nova lists it with its details at the request's microversion."""
    version = call.version
    server = {
        **_identity(call, row),
        **_state(row),
        "image": "",  # booted from a volume, or from nothing this service knows
        "flavor": _flavor(call, row),
        "addresses": {},
        "metadata": metadata_of(call, row),
        "accessIPv4": row["access_ip_v4"],
        "accessIPv6": row["access_ip_v6"],
        "config_drive": "",
        "key_name": None,
        "hostId": "",
        "OS-DCF:diskConfig": row["disk_config"],
        "OS-EXT-AZ:availability_zone": server_state.zone(row),
        "OS-SRV-USG:launched_at": None,
        "OS-SRV-USG:terminated_at": None,
        "os-extended-volumes:volumes_attached": await _volumes(call, row),
        "security_groups": [],
    }
    if call.permits(_HOST_RULE, Target(row["project_id"], row["user_id"])):
        server |= {
            "OS-EXT-SRV-ATTR:host": row["host"],
            "OS-EXT-SRV-ATTR:hypervisor_hostname": row["host"],
            # A host that does not show its guests' definitions calls them what they are called.
            "OS-EXT-SRV-ATTR:instance_name": name_of(row["definition"]) or row["name"],
        }
    if version >= microversions.LOCKED:
        server["locked"] = row["locked_by"] is not None
    if version >= microversions.LOCKED_REASON:
        server["locked_reason"] = row["locked_reason"]
    if version >= microversions.HOSTNAME:
        server["OS-EXT-SRV-ATTR:hostname"] = row["hostname"]
    if version >= microversions.DESCRIPTION:
        server["description"] = row["description"]
    if version >= microversions.SERVER_TAGS:
        server["tags"] = row["tags"]
    server |= {name: value for since, name, value in _NONE_HERE if version >= since}
    if row["vm_state"] == "error":
        server["fault"] = _fault(call, row)
    return server


def _identity(call: Call, row: Row) -> Row:
    return {
        "id": str(row["server_id"]),
        "name": row["name"],
        "tenant_id": row["project_id"] or "",
        "user_id": row["user_id"] or "",
        "created": _time(row["created_at"]),
        "updated": _time(row["updated_at"]),
        "links": links_of(call, str(row["server_id"])),
    }


def metadata_of(call: Call, row: Row) -> dict[str, str]:
    """As somebody wants it kept; of a server that nobody asked for here, also that only its host
    says that it is, and whose.

    Metadata is what all of Nova's clients show; users are not told names of hosts.
    """
    host = row["shown_by"]
    if host is None:
        return dict(row["metadata"])
    host_shown = host if call.identity.everywhere else "true"
    return {**row["metadata"], f"{OWN_METADATA}shown_by_host": host_shown}


def refuse_own_metadata(metadata: Iterable[str]) -> None:
    """Raises ApiError 400 for a key that only this service says something by."""
    if own := [key for key in metadata if key.startswith(OWN_METADATA)]:
        raise ApiError(400, "invalid", f"Metadata {own[0]} can only be set by this service.")


def _state(row: Row) -> Row:
    status = server_state.status(row)
    return {
        "status": status,
        **({"progress": 0} if status in server_state.WITH_PROGRESS else {}),
        "OS-EXT-STS:vm_state": row["vm_state"],
        "OS-EXT-STS:task_state": server_state.task_state(row),
        "OS-EXT-STS:power_state": server_state.power_state(row),
    }


def _flavor(call: Call, row: Row) -> Row:
    size = size_of(row["definition"])
    key, name = flavors.named(call.components.settings.flavors, size)
    if call.version >= microversions.FLAVOR_EMBEDDED:
        return server_state.flavor(*size, name)
    return {"id": key, "links": []}


def _fault(call: Call, row: Row) -> Row:
    message = redaction.fault("; ".join(map(str, row["faults"].values())), call.identity)
    return {"code": 500, "created": _time(row["updated_at"]), "message": message}


async def _volumes(call: Call, row: Row) -> list[Row]:
    mappings = await call.components.queries.mappings(str(row["server_id"]))
    if call.version < microversions.VOLUMES_ATTACHED_DELETE:
        return [{"id": str(each["volume_id"])} for each in mappings]
    return [
        {"id": str(each["volume_id"]), "delete_on_termination": each["delete_on_termination"]}
        for each in mappings
    ]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
