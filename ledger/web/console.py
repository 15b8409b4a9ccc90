"""Serves the console: its pages, its files, logging in and out.

Every page is whole without a script, and there is none.  A browser is shown to be somebody by a
session (ledger.web.sessions), whose token takes the place of X-Auth-Token; from there on a page
is a request like others, and passes what they pass (ledger.api.app).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import urlencode, urlsplit

import structlog
from aiohttp import hdrs, web
from jinja2 import Environment, PackageLoader, StrictUndefined

from ledger.api.app import CONSOLE, ERROR_PAGE, add_routes
from ledger.api.call import Call, canonical
from ledger.api.components import COMPONENTS, Components
from ledger.api.connections import address_of
from ledger.api.problem import ApiError, Failure, explain
from ledger.api.route import Route
from ledger.auth.tokens import Asked, AuthError
from ledger.config import AuthMode
from ledger.web import drawn, texts
from ledger.web.pages import PAGES, Page
from ledger.web.reads import answer_of, read_all
from ledger.web.sessions import AGE_S, Sessions

#: What a page may use: its own style and pictures, and nothing of anybody else's.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Referrer-Policy": "same-origin",  # with none, browsers send our own forms with Origin: null
}
#: A form has a token, and where to go on; a token of ours or Keystone's is much shorter.
FORM_BYTES_MAX = 16 * 1024
#: Of files, how long a browser may keep them.
FILES_S = 300
_TYPES = {"css": "text/css", "svg": "image/svg+xml"}
#: What a search may find, in this order: a page, and the route that says whether there is any.
FOUND = (
    ("operation", "operation", "operation_id"),
    ("server", "server_history", "server_id"),
    ("attachment", "attachment", "attachment_id"),
    ("finding", "drift_finding", "finding_id"),
    ("volume", "volume_history", "volume_id"),
)

#: Of the policy; what a page shows is under the rules of the routes that it reads, besides.
_RULES = ("attachment-ledger:console:pages",)

SESSIONS: web.AppKey[Sessions] = web.AppKey("sessions", Sessions)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _At:
    """What links of a page carry on: the moment that it is as of."""

    at: str | None

    def url(self, path: str, **query: Any) -> str:
        """A link with what is asked for, and the moment."""
        asked = {"at": self.at, **query}
        asked = {name: value for name, value in asked.items() if value not in {None, ""}}
        return f"{path}?{urlencode(asked)}" if asked else path


def with_console(app: web.Application) -> web.Application:
    """The application with the pages; before it serves."""
    app[SESSIONS] = Sessions()
    app[ERROR_PAGE] = _error_page
    app.middlewares.insert(1, _as_session)  # within what names the request
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
    """One of the pages' table."""
    given = call.request.query
    for name in given:
        if name not in page.given | {"at"}:
            raise ApiError(400, "invalid", f"This page has no parameter {name[:100]!r}.")
    at = texts.as_moment(given.get("at"))
    asked = {**given, "at": at.isoformat() if at else ""}
    told = {**call.request.match_info, **await read_all(call, page, asked), "query": dict(given)}
    return _rendered(call, page.template, told, page=page, at=at)


async def search(call: Call) -> web.StreamResponse:
    """GET /ui/search: to what it names, if that exists for the caller."""
    text = call.request.query.get("q", "").strip()
    known = canonical(text)
    found = await (_by_id(call, known) if known else _by_name(call, text))
    if len(found) == 1:
        return _gone_to(found[0][1])
    return _rendered(call, "search.html", {"text": text, "found": found})


async def _by_id(call: Call, id_: str) -> list[tuple[str, str]]:
    for page, route, name in FOUND:
        try:
            await answer_of(call, route, {}, **{name: id_})
        except ApiError:  # nothing to the caller, or closed
            continue
        path = next(each.path for each in PAGES if each.name == page)
        return [(page, path.format(**{name: id_}))]
    return []


async def _by_name(call: Call, text: str) -> list[tuple[str, str]]:
    """Servers and hosts that are called so."""
    found: list[tuple[str, str]] = []
    if not text:
        return found
    servers = (await answer_of(call, "servers_detail", {}))["servers"]
    found += [
        (f"server {each['name']}", f"/ui/servers/{each['id']}")
        for each in servers
        if text.lower() in each["name"].lower()
    ]
    try:
        hosts = (await answer_of(call, "hosts", {}))["hosts"]
    except ApiError:
        return found
    names = [each["host"] for each in hosts if text.lower() in each["host"].lower()]
    return [*found, *((f"host {name}", f"/ui/hosts/{name}") for name in names)]


# ------------------------------------------------------------------------- logging in


async def login_form(call: Call) -> web.StreamResponse:
    """GET /ui/login."""
    return _rendered(call, "login.html", {"to": call.request.query.get("to", ""), "why": None})


async def login(call: Call) -> web.StreamResponse:
    """POST /ui/login: a token, of the settings or of Keystone."""
    request = call.request
    _refuse_others(request)
    form = await _form(request)
    token, to = form.get("token", "").strip(), _path_here(form.get("to", ""))
    try:
        await call.components.authenticator.authenticate(_as_sent(request, token))
    except AuthError as error:
        _log.info("console_login_refused")
        failure = explain(error, call.request_id, None)  # 503, not 401, if Keystone is away
        told = {"to": to, "why": failure.detail}
        refused = _rendered(call, "login.html", told, status=failure.status)
        refused.headers.update(failure.headers)
        return refused
    _end_session(request)
    response = _gone_to(to)
    secure = request.secure
    response.set_cookie(
        _cookie(secure=secure),
        request.app[SESSIONS].begin(token),
        max_age=round(AGE_S),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=secure,
    )
    return response


