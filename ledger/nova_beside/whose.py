"""Whose a request of Nova's form is, if a Nova is beside us: ours, Nova's, or of both.

| what it names | whose it is |
|---|---|
| a server | ours if the ledger has it of itself; of one it watches or does not know, Nova's |
| a flavor, a hypervisor, a service, by its id | ours if it is one of ours |
| a new server | ours if a host of ours is named for it, as host or in the zone |
| a snapshot that Cinder wants | ours if a server of ours has the volume |
| events of servers | of whose servers they are; of both, each gets its own |
| the list of servers, the versions | of both, together |
| all else | Nova's |

Of what is Nova's nothing is judged here, not even who asks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeGuard

import orjson
from aiohttp import web

from ledger.auth.keystone import SERVICE_TOKEN
from ledger.http import microversions
from ledger.http.body import body_of
from ledger.http.call import canonical, projected
from ledger.http.components import COMPONENTS, Components
from ledger.http.limits.bulkheads import BULKHEADS
from ledger.http.problem import ApiError
from ledger.nova.compute_hosts import ids_of
from ledger.nova.flavors import size_of
from ledger.nova_beside.passing import Nova

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Row = dict[str, Any]

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_SERVER = re.compile(rf"/servers/({_UUID})(?:/|\Z)")
#: What Apache and nginx take out of a path before Nova reads it (RFC 3986, 5.2.4).
_TAKEN_OUT = re.compile(r"/\.{0,2}/")
#: Routes whose handlers ask Nova themselves.
_OF_BOTH = frozenset({"versions", "version", "servers", "servers_detail"})


async def answered(
    request: web.Request, route: str, nova: Nova, handler: Handler
) -> web.StreamResponse:
    """By our handler, or by Nova.  `route`: the name of ours; "": there is none."""
    named = _SERVER.findall(request.path)
    if _TAKEN_OUT.search(request.path):  # whichever of them Nova will see there
        named = re.findall(_UUID, request.path)
    if named:
        ours = bool(await ours_among(request.app[COMPONENTS], map(str.lower, named)))
        if not ours and route == "volume_attachment":
            return await _cinders_question(request, nova, named[0].lower())
    else:
        ours = route in _OF_BOTH or (route in _BY_ROUTE and await _BY_ROUTE[route](request))
    return await (handler(request) if ours else nova.pass_on(request))


async def ours_among(components: Components, server_ids: Iterable[str]) -> frozenset[str]:
    """Those of the servers that the ledger has of itself, deleted ones too.  ApiError 503."""
    ids = list(server_ids)
    rows = await components.queries.ours(ids)
    if any(row["late"] for row in rows):
        await projected(components, (await components.queries.head())["position"])
        rows = await components.queries.ours(ids)
    return frozenset(str(row["server_id"]) for row in rows if row["ours"])


async def _cinders_question(request: web.Request, nova: Nova, server_id: str) -> web.StreamResponse:
    """May this attachment be deleted?  Nova's 404 is a yes only if no host, of ours or that sends
    surveys, shows the volume there.  ApiError 409.

    A survey may be from before a detach, whose end users wait for: it answers Cinder alone.
    """
    answer = await nova.whole(request)
    volume_id = canonical(request.match_info["volume_id"])
    if answer.status == web.HTTPNotFound.status_code and volume_id is not None:
        components = request.app[COMPONENTS]
        users = request.app[BULKHEADS].users
        hosts = await users(components.requests.showing, server_id, volume_id)
        found = await components.queries.shown(server_id, [volume_id])
        cinders = _may_be_cinders(request)
        sent = await components.queries.sent_shows(server_id, volume_id) if cinders else ()
        if named := sorted({*hosts, *sent, *(host for each in found for host in each.hosts)}):
            raise ApiError(
                409,
                "shown_by_host",
                f"Nova does not know volume {volume_id} at instance {server_id}, but "
                f"{len(named)} of the hosts that this service hears of show it, or the instance.",
                hint="An operator finds it with: drift list --server.",
            )
    return answer.response(request)


def _may_be_cinders(request: web.Request) -> bool:
    """It has a service's token; of its two headers of version a proxy may have dropped one."""
    names = (microversions.STANDARD_HEADER, microversions.LEGACY_HEADER)
    told = [text for name in names for text in request.headers.getall(name, ())]
    version = microversions.shown(microversions.ATTACHMENT_ID)
    return SERVICE_TOKEN in request.headers or any(version in text for text in told)


async def _new_server(request: web.Request) -> bool:
    server = _part(await _sent(request), "server")
    zone = str(server.get("availability_zone") or "")
    named = [*zone.split(":", 2)[1:], server.get("host"), server.get("hypervisor_hostname")]
    names = [name for name in named if isinstance(name, str) and name.isprintable()]
    queries = request.app[COMPONENTS].queries
    return any([await queries.host(name) is not None for name in names])


async def _events(request: web.Request) -> bool:
    told = (await _sent(request)).get("events")
    events = filter(_is_object, told) if isinstance(told, list) else ()
    ids = (canonical(str(each.get("server_uuid"))) for each in events)
    return bool(await ours_among(request.app[COMPONENTS], filter(None, ids)))


async def _snapshot(request: web.Request) -> bool:
    return await _has_volume(request, _part(await _sent(request), "snapshot"))


async def _snapshots_end(request: web.Request) -> bool:
    return await _has_volume(request, _object(request.query.get("delete_info", "")))


async def _has_volume(request: web.Request, about: Row) -> bool:
    volume_id = canonical(str(about.get("volume_id")))
    if volume_id is None:
        return False
    rows = await request.app[COMPONENTS].queries.attachments(volume_id=volume_id, open_only=True)
    servers = {str(row["server_id"]) for row in rows if row["server_id"]}
    return bool(await ours_among(request.app[COMPONENTS], servers))


async def _flavor(request: web.Request) -> bool:
    known = request.app[COMPONENTS].settings.flavors
    return size_of(known, request.match_info["flavor_id"]) is not None


async def _host(request: web.Request) -> bool:
    """By its id, or as the actions of before 2.53 name it: in the body."""
    [text] = (request.match_info[name] for name in _HOSTS if name in request.match_info)
    rows = await request.app[COMPONENTS].queries.hosts()
    if any(text.lower() in map(str, ids_of(row)) for row in rows):
        return True
    named = (await _sent(request)).get("host")
    return any(row["host"] == named for row in rows)


_HOSTS = ("hypervisor_id", "service_id")
_BY_ROUTE: dict[str, Callable[[web.Request], Awaitable[bool]]] = {
    "server_create": _new_server,
    "external_events": _events,
    "assisted_snapshot": _snapshot,
    "assisted_deletion": _snapshots_end,
    "flavor": _flavor,
    "flavor_specs": _flavor,
    "hypervisor": _host,
    "service_update": _host,
    "service_delete": _host,
}


async def _sent(request: web.Request) -> Row:
    """The body, if it is a JSON object; what is none, Nova may refuse."""
    limit = request.app[COMPONENTS].settings.limits.request_body_bytes_max
    return _object(await body_of(request, limit))


def _object(text: str | bytes | bytearray) -> Row:
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return whole if _is_object(whole) else {}


def _part(whole: Row, name: str) -> Row:
    part = whole.get(name, {})
    return part if _is_object(part) else {}


def _is_object(given: Any) -> TypeGuard[Row]:
    return isinstance(given, dict)
