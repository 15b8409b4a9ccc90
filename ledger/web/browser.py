"""What is between a browser and the pages: its session's cookie, and the forms that it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import hdrs, web

from ledger.auth.tokens import AuthError, Identity, RequestSender
from ledger.http.app import CONSOLE
from ledger.http.call import Call
from ledger.http.components import COMPONENTS
from ledger.http.limits.connections import address_of
from ledger.http.problem import ApiError
from ledger.web.sessions import AGE_S, Sessions

#: A form has a token or a few texts, and where to go on; a token of Keystone's is much shorter.
FORM_BYTES_MAX = 16 * 1024
EVENT_STREAM = "text/event-stream"

SESSIONS: web.AppKey[Sessions] = web.AppKey("sessions", Sessions)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def cookie(*, secure: bool) -> str:
    """A name that only this host can have set (RFC 6265bis, 4.1.3), where there is TLS."""
    return "__Host-attachment-ledger" if secure else "attachment-ledger"


def over_tls(request: web.Request) -> bool:
    """Whether browsers come by https: to us, or to a proxy that the settings say is before us."""
    public_url = request.app[COMPONENTS].settings.listen.public_url
    return request.secure or public_url.lower().startswith("https://")


def session_name(request: web.Request) -> str:
    """What the browser's cookie says; "" without one."""
    return request.cookies.get(cookie(secure=over_tls(request)), "")


def begin_session(
    request: web.Request, response: web.StreamResponse, token: str, identity: Identity
) -> str:
    """A new session, which takes the place of the browser's; its name."""
    end_session(request)
    secure, owner = over_tls(request), identity.counted_as or ""  # without log-ins all are one
    name = request.app[SESSIONS].begin(token, owner)
    response.set_cookie(
        cookie(secure=secure),
        name,
        max_age=round(AGE_S),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=secure,
    )
    return name


def end_session(request: web.Request) -> None:
    request.app[SESSIONS].end(session_name(request))


@web.middleware
async def as_session(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What a browser's session stands for takes the place of the token it does not send."""
    if request.path.startswith(CONSOLE) and "X-Auth-Token" not in request.headers:
        name, used = session_name(request), not wants_stream(request)
        if token := request.app[SESSIONS].token(name, used=used):
            request = request.clone(headers={**request.headers, "X-Auth-Token": token})
    return await handler(request)


def as_sent(request: web.Request, token: str | None = None) -> RequestSender:
    """What the request says of its sender; with a token, as if the browser had sent that."""
    own = {"X-Auth-Token": token} if token is not None else {}
    address = address_of(request.transport) if request.transport else ""
    headers = {**request.headers, **own}
    return RequestSender(headers=headers, method=request.method, path=request.path, address=address)


async def refuse_gone(call: Call) -> None:
    """Of a request that lasts: raises AuthError when its session or its token has ended."""
    name = session_name(call.request)
    if name and call.request.app[SESSIONS].token(name, used=False) is None:
        raise AuthError("The session has ended.")
    await call.components.authenticator.authenticate(as_sent(call.request))


def wants_stream(request: web.Request) -> bool:
    """Whether a page asks, by its script, for what is new on it."""
    return EVENT_STREAM in request.headers.get(hdrs.ACCEPT, "")


def refuse_others(request: web.Request) -> None:
    """A form that changes something is one of our pages', or nobody's.  ApiError 403."""
    origin = request.headers.get(hdrs.ORIGIN, f"//{request.host}")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    # Not the scheme: a proxy may have ended TLS.
    if origin.partition("//")[2] != request.host or site not in {"same-origin", "none"}:
        raise ApiError(403, "foreign_form", "This was sent by a page of another site.")


async def form_of(request: web.Request) -> dict[str, str]:
    """Its fields.  Raises ApiError 400, 413, 415."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise ApiError(415, "media_type", "This takes the fields of a form.")
    if request.content_length is None or request.content_length > FORM_BYTES_MAX:
        raise ApiError(413, "too_large", f"A form is at most {FORM_BYTES_MAX} bytes.")
    # By a copy: aiohttp copies no request whose body was read, and the API is asked by copies.
    try:
        fields = await request.clone().post()
    except (ValueError, LookupError):  # no UTF-8, or a charset that there is not
        raise ApiError(400, "malformed", "The fields of the form cannot be read.") from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def path_here(to: str) -> str:
    """Where to go on; never to another site, and nothing that ends the line of a header."""
    safe = to.isascii() and to.isprintable() and "\\" not in to
    return to if safe and to.startswith(CONSOLE) else CONSOLE


def gone_to(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: path})
