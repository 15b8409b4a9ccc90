"""The web application: routes, and what every request passes on its way.

From the outside in: a request id and the log line's context; errors in the form of
the API's root; what is Nova's goes there; who is asking and whether they may; the microversion.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import cache
from http import HTTPStatus

import aiohttp
import structlog
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import PayloadEncodingError
from structlog.contextvars import bind_contextvars as bind

from host_agent.shared.contract.spans import Span, is_request_id
from host_agent.shared.platform.clocks import TIME_HEADER
from host_agent.shared.platform.text import is_showable, one_line
from ledger.agents.batches import AGENT_BATCHER, AgentBatcher
from ledger.auth.tls import certificate_of
from ledger.auth.tokens import NOBODY, Identity, RequestSender
from ledger.config import Role
from ledger.http import microversions
from ledger.http.call import READ_AFTER, WRITTEN, Call, answer, caught_up, refuse_unless
from ledger.http.components import COMPONENTS, HOLDS, Components, Holds, is_gone
from ledger.http.limits.bulkheads import BULKHEADS, Bulkheads
from ledger.http.limits.connections import CONNECTIONS, Connections, address_of, sender_of
from ledger.http.limits.reading import NoTurnError
from ledger.http.probes.health import METRICS_PAGE, READINESS, Readiness, metrics_page
from ledger.http.probes.metrics import METRICS, Metrics
from ledger.http.problem import BUSY, ApiError, Failure, as_nova, as_problem, explain
from ledger.http.route import Route, also_at, is_nova
from ledger.http.routes import ROUTES
from ledger.native.log.feed import FEED, Feed
from ledger.native.log.refusals import REFUSALS, Refusals, is_denied
from ledger.nova_beside.passing import BESIDE, PASSED, settle
from ledger.nova_beside.whose import answered

#: What reading a body raises if the client breaks off.
_BROKEN_OFF = (ConnectionError, aiohttp.ClientPayloadError, PayloadEncodingError)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: The most that aiohttp itself reads of a body; `Call` has the smaller bounds.
BODY_BYTES_MAX = 64 * 1024 * 1024

#: In metrics alone, as nginx counts it: the client was gone before there was an answer.
CLIENT_CLOSED_REQUEST = 499

#: Roles of those who are let in while it is too much.
_LET_IN = frozenset({Role.AGENT, Role.SERVICE})
#: Methods of requests that change nothing anyway.
_READING = frozenset({"GET", "HEAD", "OPTIONS"})

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
GLOBAL_ID: web.RequestKey[str] = web.RequestKey("global_request_id", str)
TRACEPARENT: web.RequestKey[str] = web.RequestKey("traceparent", str)
VERSION: web.RequestKey[tuple[int, int]] = web.RequestKey("version", tuple)
IDENTITY: web.RequestKey[Identity] = web.RequestKey("identity", Identity)

#: Below it are pages for people, whose errors are pages, too (ledger.web).
CONSOLE = "/ui/"
ERROR_PAGE: web.AppKey[Callable[[web.Request, Failure], web.Response]] = web.AppKey("error_page")

_log = structlog.get_logger(__name__)
_lines = logging.getLogger(__name__)


def make_app(components: Components) -> web.Application:
    """The application.  Closing it ends the requests that are held open."""
    app = web.Application(
        middlewares=[_identified, _explained, _passed_on, _authenticated, _negotiated],
        client_max_size=BODY_BYTES_MAX,
    )
    app[COMPONENTS] = components
    app[HOLDS] = Holds(components.settings.limits.streams_max)
    app[BULKHEADS] = Bulkheads()
    app[CONNECTIONS] = Connections(components.settings.limits)
    app[AGENT_BATCHER] = AgentBatcher(components, app[BULKHEADS].agents)
    app[READINESS] = Readiness(components)
    app[FEED] = Feed(components.queries)
    app[REFUSALS] = Refusals(components.queries)
    app[METRICS] = Metrics(components.registry)
    app[METRICS_PAGE] = metrics_page(app)
    add_routes(app, ROUTES)
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(app[HOLDS].close)
    app.on_cleanup.append(app[READINESS].close)
    app.cleanup_ctx.extend([app[BULKHEADS].open, app[HOLDS].open, app[AGENT_BATCHER].open])
    app.cleanup_ctx.append(app[REFUSALS].open)
    return app


def add_routes(app: web.Application, routes: tuple[Route, ...]) -> None:
    for resource in _resources(routes):
        app.router.register_resource(resource)


@cache
def _resources(routes: tuple[Route, ...]) -> tuple[web.AbstractResource, ...]:
    """Made once: aiohttp takes 10 ms for all of them, and tests make hundreds of applications.

    It wants a name once; a route of several paths gives it to the first.
    """
    router = web.UrlDispatcher()
    for route in routes:
        first = next(other for other in routes if other.name == route.name)
        name = route.name if first is route else None
        router.add_route(
            route.method, route.path, _handler(route), name=name, expect_handler=_expected
        )
    for route in routes:
        for path in also_at(route):
            router.add_route(route.method, path, _handler(route), expect_handler=_expected)
    return tuple(router.resources())


async def _expected(request: web.Request) -> None:
    """Go on with a body that waits for our word.  Any other expectation is unknown and ignored (RFC
    9110, 10.1.1): aiohttp would refuse it in plain text, as it does on a path that has no route.
    """
    if request.version >= HttpVersion11 and request.headers["Expect"].lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the answer is written yet


def _handler(route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        _refuse_another_project(request)
        call = Call(
            request=request,
            rules=route.rules,
            components=request.app[COMPONENTS],
            identity=request[IDENTITY],
            request_id=request[REQUEST_ID],
            version=request.get(VERSION, microversions.MIN),
            global_request_id=request.get(GLOBAL_ID),
            traceparent=request.get(TRACEPARENT),
        )
        if route.changes and not call.components.settings.read_only:
            call = await call.of_somebody()
        if READ_AFTER in request.headers:
            await call.read_after(request.headers[READ_AFTER])
        try:
            return await route.answer(call)
        except ApiError as error:
            missed = request.method == "GET" and error.status == HTTPStatus.NOT_FOUND
            if not (missed and await caught_up(call)):
                raise
        return await route.answer(call)

    handle.route = route  # type: ignore[attr-defined]
    return handle


def _refuse_another_project(request: web.Request) -> None:
    """Catalogs may have the project in the address; it is the token's, or a mistake."""
    given, own = request.match_info.get("project_id"), request[IDENTITY].actor.project_id
    if given is not None and given != own:
        raise ApiError(
            400,
            "malformed",
            f"Malformed request URL: URL's project_id '{given[:100]}' doesn't match Context's "
            f"project_id '{own}'",
        )


