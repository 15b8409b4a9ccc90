"""Identity stand-in: a token for Cinder, the admin and everyone else; and the catalog.

Cinder's [nova] section and the openstack CLI authenticate with keystoneauth and
look endpoints up in the catalog.  This answers both: POST /v3/auth/tokens gives
the lab's token whatever the credentials are, and two users their own.  Nobody
validates tokens here: Cinder runs with noauth, the ledger knows them from its
configuration.

Settings come from the environment, see env.sh.
"""

from __future__ import annotations

import os
from typing import Any

from aiohttp import web

ENV = os.environ
PROJECT, USER = ENV["LAB_PROJECT"], ENV["LAB_USER"]
TOKENS = {"cinder": ENV["LAB_CINDER_TOKEN"], "admin": ENV["LAB_OPERATOR_TOKEN"]}
BASE = f"http://127.0.0.1:{ENV['LAB_IDENTITY_PORT']}/v3"
ENDPOINTS = {
    "identity": BASE,
    "compute": f"{ENV['LAB_LEDGER_URL']}/v2.1",
    "block-storage": f"{ENV['LAB_GATE_URL']}/v3/{PROJECT}",
}
DOMAIN = {"id": "default", "name": "Default"}


def service(kind: str, url: str) -> dict[str, Any]:
    endpoints = [
        {"id": side, "interface": side, "region": "RegionOne", "region_id": "RegionOne", "url": url}
        for side in ("public", "internal", "admin")
    ]
    return {"type": kind, "name": kind, "id": kind, "endpoints": endpoints}


async def issue(request: web.Request) -> web.Response:
    asked = (await request.json())["auth"]["identity"]
    name = asked.get("password", {}).get("user", {}).get("name")
    token = {
        "methods": ["password"],
        "issued_at": "2020-01-01T00:00:00.000000Z",
        "expires_at": "2099-01-01T00:00:00.000000Z",
        "roles": [{"id": name, "name": name} for name in ("member", "reader")],
        "user": {"id": USER, "name": "lab", "domain": DOMAIN},
        "project": {"id": PROJECT, "name": "lab", "domain": DOMAIN},
        "catalog": [service(kind, url) for kind, url in ENDPOINTS.items()],
    }
    headers = {"X-Subject-Token": TOKENS.get(name, ENV["LAB_TOKEN"])}
    return web.json_response({"token": token}, status=201, headers=headers)


async def version(request: web.Request) -> web.Response:
    links = [{"rel": "self", "href": BASE}]
    return web.json_response({"version": {"id": "v3.14", "status": "stable", "links": links}})


def main() -> None:
    app = web.Application()
    app.add_routes([web.get("/v3", version), web.get("/v3/", version)])
    app.add_routes([web.post("/v3/auth/tokens", issue)])
    port = int(ENV["LAB_IDENTITY_PORT"])
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: None)


if __name__ == "__main__":
    main()
