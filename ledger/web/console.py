"""Serves the console: its pages, its files, and what is done in it.

Every page is whole without a script; with it some of them keep themselves new (ledger.web.live).
A browser is shown to be somebody by a session (ledger.web.sessions), whose token takes the place of
X-Auth-Token; from there on a page is a request like others, and passes what they pass
(ledger.http.app).
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import orjson
from aiohttp import hdrs, web

from ledger.http.app import CONSOLE, ERROR_PAGE, add_routes
from ledger.http.call import Call, refuse_unknowable
from ledger.http.problem import ApiError
from ledger.http.route import Route
from ledger.web import acting, drawn, live, login, texts
from ledger.web.browser import SESSIONS, as_session, gone_to, over_tls, wants_stream
from ledger.web.pages import AS_OF, PAGES, TIME, Page
from ledger.web.reads import BY_NAME, answer_of, read_all
from ledger.web.rendering import error_page, moving_part, rendered
from ledger.web.search import meant, search
from ledger.web.sessions import Sessions

#: What a page may use: its own style, pictures and script, and nothing of anybody else's.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Referrer-Policy": "same-origin",  # with none, browsers send our own forms with Origin: null
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
}
#: How long a browser asks this host by https alone (RFC 6797), from each page on.  It holds for all
#: ports of the host, and other programs of a cloud may be there without TLS: so not for months.
HTTPS_ALONE_S = 86_400
#: Of files, how long a browser may keep them.
FILES_S = 300
_TYPES = {
    "css": "text/css",
    "svg": "image/svg+xml",
    "js": "text/javascript",
    "LICENSE": "text/plain",
}

#: What of a time line is shown, as reads call it (ledger.web.pages).
_ENDS = ("since", "until")

#: Of the policy; what a page shows is under the rules of the routes that it reads, besides.
_RULES = ("attachment-ledger:console:pages",)


def with_console(app: web.Application) -> web.Application:
    """The application with the pages; before it serves."""
    app[SESSIONS] = Sessions()
    app[login.LOGINS] = login.logins()
    app[live.TOGETHER] = live.Together()
    app[ERROR_PAGE] = error_page
    app.middlewares.insert(1, as_session)  # within what names the request
    app.on_response_prepare.append(_add_headers)
    add_routes(app, ROUTES)
    return app


def _route_of(page: Page) -> Route:
    async def handle(call: Call) -> web.StreamResponse:
        return await _page(call, page)

    return Route(
        name="console",
        method="GET",
        path=page.path,
        handler=handle,
        answers={200: "text/html"},
        rules=_RULES,
    )


async def _page(call: Call, page: Page) -> web.StreamResponse:
    """One of the pages' table; what moves of it, for who asks for that."""
    given = call.request.query
    for name in given:
        if name not in page.given.union(AS_OF):
            raise ApiError(400, "invalid", f"This page has no parameter {name[:100]!r}.")
    at = texts.as_moment(given.get("at"))
    span = [texts.as_moment(given.get(name)) for name in TIME]
    known_at = texts.as_moment(given.get("known_at")) if at else None
    await refuse_unknowable(call, at, known_at)
    then = zip(AS_OF, (at, known_at), strict=True)
    asked = await meant(call, given)
    asked |= {name: each.isoformat() if each else "" for name, each in then}

    async def read() -> dict[str, Any]:
        now = datetime.fromtimestamp(call.components.clock(), UTC)
        part = drawn.part(span, page.line, at, now)
        ends = {name: end.isoformat() if end else "" for name, end in zip(_ENDS, part, strict=True)}
        answers = await read_all(call, page.reads, asked, ends)
        named = dict(call.request.match_info)
        context = {**named, **answers, "named": named, "query": dict(given), "span": part}
        # What is past is not acted on.
        return context | {"acts": () if at else acting.offered(call, page, answers)}

    async def moved() -> str:
        return moving_part(call, page, await read())

    moves = page.moves > 0 and at is None
    if moves and wants_stream(call.request):
        return await live.stream(call, moved, page.moves)
    shown = await read() | {"here": call.request.path_qs if moves else None}
    return rendered(call, page.template, shown, page=page, at=at)


# ---------------------------------------------------------------------------- answers


async def home(_: Call) -> web.StreamResponse:
    """GET /ui."""
    return gone_to(CONSOLE)


async def file(call: Call) -> web.StreamResponse:
    """GET /ui/files/{name}."""
    name = call.request.match_info["name"]
    content = files().get(name)
    if content is None:
        raise ApiError(404, "not_found", "There is no such file.")
    return web.Response(
        body=content,
        content_type=_TYPES[name.rpartition(".")[2]],
        headers={hdrs.CACHE_CONTROL: f"public, max-age={FILES_S}"},
    )


async def checkpoint(call: Call) -> web.StreamResponse:
    """GET /ui/log/checkpoint: a file as `event checkpoint` writes it, to be kept elsewhere."""
    found = await answer_of(call, "event_checkpoint", {})
    name = f"checkpoint-{found['position']}.json"
    return web.Response(
        body=orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        content_type="application/json",
        headers={hdrs.CONTENT_DISPOSITION: f'attachment; filename="{name}"'},
    )


@functools.cache
def files() -> dict[str, bytes]:
    """By name: ours, and those of others (static/vendor), which are as they were published."""
    here = resources.files("ledger.web") / "static"
    both = (*here.iterdir(), *(here / "vendor").iterdir())
    return {each.name: each.read_bytes() for each in both if each.is_file()}


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith("/ui"):
        response.headers.update(HEADERS)
        if over_tls(request):
            response.headers[hdrs.STRICT_TRANSPORT_SECURITY] = f"max-age={HTTPS_ALONE_S}"


def _route(name: str, path: str, handler: Any, answers: dict[int, Any], **more: Any) -> Route:
    given = {"rules": (), **more}
    return Route(name=name, method="GET", path=path, handler=handler, answers=answers, **given)


ROUTES = (
    *map(_route_of, PAGES),
    *acting.ROUTES,
    _route("console_home", "/ui", home, {303: None}),
    *login.ROUTES,
    _route("console_file", "/ui/files/{name}", file, {200: "text/css"}),
    _route(
        "console_checkpoint",
        "/ui/log/checkpoint",
        checkpoint,
        {200: "application/json"},
        rules=BY_NAME["event_checkpoint"].rules,
    ),
    _route("console", "/ui/search", search, {200: "text/html"}, rules=_RULES),
)
