"""Logging in at the console, and out: by a token, or by what Keystone gives one for."""

from __future__ import annotations

from typing import Any

import structlog
from aiohttp import web

from ledger.auth.keystone_login import Login
from ledger.auth.rate import Rate
from ledger.auth.tokens import AuthError, Identity
from ledger.http.call import Call
from ledger.http.problem import ApiError, explain
from ledger.http.route import Route
from ledger.web import browser
from ledger.web.rendering import rendered

#: Log-ins of a user that are let in, ...
LOGINS_MAX = 20
#: ... in so much time.
LOGINS_S = 60.0
#: Users of whom that is remembered.
USERS_MAX = 10_000

LOGINS: web.AppKey[Rate] = web.AppKey("logins", Rate)

_log = structlog.get_logger(__name__)

#: What the form remembers of a log-in that was refused; the password is not of these.
_REMEMBERED = ("to", "user", "domain", "project")


async def login_form(call: Call) -> web.StreamResponse:
    """GET /ui/login."""
    return rendered(call, "login.html", _form(call, {"to": call.request.query.get("to", "")}))


async def login(call: Call) -> web.StreamResponse:
    """POST /ui/login: a token, of the settings or of Keystone; or a user and a password."""
    request = call.request
    browser.refuse_others(request)
    sent = await browser.form_of(request)
    try:
        token = await _token(call, sent)
        identity = await call.components.authenticator.authenticate(browser.as_sent(request, token))
        _refuse_more(request, identity)
    except (AuthError, ApiError) as error:
        _log.info("console_login_refused", why=type(error).__name__)
        failure = explain(error, call.request_id, None)  # 503, not 401, if Keystone is away
        context = _form(call, sent, failure.detail)
        refused = rendered(call, "login.html", context, status=failure.status)
        refused.headers.update(failure.headers)
        return refused
    response = browser.gone_to(browser.path_here(sent.get("to", "")))
    browser.begin_session(request, response, token, identity)
    return response


async def logout(call: Call) -> web.StreamResponse:
    """POST /ui/logout."""
    browser.refuse_others(call.request)
    browser.end_session(call.request)
    response = browser.gone_to("/ui/login")
    for secure in (True, False):
        response.del_cookie(browser.cookie(secure=secure), path="/")
    return response


def logins() -> Rate:
    """Of a process."""
    return Rate(LOGINS_MAX, LOGINS_S, USERS_MAX)


def _refuse_more(request: web.Request, identity: Identity) -> None:
    """Count a log-in.  Raises ApiError 429 if there were too many: sessions are made of them."""
    rate, user = request.app[LOGINS], identity.counted_as or ""
    if wait_s := rate.wait_s(user):
        raise ApiError(
            429,
            "too_many_logins",
            f"This user has logged in {LOGINS_MAX} times in {LOGINS_S:g} s: wait {wait_s} s.",
            Retry_After=str(wait_s),
        )
    rate.note(user)


async def _token(call: Call, sent: dict[str, str]) -> str:
    """The one that was typed, or Keystone's for the user that was.  Raises AuthError."""
    keystone = call.components.keystone_login
    if keystone is None or not sent.get("user"):
        return sent.get("token", "").strip()
    names = {name: sent.get(name, "").strip() for name in ("user", "domain", "project")}
    typed = Login(**names, password=sent.get("password", ""))
    return await keystone.token(typed, browser.as_sent(call.request).address)


def _form(call: Call, sent: dict[str, str], why: str | None = None) -> dict[str, Any]:
    context: dict[str, Any] = {name: sent.get(name, "") for name in _REMEMBERED}
    return {**context, "why": why, "keystone": call.components.keystone_login is not None}


def _route(name: str, method: str, path: str, handler: Any, answer: Any) -> Route:
    return Route(name=name, method=method, path=path, handler=handler, answers=answer, rules=())


ROUTES = (
    _route("console_login", "GET", "/ui/login", login_form, {200: "text/html"}),
    _route("console_login", "POST", "/ui/login", login, {303: None}),
    _route("console_logout", "POST", "/ui/logout", logout, {303: None}),
)
