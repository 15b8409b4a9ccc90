"""One HTTP call over kept connections: how the agent calls the ledger and Cinder.

urllib3's pools without retries and redirects.  There are two kinds of errors: `NotConnectedError`,
when nothing was sent, and any other OSError, after which the call may have been carried out.

A socket's timeout applies to each read, so a peer that sends a byte now and then could block a call
for ever.  Here the read timeout applies to the whole answer, header and body; and all calls of a
thread in a `within` block share its seconds.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from ssl import CertificateError
from typing import Any

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry, Timeout
from urllib3 import exceptions as errors

CONNECT_S = 5.0
#: Connections that a pool keeps open; further threads open new ones.
CONNECTIONS_MAX = 64
#: The largest answer read; a page of commands or of volumes is far smaller.
ANSWER_MAX_BYTES = 16 * 1024 * 1024

_ONCE = Retry(False, redirect=False)
_UNSENT = (
    errors.ConnectTimeoutError,  # also the base of a refused connection's error
    errors.ProxyError,
    errors.ClosedPoolError,
)


_own = threading.local()
#: By thread: its present call, and since when.
_asking: dict[threading.Thread, tuple[str, float]] = {}


class NotConnectedError(OSError):
    """There is no connection, so nothing was sent."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """All calls of this thread in the block end within so many seconds in total."""
    outer = _until()
    end = time.monotonic() + seconds
    _own.until = end if outer is None else min(end, outer)
    try:
        yield
    finally:
        _own.until = outer


def left_s() -> float | None:
    """The seconds that this thread has left (`within`), at least 0; None: no limit."""
    until = _until()
    return None if until is None else max(0.0, until - time.monotonic())


def _until() -> float | None:
    until: float | None = getattr(_own, "until", None)
    return until


def _bounded(timeout: Timeout) -> Timeout:
    """The timeout, bounded by `left_s`.  Raises NotConnectedError if nothing is left."""
    left = left_s()
    if left is None:
        return timeout
    if left <= 0:
        raise NotConnectedError("there is no time left to ask")
    return Timeout(
        connect=_least(timeout.connect_timeout, left), read=_least(timeout.read_timeout, left)
    )


def _least(given: Any, left: float) -> float:
    return min(given, left) if isinstance(given, int | float) else left


class _Answering(io.RawIOBase):
    """A socket's reader whose reads end together when the socket's present timeout is over."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        limits = [limit for limit in (sock.gettimeout(), left_s()) if limit is not None]
        self._until = time.monotonic() + min(limits) if limits else None

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Called by http.client for the stream of the answer."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._until is not None:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer took too long")
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(_Answering(sock), *args, **kwargs)  # type: ignore[arg-type]


def whole_answers(pool: HTTPConnectionPool) -> HTTPConnectionPool:
    """The pool, with its read timeout applied to whole answers."""
    kind: Any = pool.ConnectionCls
    if kind.response_class is not _Response:
        pool.ConnectionCls = type(kind.__name__, (kind,), {"response_class": _Response})
    return pool


def ask(
    pool: HTTPConnectionPool,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | str | None = None,
    *,
    timeout: Timeout,
) -> tuple[BaseHTTPResponse, bytes]:
    """The answer, with any status, and its body.  `target`: a path, or a URL for a proxy."""
    timeout = _bounded(timeout)
    mine, path = threading.current_thread(), target.partition("?")[0]
    _asking[mine] = f"{method} {pool.host}:{pool.port} {path}", time.monotonic()
    try:
        answer = pool.urlopen(
            method,
            target,
            body,
            headers,
            retries=_ONCE,
            redirect=False,
            assert_same_host=False,
            timeout=timeout,
            preload_content=False,
        )
        raw = answer.read(ANSWER_MAX_BYTES + 1)  # a complete read returns the connection
    except _UNSENT as error:
        raise NotConnectedError(f"{type(error).__name__} {error}") from error
    except errors.ReadTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except errors.HTTPError as error:
        if any(isinstance(cause, CertificateError) for cause in error.args):  # in the handshake
            raise NotConnectedError(f"{type(error).__name__} {error}") from error
        raise ConnectionError(f"{type(error).__name__} {error}") from error
    finally:
        _asking.pop(mine, None)
    if len(raw) > ANSWER_MAX_BYTES:
        answer.close()
        raise ConnectionError(f"the answer has more than {ANSWER_MAX_BYTES} bytes")
    return answer, raw


def open_calls() -> list[str]:
    """The present calls, for an operator; the longest first."""
    now = time.monotonic()
    calls = sorted(_asking.copy().items(), key=lambda call: call[1][1])
    told = [f"  {what}, {now - since:.1f} s, thread {mine.name}" for mine, (what, since) in calls]
    return [f"Open calls: {len(told)}", *told]
