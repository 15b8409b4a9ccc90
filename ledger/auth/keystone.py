"""Keystone's tokens, beside the static ones of the settings (`auth = "keystone"`).

What Keystone says becomes an `Identity`; what it cannot be asked about now is a 503, never a 401:
clients would drop good tokens.  Headers that say who somebody is (X-Project-Id, X-Roles, ...) mean
nothing; Keystone's word is the only one.

Keystone is asked in a room of its own, with an end set to all calls of a question.  Who shows many
wrong tokens is not asked about for a while: so their number does not matter to Keystone, nor to
others.  Static tokens need nobody, so they go on whatever Keystone does.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from aggregates.base import Actor
from host_agent.shared.cinder.session import ADMIN_ROLE
from host_agent.shared.platform.text import one_line
from ledger.auth import access_rules
from ledger.auth.keystone_client import KeystoneError, ValidatedToken
from ledger.auth.known import TokenCache
from ledger.auth.tokens import (
    AccessRulesError,
    AuthError,
    Identity,
    KeystoneAwayError,
    RequestSender,
    StaticTokens,
    TokenScope,
    WrongTokensError,
    presented,
)
from ledger.config import AuthMode, Role, Settings
from ledger.rooms import FullError, Room

#: Questions to Keystone at once, a thread each.
KEYSTONE_THREADS = 8
#: Of these, those for one address.
KEYSTONE_THREADS_PER_ADDRESS = 4
#: How long a request waits for one of them.
KEYSTONE_PLACE_S = 10.0
#: How long a question to Keystone may take, our own log-in included.
KEYSTONE_ASK_S = 10.0
#: Wrong tokens of an address after which no more of its tokens are asked about ...
WRONG_TOKENS_MAX = 100
#: ... until so many seconds are over.
WRONG_TOKENS_S = 10.0
#: Of a user's name, so many characters stand in the history.
NAME_CHARS_MAX = 64

#: Whose roles stand in the history; a cloud may have any number of others.
_NOTED = frozenset(role.value for role in Role)

SERVICE_TOKEN = "X-Service-Token"  # noqa: S105 - the name of a header


class KeystoneCalls(Protocol):
    """`ledger.auth.keystone_client.KeystoneClient`."""

    def whose(self, token: str, *, allow_expired: bool = False) -> ValidatedToken | None: ...


class KeystoneTokens:
    """X-Auth-Token against the settings' tokens and Keystone, in the order of the settings."""

    def __init__(
        self,
        settings: Settings,
        client: KeystoneCalls,
        clock: Callable[[], float] = time.monotonic,
        static: StaticTokens | None = None,
    ) -> None:
        keystone = settings.keystone
        self._settings = keystone
        self._client = client
        self._static = static or StaticTokens(settings)
        self._static_first = keystone.order[0] is AuthMode.TOKENS
        self._room = Room("keystone", KEYSTONE_THREADS, KEYSTONE_THREADS_PER_ADDRESS)
        self._wrong = _WrongTokens(clock)
        self._known = TokenCache(
            self._ask, age_s=keystone.cache_s, count_max=keystone.cache_size, clock=clock
        )
        self._challenge = f'Keystone uri="{challenged(settings)}"'

    async def authenticate(self, asked: RequestSender) -> Identity:
        """Raises AuthError."""
        try:
            static = self._static.identity(presented(asked))
            # A bad service token refuses the request, beside a static token as well.
            service = await self._service(asked) if asked.headers.get(SERVICE_TOKEN) else None
            if static is not None and self._static_first:
                return static
            try:
                return await self._by_keystone(asked, service)
            except AuthError:
                if static is None:
                    raise
                return static
        except AuthError as error:
            error.challenge = self._challenge
            raise

    async def _by_keystone(self, asked: RequestSender, service: ValidatedToken | None) -> Identity:
        proven = await self._known.whose(
            presented(asked), asked.address, allow_expired=service is not None
        )
        if proven is None:
            raise AuthError("Keystone does not know the token, or it has ended: get a new one.")
        if service is None:  # else it is the service that asks, for what it was asked for
            _refuse_unlisted(proven, asked)
        return _identity(proven, service)

    async def _service(self, asked: RequestSender) -> ValidatedToken:
        """Which service passes the request on.  Raises AuthError if it is none."""
        proven = await self._known.whose(presented(asked, SERVICE_TOKEN), asked.address)
        if proven is None:
            raise AuthError(f"Keystone does not know the {SERVICE_TOKEN}, or it has ended.")
        wanted = self._settings.service_token_roles
        if not proven.roles.intersection(wanted):
            raise AuthError(f"The {SERVICE_TOKEN} is no service's: it needs {' or '.join(wanted)}.")
        _refuse_unlisted(proven, asked)
        return proven

    async def _ask(self, token: str, address: str, allow_expired: bool) -> ValidatedToken | None:
        def ask() -> ValidatedToken | None:
            self._wrong.refuse_more(address)  # others may have shown theirs meanwhile
            return self._client.whose(token, allow_expired=allow_expired)

        self._wrong.refuse_more(address)
        try:
            proven = await self._room.let_in(
                address, ask, place_s=KEYSTONE_PLACE_S, ask_s=KEYSTONE_ASK_S
            )
        except FullError as full:
            raise KeystoneAwayError(
                f"The service waits for Keystone: {full.total} questions are not answered yet."
            ) from None
        except KeystoneError as error:
            raise KeystoneAwayError(str(error)) from None
        if proven is None:
            self._wrong.one(address)
        return proven

    def close(self) -> None:
        self._room.close()


