"""What carries Cinder's calls: the environment's proxies count, its netrc and cookies do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from host_agent.shared.cinder.http import transport
from tests.agent.bench import WAIT_S
from tests.doubles.served import Handler, served

#: What any request says.
OF_HTTP = {"Host", "Accept-Encoding", "User-Agent"}


@contextmanager
def server(at_once: int = 1) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Its URL, and what it was asked for, with which headers; answers so many at a time."""
    met = threading.Barrier(at_once)
    asked: list[tuple[str, dict[str, str]]] = []

    class Elsewhere(Handler):
        def respond(self) -> None:
            sent = {name: value for name, value in self.headers.items() if name not in OF_HTTP}
            asked.append((self.path, sent))
            met.wait(WAIT_S)
            self.answer(302, Location="/elsewhere", Set_Cookie="a=b")

    with served(Elsewhere) as url:
        yield url, asked


def test_an_answer_is_what_it_is_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with server() as (url, asked), transport() as ours:
        for _ in range(2):
            answer = ours.get(f"{url}/v3", headers={"X": "y"}, timeout=5, allow_redirects=False)
            assert (answer.status_code, answer.headers["Location"]) == (302, "/elsewhere")
    assert asked == [("/v3", {"X": "y"})] * 2


def test_as_many_connections_are_kept_as_threads_ask(caplog: pytest.LogCaptureFixture) -> None:
    many = 40
    with (
        server(many) as (url, asked),
        transport() as ours,
        ThreadPoolExecutor(many) as pool,
    ):
        for _ in range(many):
            pool.submit(ours.get, url, timeout=WAIT_S, allow_redirects=False)
    assert len(asked) == many
    assert not caplog.records, "urllib3 warns of each that it closes"


def test_the_proxy_of_the_environment_is_asked_unless_it_is_not_for_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server() as (proxy, passed), server() as (near, asked), transport() as ours:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        ours.get("http://cinder.invalid/v3", timeout=5, allow_redirects=False)
        ours.get(f"{near}/v3", timeout=5, allow_redirects=False)
    assert passed == [("http://cinder.invalid/v3", {})]
    assert asked == [("/v3", {})]
