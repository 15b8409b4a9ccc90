"""A simulated Cinder: the HTTP server in front of the state machine.

The unmodified python-cinderclient, openstacksdk and `openstack` talk to it: version
documents, microversion headers, URLs with and without a project, Cinder's error
shapes.  As with Cinder's own noauth, the token "user:project" names the caller, every
user is an administrator, and the header `X-Service-Roles: service` marks a service.
Faults (docs/faults.md) apply to each call, named as in `handlers.ROUTES`.

One event loop serves it; a handler holds the model's lock only while it changes the
model, never while it waits.  With a `store` the model is on disk before the answer
is sent, so a crash loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from aiohttp import web

from host_agent.shared.cinder.answers import FAULT_NAMES
from host_agent.shared.faults import Fault, Faults, InjectedError
from ledger.trial.cinder import views
from ledger.trial.cinder.admin import SimulationControl
from ledger.trial.cinder.call import CinderCall, Handler
from ledger.trial.cinder.compute import ComputeCheck
from ledger.trial.cinder.handlers import ROUTES
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import CinderFault
from ledger.trial.cinder.store import CinderStore

BODY_BYTES_MAX = 1_000_000
HOLD_S = 600.0  # how long a `timeout` fault keeps the caller waiting at most
DEFAULT_PORT = 8776

#: Calls whose answer has no content: a `lie` answers success without doing them.
_LIES = frozenset({"attachment_complete", "attachment_delete", "volume_delete"})

#: What the rows of a list are called in its answer.
_ROWS = {f"{row}_list": f"{row}s" for row in ("attachment", "volume", "snapshot", "backup")}


@dataclass(kw_only=True)
class CinderServer:
    """The state that the handlers share."""

    model: CinderModel
    faults: Faults = field(default_factory=Faults)
    compute: ComputeCheck = field(default_factory=ComputeCheck)
    store: CinderStore | None = None
    max_version: views.Microversion = views.MAX_VERSION
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def answer(self, request: web.Request, call: str, handler: Handler) -> web.Response:
        """Run a handler under the faults; errors become Cinder's error shape."""
        version = views.MIN_VERSION
        try:
            header = request.headers.get("OpenStack-API-Version")
            version = views.parse_version(header, self.max_version)
            asked = await self._call(request, version)
            response = await self._perform(call, handler, asked)
        except CinderFault as refused:
            response = error_response(refused.status, refused.message)
        except InjectedError as injected:
            if injected.fault.is_timeout:
                await self._hold(request)
            response = error_response(injected.fault.status, _about(request, injected.fault))
        response.headers["OpenStack-API-Version"] = f"volume {views.version_text(version)}"
        response.headers["Vary"] = "OpenStack-API-Version"
        response.headers["x-openstack-request-id"] = f"req-{self.model.new_id()}"
        return response

    async def _perform(self, call: str, handler: Handler, asked: CinderCall) -> web.Response:
        ids = _ids(self.model, asked)
        with self.model.lock:
            self.model.remembers = self.faults.looks_back
            self.model.note_call(call, **ids)
        async with self.faults.around_async(call, **ids) as fault:
            if fault is not None and fault.lies and call in _LIES:
                return web.json_response({}, status=HTTPStatus.ACCEPTED)
            if fault is not None and fault.changes_ago:
                asked = replace(asked, model=self.model.as_of(fault.changes_ago))
            response = await handler(asked)
            if fault is not None and fault.do in {"cut", "reorder"}:
                return _shown(response, _ROWS[call], fault)
            if self.store is not None and asked.request.method != "GET":
                self.store.save(self.model)
        return response

    async def _call(self, request: web.Request, version: views.Microversion) -> CinderCall:
        user, _, project = request.headers.get("X-Auth-Token", "").partition(":")
        in_path = request.match_info.get("project")
        if in_path is not None and in_path != (project or user):
            raise CinderFault(400, "Malformed request url")
        body: Any = {}
        if request.can_read_body:
            try:
                body = await request.json()
            except ValueError:
                raise CinderFault(400, "Malformed request body") from None
        return CinderCall(
            model=self.model,
            compute=self.compute,
            request=request,
            version=version,
            user=user,
            project=project or user,
            body=body if isinstance(body, dict) else {},
            later=self._later,
        )

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background, and save the model after it."""

        async def run() -> None:
            await work
            if self.store is not None:
                self.store.save(self.model)

        task = asyncio.create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        self.closing.set()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.compute.close()

    async def _hold(self, request: web.Request) -> None:
        """Never answer: wait for the caller to give up, the server to end, or HOLD_S."""
        for _ in range(int(HOLD_S / 0.05)):
            if self.closing.is_set() or request.transport is None:
                break
            await asyncio.sleep(0.05)  # aiohttp has no event for a caller that went away
        if request.transport is not None:
            request.transport.abort()


def _shown(response: web.Response, name: str, fault: Fault) -> web.Response:
    """A list without links to what follows."""
    return web.json_response({name: fault.shown(json.loads(response.text or "")[name])})


def _about(request: web.Request, fault: Fault) -> str:
    """The message of a 404 names what was not found, as Cinder's does."""
    named = any(id_ in fault.message for id_ in request.match_info.values())
    missing = fault.status == HTTPStatus.NOT_FOUND and not named
    return f"{fault.message} ({request.path})" if missing else fault.message