def _route_of(request: web.Request) -> Route | None:
    return getattr(request.match_info.handler, "route", None)


@web.middleware
async def _identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request; count and time it."""
    request[REQUEST_ID] = f"req-{uuid.uuid4()}"
    bind(request_id=request[REQUEST_ID])  # for as long as the request's own task lasts
    given = _global_id(request)
    if given is not None:
        request[GLOBAL_ID] = given
        bind(global_request_id=given)
    span = Span.parse(request.headers.get("traceparent"))
    if span is not None:
        request[TRACEPARENT] = span.header()
        bind(trace_id=span.trace_id)
    began = time.monotonic()
    response = await handler(request)
    took_s = time.monotonic() - began
    request.app[METRICS].requested(_shown_name(request), request.method, response.status, took_s)
    if _lines.isEnabledFor(logging.DEBUG):  # a line that is made to be dropped costs most
        _log.debug(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            took_ms=round(took_s * 1000),
        )
    return response


def _shown_name(request: web.Request) -> str:
    """What the request is counted as."""
    route = _route_of(request)
    return "passed_on" if PASSED in request else route.name if route else "unknown"


def _global_id(request: web.Request) -> str | None:
    """The id of the request that this one serves, as the service that passes it on says.

    OpenStack's services send it as X-OpenStack-Request-ID (oslo.middleware, request_id).
    """
    names = ("X-OpenStack-Global-Request-Id", "X-OpenStack-Request-ID")
    given = (request.headers.get(name, "") for name in names)
    return next(filter(is_request_id, given), None)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Headers of every answer, streams and errors included; what Nova answers is Nova's."""
    if PASSED in request:
        settle(response.headers, request[PASSED])
        return
    request_id = request.get(REQUEST_ID)
    if request_id is not None:
        response.headers["X-Openstack-Request-Id"] = request_id
        if is_nova(request.path):
            response.headers["X-Compute-Request-Id"] = request_id
    if GLOBAL_ID in request:
        response.headers["X-OpenStack-Global-Request-Id"] = request[GLOBAL_ID]
    if request.path.startswith("/v1/hosts/"):
        response.headers[TIME_HEADER] = f"{request.app[COMPONENTS].clock():.6f}"
    if WRITTEN in request:
        response.headers[READ_AFTER] = str(request[WRITTEN])
    if VERSION in request:
        response.headers.update(microversions.answer_headers(request[VERSION]))
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"


