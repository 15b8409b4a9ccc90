"""Requests, bounded by token; and connections, as far as aiohttp bounds them.

A token may have so many requests under way, held ones too, so that its owner cannot take the places
of all others.  A connection on which no request is complete, and none is worked on, is closed after
IDLE_CONNECTION_S: a request whose head never ends is no more than that.

How many connections and TLS handshakes an address may have is a proxy's to bound (deploy/).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from host_agent.shared.platform.text import one_line
from ledger.auth.tokens import Identity
from ledger.config import Limits
from ledger.http.problem import RETRY_AFTER_S, ApiError

#: How long a connection may be without a complete request: longer than proxies keep theirs (60 s,
#: mostly), so that they close first.
IDLE_CONNECTION_S = 75.0
#: How long what was sent may stay unread in the kernel's buffers.
UNREAD_S = 60.0
#: What is kept of a User-Agent: it is in the log for ever.
AGENT_CHARS_MAX = 100
#: An IPv6 network, all of whose addresses one machine may have.
_NETWORK_BYTES = 8

_log = structlog.get_logger(__name__)


class Connections:
    """Whose requests are under way, and over which connections they have come."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_token = Counter[str]()
        self._bearers: WeakKeyDictionary[asyncio.Transport, Identity] = WeakKeyDictionary()

    @property
    def under_way(self) -> int:
        """Requests of all tokens."""
        return self._by_token.total()

    def known(self, transport: asyncio.Transport, identity: Identity) -> None:
        """Requests of this bearer come over it."""
        self._bearers[transport] = identity

    def end(self, gone: Callable[[Identity], bool]) -> None:
        """End the connections of those who may not ask any more, with all that they hold."""
        for transport, identity in list(self._bearers.items()):
            if gone(identity):
                transport.abort()

    def began(self, identity: Identity) -> None:
        """A token's request, or with Keystone a user's, who may have any number of tokens.

        `ended` is to be told.  Raises ApiError 429 if it has too many.
        """
        if identity.counted_as is None:
            return
        limit = self._limits.requests_per_token_max
        if self._by_token[identity.counted_as] >= limit:
            raise ApiError(
                429,
                "too_many_requests",
                f"This token, or its user, has {limit} requests under way in this process, "
                "the limit; wait until some of them are answered.",
                Retry_After=RETRY_AFTER_S,
            )
        self._by_token[identity.counted_as] += 1

    def ended(self, identity: Identity) -> None:
        """What `began` is over."""
        if identity.counted_as is not None:
            self._by_token[identity.counted_as] -= 1
            if not self._by_token[identity.counted_as]:
                del self._by_token[identity.counted_as]


CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections", Connections)


def runner_of(app: web.Application, **given: Any) -> web.AppRunner:
    """Serves an application with its connections bounded.

    A compressed body is not unpacked, not even that of a request which is refused: a thousand times
    of what was sent, on the event loop, for who need not have a token.
    """
    logger = logging.getLogger(f"{__name__}.aiohttp")
    logger.addFilter(_is_discreet)
    own = {"access_log": None, "auto_decompress": False, "logger": logger}
    return web.AppRunner(app, **{**own, "keepalive_timeout": IDLE_CONNECTION_S, **given})


def _is_discreet(record: logging.LogRecord) -> bool:
    """What cannot be read as HTTP may hold a token, which aiohttp would repeat in the log."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    _log.info("no_http", what=record.getMessage(), error=type(error).__name__)
    return False


def address_of(transport: asyncio.BaseTransport) -> str:
    """What wrong tokens are counted by: the other end's address, of IPv6 its network."""
    peer = transport.get_extra_info("peername")
    host = str(peer[0]) if peer else ""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:_NETWORK_BYTES].hex()


def sender_of(request: web.BaseRequest) -> dict[str, str | None]:
    """From where a request comes: the other end's address, and what program it says it is.

    Behind a proxy the address is the proxy's.  What X-Forwarded-For says anybody can write.
    """
    agent = one_line(request.headers.get("User-Agent", ""))[:AGENT_CHARS_MAX]
    return {"address": request.remote or None, "agent": agent or None}


def end_unread(listener: socket.socket) -> None:
    """Connections accepted from now on end if what was sent is not read in UNREAD_S."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