async def logout(call: Call) -> web.StreamResponse:
    """POST /ui/logout."""
    _refuse_others(call.request)
    _end_session(call.request)
    response = _gone_to("/ui/login")
    for secure in (True, False):
        response.del_cookie(_cookie(secure=secure), path="/")
    return response


def _cookie(*, secure: bool) -> str:
    """A name that only this host can have set (RFC 6265bis, 4.1.3), where there is TLS."""
    return "__Host-attachment-ledger" if secure else "attachment-ledger"


def _session_name(request: web.Request) -> str:
    return request.cookies.get(_cookie(secure=request.secure), "")


def _end_session(request: web.Request) -> None:
    request.app[SESSIONS].end(_session_name(request))


def _as_sent(request: web.Request, token: str) -> Asked:
    """As if the browser had sent the token itself."""
    headers = {**request.headers, "X-Auth-Token": token}
    address = address_of(request.transport) if request.transport else ""
    return Asked(headers=headers, method=request.method, path=request.path, address=address)


def _refuse_others(request: web.Request) -> None:
    """A form that changes something is one of our pages', or nobody's.  ApiError 403."""
    origin = request.headers.get(hdrs.ORIGIN, f"//{request.host}")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    # Not the scheme: a proxy may have ended TLS.
    if urlsplit(origin).netloc != request.host or site not in {"same-origin", "none"}:
        raise ApiError(403, "foreign_form", "This was sent by a page of another site.")


async def _form(request: web.Request) -> dict[str, str]:
    if request.content_type != "application/x-www-form-urlencoded":
        raise ApiError(415, "media_type", "This takes the fields of a form.")
    if request.content_length is None or request.content_length > FORM_BYTES_MAX:
        raise ApiError(413, "too_large", f"A form is at most {FORM_BYTES_MAX} bytes.")
    fields = await request.post()
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def _path_here(to: str) -> str:
    """Where to go on; never to another site."""
    return to if to.startswith(CONSOLE) and "\\" not in to else CONSOLE


@web.middleware
async def _as_session(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What a browser's session stands for takes the place of the token it does not send."""
    if request.path.startswith(CONSOLE) and "X-Auth-Token" not in request.headers:
        token = request.app[SESSIONS].token(_session_name(request))
        if token is not None:
            request = request.clone(headers={**request.headers, "X-Auth-Token": token})
    return await handler(request)


# ---------------------------------------------------------------------------- answers


async def home(_: Call) -> web.StreamResponse:
    """GET /ui."""
    return _gone_to(CONSOLE)


async def file(call: Call) -> web.StreamResponse:
    """GET /ui/files/{name}."""
    name = call.request.match_info["name"]
    content = _files().get(name)
    if content is None:
        raise ApiError(404, "not_found", "There is no such file.")
    return web.Response(
        body=content,
        content_type=_TYPES[name.rpartition(".")[2]],
        headers={hdrs.CACHE_CONTROL: f"public, max-age={FILES_S}"},
    )


@functools.cache
def _files() -> dict[str, bytes]:
    here = resources.files("ledger.web") / "static"
    return {each.name: each.read_bytes() for each in here.iterdir() if each.is_file()}


@functools.cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("ledger.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": texts.moment,
        "ago": texts.ago,
        "short": texts.short,
        "words": texts.words,
        "does": texts.does,
        "look": texts.look,
        "story": texts.story,
    }
    made.globals |= {"timeline": drawn.timeline, "menu": [page for page in PAGES if page.menu]}
    return made


def _rendered(
    call: Call,
    template: str,
    told: dict[str, Any],
    *,
    page: Page | None = None,
    at: datetime | None = None,
    status: int = HTTPStatus.OK,
) -> web.Response:
    who = call.identity.actor.name if call.identity.roles else None
    return _html(call.components, template, told | {"page": page, "at": at, "who": who}, status)


def _html(components: Components, template: str, told: dict[str, Any], status: int) -> web.Response:
    at: datetime | None = told["at"]
    shown = {
        **told,
        "now": datetime.fromtimestamp(components.clock(), UTC),
        "url": _At(at.isoformat() if at else None).url,
        "sessions": components.settings.auth is not AuthMode.NOAUTH,
    }
    text = _templates().get_template(template).render(shown)
    return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)


def _error_page(request: web.Request, failure: Failure) -> web.Response:
    """What went wrong, for people; who has to log in is asked to."""
    if failure.status == HTTPStatus.UNAUTHORIZED and request.method == "GET":
        return _gone_to(f"/ui/login?{urlencode({'to': _path_here(request.path_qs)})}")
    told = {"failure": failure, "page": None, "at": None, "who": None}
    response = _html(request.app[COMPONENTS], "error.html", told, failure.status)
    response.headers.update(failure.headers)
    return response


def _gone_to(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: path})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith("/ui"):
        response.headers.update(HEADERS)


ROUTES = (
    *map(_route_of, PAGES),
    Route(
        name="console_home", method="GET", path="/ui", handler=home, answers={303: None}, rules=()
    ),
    Route(
        name="console_login",
        method="GET",
        path="/ui/login",
        handler=login_form,
        answers={200: "text/html"},
        rules=(),
    ),
    Route(
        name="console_login",
        method="POST",
        path="/ui/login",
        handler=login,
        answers={303: None},
        rules=(),
    ),
    Route(
        name="console_logout",
        method="POST",
        path="/ui/logout",
        handler=logout,
        answers={303: None},
        rules=(),
    ),
    Route(
        name="console_file",
        method="GET",
        path="/ui/files/{name}",
        handler=file,
        answers={200: "text/css"},
        rules=(),
    ),
    Route(
        name="console",
        method="GET",
        path="/ui/search",
        handler=search,
        answers={200: "text/html"},
        rules=_RULES,
    ),
)
