"""What /readyz says of Cinder and Keystone: that they are there, and that our roles are enough.

Each is asked over connections of its own, with little patience: what the others wait for is not
waited for here.  A role that is missing keeps nobody from working, for policies differ, so it is a
warning; but it is not seen otherwise, for Cinder answers a list with 200 and nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.session import ADMIN_ROLE
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.lines import within
from ledger.auth.authenticator import keystone_client
from ledger.auth.keystone_client import MAY_ASK, KeystoneClient, KeystoneError
from ledger.config import AuthMode, Settings
from ledger.http.components import Check
from ledger.http.probes.health import InThread

#: How long Cinder may take to say that it is there.
CINDER_S_MAX = 3.0
#: How long Keystone may take for that, our log-in included.
KEYSTONE_S_MAX = 4.0


def checks(settings: Settings, stack: AsyncExitStack) -> dict[str, Check]:
    """Without which the process is not ready, by name."""
    cinder = _cinder(settings, stack)

    def of_cinder() -> str | None:
        try:
            cinder.reach()
        except PortError as error:
            return error.message
        return None

    found: dict[str, Check] = {"cinder": _check(of_cinder, stack)}
    if settings.auth is AuthMode.KEYSTONE:
        found["keystone"] = _check(_keystone(settings, stack, _reached), stack)
    return found


def warnings(settings: Settings, stack: AsyncExitStack) -> dict[str, Check]:
    """What is to be mended, by whom it concerns."""
    cinder = _cinder(settings, stack)
    found: dict[str, Check] = {"cinder": _check(lambda: empty_lists(cinder), stack)}
    if settings.auth is AuthMode.KEYSTONE:
        found["keystone"] = _check(_keystone(settings, stack, _may_not_ask), stack)
    return found


def empty_lists(cinder: CinderClient) -> str | None:
    """What is wrong if Cinder's lists lack what they should have, by our own roles.

    That Keystone cannot be asked is told elsewhere: Cinder cannot be asked either.
    """
    try:
        with within(KEYSTONE_S_MAX):
            everything = cinder.sees_all_projects()
    except PortError:
        return None
    if everything:
        return None
    return (
        "Its lists are empty to us, and other projects' volumes not found: the user of "
        f"[cinder.auth] has no role {ADMIN_ROLE!r}. Grant it in the user's project."
    )


def _check(look: Callable[[], str | None], stack: AsyncExitStack) -> Check:
    check = InThread(look)
    stack.callback(check.close)
    return check


def _cinder(settings: Settings, stack: AsyncExitStack) -> CinderClient:
    asking = replace(settings.cinder, connect_timeout_s=CINDER_S_MAX, read_timeout_s=CINDER_S_MAX)
    cinder = CinderClient(asking)
    stack.callback(cinder.close)
    return cinder


def _keystone(
    settings: Settings, stack: AsyncExitStack, look: Callable[[KeystoneClient], str | None]
) -> Callable[[], str | None]:
    client = keystone_client(settings)
    stack.callback(client.close)

    def looked() -> str | None:
        with within(KEYSTONE_S_MAX):
            return look(client)

    return looked


def _reached(client: KeystoneClient) -> str | None:
    try:
        client.reach()
    except KeystoneError as error:
        return str(error)
    return None


def _may_not_ask(client: KeystoneClient) -> str | None:
    try:
        if client.may_ask():
            return None
    except KeystoneError:
        return None  # as the check says
    return (
        f"It shows tokens of others to the roles {' and '.join(sorted(MAY_ASK))} alone, and the "
        "user of [keystone.auth] has neither: good tokens will be answered with 503."
    )