@web.middleware
async def _explained(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the form of the API's root; the unforeseen ones are logged, here alone."""
    try:
        _refuse_odd_bytes(request)
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - it is answered, and logged if it is ours
        if isinstance(error, _BROKEN_OFF) and is_gone(request):  # nobody reads an answer
            return web.Response(status=CLIENT_CLOSED_REQUEST)
        failure = explain(error, request[REQUEST_ID], request.get(IDENTITY))
        _note_refusal(request, failure)
        if failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR and failure.code not in BUSY:
            _log.error(
                "request_failed",
                method=request.method,
                path=request.path,
                status=failure.status,
                code=failure.code,
                exc_info=error if failure.status == HTTPStatus.INTERNAL_SERVER_ERROR else None,
            )
        return _error(request, failure)


def _note_refusal(request: web.Request, failure: Failure) -> None:
    """Keep for a while why somebody's request to change something was refused; and of what nobody
    may do, or who has proven nothing, a sample.
    """
    identity, route = request.get(IDENTITY, NOBODY), _route_of(request)
    refused = HTTPStatus.BAD_REQUEST <= failure.status < HTTPStatus.INTERNAL_SERVER_ERROR
    changes = identity is not NOBODY and request.method not in _READING
    kept = is_denied(failure) or (refused and changes)
    if not kept or request.app[COMPONENTS].settings.read_only:
        return
    transport = request.transport
    request.app[REFUSALS].note(
        identity.actor,
        failure,
        sampled_as=None if changes else _asker(identity, transport),
        request_id=request[REQUEST_ID],
        global_request_id=request.get(GLOBAL_ID),
        method=request.method,
        route=route.name if route else "unknown",
        **sender_of(request),
    )


def _asker(identity: Identity, transport: asyncio.Transport | None) -> str:
    """By whom refusals are counted: who has proven nothing, by the address."""
    if identity is NOBODY:
        return address_of(transport) if transport else ""
    return identity.actor.project_id or identity.actor.name


def _refuse_odd_bytes(request: web.Request) -> None:
    """Of a URL what cannot be shown, for answers repeat it; in a header bytes that are not ASCII
    (RFC 9110, 5.5).
    """
    url = request.rel_url
    if "%" in url.raw_path_qs and not (
        is_showable(url.query_string) and one_line(url.path) == url.path
    ):
        raise ApiError(400, "malformed", "The URL holds a control character or an invalid one.")
    for name, value in request.headers.items():
        if not (name.isascii() and value.isascii()):
            header = one_line(name)[:100]
            raise ApiError(400, "malformed", f"Header {header!r} holds bytes that are not ASCII.")


def _error(request: web.Request, failure: Failure) -> web.Response:
    if request.path.startswith(CONSOLE) and ERROR_PAGE in request.app:
        return request.app[ERROR_PAGE](request, failure)
    headers = dict(failure.headers)
    if is_nova(request.path):
        return answer(as_nova(failure), failure.status, headers)
    response = answer(as_problem(failure, request[REQUEST_ID]), failure.status, headers)
    response.content_type = "application/problem+json"
    return response


@web.middleware
async def _passed_on(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is Nova's goes there, if it came with a token that is not ours: that told it nothing."""
    nova = request.app[COMPONENTS].nova
    if nova is None or not is_nova(request.path) or not nova.takes(request):
        return await handler(request)
    request[BESIDE] = nova
    route = _route_of(request)
    return await answered(request, route.name if route else "", nova, handler)


@web.middleware
async def _authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who is asking, and whether this route is open to them."""
    route = _route_of(request)
    if route is not None and not route.rules:
        request[IDENTITY] = NOBODY
        return await handler(request)
    components = request.app[COMPONENTS]
    identity = await components.authenticator.authenticate(_asked(request))
    if route is not None:
        identity = identity.on(route.name)
    request[IDENTITY] = identity = components.policy.admitted(identity)
    connections = request.app[CONNECTIONS]
    if request.transport is not None:
        connections.known(request.transport, identity)
    if route is not None:
        refuse_unless(components.policy, identity, route.rules)
        _refuse_too_much(request.app, route, identity)
    bind(**_of_log(identity))
    connections.began(identity)
    try:
        return await handler(request)
    finally:
        connections.ended(identity)


def _refuse_too_much(app: web.Application, route: Route, identity: Identity) -> None:
    """A user's request, while those before it wait too long: nothing is read for it, nor begun.

    Agents, services and operators are let in.  Raises NoTurnError, ApiError 503 (decision 0112).
    """
    if identity.everywhere or not identity.roles.isdisjoint(_LET_IN):
        return
    if app[COMPONENTS].queries.turns.is_late(""):
        raise NoTurnError("others wait for a turn to read")
    if route.gives_way:
        app[BULKHEADS].cinder.refuse_late(identity.actor.project_id or identity.actor.name)


def _asked(request: web.Request) -> RequestSender:
    transport = request.transport
    return RequestSender(
        headers=request.headers,
        method=request.method,
        path=request.path,
        address=address_of(transport) if transport else "",
        certificate=certificate_of(transport) if transport else None,
    )


def _of_log(identity: Identity) -> dict[str, str]:
    """Who it is in lines of the log; Keystone's own log has the same `audit_id`."""
    vouched = identity.vouched
    vouchers = {"audit_id": vouched.audit_id, "service_user": vouched.service}
    return {"actor": identity.actor.name, **{name: each for name, each in vouchers.items() if each}}


@web.middleware
async def _negotiated(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path.startswith("/v2.1"):
        request[VERSION] = microversions.requested(request.headers)
    return await handler(request)
