"""Where told events go: a file, an HTTP server, a syslog server.

A target has taken a batch when `send` returns; then the next one is read.  AwayError is for now,
and the same batch is sent again.  RefusedError is for good: somebody has to look.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import ssl
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import orjson
import requests

from ledger.forward.forms import NAME
from ledger.forward.told import CadfOutcome, ToldItem
from ledger.native.log.cloud_events import BATCH_MEDIA_TYPE

#: How long a target may take for a batch.
SEND_S = 30.0
#: How often it is looked whether the other side's kernel has what was sent.
_LOOK_S = 0.005
#: How long a TLS server may take for the first word after the handshake; most send a ticket.
_FIRST_WORD_S = 1.0
#: RFC 5424: facility 13 (log audit), and the severities of informational and warning.
_PRIORITIES = {
    CadfOutcome.SUCCESS: 13 * 8 + 6,
    CadfOutcome.PENDING: 13 * 8 + 6,
    CadfOutcome.FAILURE: 13 * 8 + 4,
}
_MSGID_CHARS_MAX = 32
_SYSLOG_PORTS = {"syslog": 601, "syslog+tls": 6514}
_ANSWER_BYTES = 300
#: Statuses of a server that may take the same at another time.
_LATER = (408, 425, 429)

Item = tuple[ToldItem, dict[str, Any]]


class AwayError(Exception):
    """It does not take anything now; the message says why."""


class RefusedError(Exception):
    """It does not take this; the message has what it said."""


class TooMuchError(RefusedError):
    """It does not take so much at once (RFC 9110, 15.5.14)."""


class ForwardTarget(Protocol):
    """What takes events in their form, in order."""

    def send(self, items: Sequence[Item]) -> None:
        """Raises AwayError or RefusedError; some may have been taken then."""


class File:
    """Lines of JSON behind what the file has; opened each time, so that it can be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, items: Sequence[Item]) -> None:
        text = b"".join(orjson.dumps(form) + b"\n" for _, form in items)
        try:
            with self._path.open("a+b", buffering=0) as file:
                _write_whole(file.fileno(), text)
        except OSError as error:
            raise AwayError(f"{self._path}: {error.strerror}") from None


def _write_whole(file: int, text: bytes) -> None:
    """Leave no part of a line if the disk is full; end one that somebody left who was killed."""
    end = os.fstat(file).st_size
    if end and os.pread(file, 1, end - 1) != b"\n":
        text = b"\n" + text
    try:
        left = memoryview(text)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)
        raise


class Http:
    """A POST with an array of events; 2xx takes them."""

    def __init__(self, url: str, form: str, token: str | None, cacert: str | None) -> None:
        self._url, self._session = url, requests.Session()
        media_type = BATCH_MEDIA_TYPE if form == "cloudevents" else "application/json"
        self._session.headers["Content-Type"] = media_type
        self._session.verify = cacert or True
        self._session.auth = _Bearer(token)

    def send(self, items: Sequence[Item]) -> None:
        body = orjson.dumps([form for _, form in items])
        try:
            with self._session.post(
                self._url, data=body, timeout=SEND_S, allow_redirects=False, stream=True
            ) as answer:
                self._judge(answer)
        except requests.RequestException as error:
            raise AwayError(f"{self._url}: {error}") from None

    def _judge(self, answer: requests.Response) -> None:
        if HTTPStatus.OK <= answer.status_code < HTTPStatus.MULTIPLE_CHOICES:
            return
        said = next(answer.iter_content(_ANSWER_BYTES), b"").decode(errors="replace")
        text = f"{self._url} answers {answer.status_code}: {said}"
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status_code in _LATER:
            raise AwayError(text)
        too_much = answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise TooMuchError(text) if too_much else RefusedError(text)


