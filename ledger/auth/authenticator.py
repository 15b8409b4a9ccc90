"""Chooses the authenticator of the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack

from prometheus_client import Histogram

from ledger.auth.certificates import CertifiedAgents
from ledger.auth.keystone import KeystoneTokens
from ledger.auth.keystone_client import KeystoneClient
from ledger.auth.keystone_login import KeystoneLogin, by_password
from ledger.auth.tls import ServiceTls
from ledger.auth.tokens import Authenticator, NoAuth, StaticTokens
from ledger.config import AuthMode, Settings


def authenticator(
    settings: Settings,
    stack: AsyncExitStack,
    static: StaticTokens | None = None,
    tls: ServiceTls | None = None,
    calls: Histogram | None = None,
) -> Authenticator:
    """The one the settings ask for, until the stack is left; `calls` counts calls of Keystone.

    `static`: the settings' tokens, by which they can be renewed.  Raises ConfigError if
    Keystone cannot be asked with these settings at all.
    """
    if settings.auth is AuthMode.NOAUTH:
        return NoAuth()
    tokens = _tokens(settings, stack, static or StaticTokens(settings), calls)
    if tls is None or not settings.listen.client_ca_file:
        return tokens
    return CertifiedAgents(tokens, lambda: tls.trusted, tls.clock)


def _tokens(
    settings: Settings, stack: AsyncExitStack, static: StaticTokens, calls: Histogram | None
) -> Authenticator:
    if settings.auth is AuthMode.TOKENS:
        return static
    client = keystone_client(settings, calls)
    stack.callback(client.close)
    tokens = KeystoneTokens(settings, client, static=static)
    stack.callback(tokens.close)
    return tokens


def keystone_login(
    settings: Settings, stack: AsyncExitStack, calls: Histogram
) -> KeystoneLogin | None:
    """Who gives tokens for passwords, until the stack is left; None where Keystone is not asked."""
    options = settings.keystone_auth or {}
    auth_url = options.get("auth_url") or options.get("auth-url")
    if settings.auth is not AuthMode.KEYSTONE or not auth_url:
        return None
    keystone = settings.keystone
    login = KeystoneLogin(
        by_password(str(auth_url), cacert=keystone.cacert, insecure=keystone.insecure, calls=calls)
    )
    stack.callback(login.close)
    return login


def keystone_client(settings: Settings, calls: Histogram | None = None) -> KeystoneClient:
    """Keystone, asked as the settings say.  Raises ConfigError."""
    keystone = settings.keystone
    return KeystoneClient(
        settings.keystone_auth or {},
        cacert=keystone.cacert,
        insecure=keystone.insecure,
        calls=calls,
    )
