"""What a server has beside its volumes, as it is read: metadata, tags, addresses; limits.

How metadata and tags are changed: `ledger.nova.servers.edits`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from aiohttp import web

from handlers.requests.edits import METADATA_MAX
from ledger.http import microversions
from ledger.http.call import Call, answer
from ledger.http.problem import not_found
from ledger.native.server_row import server_row
from ledger.nova.servers.servers import metadata_of

UNLIMITED = -1

Row = dict[str, Any]

#: The extensions of Nova's old API that are served, by alias (a name of the catalogue of 2.1).
EXTENSIONS = {
    "os-availability-zone": "AvailabilityZone",
    "os-extended-volumes": "ExtendedVolumes",
    "os-hypervisors": "Hypervisors",
    "os-instance-actions": "InstanceActions",
    "os-migrations": "Migrations",
    "os-services": "Services",
    "os-volumes": "Volumes",
}


async def metadata(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/metadata."""
    return answer({"metadata": metadata_of(call, await server_row(call))})


async def metadata_item(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/metadata/{key}."""
    key = call.request.match_info["key"]
    found = metadata_of(call, await server_row(call))
    if key not in found:
        raise not_found("no_metadata", "Metadata item was not found")
    return answer({"meta": {key: found[key]}})


async def addresses(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/ips: none."""
    await server_row(call)
    return answer({"addresses": {}})


async def tags(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/tags (2.26)."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    return answer({"tags": (await server_row(call))["tags"]})


async def tag(call: Call) -> web.StreamResponse:
    """GET /servers/{id}/tags/{tag} (2.26): whether it has it."""
    microversions.refuse_before(call.version, microversions.SERVER_TAGS)
    row, wanted = await server_row(call), call.request.match_info["tag"]
    if wanted not in row["tags"]:
        text = f"Server {row['server_id']} has no tag '{wanted[:100]}'"
        raise not_found("no_tag", text)
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def limits(call: Call) -> web.StreamResponse:
    """GET /limits: there are no quotas here, and nothing of what is not here."""
    project = call.request.query.get("tenant_id") or call.identity.actor.project_id or ""
    used = await call.components.queries.used(project)
    absolute: Row = {
        "maxTotalInstances": UNLIMITED,
        "maxTotalCores": UNLIMITED,
        "maxTotalRAMSize": UNLIMITED,
        "maxServerMeta": METADATA_MAX,
        "maxTotalKeypairs": 0,
        "maxServerGroups": 0,
        "maxServerGroupMembers": 0,
        "totalInstancesUsed": used["servers"],
        "totalCoresUsed": used["vcpus"],
        "totalRAMUsed": used["memory_mb"],
        "totalServerGroupsUsed": 0,
    }
    for names, until in _GONE.items():
        if call.version < until:
            absolute |= dict.fromkeys(names, 0)
    return answer({"limits": {"rate": [], "absolute": absolute}})


#: Limits of what is not here, and the versions from which on nobody is told of them.
_GONE: dict[tuple[str, ...], microversions.Version] = {
    (
        "maxTotalFloatingIps",
        "maxSecurityGroups",
        "maxSecurityGroupRules",
        "totalFloatingIpsUsed",
        "totalSecurityGroupsUsed",
    ): (2, 36),
    ("maxImageMeta",): (2, 39),
    ("maxPersonality", "maxPersonalitySize"): (2, 57),
}


async def extensions(call: Call) -> web.StreamResponse:
    """GET /extensions."""
    del call
    return answer({"extensions": [_extension(alias) for alias in EXTENSIONS]})


async def extension(call: Call) -> web.StreamResponse:
    """GET /extensions/{alias}."""
    alias = call.request.match_info["alias"]
    if alias not in EXTENSIONS:
        raise not_found("no_extension", f"There is no extension {alias[:100]} here.")
    return answer({"extension": _extension(alias)})


def _extension(alias: str) -> Row:
    return {
        "alias": alias,
        "name": EXTENSIONS[alias],
        "description": "",
        "links": [],
        "namespace": "http://docs.openstack.org/compute/ext/fake_xml",  # as Nova has it
        "updated": "2014-12-03T00:00:00Z",
    }
