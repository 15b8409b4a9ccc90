"""/v2.1/flavors: those of the settings, and ids that say a size (`ledger.words.sizes`).

Of these every size is one, so there is no end of them; listed are those that the servers have whom
the caller may see.  Clients look a flavor up by its id before they resize.  A server keeps its size
and no flavor: it is shown with the first of the settings' flavors that is of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from aiohttp import web

from ledger.config import MEMORY_MB_MAX, MEMORY_MB_MIN, VCPUS_MAX, Flavor
from ledger.http import microversions
from ledger.http.call import Call, answer
from ledger.http.paging import next_page, nova_limit, page_of
from ledger.http.parameters import boolean, invalid
from ledger.http.problem import ApiError, not_found
from ledger.http.versions import base
from ledger.words.sizes import Size, flavor_id, size_named

Row = dict[str, Any]
#: Of the settings.
Known = tuple[Flavor, ...]


class ListedFlavor(NamedTuple):
    """A flavor as it is listed."""

    id: str
    name: str
    vcpus: int
    memory_mb: int


_DIGITS_MAX = 9
_BRIEF = ("id", "name", "links", "description")
_NONE = "Flavor {} could not be found. A flavor is named by its size, such as c2.m2048."
_SORTED_BY: dict[str, Callable[[ListedFlavor], Any]] = {
    "flavorid": lambda flavor: flavor.id,
    "id": lambda flavor: flavor.id,
    "name": lambda flavor: flavor.name,
    "vcpus": lambda flavor: (flavor.vcpus, flavor.memory_mb, flavor.id),
    "memory_mb": lambda flavor: (flavor.memory_mb, flavor.vcpus, flavor.id),
}


def size_of(known: Known, reference: str) -> Size | None:
    """The size of the flavor with this id; None if there is none."""
    return next((each.size for each in known if each.key == reference), None) or size_named(
        reference
    )


def named(known: Known, size: Size) -> tuple[str, str]:
    """Id and name of the flavor of this size: the settings' first, else the one that says it."""
    id_ = flavor_id(*size)
    return next(((each.key, each.name) for each in known if each.size == size), (id_, id_))


async def flavors(call: Call) -> web.StreamResponse:
    """GET /flavors: the sizes that are in use."""
    return await _flavors(call, detail=False)


async def flavors_detail(call: Call) -> web.StreamResponse:
    """GET /flavors/detail."""
    return await _flavors(call, detail=True)


async def _flavors(call: Call, *, detail: bool) -> web.StreamResponse:
    limit = nova_limit(call)
    found = _after_marker(call, _wanted(call, await _listed(call)))
    found, more = page_of(found, limit)
    page = [_shown(call, flavor) for flavor in found]
    if not detail:
        page = [{key: each[key] for key in _BRIEF if key in each} for each in page]
    listed: Row = {"flavors": page}
    if more:
        listed["flavors_links"] = next_page(call, page[-1]["id"])
    return answer(listed)


async def _listed(call: Call) -> list[ListedFlavor]:
    """Those of the settings, and of the sizes that are in use those that these do not name."""
    known = call.components.settings.flavors
    used = await call.components.queries.sizes(call.identity.project_scope)
    in_use = [ListedFlavor(*named(known, size), *size) for size in used]
    return list(
        dict.fromkeys([ListedFlavor(each.key, each.name, *each.size) for each in known] + in_use)
    )


def _wanted(call: Call, listed: list[ListedFlavor]) -> list[ListedFlavor]:
    """Those that fit, in order.  Raises ApiError 400."""
    query = call.request.query
    public = query.get("is_public", "none").lower()
    if public != "none" and not boolean("is_public", public):
        return []
    least = {name: _megabytes(name, query.get(name, "0")) for name in ("minRam", "minDisk")}
    key, direction = query.get("sort_key", "flavorid"), query.get("sort_dir", "asc")
    if key not in _SORTED_BY or direction not in {"asc", "desc"}:
        raise invalid("sort_key", f"{key} {direction}", "Flavors cannot be sorted by this key.")
    fit = [
        flavor
        for flavor in listed
        if flavor.memory_mb >= least["minRam"]
        and not least["minDisk"]
        and query.get("name", flavor.name) == flavor.name
    ]
    return sorted(fit, key=_SORTED_BY[key], reverse=direction == "desc")


def _megabytes(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ApiError(400, "invalid", f"Invalid {name} filter [{text[:100]}]")


def _after_marker(call: Call, flavors: list[ListedFlavor]) -> list[ListedFlavor]:
    marker = call.request.query.get("marker")
    if marker is None:
        return flavors
    ids = [flavor.id for flavor in flavors]
    if marker not in ids:
        raise ApiError(400, "marker_not_found", f"marker [{marker[:100]}] not found")
    return flavors[ids.index(marker) + 1 :]


def size_wanted(known: Known, reference: str | int) -> Size:
    """The size of a server to be, by a flavor's id, or an address that ends so.  ApiError 400."""
    name = str(reference).rstrip("/").rpartition("/")[2]
    size = size_of(known, name)
    if size is None:
        raise ApiError(400, "no_flavor", _NONE.format(name[:100]))
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
    key = call.request.match_info["flavor_id"]
    known = call.components.settings.flavors
    size = size_of(known, key)
    if size is None:
        raise not_found("flavor_not_found", _NONE.format(key[:100]))
    name = next((each.name for each in known if each.key == key), key)
    return answer({"flavor": _shown(call, ListedFlavor(key, name, *size))})


async def flavor_specs(call: Call) -> web.StreamResponse:
    """GET /flavors/{id}/os-extra_specs."""
    await flavor(call)
    return answer({"extra_specs": {}})


def _shown(call: Call, flavor: ListedFlavor) -> Row:
    path = f"flavors/{quote(flavor.id)}"
    shown: Row = {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
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
