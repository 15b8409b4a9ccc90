"""/v2.1/flavors: a flavor's id says its size, "c2.m2048" is 2 vCPUs and 2048 MiB.

Clients look a flavor up before they resize.  There is no list of them: every size is one.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ledger.api import microversions
from ledger.api.call import Call, answer
from ledger.api.problem import not_found
from ledger.api.server_state import size_of_flavor
from ledger.api.versions import base

Row = dict[str, Any]


async def flavors(call: Call) -> web.StreamResponse:
    """GET /flavors, and /flavors/detail: none, as there is no end of them."""
    del call
    return answer({"flavors": []})


async def flavor(call: Call) -> web.StreamResponse:
    """GET /flavors/{id}."""
    name = call.request.match_info["flavor_id"]
    size = size_of_flavor(name)
    if size is None:
        message = f"Flavor {name[:100]} could not be found. Sizes are asked for like c2.m2048."
        raise not_found("flavor_not_found", message)
    return answer({"flavor": _shown(call, name, *size)})


async def flavor_specs(call: Call) -> web.StreamResponse:
    """GET /flavors/{id}/os-extra_specs."""
    await flavor(call)
    return answer({"extra_specs": {}})


def _shown(call: Call, name: str, vcpus: int, memory_mb: int) -> Row:
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
