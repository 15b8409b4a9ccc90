"""What carries Cinder's calls: the environment's proxies count, cookies and redirects do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from host_agent.shared.cinder.http import Transport
from tests.agent.bench import WAIT_S
from tests.doubles.served import Handler, served


@contextmanager
def server(at_once: int = 1) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Its URL, and what it was asked for, with which cookie; answers so many at a time."""
    met = threading.Barrier(at_once)
    asked: list[tuple[str, str | None]] = []

    class Elsewhere(Handler):
        def respond(self) -> None:
            asked.append((self.path, self.headers.get("Cookie")))
            met.wait(WAIT_S)
            self.answer(302, Location="/elsewhere", Set_Cookie="a=b")

    with served(Elsewhere) as url:
        yield url, asked


def test_an_answer_is_what_it_is_and_leaves_nothing_behind() -> None:
    with server() as (url, asked), Transport() as transport:
        for _ in range(2):
            answer = transport.request("GET", f"{url}/v3", headers={"X": "y"}, timeout=5)
            assert (answer.status_code, answer.headers["Location"]) == (302, "/elsewhere")
    assert asked == [("/v3", None)] * 2


def test_as_many_connections_are_kept_as_threads_ask(caplog: pytest.LogCaptureFixture) -> None:
    many = 40
    with (
        server(many) as (url, asked),
        Transport() as transport,
        ThreadPoolExecutor(many) as pool,
    ):
        for _ in range(many):
            pool.submit(transport.request, "GET", url, timeout=WAIT_S)
    assert len(asked) == many
    assert not caplog.records, "urllib3 warns of each that it closes"


def test_the_proxy_of_the_environment_is_asked_unless_it_is_not_for_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server() as (proxy, passed), server() as (near, asked), Transport() as transport:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        transport.request("GET", "http://cinder.invalid/v3", timeout=5)
        transport.request("GET", f"{near}/v3", timeout=5)
    assert passed == [("http://cinder.invalid/v3", None)]
    assert asked == [("/v3", None)]
