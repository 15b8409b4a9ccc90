"""A name with several addresses is several processes: one that is dead or paused is left."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from host_agent.line.client import POLL_S, SILENT_S, LedgerClient, LinkSettings
from host_agent.line.credentials import Files
from host_agent.shared.platform.addresses import Endpoint, Ring
from ledger.cli.client import ALIVE_TIMEOUT_S, Client
from tests.authority import Authority
from tests.resolving import resolve
from tests.stack import ADMIN, Process, Stack, eventually

NAME = "ledger.test"
ADDRESSES = ("127.0.0.1", "127.0.0.2")
#: A poll under way, the registration elsewhere, and a busy machine.
LEFT_S = POLL_S + SILENT_S + 10.0


class Named(Stack):
    """Two services at one port, each of an address, of which agents know the name alone."""

    def __init__(self, home: Path, database_url: str) -> None:
        super().__init__(home, database_url)
        self.ports[1] = self.ports[0]

    @property
    def named(self) -> str:
        return f"http://{NAME}:{self.ports[0]}"

    def url(self, path: str, number: int = 0) -> str:
        return f"http://{ADDRESSES[number]}:{self.ports[0]}{path}"

    def _service_config(self, number: int) -> str:
        listen = f'[listen]\nhost = "{ADDRESSES[number]}"\n'
        return super()._service_config(number).replace("[listen]\n", listen)

    def _ledger_of(self, numbers: Sequence[int]) -> str:
        return f'url = "{self.named}"\nplain_http = true\n'

    def _process(self, log: Path, *command: str) -> Process:
        return Process(log, "tests.resolving", f"{NAME}={','.join(ADDRESSES)}", *command)


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Named]:
    """Two services, an agent, and a running server."""
    running = Named(tmp_path, database_url)
    try:
        running.start_cinder()
        running.add_server()
        for number in (0, 1):
            running.start_service(number)
        running.start_agent("compute-1")
        running.wait_for_host()
        yield running
    finally:
        running.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pause", "kill"])
def test_a_process_behind_a_name_is_left(
    end: str, stack: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    [server], volume = stack.servers, stack.add_volume()
    getattr(stack.components[0], end)()
    began = time.monotonic()
    eventually(lambda: stack.attach(server, volume, 1).status_code == 200, "an attachment")
    monkeypatch.setattr(socket, "getaddrinfo", resolve(NAME, *ADDRESSES))
    client = Client(stack.named, ADMIN)

    def ended() -> bool:
        [operation] = client.get("/v1/operations", volume=volume)["operations"]
        return bool(operation["state"] == "finished")

    eventually(ended, "the host's steps")
    assert time.monotonic() - began < LEFT_S + ALIVE_TIMEOUT_S


# --- by address, but by its name --------------------------------------------------------------


@contextmanager
def _server(address: str, authority: Authority) -> Iterator[tuple[int, list[Any]]]:
    """One with a certificate of the name alone; the port, and what it was asked as."""
    asked: list[Any] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.headers.get_all("Host"))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_arguments: object) -> None: ...

    server = ThreadingHTTPServer((address, 0), Answers)
    pair = authority.pair(NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.files.values())
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _by_agent(url: str, authority: Authority) -> None:
    files = Files(ca=str(authority.certificate))
    client = LedgerClient(LinkSettings(url=url, token="t", host="h", files=files))
    try:
        assert client.call("GET", "/users") == (200, {})
    finally:
        client.close()


def _by_command(url: str, authority: Authority) -> None:
    assert Client(url, "t", str(authority.certificate)).get("/v1/hosts") == {}


@pytest.mark.slow
@pytest.mark.parametrize("ask", [_by_agent, _by_command])
def test_an_address_is_asked_by_its_name(
    ask: Callable[[str, Authority], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    with _server(ADDRESSES[1], authority) as (port, asked):
        monkeypatch.setattr(socket, "getaddrinfo", resolve(NAME, ADDRESSES[1]))
        ask(f"https://{NAME}:{port}", authority)
    assert asked == [NAME, [f"{NAME}:{port}"]]


# --- the ring ---------------------------------------------------------------------------------


def _addresses(ring: Ring, monkeypatch: pytest.MonkeyPatch, *now: str) -> list[str | None]:
    """Which are asked in turn, as each is left, once the name has these."""
    monkeypatch.setattr(socket, "getaddrinfo", resolve(NAME, *now))
    found = []
    for _ in range(3):
        ring.leave(ring.first)
        found.append(ring.first.address)
    return found


def test_names_are_looked_up_anew_when_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolve(NAME, "127.0.0.1"))
    ring = Ring([f"http://{NAME}:1"])
    assert not ring.several
    assert _addresses(ring, monkeypatch, "127.0.0.1", "127.0.0.2", "::1") == [
        "127.0.0.2",
        "::1",
        "127.0.0.1",
    ]
    # Whatever order a name server has them in: those that were not asked come first.
    assert _addresses(ring, monkeypatch, "127.0.0.1", "::1", "127.0.0.2")[:2] == [
        "127.0.0.2",
        "::1",
    ]
    late = ring.first
    assert _addresses(ring, monkeypatch, "127.0.0.9") == ["127.0.0.9"] * 3
    ring.leave(late)
    assert ring.first.address == "127.0.0.9"


def test_the_addresses_of_a_name_outlast_its_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolve(NAME, *ADDRESSES))
    ring = Ring([f"http://{NAME}:1"])
    assert _addresses(ring, monkeypatch)[0] == ADDRESSES[1]
    assert {each.address for each in ring._ring} == {*ADDRESSES, None}
    assert _addresses(ring, monkeypatch, *ADDRESSES)
    assert {each.address for each in ring._ring} == {*ADDRESSES}


def test_a_name_that_is_not_found_is_asked_for_by_whoever_connects() -> None:
    for url in ("http://no-such-name.invalid:1", "http://:1", "http://x:y"):
        assert Ring([url]).first == Endpoint(url)


def test_an_address_stands_in_a_url_as_it_has_to() -> None:
    assert Endpoint("https://a.test:8/x", "::1").by_address == "https://[::1]:8/x"
    assert Endpoint("https://a.test/x", "127.0.0.1").by_address == "https://127.0.0.1/x"
    assert Endpoint("https://a.test:8/x").by_address == "https://a.test:8/x"
    assert Endpoint("https://a.test:8/x", "::1").authority == "a.test:8"
