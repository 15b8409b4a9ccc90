"""One HTTP request to the ledger: what is worth asking again, and what is an answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from urllib3 import Timeout, connection_from_url

from host_agent.shared.clocks import AHEAD_HEADER, TIME_HEADER, FarClock
from host_agent.shared.contract import AGENT_HEADER
from host_agent.shared.lines import CONNECT_S, CONNECTIONS_MAX, ask, whole_answers

#: How long an answer may keep us waiting, beside the long poll's own wait.
REQUEST_S = 30.0


class LinkError(Exception):
    """The ledger could not be reached, or answered something that is to be retried."""

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """`wait_s` is how long the ledger may hold a poll with nothing to tell.

    A ledger that comes back, after however long, has all its agents again within
    `backoff_max_s`, and by the jitter not all of them at once.
    """

    url: str
    token: str
    host: str
    wait_s: float = 20.0
    inventory_interval_s: float = 30.0
    backoff_first_s: float = 0.2
    backoff_max_s: float = 5.0
    denied_retry_s: float = 30.0
    ca_file: str | None = None
    agent: str | None = None  # which one of the agents that may say to be this host's


class LedgerClient:
    """The ledger's endpoints for this host; for threads."""

    def __init__(self, settings: LinkSettings, clock: FarClock | None = None) -> None:
        """`clock` is told the ledger's time."""
        self._clock = clock or FarClock()
        url = urlsplit(settings.url)
        self._base = f"{url.path.rstrip('/')}/v1/hosts/{quote(settings.host, safe='')}"
        self._headers = {"X-Auth-Token": settings.token}
        if settings.agent:
            self._headers[AGENT_HEADER] = settings.agent
        tls = {"ca_certs": settings.ca_file} if settings.ca_file else {}
        self._pool = whole_answers(
            connection_from_url(settings.url, maxsize=CONNECTIONS_MAX, **tls)
        )
        self._pool.ConnectionCls = _telling(self._pool.ConnectionCls, self._remember)
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = REQUEST_S,
        **more: str,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer that says something; LinkError to retry.

        `more`: headers of this call alone.
        """
        headers, raw = {**self._headers, **more}, None
        if (reading := self._clock.reading()) is not None:
            headers = {**headers, AHEAD_HEADER: f"{reading[1]:.3f}"}
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
            raw = json.dumps(body).encode()
        timeout, asked_at = Timeout(connect=CONNECT_S, read=timeout_s), self._clock.asking()
        try:
            answer, told = ask(self._pool, method, self._base + path, headers, raw, timeout=timeout)
        except OSError as error:
            raise LinkError(f"ledger not reached: {error}") from error
        self._hear(answer.headers.get(TIME_HEADER), asked_at)
        return answer.status, _checked(answer.status, told)

    def _hear(self, time: str | None, asked_at: float) -> None:
        """An older ledger does not tell the time."""
        with suppress(ValueError):
            self._clock.heard(float(time or "nan"), asked_at)

    def abort(self) -> None:
        """End the calls under way, with LinkError."""
        with self._lock:
            for sock in self._sockets:
                _shut(sock)

    def close(self) -> None:
        """The same, and no call is begun any more."""
        self._closed = True
        self.abort()
        self._pool.close()

    def _remember(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
            if self._closed:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    """Never closed under the thread that reads from it; and not by TLS, which would wait."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _telling(kind: Any, tell: Callable[[socket.socket], None]) -> Any:
    """A pool's class of connections, that tells of each socket."""

    class Connection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            tell(self.sock)

    return Connection


def _checked(status: int, raw: bytes) -> dict[str, Any]:
    """The JSON object of an answer; LinkError for what is to be asked again."""
    if status in (401, 403):
        raise LinkError(
            f"the ledger refuses this host's token (HTTP {status}): check [ledger] token, and "
            "that the ledger knows it for this host name",
            denied=True,
        )
    if status >= 500 or status in (408, 429):  # noqa: PLR2004
        raise LinkError(f"the ledger answered HTTP {status}")
    try:
        answer = json.loads(raw or b"{}")
    except ValueError as error:
        raise LinkError(f"the ledger answered HTTP {status} with no JSON") from error
    return answer if isinstance(answer, dict) else {}