def _ids(model: CinderModel, asked: CinderCall) -> dict[str, str | None]:
    """The ids that a fault rule may match: those known before the call."""
    match = asked.request.match_info
    row = model.attachments.get(match.get("attachment_id", ""))
    inner = asked.body.get("attachment")
    inner = inner if isinstance(inner, dict) else {}
    query = asked.request.query
    server = row.instance if row else inner.get("instance_uuid") or query.get("instance_id")
    volume = row.volume_id if row else inner.get("volume_uuid") or query.get("volume_id")
    return {
        "volume_id": match.get("volume_id") or (str(volume) if volume else None),
        "attachment_id": match.get("attachment_id"),
        "server_id": str(server) if server else None,
        "action": next(iter(asked.body), None) if match.get("volume_id") else None,
    }


def error_response(status: int, message: str) -> web.Response:
    """Cinder's error shape."""
    name = FAULT_NAMES.get(status, "computeFault")
    return web.json_response({name: {"code": status, "message": message}}, status=status)


SERVER: web.AppKey[CinderServer] = web.AppKey("cinder", CinderServer)


def _bind(call: str, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        return await request.app[SERVER].answer(request, call, handler)

    return respond


async def _versions(request: web.Request) -> web.Response:
    server = request.app[SERVER]
    document = views.versions(f"{request.scheme}://{request.host}", server.max_version)
    root = request.path == "/"
    return web.json_response(
        document, status=HTTPStatus.MULTIPLE_CHOICES if root else HTTPStatus.OK
    )


def make_app(
    model: CinderModel,
    *,
    faults: Faults | None = None,
    compute: ComputeCheck | None = None,
    store: CinderStore | None = None,
    max_version: views.Microversion = views.MAX_VERSION,
) -> web.Application:
    """The application: Cinder's API under /v3, the simulation's own under /sim."""
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app[SERVER] = server = CinderServer(
        model=model,
        faults=faults or Faults(),
        compute=compute or ComputeCheck(),
        store=store,
        max_version=max_version,
    )
    for path in ("/", "/v3", "/v3/"):
        app.router.add_get(path, _versions)
    optional = max_version >= views.PROJECT_OPTIONAL
    for prefix in ("/v3", "/v3/{project}") if optional else ("/v3/{project}",):
        for method, path, call, handler in ROUTES:
            app.router.add_route(method, prefix + path, _bind(call, handler))
    app.add_routes(SimulationControl(server.model, server.faults, server.store).routes())

    async def close(_app: web.Application) -> None:
        await server.close()

    app.on_shutdown.append(close)
    return app


async def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    app: web.Application,
    ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set (for ever without); `ready` is called with the base URL.

    Port 0 takes a free one.  Raises OSError if the address is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0][1]
        if ready is not None:
            ready(f"http://{host}:{bound}")
        await (stop or asyncio.Event()).wait()
    finally:
        await runner.cleanup()
