"""Discovery: what clients and keystoneauth ask before anything else."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from aiohttp import hdrs, web

from ledger.http import microversions
from ledger.http.call import Call, answer

_UPDATED = "2013-07-23T11:33:21Z"  # v2.1 of Nova's form; clients compare nothing else
_UPDATED_2 = "2011-01-21T11:33:21Z"


NAME = "attachment-ledger"


@cache
def _program() -> str:
    """The version of this program, which is not that of an API."""
    return importlib.metadata.version(NAME)


async def versions(call: Call) -> web.StreamResponse:
    """GET /: the list of versions; and which version this program is, in a header, for the body is
    Nova's and may have nothing else.
    """
    listed = {"versions": [_version_2(call), await _version(call)]}
    return answer(listed, headers={hdrs.SERVER: f"{NAME}/{_program()}"})


async def version(call: Call) -> web.StreamResponse:
    """GET /v2.1: the one version; GET /v2: the same without microversions."""
    old = not call.request.path.startswith("/v2.1")
    described = _version_2(call) if old else await _version(call)
    kind = {
        "base": "application/json",
        "type": f"application/vnd.openstack.compute+json;version={'2' if old else '2.1'}",
    }
    return answer({"version": {**described, "media-types": [kind]}})


async def _version(call: Call) -> dict[str, Any]:
    """Its newest is what a Nova beside us knows, too: one endpoint, one number."""
    nova = call.components.nova
    novas = None if nova is None else await nova.newest()
    newest = min(microversions.MAX, novas or microversions.MAX)
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": microversions.shown(newest),
        "min_version": microversions.shown(microversions.MIN),
        "updated": _UPDATED,
        "links": [{"rel": "self", "href": f"{base(call)}/v2.1/"}],
    }


def _version_2(call: Call) -> dict[str, Any]:
    """/v2: what 2.1 is, for clients that know no microversions."""
    return {
        "id": "v2.0",
        "status": "SUPPORTED",
        "version": "",
        "min_version": "",
        "updated": _UPDATED_2,
        "links": [{"rel": "self", "href": f"{base(call)}/v2/"}],
    }


def base(call: Call) -> str:
    """The address the caller knows this service by; of a proxy's headers nothing is believed."""
    public_url = call.components.settings.listen.public_url.rstrip("/")
    return public_url or f"{call.request.scheme}://{call.request.host}"
