"""What a host shows the ledger: renewed while it runs, and refused in words."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest

from host_agent.line.client import LedgerClient, LinkError, LinkSettings
from host_agent.line.credentials import Credentials, Files
from host_agent.shared.platform.clocks import FarClock
from host_agent.shared.platform.settings import ConfigError
from host_agent.shared.platform.tls import Watched
from tests.authority import Authority, Pair, replace
from tests.tokens import write_private

DAY_S = 86_400.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


class Ledger:
    """What answers `{}`, to whom it takes; `heads`: what was asked, `names`: by whom."""

    def __init__(self, pair: Pair | None, clients: Path | None) -> None:
        self.heads: list[str] = []
        self.names: list[str] = []
        self.rude = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._context: ssl.SSLContext | None = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.certificate, pair.key)
        if self._context is not None and clients is not None:
            self._context.load_verify_locations(clients)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._answer, args=(accepted,), daemon=True).start()

    def _answer(self, accepted: socket.socket) -> None:
        with suppress(OSError), self._greeted(accepted) as line:
            while (head := line.recv(65536)) and not self.rude:
                self.heads.append(head.decode("latin-1"))
                line.sendall(ANSWER)

    def _greeted(self, accepted: socket.socket) -> socket.socket:
        if self._context is None:
            return accepted
        line = self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        try:
            line.do_handshake()
        except OSError:
            with line:
                socket.socket.shutdown(line, socket.SHUT_WR)
                while socket.socket.recv(line, 65536):
                    pass  # the other end reads the reason before the line ends
            raise
        shown: Any = line.getpeercert() or {}
        self.names += [name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS"]
        return line

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def ledger(pair: Pair | None, clients: Path | None = None) -> Iterator[Ledger]:
    running = Ledger(pair, clients)
    try:
        yield running
    finally:
        running.close()


def client(port: int, files: Files, scheme: str = "https") -> LedgerClient:
    url = f"{scheme}://127.0.0.1:{port}"
    settings = LinkSettings(url=url, token="", host="compute-1", files=files)
    named = (files.token, files.ca, files.certificate, files.key)
    credentials = Credentials(url, "", files, time.time, Watched(*named, every_s=0.0))
    return LedgerClient(settings, FarClock(), credentials)


def asked(agent: LedgerClient) -> str:
    """What the agent says of a call: nothing if it was answered."""
    try:
        status, _ = agent.call("GET", "/commands")
    except LinkError as error:
        return str(error)
    assert status == 200
    return ""


def renewed(agent: LedgerClient) -> None:
    """A file that has changed is read by the second look."""
    asked(agent)


def files_of(ours: Authority, pair: Pair | None = None) -> Files:
    if pair is None:
        return Files(ca=str(ours.certificate))
    return Files(ca=str(ours.certificate), certificate=str(pair.certificate), key=str(pair.key))


LOCAL = "IP:127.0.0.1"
#: The ledger's certificate, and what the agent says of it.
SHOWN: dict[str, tuple[Callable[[Authority, Authority], Pair], str]] = {
    "ended": (lambda ours, _: ours.pair(LOCAL, days=-1, since=-3), "certificate has expired"),
    "another authority's": (lambda _, theirs: theirs.pair(LOCAL), "unable to get local issuer"),
    "another name's": (lambda ours, _: ours.pair("other.example"), "IP address mismatch"),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_ledgers_certificate_that_is_not_taken_is_told_in_words(
    ours: Authority, theirs: Authority, what: str
) -> None:
    made, words = SHOWN[what]
    with ledger(made(ours, theirs)) as running:
        said = asked(client(running.port, files_of(ours)))
    assert said.startswith("the ledger's certificate is not taken: ")
    assert words in said
    assert "[ledger] ca_file" in said


def test_a_certificate_that_the_ledger_does_not_take_is_told_in_words(
    ours: Authority, theirs: Authority
) -> None:
    server = ours.pair(LOCAL)
    expected: dict[str, Pair | None] = {
        "certificate expired": ours.pair("compute-1", days=-1, since=-3),
        "unknown ca": theirs.pair("compute-1"),
        "certificate required": None,
    }
    with ledger(server, ours.certificate) as running:
        for words, pair in expected.items():
            said = asked(client(running.port, files_of(ours, pair)))
            assert said.startswith(f"the ledger refuses this host's TLS ({words})"), said


def test_a_line_that_is_cut_may_be_for_the_certificate(ours: Authority) -> None:
    """A reset takes with it what was not read yet, the reason."""
    with ledger(None) as running:
        running.rude = True
        plain, certified = files_of(ours), files_of(ours, ours.pair("compute-1"))
        assert "certificate" not in asked(client(running.port, plain))
        assert "does not take this host's certificate" in asked(client(running.port, certified))
        ended = files_of(ours, ours.pair("compute-1", days=-1, since=-3))
        assert "certificate_file: it ended at 20" in asked(client(running.port, ended))


def test_what_speaks_no_tls_is_told(ours: Authority) -> None:
    with ledger(None) as running:
        said = asked(client(running.port, files_of(ours)))
    assert "does not speak TLS" in said


def test_a_renewed_certificate_is_shown_over_a_new_connection(
    ours: Authority, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    pair.put(ours.pair("compute-1"))
    with ledger(ours.pair(LOCAL), ours.certificate) as running:
        agent = client(running.port, files_of(ours, pair))
        assert [asked(agent), asked(agent)] == ["", ""]
        assert running.names == ["compute-1"], "one connection"
        pair.put(ours.pair("compute-1.renewed"))
        renewed(agent)
        assert asked(agent) == ""
        assert running.names == ["compute-1", "compute-1.renewed"]


def token_in(head: str) -> str:
    return head.partition("X-Auth-Token: ")[2].partition("\r")[0]


def test_a_renewed_token_is_sent_and_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_private(tmp_path / "token", "first-token\n")
    with ledger(None) as running, caplog.at_level(logging.INFO):
        agent = client(running.port, Files(token=str(file)), "http")
        for content in ("second-token", "", None):
            if content is None:
                file.unlink()
            else:
                replace(file, content.encode())
            renewed(agent)
            asked(agent)
        tokens = list(map(token_in, running.heads))
    assert tokens == ["first-token", *["second-token"] * 5]
    assert "is empty" in caplog.text
    assert "No such file" in caplog.text
    assert "second-token" not in caplog.text


@pytest.mark.parametrize("content", ["first-token\nsecond-token", "t\u00f6ken", "a\x00b"])
def test_what_no_header_can_carry_is_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """As of two hands at one file; the line would end by it, and with it the agent."""
    file = write_private(tmp_path / "token", "first-token\n")
    with ledger(None) as running:
        agent = client(running.port, Files(token=str(file)), "http")
        replace(file, content.encode())
        renewed(agent)
        asked(agent)
    assert {"first-token"} == set(map(token_in, running.heads))
    assert "holds no token" in caplog.text
    assert content not in caplog.text
    with pytest.raises(ConfigError):
        client(1, Files(token=str(file)), "http")


def test_files_that_cannot_be_used_end_the_agent_before_it_begins(
    ours: Authority, tmp_path: Path
) -> None:
    pair = ours.pair("compute-1")
    for wrong in (
        with_(files_of(ours, pair), key=str(ours.pair("x").key)),
        with_(files_of(ours), ca=str(tmp_path / "none")),
    ):
        with pytest.raises(ConfigError):
            client(1, wrong)


def test_the_end_of_the_own_certificate_is_told_once_a_day(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files, ahead_s = files_of(ours, ours.pair("compute-1", days=30)), 0.0
    shown = Credentials("https://x", "", files, time.time).now().validity
    assert shown is not None
    credentials = Credentials("https://x", "", files, lambda: shown.begins.timestamp() + ahead_s)
    caplog.clear()
    for days, told in ((1, 0), (26, 1), (26.5, 1), (27.1, 2)):
        ahead_s = days * DAY_S
        credentials.now()
        assert caplog.text.count("certificate_ends") == told
        ending = credentials.ending()
        assert ending is not None
        assert ending.soon is (told > 0)
        lasts_s = (shown.ends - shown.begins).total_seconds()
        assert ending.left_s == pytest.approx(lasts_s - ahead_s)


def test_one_that_shows_no_certificate_has_no_end(ours: Authority) -> None:
    assert Credentials("http://x", "token", Files(), time.time).ending() is None
