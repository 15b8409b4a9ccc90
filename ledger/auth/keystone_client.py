"""Keystone, as this service asks it whose a token is.  All calls block.

keystoneauth logs us in and reads the answers; when is decided here.  Its own way holds a lock for
as long as a log-in takes, whatever the caller has left (`host_agent.shared.platform.lines.within`),
and it goes by this machine's clock.  Here a thread waits for another one's log-in only as long as
it may, and our token is good until Keystone says that it is not (401): then we log in again, once.

Whether a token is known is believed only if it is Keystone that says so: an answer in another form
(a proxy's page, say) is no answer, so no good token is refused because something is in the way.
"""

from __future__ import annotations

import math
import re
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import requests
from keystoneauth1 import exceptions
from keystoneauth1.access import AccessInfo, AccessInfoV3
from keystoneauth1.identity.base import BaseIdentityPlugin
from prometheus_client import Histogram

from host_agent.shared.cinder.http import session_of
from host_agent.shared.cinder.session import load_auth
from host_agent.shared.platform.lines import CONNECT_S, left_s
from host_agent.shared.platform.settings import ConfigError
from ledger.auth.access_rules import AccessRule

#: For one call; who asks sets an end to all of them.
READ_S = 10.0

#: How long after a log-in that failed there is no other: it may lock our user out.
LOGIN_PAUSE_S = 1.0

#: Says that access rules are enforced here, without which Keystone shows no token that has some.
ACCESS_RULES = {"OpenStack-Identity-Access-Rules": "1.0"}

#: Who may ask whose a token is, by Keystone's own policy.
MAY_ASK = frozenset({"admin", "service"})

#: Keystone's ids, and those of an LDAP or another domain's.
_ID = re.compile(r"[\w.@:-]{1,64}\Z", re.ASCII)


class KeystoneError(Exception):
    """Keystone could not say whose a token is.  The text says why, and holds no token."""


@dataclass(frozen=True, kw_only=True)
class ValidatedToken:
    """Whose a token is, and for what, as Keystone says.

    The scope is a project, the `system`, a domain, or nothing.  `left_s`: for how many seconds
    more the token is valid; below 0 if it has expired.
    """

    user_id: str
    user_name: str
    project_id: str | None
    domain_id: str | None
    system: bool
    roles: frozenset[str]
    is_admin_project: bool
    audit_id: str | None
    methods: tuple[str, ...]
    trust_id: str | None
    application_credential_id: str | None
    access_rules: tuple[AccessRule, ...] | None
    left_s: float


class KeystoneClient:
    """May be shared by threads."""

    def __init__(
        self,
        auth: Mapping[str, Any],
        *,
        cacert: str | None = None,
        insecure: bool = False,
        calls: Histogram | None = None,
    ) -> None:
        """`calls`: see session_of.

        Raises ConfigError if these options are of no plugin that logs in at Keystone.
        """
        try:
            self._auth = load_auth(auth)
        except (exceptions.ClientException, TypeError) as error:
            raise ConfigError(f"keystone.auth: {error}") from None
        if not isinstance(self._auth, BaseIdentityPlugin):
            raise ConfigError(
                "keystone.auth: the auth_type is none that logs in at Keystone, as 'password' is"
            )
        self._session = session_of(
            "keystone", calls, (CONNECT_S, READ_S), cacert=cacert, insecure=insecure
        )
        root = str(self._auth.auth_url).rstrip("/").removesuffix("/v3")
        self._url = f"{root}/v3/auth/tokens?nocatalog"
        self._lock = threading.Lock()
        self._own: str | None = None
        self._roles: frozenset[str] = frozenset()
        self._failed, self._failed_until = "", 0.0

    def whose(self, token: str, *, allow_expired: bool = False) -> ValidatedToken | None:
        """Whose this token is; None if it is nobody's, or has ended.  Raises KeystoneError.

        `allow_expired`: as long as Keystone shows it after its time ([token] allow_expired_window).
        """
        with _keystone_error():
            own = self._logged_in(None)
            answer = self._shown(own, token, allow_expired=allow_expired)
            if answer.status_code == HTTPStatus.UNAUTHORIZED:
                own = self._logged_in(own)
                answer = self._shown(own, token, allow_expired=allow_expired)
            return _read(answer, allow_expired=allow_expired)

    def reach(self) -> None:
        """Whether it lets us log in, and answers.  Raises KeystoneError."""
        if self.whose(secrets.token_urlsafe()) is not None:
            raise KeystoneError("Keystone accepts a random token.")

    def may_ask(self) -> bool:
        """Whether the roles of our log-in are for asking whose a token is.

        Only others' good tokens would show it otherwise: Keystone says of a wrong one that it does
        not know it, and of our own whose it is, to anybody (its policy identity:validate_token).
        Raises KeystoneError.
        """
        with _keystone_error():
            self._logged_in(None)
            return bool(self._roles & MAY_ASK)

    def close(self) -> None:
        self._session.session.close()

    def _logged_in(self, refused: str | None) -> str:
        """Our own token, which is not the one that was `refused`; one thread logs in for all."""
        left = left_s()
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise KeystoneError("Keystone did not answer our log-in in time.")
        try:
            if self._own is None or self._own == refused:
                self._own = None  # whatever comes of it
                self._own = self._log_in()
            return self._own
        finally:
            self._lock.release()

    def _log_in(self) -> str:
        """A new token of ours.  What went wrong is told again for LOGIN_PAUSE_S."""
        if time.monotonic() < self._failed_until:
            raise KeystoneError(self._failed)
        try:
            with _keystone_error():
                given = self._auth.get_auth_ref(self._session)
                self._roles = frozenset(given.role_names or ())
                return _token_of(given)
        except KeystoneError as error:
            self._failed, self._failed_until = str(error), time.monotonic() + LOGIN_PAUSE_S
            raise

    def _shown(self, own: str, token: str, *, allow_expired: bool) -> requests.Response:
        headers = {"X-Auth-Token": own, "X-Subject-Token": token, **ACCESS_RULES}
        answer: requests.Response = self._session.get(
            self._url + ("&allow_expired=1" if allow_expired else ""),
            headers={**headers, "Accept": "application/json"},
            authenticated=False,
            raise_exc=False,
            redirect=False,
            log=False,  # it would log headers and bodies
        )
        return answer


