"""Connections and requests, bounded: by address for the anonymous, by token for the others.

A connection is anonymous until a request over it has shown a valid token.  An address may have so
many of those, so that one machine cannot take all the files that a process may open; agents and
users behind one proxy are not counted together once they have said who they are.  A token may have
so many requests under way, held ones too, so that its owner cannot take the places of all others.

With TLS an address may have so many whose handshake is under way, beside those: asyncio tells of a
connection when that has ended, which takes up to a minute of who does not answer.

A connection on which no request is complete, and none is worked on, is closed after
IDLE_CONNECTION_S: a request whose head never ends is no more than that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from ledger.api.problem import RETRY_AFTER_S, ApiError
from ledger.auth.tokens import Identity
from ledger.config import Limits

#: How long a connection may be without a complete request: longer than proxies keep theirs (60 s,
#: mostly), so that they close first.
IDLE_CONNECTION_S = 75.0
#: How long what was sent may stay unread in the kernel's buffers.
UNREAD_S = 60.0
#: An IPv6 network, all of whose addresses one machine may have.
_NETWORK_BYTES = 8

_log = structlog.get_logger(__name__)


class Connections:
    """Who is connected, as far as it is bounded; `refused`: how many connections were."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._anonymous: dict[Any, str] = {}  # the address, by aiohttp's handler
        self._by_address: dict[str, int] = {}
        self._by_token: dict[str, int] = {}
        self._greeting: dict[Any, str] = {}  # the address, by the other end, in a TLS handshake
        self._greeting_by_address: dict[str, int] = {}
        self._bearers: dict[Any, Identity] = {}  # whose requests come over it, by aiohttp's handler
        self.refused = 0

    def guard(self, server: web.Server) -> None:
        """Have this server's connections counted; its own methods are its only hooks."""
        made, lost = server.connection_made, server.connection_lost

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            handler.__class__ = _Discreet
            made(handler, transport)
            self._accepted(handler, transport)

        def connection_lost(handler: RequestHandler, exc: BaseException | None = None) -> None:
            self._bearers.pop(handler, None)
            self._no_more_anonymous(handler)
            lost(handler, exc)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    def greeting(self, peer: Any) -> bool:
        """A TLS handshake begins with this end; whether its address may have one more."""
        address = _counted_as(peer)
        count = self._greeting_by_address.get(address, 0) + 1
        if count > self._limits.anonymous_connections_per_address_max:
            self.refused += 1
            return False
        self._greeting[peer] = address
        self._greeting_by_address[address] = count
        return True

    def greeted(self, peer: Any) -> None:
        """It has ended, in a connection or without one."""
        address = self._greeting.pop(peer, None)
        if address is not None:
            _less(self._greeting_by_address, address)

    def end(self, gone: Callable[[Identity], bool]) -> None:
        """End the connections of those who may not ask any more, with all that they hold."""
        for handler, identity in list(self._bearers.items()):
            if gone(identity) and handler.transport is not None:
                handler.transport.abort()

    def _accepted(self, handler: Any, transport: asyncio.Transport) -> None:
        self.greeted(transport.get_extra_info("peername"))
        address = address_of(transport)
        count = self._by_address.get(address, 0) + 1
        if count > self._limits.anonymous_connections_per_address_max:
            self.refused += 1
            # Not at once: aiohttp's handler has to have begun before it is told.
            asyncio.get_running_loop().call_soon(transport.abort)
            return
        self._anonymous[handler] = address
        self._by_address[address] = count

    def known(self, handler: Any, identity: Identity) -> None:
        """This connection is anonymous no more."""
        self._bearers[handler] = identity
        self._no_more_anonymous(handler)

    def _no_more_anonymous(self, handler: Any) -> None:
        address = self._anonymous.pop(handler, None)
        if address is not None:
            _less(self._by_address, address)

    def began(self, identity: Identity) -> None:
        """A token's request, or with Keystone a user's, who may have any number of tokens.

        `ended` is to be told.  Raises ApiError 429 if it has too many.
        """
        if identity.counted_as is None:
            return
        limit = self._limits.requests_per_token_max
        count = self._by_token.get(identity.counted_as, 0)
        if count >= limit:
            raise ApiError(
                429,
                "too_many_requests",
                f"This token, or its user, has {limit} requests under way in this process, "
                "the limit; wait until some of them are answered.",
                Retry_After=RETRY_AFTER_S,
            )
        self._by_token[identity.counted_as] = count + 1

    def ended(self, identity: Identity) -> None:
        """What `began` is over."""
        if identity.counted_as is not None:
            _less(self._by_token, identity.counted_as)


class _Discreet(RequestHandler):
    """What cannot be read as HTTP may hold a token: aiohttp would repeat, and log, what it read."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        _log.info("no_http", address=request.remote, error=type(exc).__name__)
        text = "This is no HTTP request that can be read here, or a line of it is too long."
        response = web.Response(status=status, text=text)
        response.force_close()
        return response


def _less(counts: dict[str, int], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def address_of(transport: asyncio.BaseTransport) -> str:
    """What connections are counted by: the other end's address, of IPv6 its network."""
    return _counted_as(transport.get_extra_info("peername"))


def _counted_as(peer: Any) -> str:
    host = str(peer[0]) if peer else ""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:_NETWORK_BYTES].hex()


class Runner(web.AppRunner):
    """Serves an application with its connections bounded.

    A compressed body is not unpacked, not even that of a request which is refused: a thousand times
    of what was sent, on the event loop, for who need not have a token.
    """

    def __init__(self, app: web.Application, **given: Any) -> None:
        own = {"access_log": None, "auto_decompress": False}
        super().__init__(app, **{**own, "keepalive_timeout": IDLE_CONNECTION_S, **given})

    async def setup(self) -> None:
        await super().setup()
        assert self.server is not None, "it is set up"
        self.app[CONNECTIONS].guard(self.server)


class Greeting(socket.socket):
    """Accepts connections that begin with a TLS handshake, as many as an address may have."""

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        """In place of `listener`."""
        super().__init__(fileno=listener.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """As asyncio asks for it.  Raises ConnectionAbortedError for one that is refused."""
        accepted, peer = super().accept()
        if not self._connections.greeting(peer):
            accepted.close()
            raise ConnectionAbortedError
        return _Greeted(accepted, lambda: self._connections.greeted(peer)), peer


class _Greeted(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, accepted: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._on_close()


def end_unread(listener: socket.socket) -> None:
    """Connections accepted from now on end if what was sent is not read in UNREAD_S."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))


CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections", Connections)