class _Bearer(requests.auth.AuthBase):
    """A token or none, and never what a ~/.netrc says."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Syslog:
    """RFC 5424 over TCP with octet counting (RFC 6587), or over TLS (RFC 5425).

    Syslog has no receipts.  What is sent counts as taken when the kernel of the other side has
    acknowledged it; what a receiver loses that crashes before it has read it is lost.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._address, self._tls = (host, port), tls
        self._line: socket.socket | None = None
        self._hostname = socket.gethostname()

    def send(self, items: Sequence[Item]) -> None:
        try:
            line = self._line = self._usable()
            line.sendall(b"".join(map(self._frame, items)))
            _acknowledged(line, time.monotonic() + SEND_S)
        except OSError as error:
            self._drop()
            raise AwayError(f"{self._address[0]} port {self._address[1]}: {error}") from None

    def _usable(self) -> socket.socket:
        """The line that there is, or a new one.  What is sent on one that was closed comes back."""
        if self._line is not None:
            return self._line
        line = socket.create_connection(self._address, SEND_S)
        if self._tls is None:
            return line
        secure = self._tls.wrap_socket(line, server_hostname=self._address[0])
        try:
            _heard(secure)
        except OSError:
            secure.close()
            raise
        return secure

    def _drop(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    def _frame(self, item: Item) -> bytes:
        told, form = item
        name = told.topic.partition(".")[2][:_MSGID_CHARS_MAX]
        at = told.at.isoformat()
        head = f"<{_PRIORITIES[told.ending]}>1 {at} {self._hostname} {NAME} - {name} - "
        message = head.encode() + b"\xef\xbb\xbf" + orjson.dumps(form)
        return b"%d %s" % (len(message), message)


def _heard(line: ssl.SSLSocket) -> None:
    """Wait for what the server says first.  Raises OSError if that is that it does not let us in.

    With TLS 1.3 our side of the handshake is over before the server has asked for a certificate in
    vain, and its kernel acknowledges what we send meanwhile (RFC 8446, 4.4.2.4 and appendix E.1.2).
    """
    if not select.select([line], [], [], _FIRST_WORD_S)[0]:
        return
    line.setblocking(False)
    with suppress(ssl.SSLWantReadError):  # it was a ticket
        if not line.recv(1):
            raise ConnectionAbortedError("it hangs up after the handshake")
    line.settimeout(SEND_S)


def _acknowledged(line: socket.socket, until: float) -> None:
    """Wait until nothing is left of what was sent.  Raises OSError."""
    left = array.array("i", [1])
    while True:
        fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, left)
        if not left[0]:
            return
        if error := line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        if time.monotonic() > until:
            raise TimeoutError("it does not take what it is sent")
        time.sleep(_LOOK_S)


def target_of(url: str, form: str, *, token: str | None, cacert: str | None) -> ForwardTarget:
    """Raises ValueError for a URL that is none of these, or a token that no header can have."""
    parts = urlsplit(url)
    if token and not (token.isascii() and token.isprintable()):
        raise ValueError("the token is not one line of printable ASCII")
    if parts.scheme == "file" and not parts.netloc and parts.path and "%00" not in parts.path:
        return _file(Path(unquote(parts.path)))
    if parts.scheme in {"http", "https"} and parts.hostname:
        return Http(url, form, token, cacert)
    if parts.scheme in _SYSLOG_PORTS and parts.hostname:
        return _syslog(parts, cacert)
    raise ValueError(
        f"{url} is no target: file:///PATH, https://HOST/PATH, syslog+tls://HOST, syslog://HOST"
    )


def _file(path: Path) -> File:
    if path.exists() and not path.is_file():  # whoever opens a FIFO waits for a reader
        raise ValueError(f"{path} is no regular file")
    return File(path)


def _syslog(parts: SplitResult, cacert: str | None) -> Syslog:
    tls = ssl.create_default_context(cafile=cacert) if parts.scheme == "syslog+tls" else None
    return Syslog(str(parts.hostname), parts.port or _SYSLOG_PORTS[parts.scheme], tls)