def _token_of(given: AccessInfo) -> str:
    if not given.auth_token:
        raise KeystoneError("Keystone's answer to our log-in has no token.")
    return given.auth_token


@contextmanager
def _keystone_error() -> Iterator[None]:
    """Whatever goes wrong is a KeystoneError: who asks is told why, and nothing else."""
    try:
        yield
    except KeystoneError:
        raise
    except Exception as error:  # noqa: BLE001 - of keystoneauth, of what it reads, of the network
        raise KeystoneError(_why(error)) from None


def _why(error: Exception) -> str:
    match error:
        case exceptions.Unauthorized() | exceptions.Forbidden():
            return "Keystone refuses our own log-in; check [keystone.auth]."
        case exceptions.ConnectionError() if _is_of_a_certificate(error):
            return (
                "Keystone's certificate is not taken: it has ended, is another name's, or of an "
                "authority that is not in [keystone] cacert."
            )
        case exceptions.ConnectionError():
            return "Keystone cannot be reached, or did not answer in time."
        case exceptions.HttpError():
            return f"Keystone answered our log-in with HTTP {error.http_status}."
    return f"Keystone's answer cannot be used ({type(error).__name__})."


def _is_of_a_certificate(error: BaseException | None) -> bool:
    """Whether it came of a certificate that is not taken, which nothing but the chain tells."""
    while error is not None:
        if any(isinstance(each, ssl.CertificateError) for each in (error, *error.args)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _read(answer: requests.Response, *, allow_expired: bool) -> ValidatedToken | None:
    match answer.status_code:
        case HTTPStatus.OK:
            return _proven(answer, allow_expired=allow_expired)
        case HTTPStatus.NOT_FOUND if is_keystones(answer):
            return None
        case HTTPStatus.UNAUTHORIZED:
            raise KeystoneError("Keystone refuses our own token, and a new one, too.")
        case HTTPStatus.FORBIDDEN:
            raise KeystoneError(
                "Keystone does not let us ask whose a token is: our user needs the role service "
                "or admin."
            )
    raise KeystoneError(f"Keystone answered HTTP {answer.status_code}, and not in its own form.")


def is_keystones(answer: requests.Response) -> bool:
    """Whether an error is in Keystone's form."""
    try:
        return bool(answer.json()["error"]["code"] == answer.status_code)
    except (ValueError, KeyError, TypeError):
        return False


def _proven(answer: requests.Response, *, allow_expired: bool) -> ValidatedToken:
    try:
        body = answer.json()
        access = AccessInfoV3(body, auth_token="")
        rules = access.application_credential_access_rules
        found = ValidatedToken(
            user_id=_id(access.user_id),
            user_name=str(access.username),
            project_id=access.project_id and _id(access.project_id),
            domain_id=access.domain_id and _id(access.domain_id),
            system=access.system_scoped,
            roles=frozenset(map(str, access.role_names or ())),
            is_admin_project=access.is_admin_project,
            audit_id=access.audit_id and _id(access.audit_id),
            methods=tuple(map(str, body["token"].get("methods", ()))),
            trust_id=access.trust_id and _id(access.trust_id),
            application_credential_id=access.application_credential_id
            and _id(access.application_credential_id),
            access_rules=None if rules is None else tuple(map(_rule, rules)),
            left_s=_left_s(access, answer.headers.get("Date"), allow_expired=allow_expired),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = type(error).__name__
        raise KeystoneError(f"Keystone's answer cannot be read ({name}).") from None
    return found


def _id(text: Any) -> str:
    if not (isinstance(text, str) and _ID.match(text)):
        raise ValueError("no id of Keystone's")
    return text


def _rule(given: Mapping[str, Any]) -> AccessRule:
    return AccessRule(str(given["service"]), str(given["method"]), str(given["path"]))


def _left_s(access: AccessInfoV3, date: str | None, *, allow_expired: bool) -> float:
    """By Keystone's own clock (RFC 9110, 6.6.1): this machine's may be wrong.

    Where it does not tell the time, its word alone says that the token is valid, and for how long
    that is taken so is the cache's to say; nothing says so of one that may have expired.
    """
    if access.expires is None:
        raise ValueError("a token that does not expire")
    if date is None:
        return -math.inf if allow_expired else math.inf
    return (access.expires - parsedate_to_datetime(date)).total_seconds()
