"""HTTP requests to the ledger: which failures are retried, and what counts as an answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import RemoteDisconnected
from pathlib import Path
from ssl import SSLCertVerificationError, SSLEOFError, SSLError
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakSet

import msgspec
from urllib3 import HTTPConnectionPool, Timeout, connection_from_url

from host_agent.line.credentials import Credentials, Files, ShownCredentials
from host_agent.shared.contract.messages import AGENT_HEADER
from host_agent.shared.platform.addresses import Endpoint, Ring
from host_agent.shared.platform.clocks import AHEAD_HEADER, TIME_HEADER, FarClock
from host_agent.shared.platform.lines import CONNECT_S, CONNECTIONS_MAX, ask, whole_answers

#: The read timeout, in addition to the long poll's own wait.
REQUEST_S = 30.0
#: The read timeout if there are other processes of the ledger, including the long poll's wait: a
#: paused process accepts connections and never answers.
SILENT_S = 10.0
POLL_S = 5.0
#: Errors of a connection that the ledger closed before its TLS alert was read.
_CUT = (SSLEOFError, ConnectionResetError, BrokenPipeError, RemoteDisconnected)
#: OpenSSL's reasons for an answer that is not TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}


class LinkError(Exception):
    """The ledger could not be reached, or its answer means to retry."""

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """`wait_s`: how long the ledger may hold an empty poll.

    After an outage of any length all agents are back within `backoff_max_s`, spread by the jitter.
    """

    url: str  # or several, with commas, or a name with several addresses: processes of one ledger
    token: str = field(repr=False)
    host: str
    wait_s: float = 20.0
    inventory_interval_s: float = 30.0
    backoff_first_s: float = 0.2
    backoff_max_s: float = 5.0
    denied_retry_s: float = 30.0
    files: Files = field(default_factory=Files)  # credentials, and trusted authorities
    agent: str | None = None  # this agent's id (Locks.place), as several may claim to be the host's
    told_path: Path | None = None  # see host_agent.line.last_position

    def ring(self) -> Ring:
        return Ring(self.url.split(","))


class LedgerClient:
    """The ledger's endpoints for this host; thread-safe.

    Of several processes it uses one until that is unreachable, silent, or answers 5xx; then the
    next.
    """

    def __init__(
        self,
        settings: LinkSettings,
        clock: FarClock | None = None,
        credentials: Credentials | None = None,
        ring: Ring | None = None,
    ) -> None:
        """`clock` gets the ledger's time; clients may share a `ring`.

        Raises ConfigError if `settings.files` cannot be used.
        """
        self._clock = clock = clock or FarClock()
        self._credentials = credentials or credentials_of(settings, clock)
        self._path = f"/v1/hosts/{quote(settings.host, safe='')}"
        self._headers = {AGENT_HEADER: settings.agent} if settings.agent else {}
        self._wait_s = settings.wait_s
        self._ring = ring or settings.ring()
        self._shown = self._credentials.now()
        self._endpoint = self._ring.first  # of the pool
        self._pool = self._connections(self._shown)
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._closed = False

    @property
    def endpoints(self) -> int:
        """How many processes there may be: after a failed call the next one is used."""
        return len(self._ring)

    def poll_s(self) -> float:
        """How long the ledger is asked to hold a poll."""
        return min(self._wait_s, POLL_S) if self._ring.several else self._wait_s

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = REQUEST_S,
        **more: str,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer.  Raises LinkError for what should be retried.

        `more`: additional headers.
        """
        pool, endpoint, shown = self._as_shown_now()
        headers, raw = {**self._headers, **more, "Host": endpoint.authority}, None
        if shown.token:
            headers["X-Auth-Token"] = shown.token
        if (reading := self._clock.reading()) is not None:
            headers = {**headers, AHEAD_HEADER: f"{reading[1]:.3f}"}
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
            raw = msgspec.json.encode(body)
        if self._ring.several:
            timeout_s = min(timeout_s, SILENT_S)
        timeout, asked_at = Timeout(connect=CONNECT_S, read=timeout_s), self._clock.asking()
        try:
            answer, found = ask(
                pool,
                method,
                urlsplit(endpoint.url).path.rstrip("/") + self._path + path,
                headers,
                raw,
                timeout=timeout,
            )
        except OSError as error:
            self._ring.leave(endpoint)
            trouble = self._credentials.trouble()
            raise _not_reached(error, shown.validity is not None, trouble) from error
        self._hear(answer.headers.get(TIME_HEADER), asked_at)
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._ring.leave(endpoint)
        return answer.status, _checked(answer.status, found)

    def _as_shown_now(self) -> tuple[HTTPConnectionPool, Endpoint, ShownCredentials]:
        """The pool for the present credentials and endpoint; older pools end when unused."""
        shown, first = self._credentials.now(), self._ring.first
        with self._lock:
            if shown is not self._shown or self._endpoint != first:
                if shown.context is not None or self._endpoint != first:
                    self._endpoint = first
                    self._pool = self._connections(shown)
                self._shown = shown
            return self._pool, self._endpoint, shown

    def _connections(self, shown: ShownCredentials) -> HTTPConnectionPool:
        tls: dict[str, Any] = {}
        if shown.context is not None:
            tls = {"ssl_context": shown.context, "server_hostname": self._endpoint.name}
        url = self._endpoint.by_address
        pool = whole_answers(connection_from_url(url, maxsize=CONNECTIONS_MAX, **tls))
        pool.ConnectionCls = _telling(pool.ConnectionCls, self._remember)
        return pool

    def _hear(self, time: str | None, asked_at: float) -> None:
        """A proxy may have removed the header."""
        with suppress(ValueError):
            self._clock.heard(float(time or "nan"), asked_at)

    def abort(self) -> None:
        """End the calls in progress with LinkError."""
        with self._lock:
            for sock in self._sockets:
                _shut(sock)

    def close(self) -> None:
        """Abort, and begin no call any more."""
        self._closed = True
        self.abort()
        self._pool.close()

    def _remember(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
            if self._closed:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    """Shut down, but not closed while another thread reads; and without TLS, which would block."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _telling(kind: Any, tell: Callable[[socket.socket], None]) -> Any:
    """A subclass of a pool's connection class that reports each socket to `tell`."""

    class Connection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            tell(self.sock)

    return Connection


def credentials_of(settings: LinkSettings, clock: FarClock) -> Credentials:
    """Raises ConfigError."""
    return Credentials(settings.url, settings.token, settings.files, clock.supposed)


def _not_reached(error: OSError, certified: bool, trouble: str | None) -> LinkError:
    """A TLS error becomes a sentence that names the setting to check.

    `trouble`: of this host's certificate, for which the ledger may close the connection without an
    alert.
    """
    refused = next((each for each in _causes(error) if isinstance(each, SSLError)), None)
    if isinstance(refused, SSLCertVerificationError):
        return LinkError(
            f"the ledger's certificate is not taken: {refused.verify_message or refused}: check "
            "[ledger] ca_file and url, and the service's [listen] certificate_file",
            denied=True,
        )
    if refused is not None and "ALERT" in (refused.reason or ""):
        why = str(refused.reason).partition("ALERT_")[2].lower().replace("_", " ")
        return LinkError(
            f"the ledger refuses this host's TLS ({why}): check [ledger] certificate_file, and "
            "that its authority is in the service's [listen] client_ca_file",
            denied=True,
        )
    if refused is not None and refused.reason in _NO_TLS:
        return LinkError("what answers at [ledger] url does not speak TLS: is it http://?")
    cut = any(isinstance(each, _CUT) for each in _causes(error))
    if cut and trouble:
        return LinkError(
            "the ledger does not take this host's certificate, [ledger] certificate_file: "
            f"{trouble}",
            denied=True,
        )
    if cut and certified:
        hint = "; a ledger that does not take this host's certificate cuts the line, too"
        return LinkError(f"ledger not reached: {error}{hint}")
    return LinkError(f"ledger not reached: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all its causes, also those that urllib3 passes as arguments."""
    found: dict[int, BaseException] = {}
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseException) and id(each) not in found:
            found[id(each)] = each
            waiting += [*each.args, each.__cause__, each.__context__]
    yield from found.values()


def _checked(status: int, raw: bytes) -> dict[str, Any]:
    """The JSON object of an answer.  Raises LinkError for what should be retried."""
    if status in (401, 403):
        raise LinkError(
            f"the ledger refuses this host's token (HTTP {status}): check [ledger] token, or the "
            "certificate, and that the ledger knows it for this host name",
            denied=True,
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (408, 429):
        raise LinkError(f"the ledger answered HTTP {status}")
    try:
        answer = json.loads(raw or b"{}")
    except ValueError as error:
        raise LinkError(f"the ledger answered HTTP {status} with no JSON") from error
    return answer if isinstance(answer, dict) else {}
