"""Which authenticator the settings ask for."""

from __future__ import annotations

from contextlib import AsyncExitStack

from host_agent.shared.telemetry import Tallies
from ledger.auth.keystone import KeystoneTokens
from ledger.auth.keystone_client import KeystoneClient
from ledger.auth.tokens import Authenticator, NoAuth, StaticTokens
from ledger.config import AuthMode, Settings


def authenticator(
    settings: Settings, stack: AsyncExitStack, calls: Tallies | None = None
) -> Authenticator:
    """The one the settings ask for, until the stack is left; `calls` counts calls of Keystone.

    Raises ConfigError if Keystone cannot be asked with these settings at all.
    """
    match settings.auth:
        case AuthMode.NOAUTH:
            return NoAuth()
        case AuthMode.TOKENS:
            return StaticTokens(settings)
    client = keystone_client(settings, calls)
    stack.callback(client.close)
    tokens = KeystoneTokens(settings, client)
    stack.callback(tokens.close)
    return tokens


def keystone_client(settings: Settings, calls: Tallies | None = None) -> KeystoneClient:
    """Keystone, asked as the settings say.  Raises ConfigError."""
    keystone = settings.keystone
    return KeystoneClient(
        settings.keystone_auth or {},
        cacert=keystone.cacert,
        insecure=keystone.insecure,
        calls=calls,
    )
