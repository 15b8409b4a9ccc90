"""A gate in front of Cinder, for all its clients: it can hold one kind of request.

Everything passes through unchanged.  A test may have requests held *before* Cinder gets them,
or *after* Cinder did what they ask and before the answer goes back; it then kills whoever
waits.  A held request whose sender is gone when the gate opens is dropped: held before, it
never happened; held after, nobody knows.

    PUT /_gate {"method": "POST", "path": "/attachments$", "when": "before"|"after"}
    GET /_gate -> {"held": 1}        DELETE /_gate: open the gate

Run with the lab's environment (env.sh).
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from aiohttp import web
from yarl import URL

CINDER = URL(os.environ["CINDER_ENDPOINT"]).origin()
ADDRESS, PORT = os.environ["LAB_ADDRESS"], int(os.environ["LAB_GATE_PORT"])
HOP_BY_HOP = {"connection", "keep-alive", "te", "transfer-encoding", "upgrade", "content-length"}
BODY_MAX_BYTES = 16 * 1024 * 1024


@dataclass
class Hold:
    """What is held; `opened` lets it go."""

    method: str
    path: re.Pattern[str]
    when: str
    held: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, request: web.Request, when: str) -> None:
        if when != self.when or request.method != self.method:
            return
        if not self.path.search(request.path):
            return
        self.held += 1
        await self.opened.wait()
        self.held -= 1


class Gate:
    """The proxy and its one hold."""

    def __init__(self) -> None:
        self._hold: Hold | None = None
        self._session: aiohttp.ClientSession | None = None

    async def connect(self, app: web.Application) -> None:
        # As many connections as callers; none is kept, so a restarted Cinder is no surprise.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    async def disconnect(self, app: web.Application) -> None:
        assert self._session is not None
        await self._session.close()

    async def forward(self, request: web.Request) -> web.Response:
        hold = self._hold
        body = await request.read()
        if hold:
            await hold.pause(request, "before")
        if request.transport is None or request.transport.is_closing():
            return web.Response()
        answer = await self._ask(request, body)
        if hold:
            await hold.pause(request, "after")
        return answer

    async def _ask(self, request: web.Request, body: bytes) -> web.Response:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        url = CINDER.join(request.rel_url)
        try:
            async with self._session.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
        except aiohttp.ClientConnectionError:
            return web.Response(status=HTTPStatus.BAD_GATEWAY)

    async def hold(self, request: web.Request) -> web.Response:
        rule = await request.json()
        self._open()
        self._hold = Hold(rule["method"], re.compile(rule["path"]), rule["when"])
        return web.Response()

    async def state(self, request: web.Request) -> web.Response:
        return web.json_response({"held": self._hold.held if self._hold else 0})

    async def release(self, request: web.Request) -> web.Response:
        self._open()
        return web.Response()

    def _open(self) -> None:
        if self._hold:
            self._hold.opened.set()
        self._hold = None


def main() -> None:
    gate = Gate()
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    app.on_startup.append(gate.connect)
    app.on_cleanup.append(gate.disconnect)
    app.add_routes(
        [
            web.put("/_gate", gate.hold),
            web.get("/_gate", gate.state),
            web.delete("/_gate", gate.release),
            web.route("*", "/{path:.*}", gate.forward),
        ]
    )
    web.run_app(app, host=ADDRESS, port=PORT, print=lambda *_: None)


if __name__ == "__main__":
    main()
