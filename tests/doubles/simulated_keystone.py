"""A simulated Keystone over HTTP, as far as services ask it; true to Keystone 30.

Users and tokens are tables that a test fills.  It answers POST, GET and DELETE /v3/auth/tokens as
`tests/contracts/test_keystone.py` finds them answered by a real one.  `fault` makes it misbehave
from now on; `asked` has what it was asked, by kind, for tests that count.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from enum import Enum, auto
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from tests.authority import Pair
from tests.doubles.served import Handler, served

Row = dict[str, Any]

HOUR = timedelta(hours=1)
DOMAIN = {"id": "default", "name": "Default"}
PASSWORD = "pass-of-{}"
#: How long an expired token can still be shown ([token] allow_expired_window).
EXPIRED_WINDOW = timedelta(days=2)
#: Keystone's implied roles: a token has them all.
IMPLIED = {
    "admin": ("manager", "member", "reader"),
    "manager": ("member", "reader"),
    "member": ("reader",),
}


class Fault(Enum):
    """How it misbehaves."""

    AWAY = auto()  # the connection breaks before an answer
    HANGS = auto()  # no answer, until `go_on` is set
    HTML = auto()  # 200 with a page
    HTML_404 = auto()  # a proxy that knows no way to it
    ERROR = auto()  # 500 in Keystone's form
    REFUSES_US = auto()  # every token of ours is refused, new ones too
    NO_LOGIN = auto()  # our password is refused
    FORBIDS_LOGIN = auto()  # whoever it is, 403
    UNKNOWN_LOGIN = auto()  # whoever it is, 404


@dataclass
class Token:
    """What Keystone knows of a token: its body, as it shows it, and whether it is revoked."""

    body: Row
    revoked: bool = False

    @property
    def expires_at(self) -> datetime:
        return datetime.fromisoformat(self.body["expires_at"])


@dataclass
class SimulatedKeystone:
    """Served by `running_keystone`.  `clock_ahead`: of its own clock, before the machine's."""

    url: str = ""
    users: dict[str, Row] = field(default_factory=dict)  # what a password log-in is for, by name
    tokens: dict[str, Token] = field(default_factory=dict)
    catalog: dict[str, str] = field(default_factory=dict)  # a URL, by its service's type
    fault: Fault | None = None
    clock_ahead: timedelta = timedelta()
    tells_date: bool = True
    asked: Counter[str] = field(default_factory=Counter)
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def now(self) -> datetime:
        return datetime.now(UTC) + self.clock_ahead

    def user(self, name: str, *roles: str, **scope: Any) -> Row:
        """A user who can log in, with these roles in this scope; how (keystoneauth's options)."""
        self.users[name] = _body(name, *roles, **scope)
        return {
            "auth_type": "v3password",
            "auth_url": f"{self.url}/v3",
            "username": name,
            "password": PASSWORD.format(name),
            "user_domain_id": "default",
            **_options(scope),
        }

    def token(
        self,
        name: str,
        *roles: str,
        valid: timedelta = HOUR,
        rules: list[Row] | None = None,
        **scope: Any,
    ) -> str:
        """A token of somebody with these roles, for `project`, `system=True`, `domain` or nothing.

        With access `rules` it is an application credential's.
        """
        body = _body(name, *roles, **scope)
        if rules is not None:
            ids = [{"id": uuid4().hex, **rule} for rule in rules]
            credential = {"id": uuid4().hex, "name": name, "restricted": True, "access_rules": ids}
            body = {**body, "application_credential": credential}
            body["methods"] = ["application_credential"]
        return self.issue(body, valid)

    def issue(self, body: Row, valid: timedelta = HOUR) -> str:
        token = f"gAAAAAB{uuid4().hex}{uuid4().hex}"
        issued_at = min(self.now, self.now + valid)
        self.tokens[token] = Token(
            {
                **body,
                "audit_ids": [uuid4().hex[:22]],
                "issued_at": _written(issued_at),
                "expires_at": _written(self.now + valid),
            }
        )
        return token

    def revoke(self, token: str) -> None:
        self.tokens[token].revoked = True

    def shown(self, body: Row) -> Row:
        """A token's body with the catalog."""
        rows = [
            {"type": kind, "name": kind, "id": kind, "endpoints": _endpoints(url)}
            for kind, url in self.catalog.items()
        ]
        return {**body, "catalog": rows}

    def known(self, token: str, *, allow_expired: bool = False) -> Token | None:
        found = self.tokens.get(token)
        if found is None or found.revoked:
            return None
        since = self.now - found.expires_at
        return None if since > (EXPIRED_WINDOW if allow_expired else timedelta()) else found


def _body(
    name: str,
    *roles: str,
    project: str | None = None,
    system: bool = False,
    domain: str | None = None,
    **more: Any,
) -> Row:
    whole = dict.fromkeys([*roles, *(each for role in roles for each in IMPLIED.get(role, ()))])
    body: Row = {
        "methods": ["password"],
        "user": {"id": f"id-of-{name}", "name": name, "domain": DOMAIN},
        **more,
    }
    if project is not None:
        body |= {"project": {"id": project, "name": project, "domain": DOMAIN}, "is_domain": False}
    if system:
        body["system"] = {"all": True}
    if domain is not None:
        body["domain"] = {"id": domain, "name": domain}
    if project or system or domain:
        body["roles"] = [{"id": f"id-of-{role}", "name": role} for role in whole]
    return body


