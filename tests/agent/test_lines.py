"""One HTTP call over kept connections: what a failure says about what was done."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from urllib3 import Timeout, connection_from_url
from urllib3.exceptions import SSLError

from host_agent.line.client import LedgerClient, LinkError, LinkSettings
from host_agent.shared.platform import lines
from host_agent.shared.platform.lines import NotConnectedError, ask
from tests.agent.bench import WAIT_S, eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
BEGUN = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Answers each call with the next of `answers`, whatever it is; then hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pool = connection_from_url(self.url)

    def ask(self, timeout_s: float = WAIT_S) -> bytes:
        return ask(
            self._pool, "GET", "/x", {"A": "b"}, timeout=Timeout(connect=WAIT_S, read=timeout_s)
        )[1]

    @contextmanager
    def serving(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            self._pool.close()
            self._listener.shutdown(socket.SHUT_RDWR)
            self.hang_up()
            thread.join(WAIT_S)
            self._listener.close()
            assert not thread.is_alive()

    def hang_up(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            with connection:
                while self.answers and (asked := connection.recv(65536)):
                    self.asked.append(asked)
                    connection.sendall(self.answers.pop(0))


def test_a_connection_is_kept_and_one_that_was_closed_is_made_anew() -> None:
    with Server(OK, OK, OK).serving() as server:
        assert [server.ask(), server.ask()] == [b"{}", b"{}"]
        assert len(server.connections) == 1
        server.hang_up()
        assert server.ask() == b"{}"
    assert len(server.connections) == 2


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", OK[:-1]])
def test_after_no_whole_answer_the_call_may_have_been_carried_out(answer: bytes) -> None:
    with Server(answer, OK).serving() as server:
        threading.Timer(0.1, server.hang_up).start()
        with pytest.raises(ConnectionError):
            server.ask()
    assert len(server.asked) == 1, "sent once"


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "ANSWER_MAX_BYTES", 1)
    with Server(OK, OK).serving() as server, pytest.raises(ConnectionError, match="more than"):
        server.ask()


@pytest.mark.parametrize("answer", [CHUNKED, OK, b"HTTP/1.1 204 No Content\r\n\r\n"])
def test_a_connection_is_kept_after_any_whole_answer(answer: bytes) -> None:
    with Server(answer, OK, OK).serving() as server:
        assert server.ask() in {b"{}", b""}
        assert server.ask() == b"{}"
    assert len(server.connections) == 1


def test_a_call_that_is_not_answered_in_time_is_told_as_such() -> None:
    with Server(BEGUN, OK).serving() as server, pytest.raises(TimeoutError):
        server.ask(timeout_s=0.05)


def test_nothing_is_sent_where_nobody_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # not listening: connections are refused
        pool = connection_from_url(f"http://127.0.0.1:{reserved.getsockname()[1]}")
        with pytest.raises(NotConnectedError):
            ask(pool, "GET", "/", {}, timeout=Timeout(WAIT_S))


@pytest.mark.parametrize(
    ("cause", "sent"), [(ssl.SSLCertVerificationError(), False), (ssl.SSLEOFError(), True)]
)
def test_of_the_errors_of_tls_only_a_refused_certificate_says_that_nothing_was_sent(
    cause: Exception, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise SSLError(cause)

    pool = connection_from_url("https://127.0.0.1")
    monkeypatch.setattr(pool, "urlopen", fail)
    with pytest.raises(ConnectionError if sent else NotConnectedError):
        ask(pool, "GET", "/", {}, timeout=Timeout(WAIT_S))


def test_a_call_under_way_is_ended_and_after_the_close_none_is_begun() -> None:
    failed: list[LinkError] = []

    def wait() -> None:
        try:
            client.call("GET", "/commands")
        except LinkError as error:
            failed.append(error)

    with Server(b"", b"", OK).serving() as server:
        client = LedgerClient(LinkSettings(url=server.url, token="t", host="h"))
        for end in (client.abort, client.close):
            waiting = threading.Thread(target=wait)
            waiting.start()
            eventually(lambda: len(server.asked) == len(failed) + 1, "the call")
            end()
            waiting.join(WAIT_S)
            assert not waiting.is_alive()
        wait()
    assert len(failed) == 3
    assert len(server.asked) == 2