class _WrongTokens:
    """How many were shown lately, by address.

    Whoever asks Keystone has a place in the room then, so that there are never more than
    KEYSTONE_THREADS_PER_ADDRESS too many.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts = Counter[str]()
        self._until = clock()

    def one(self, address: str) -> None:
        """There was one; told on the event loop alone."""
        now = self._clock()
        if now >= self._until:
            self._counts, self._until = Counter[str](), now + WRONG_TOKENS_S
        self._counts[address] += 1

    def refuse_more(self, address: str) -> None:
        """Raises WrongTokensError if it was too many."""
        left_s = self._until - self._clock()
        if left_s > 0 and self._counts[address] >= WRONG_TOKENS_MAX:
            raise WrongTokensError(
                f"This address has shown {WRONG_TOKENS_MAX} wrong tokens in {WRONG_TOKENS_S:g} s; "
                "for as long, Keystone is asked about no other of its tokens.",
                retry_after_s=math.ceil(left_s),
            )


def challenged(settings: Settings) -> str:
    """Where clients get a token."""
    options = settings.keystone_auth or {}
    auth_url = options.get("auth_url") or options.get("auth-url") or ""
    return str(settings.keystone.www_authenticate_uri or auth_url)


def _refuse_unlisted(proven: ValidatedToken, asked: RequestSender) -> None:
    rules = proven.access_rules
    if rules is not None and not access_rules.allow(rules, asked.method, asked.path):
        raise AccessRulesError(
            "The access rules of the application credential do not have this request."
        )


def _identity(proven: ValidatedToken, service: ValidatedToken | None) -> Identity:
    roles = _roles(proven)
    actor = Actor(
        name=one_line(proven.user_name)[:NAME_CHARS_MAX],
        user_id=proven.user_id,
        project_id=proven.project_id,
        roles=tuple(sorted(roles & _NOTED)),
    )
    vouched = TokenScope(
        system=proven.system,
        domain_id=proven.domain_id,
        audit_id=proven.audit_id,
        methods=proven.methods,
        trust_id=proven.trust_id,
        application_credential_id=proven.application_credential_id,
        service=None if service is None else service.user_id,
    )
    counted_as = f"user {proven.user_id}"
    return Identity(actor=actor, roles=roles, counted_as=counted_as, vouched=vouched)


def _roles(proven: ValidatedToken) -> frozenset[str]:
    """The roles that count.  A domain's are for nothing here, and an agent's are no user's.

    Where Keystone says which project administers the cloud, the others' administrators do not.
    Names are compared as oslo.policy compares them: in any case.
    """
    if proven.project_id is None and not proven.system:
        return frozenset()
    denied = {Role.AGENT.value} if proven.is_admin_project else {Role.AGENT.value, ADMIN_ROLE}
    return frozenset(role for role in proven.roles if role.lower() not in denied)