def _endpoints(url: str) -> list[Row]:
    region = {"region": "RegionOne", "region_id": "RegionOne"}
    kinds = ("public", "internal")
    return [{"id": uuid4().hex, "interface": kind, "url": url, **region} for kind in kinds]


def _options(scope: Row) -> Row:
    if "project" in scope:
        return {"project_id": scope["project"]}
    return {"system_scope": "all"} if scope.get("system") else {}


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


@contextmanager
def running_keystone(
    pair: Pair | None = None, host: str = "127.0.0.1"
) -> Iterator[SimulatedKeystone]:
    """Serve a simulated Keystone at `host` for the length of the `with`; `pair`: over TLS."""
    keystone = SimulatedKeystone()
    handler = type("Handler", (_Handler,), {"keystone": keystone})
    with served(handler, pair, host) as keystone.url:
        try:
            yield keystone
        finally:
            keystone.go_on.set()


class _Handler(Handler):
    keystone: SimulatedKeystone
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def respond(self) -> None:
        match self.command:
            case "POST":
                asked = json.loads(self.body())["auth"]
                if not self._misbehaves("log-in"):
                    self._log_in(asked["identity"]["password"]["user"])
            case "GET" if self.path == "/v3":
                self._answer(200, _json({"version": _version(self.keystone.url)}))
            case "GET":
                if not self._misbehaves("validation"):
                    self._show()
            case "DELETE":
                self._revoke()

    def _revoke(self) -> None:
        own, subject = self.headers["X-Auth-Token"], self.headers["X-Subject-Token"]
        if self.keystone.known(own) is None:
            return self._refuse(401)
        if self.keystone.known(subject) is None:
            return self._refuse(404)
        self.keystone.revoke(subject)
        return self._answer(204)

    def _misbehaves(self, kind: str) -> bool:
        self.keystone.asked[kind] += 1
        match self.keystone.fault:
            case Fault.AWAY:
                self.close_connection = True
            case Fault.HANGS:
                self.keystone.go_on.wait()
                self.close_connection = True
            case Fault.HTML:
                self._answer(200, b"<html>Welcome</html>", "text/html")
            case Fault.HTML_404:
                self._answer(404, b"<html>Not Found</html>", "text/html")
            case Fault.ERROR:
                self._refuse(500)
            case Fault.REFUSES_US if kind == "validation":
                self._refuse(401)
            case Fault.NO_LOGIN:
                self._refuse(401)
            case Fault.FORBIDS_LOGIN if kind == "log-in":
                self._refuse(403)
            case Fault.UNKNOWN_LOGIN if kind == "log-in":
                self._refuse(404)
            case _:
                return False
        return True

    def _log_in(self, user: Row) -> None:
        body = self.keystone.users.get(user["name"])
        if body is None or user["password"] != PASSWORD.format(user["name"]):
            return self._refuse(401)
        token = self.keystone.issue(body)
        shown = self.keystone.shown(self.keystone.tokens[token].body)
        return self._answer(201, _json({"token": shown}), **{"X-Subject-Token": token})

    def _show(self) -> None:
        url = urlsplit(self.path)
        assert url.path == "/v3/auth/tokens", self.path
        query = parse_qs(url.query, keep_blank_values=True)
        own = self.keystone.known(self.headers["X-Auth-Token"])
        if own is None:
            return self._refuse(401)
        allow_expired = query.get("allow_expired") == ["1"]
        found = self.keystone.known(
            self.headers.get("X-Subject-Token", ""), allow_expired=allow_expired
        )
        if found is None:
            return self._refuse(404)
        roles = {role["name"] for role in own.body.get("roles", ())}
        if not roles & {"admin", "service"} and found.body["user"] != own.body["user"]:
            return self._refuse(403)
        restricted = "access_rules" in found.body.get("application_credential", {})
        if restricted and self.headers.get("OpenStack-Identity-Access-Rules") != "1.0":
            return self._refuse(404)
        shown = found.body if "nocatalog" in query else self.keystone.shown(found.body)
        return self._answer(200, _json({"token": shown}))

    def _refuse(self, status: int) -> None:
        error = {"code": status, "message": f"refused with {status}", "title": "Refused"}
        self._answer(status, _json({"error": error}))

    def _answer(
        self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str
    ) -> None:
        self.send_response_only(status)
        if self.keystone.tells_date:
            self.send_header("Date", format_datetime(self.keystone.now, usegmt=True))
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _version(url: str) -> Row:
    links = [{"rel": "self", "href": f"{url}/v3/"}]
    return {"id": "v3.14", "status": "stable", "links": links, "media-types": []}


def _json(data: Row) -> bytes:
    return json.dumps(data).encode()
