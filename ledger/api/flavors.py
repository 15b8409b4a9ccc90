"""/v2.1/flavors: a flavor's id says its size, "c2.m2048" is 2 vCPUs and 2048 MiB.

Every size is one, so there is no end of them; listed are those that the servers have whom the
caller may see.  Clients look a flavor up by its id before they resize.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from ledger.api import microversions
from ledger.api.call import Call, answer
from ledger.api.paging import next_page, nova_limit
from ledger.api.parameters import boolean, invalid
from ledger.api.problem import ApiError, not_found
from ledger.api.schemas_servers import MEMORY_MB_MAX, MEMORY_MB_MIN, VCPUS_MAX
from ledger.api.server_state import flavor_id, size_of_flavor
from ledger.api.versions import base

Row = dict[str, Any]
Size = tuple[int, int]  # vCPUs, and memory in MiB

_DIGITS_MAX = 9
_BRIEF = ("id", "name", "links", "description")
_SORTED_BY: dict[str, Callable[[Size], Any]] = {
    "flavorid": lambda size: flavor_id(*size),
    "id": lambda size: flavor_id(*size),
    "name": lambda size: flavor_id(*size),
    "vcpus": lambda size: size,
    "memory_mb": lambda size: size[::-1],
}


async def flavors(call: Call) -> web.StreamResponse:
    """GET /flavors: the sizes that are in use."""
    return await _flavors(call, detail=False)


async def flavors_detail(call: Call) -> web.StreamResponse:
    """GET /flavors/detail."""
    return await _flavors(call, detail=True)


async def _flavors(call: Call, *, detail: bool) -> web.StreamResponse:
    limit = nova_limit(call)
    found = _after_marker(call, _wanted(call, await _in_use(call)))
    page = [_shown(call, *size) for size in found[:limit]]
    if not detail:
        page = [{key: each[key] for key in _BRIEF if key in each} for each in page]
    listed: Row = {"flavors": page}
    if len(found) > limit:
        listed["flavors_links"] = next_page(call, page[-1]["id"])
    return answer(listed)


async def _in_use(call: Call) -> list[Size]:
    return await call.components.queries.sizes(call.identity.project_scope)


def _wanted(call: Call, sizes: list[Size]) -> list[Size]:
    """Those that fit, in order.  Raises ApiError 400."""
    query = call.request.query
    public = query.get("is_public", "none").lower()
    if public != "none" and not boolean("is_public", public):
        return []
    least = {name: _megabytes(name, query.get(name, "0")) for name in ("minRam", "minDisk")}
    key, direction = query.get("sort_key", "flavorid"), query.get("sort_dir", "asc")
    if key not in _SORTED_BY or direction not in {"asc", "desc"}:
        raise invalid("sort_key", f"{key} {direction}", "Flavors are not sorted by that here.")
    fit = [
        size
        for size in sizes
        if size[1] >= least["minRam"]
        and not least["minDisk"]
        and query.get("name", flavor_id(*size)) == flavor_id(*size)
    ]
    return sorted(fit, key=_SORTED_BY[key], reverse=direction == "desc")


def _megabytes(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ApiError(400, "invalid", f"Invalid {name} filter [{text[:100]}]")


def _after_marker(call: Call, sizes: list[Size]) -> list[Size]:
    marker = call.request.query.get("marker")
    if marker is None:
        return sizes
    size = size_of_flavor(marker)
    if size not in sizes:
        raise ApiError(400, "marker_not_found", f"marker [{marker[:100]}] not found")
    return sizes[sizes.index(size) + 1 :]


def size_wanted(reference: str | int) -> Size:
    """The size of a server to be, by a flavor's id, or an address that ends so.  ApiError 400."""
    name = str(reference).rstrip("/").rpartition("/")[2]
    size = size_of_flavor(name)
    if size is None:
        message = f"Flavor {name[:100]} could not be found. Sizes are asked for like c2.m2048."
        raise ApiError(400, "no_flavor", message)
    if size[0] > VCPUS_MAX or not MEMORY_MB_MIN <= size[1] <= MEMORY_MB_MAX:
        raise ApiError(
            400,
            "no_flavor",
            f"Flavor {name} could not be found. A server has 1 to {VCPUS_MAX} vCPUs, and "
            f"{MEMORY_MB_MIN} to {MEMORY_MB_MAX} MiB.",
        )
    return size


async def flavor(call: Call) -> web.StreamResponse:
    """GET /flavors/{id}."""
    name = call.request.match_info["flavor_id"]
    size = size_of_flavor(name)
    if size is None:
        message = f"Flavor {name[:100]} could not be found. Sizes are asked for like c2.m2048."
        raise not_found("flavor_not_found", message)
    return answer({"flavor": _shown(call, *size)})


async def flavor_specs(call: Call) -> web.StreamResponse:
    """GET /flavors/{id}/os-extra_specs."""
    await flavor(call)
    return answer({"extra_specs": {}})


def _shown(call: Call, vcpus: int, memory_mb: int) -> Row:
    name = flavor_id(vcpus, memory_mb)
    path = f"flavors/{name}"
    shown: Row = {
        "id": name,
        "name": name,
        "vcpus": vcpus,
        "ram": memory_mb,
        "disk": 0,
        "swap": 0 if call.version >= microversions.FLAVOR_SWAP_NUMBER else "",
        "OS-FLV-EXT-DATA:ephemeral": 0,
        "os-flavor-access:is_public": True,
        "links": [
            {"rel": "self", "href": f"{base(call)}/v2.1/{path}"},
            {"rel": "bookmark", "href": f"{base(call)}/{path}"},
        ],
    }
    if call.version < microversions.FLAVOR_WITHOUT_RXTX:
        shown |= {"rxtx_factor": 1.0, "OS-FLV-DISABLED:disabled": False}
    if call.version >= microversions.FLAVOR_DESCRIPTION:
        shown["description"] = None
    if call.version >= microversions.FLAVOR_SPECS:
        shown["extra_specs"] = {}
    return shown
