"""Authentication: who makes a request.

An `Authenticator` turns the credentials of a request into an `Identity`; Keystone's is in
`ledger.auth.keystone`.  The policy decides what the caller may do (`ledger.auth.policy`).
`Identity.project_scope` limits what the caller may see of other projects; anything outside of it
does not exist for the caller (404, as in Nova; LP 2138566).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aggregates.base import Actor
from host_agent.shared.platform.tls import is_loopback
from ledger.config import Role, Settings, Token, hash_token

#: Header values become part of the log: ids of Keystone and names of people, no more.
_NAME = re.compile(r"[\w.@:-]{1,64}\Z", re.ASCII)

TOKEN_CHARS_MAX = 4096  # no token of ours or of Keystone's is longer


class AuthError(Exception):
    """The caller did not prove who it is; the message says what to do.

    `challenge` is what proves it here (RFC 9110, 15.5.2).
    """

    challenge = 'Token realm="attachment-ledger"'


class WebsiteError(AuthError):
    """A web page sent this request, and not the user of this machine."""


class AccessRulesError(AuthError):
    """The caller is proven, but its application credential is for other requests."""


class KeystoneAwayError(AuthError):
    """Keystone cannot be asked who the caller is; the message says why."""


class WrongTokensError(AuthError):
    """So many wrong tokens came from there that no more are looked at, for `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class RequestSender:
    """What of a request says who sends it, and for what.

    `address`: the other end's, as connections are counted (ledger.http.limits.connections).
    `certificate`: what the connection has shown, if TLS asked for one.
    """

    headers: Mapping[str, str]
    method: str = "GET"
    path: str = "/"
    address: str = ""
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Certificate:
    """As `ssl` decodes it, and by which authorities it was taken (ledger.auth.tls)."""

    shown: Mapping[str, Any]
    trusted: bytes


@dataclass(frozen=True, kw_only=True)
class TokenScope:
    """What Keystone says of a token beside its user, project and roles.

    `system` and `domain_id` are its scope if that is no project.  `audit_id` names the token in
    Keystone's own notifications, and opens nothing.  `service`: the user of the service that
    passes the request on, if its X-Service-Token proved it.
    """

    system: bool = False
    domain_id: str | None = None
    audit_id: str | None = None
    methods: tuple[str, ...] = ()
    trust_id: str | None = None
    application_credential_id: str | None = None
    service: str | None = None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A proven caller.  `host`: the one an agent is bound to, None for any.  `counted_as`: by what
    its requests under way are counted, a token's hash or Keystone's user; None: not at all.
    `certified`: by the certificate that its connection has shown.

    `roles` are Keystone's, or for a static token those that it stands for.  `everywhere`: whether
    all projects are open to it, which the policy says.
    """

    actor: Actor
    roles: frozenset[str]
    everywhere: bool = False
    host: str | None = None
    counted_as: str | None = field(default=None, repr=False)
    vouched: TokenScope = TokenScope()
    certified: bool = False

    @property
    def project_scope(self) -> str | None:
        """The only project this caller may see, None for all of them."""
        return None if self.everywhere else self.actor.project_id or ""

    def sees(self, project_id: str | None) -> bool:
        """Whether something of this project exists for the caller."""
        return self.everywhere or (project_id is not None and project_id == self.project_scope)

    def on(self, route: str) -> Identity:
        """The caller as this route takes it: what a service asks is answered to the service.

        CVE-2023-2088: Cinder asks with the token of whoever wants an attachment deleted, and takes
        "not found" for a yes, so whose token that is must not change the answer.
        """
        if self.vouched.service is None or route not in ASKED_BY_SERVICES:
            return self
        return replace(self, roles=self.roles | {Role.SERVICE})

    def may_speak_for(self, host: str) -> bool:
        """Whether the caller is the agent of this host."""
        return Role.AGENT in self.roles and self.host in {None, host}


_MANAGER = frozenset({"manager", "member", "reader"})

#: Which of Keystone's roles a static token's role stands for, as there a role implies others.
IMPLIED: dict[Role, frozenset[str]] = {
    Role.ADMIN: _MANAGER | {"admin", "service"},
    Role.OPERATOR: _MANAGER | {"admin"},
    Role.MANAGER: _MANAGER,
    Role.MEMBER: frozenset({"member", "reader"}),
    Role.READER: frozenset({"reader"}),
    Role.SERVICE: frozenset({"service"}),
    Role.AGENT: frozenset({"agent"}),
}

#: What a service that proves itself by X-Service-Token is answered, whoever it asks for.
ASKED_BY_SERVICES = frozenset({"volume_attachment"})

#: The caller of what is open to everybody.
NOBODY = Identity(actor=Actor(name="nobody"), roles=frozenset())


class Authenticator(Protocol):
    """Turns the headers of a request into who sent it."""

    async def authenticate(self, asked: RequestSender) -> Identity:
        """Raises AuthError."""


class NoAuth:
    """Everybody has all roles; the settings allow it on loopback only.

    Trials can still tell people apart: X-User-Id and X-Project-Id name the actor.

    Any web page can make the browser of somebody on this machine send requests here.
    """

    async def authenticate(self, asked: RequestSender) -> Identity:
        headers = asked.headers
        _refuse_websites(headers)
        user_id = _name(headers, "X-User-Id")
        actor = Actor(
            name=user_id or "noauth",
            user_id=user_id,
            project_id=_name(headers, "X-Project-Id"),
            roles=(Role.ADMIN.value,),
        )
        return Identity(actor=actor, roles=frozenset().union(*IMPLIED.values()))


class StaticTokens:
    """X-Auth-Token against the tokens of the settings.

    Looked up by its hash: how long that takes says something of the hash at most, and
    nobody can choose a token by the beginning of its hash.
    """

    def __init__(self, settings: Settings) -> None:
        self._identities = _identities(settings.tokens)

    def take(self, tokens: Sequence[Token]) -> frozenset[str]:
        """From now on these are good, and no others; what those that were are counted as."""
        before, self._identities = self._identities, _identities(tokens)
        return frozenset(
            digest
            for digest, identity in before.items()
            if digest is not None and self._identities.get(digest) != identity
        )

    async def authenticate(self, asked: RequestSender) -> Identity:
        identity = self.identity(presented(asked))
        if identity is None:
            raise AuthError("The token is not known here; check it, and the service's [[tokens]].")
        return identity

    def identity(self, token: str) -> Identity | None:
        """Who bears this token; None if it is none of the settings."""
        return self._identities.get(hash_token(token))


def presented(asked: RequestSender, header: str = "X-Auth-Token") -> str:
    """The token that was sent.  Raises AuthError if there is none, or it can be none."""
    token = asked.headers.get(header, "")
    if not token:
        raise AuthError(f"This request needs a token: send it as {header}.")
    if len(token) > TOKEN_CHARS_MAX:
        raise AuthError(f"No token is longer than {TOKEN_CHARS_MAX} characters; {header} is.")
    return token


def _identities(tokens: Sequence[Token]) -> dict[str | None, Identity]:
    return {token.token_sha256: _identity(token) for token in tokens}


def _identity(token: Token) -> Identity:
    actor = Actor(
        name=token.name,
        user_id=token.user_id,
        project_id=token.project_id,
        roles=tuple(role.value for role in token.roles),
    )
    roles = frozenset().union(*(IMPLIED[role] for role in token.roles))
    return Identity(actor=actor, roles=roles, host=token.host, counted_as=token.token_sha256)


def _refuse_websites(headers: Mapping[str, str]) -> None:
    """Raises WebsiteError for what a browser sends on behalf of a page that is not ours.

    `Host` tells pages whose own name was made to mean 127.0.0.1 (DNS rebinding), `Origin` and
    `Sec-Fetch-Site` all others; programs that are no browsers send neither of the two.
    """
    host = headers.get("Host", "")
    if not is_loopback(_name_of(host)):
        raise WebsiteError(
            "Without authentication this service answers to names of this machine only, and "
            "the Host of the request is none: ask for 127.0.0.1 or localhost."
        )
    foreign_origin = headers.get("Origin", f"http://{host}") != f"http://{host}"
    if foreign_origin or headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        raise WebsiteError("Without authentication this service takes no requests of web pages.")


def _name_of(host: str) -> str:
    """The name or address of a Host header (RFC 9110, 7.2), without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _name(headers: Mapping[str, str], header: str) -> str | None:
    value = headers.get(header) or None
    if value is not None and not _NAME.match(value):
        raise AuthError(f"{header} is no id: letters, digits and _.@:- up to 64 are.")
    return value
