"""As much of Neutron as Nova asks of it for servers without networks: lists, all of them empty;
and a quota without a limit.

`neutron.py PORT`, at the loopback.
"""

from __future__ import annotations

import sys

from aiohttp import web


async def answer(request: web.Request) -> web.Response:
    match [part for part in request.path.split("/") if part]:
        case []:
            here = {"rel": "self", "href": str(request.url.with_path("/v2.0/"))}
            versions = [{"id": "v2.0", "status": "CURRENT", "links": [here]}]
            return web.json_response({"versions": versions})
        case ["v2.0"]:
            return web.json_response({"resources": []})
        case ["v2.0", name]:
            return web.json_response({name.replace("-", "_"): []})
        case ["v2.0", "quotas", _]:  # if a request for a server does not say "no network"
            return web.json_response({"quota": {"port": -1}})
    missing = {"type": "NotFound", "message": request.path, "detail": ""}
    return web.json_response({"NeutronError": missing}, status=404)


if __name__ == "__main__":
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
