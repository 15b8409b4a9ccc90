"""A user of Keystone's logs in with a password: for people in browsers, who have no token yet.

The password goes from the form to Keystone and is kept nowhere.  Who is refused often is not asked
about for a while, by address: so nobody tries passwords through us, nor locks others out of
Keystone at our speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from keystoneauth1 import exceptions
from keystoneauth1.identity import v3
from prometheus_client import Histogram

from host_agent.shared.cinder.http import session_of
from host_agent.shared.platform.lines import CONNECT_S
from ledger.auth.keystone_client import READ_S, is_keystones
from ledger.auth.rate import Rate
from ledger.auth.tokens import AuthError, KeystoneAwayError, WrongTokensError
from ledger.rooms import FullError, Room

#: Log-ins at once, a thread each.
THREADS = 4
#: Of these, those of one address.
THREADS_PER_ADDRESS = 2
#: How long one waits for a place, and how long Keystone may take.
PLACE_S, ASK_S = 10.0, 15.0
#: Log-ins of an address that were refused, after which there are no more of it ...
REFUSED_MAX = 10
#: ... until the first of these is so old.
REFUSED_S = 60.0
#: Addresses that are remembered.
ADDRESSES_MAX = 10_000
#: What says of a log-in that it was not looked at.
_NOT_A_NO = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
#: No name or password of Keystone's is longer.
CHARS_MAX = 255


@dataclass(frozen=True, kw_only=True)
class Login:
    """What somebody typed.  `domain`: of the user and of the project, by its name."""

    user: str
    domain: str
    project: str
    password: str = field(repr=False)


#: Gives a token for what was typed.  Blocks.  Raises what keystoneauth raises.
Asks = Callable[[Login], str]


class KeystoneLogin:
    """Gives tokens for passwords."""

    def __init__(self, ask: Asks) -> None:
        self._ask = ask
        self._refused = Rate(REFUSED_MAX, REFUSED_S, ADDRESSES_MAX)
        self._room = Room("keystone-login", THREADS, THREADS_PER_ADDRESS)
        self.close = self._room.close

    async def token(self, login: Login, address: str) -> str:
        """A token for the project.  Raises AuthError: KeystoneAwayError, WrongTokensError, ..."""
        self._refuse_more(address)
        if max(map(len, (login.user, login.domain, login.project, login.password))) > CHARS_MAX:
            raise AuthError(f"No name or password has more than {CHARS_MAX} characters.")

        def ask() -> str:
            self._refuse_more(address)  # others may have been refused meanwhile
            return self._ask(login)

        try:
            return await self._room.let_in(address, ask, place_s=PLACE_S, ask_s=ASK_S)
        except FullError:
            raise KeystoneAwayError("Too many wait for Keystone to log them in.") from None
        except AuthError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it says, it may hold what was typed
            if (reason := _refusal(error)) is not None:
                self._refused.note(address)
                raise AuthError(
                    "Keystone does not let this user log in to this project with this password "
                    f"({reason})."
                ) from None
            why = type(error).__name__
            raise KeystoneAwayError(f"Keystone could not be asked ({why}); try again.") from None

    def _refuse_more(self, address: str) -> None:
        """Raises WrongTokensError if there were too many."""
        if wait_s := self._refused.wait_s(address):
            raise WrongTokensError(
                f"{REFUSED_MAX} log-ins of this address were refused in {REFUSED_S:g} s: "
                f"wait {wait_s} s.",
                retry_after_s=wait_s,
            )


def _refusal(error: Exception) -> str | None:
    """Keystone's own status, if it is a no to this log-in; None if it could not be asked.

    A page of something that stands before it says nothing of a user.  Nor is "too many", or "too
    slow", a no.
    """
    if not isinstance(error, exceptions.HTTPClientError) or error.http_status in _NOT_A_NO:
        return None
    if error.response is None or not is_keystones(error.response):
        return None
    return f"HTTP {error.http_status}"


def by_password(auth_url: str, *, cacert: str | None, insecure: bool, calls: Histogram) -> Asks:
    """Asks the Keystone that is there."""
    url = f"{auth_url.rstrip('/').removesuffix('/v3')}/v3"

    def ask(login: Login) -> str:
        # A session of its own: keystoneauth's keeps who has logged in.
        asks = session_of("keystone", calls, (CONNECT_S, READ_S), cacert=cacert, insecure=insecure)
        plugin = v3.Password(auth_url=url, **_options(login))
        try:
            given = plugin.get_auth_ref(asks)
        finally:
            asks.session.close()
        if not given.auth_token:
            raise exceptions.ClientException("no token")
        return str(given.auth_token)

    return ask


def _options(login: Login) -> Mapping[str, Any]:
    return {
        "username": login.user,
        "password": login.password,
        "user_domain_name": login.domain,
        "project_name": login.project,
        "project_domain_name": login.domain,
        "include_catalog": False,
        "reauthenticate": False,
    }
