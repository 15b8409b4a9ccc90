"""A time-out to read is for the whole answer, which a trickle of bytes does not outlive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
from urllib3 import Timeout, connection_from_url

from host_agent.line.client import LedgerClient, LinkError, LinkSettings
from host_agent.shared.cinder.calls import Retry
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.http import transport
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.lines import NotConnectedError, ask, left_s, whole_answers, within

#: What trickles: a byte each so many seconds, which is far less than the time-out.
BYTE_EVERY_S, TIMEOUT_S = 0.05, 0.5
#: A trickle lasts so many bytes unless the client ends it: a minute and more.
BYTES = 1_500

HEAD = b"HTTP/1.1 200 OK\r\nX-Filler: "
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@contextmanager
def trickling(begin: bytes) -> Iterator[tuple[str, threading.Event, list[int]]]:
    """Its URL; set when a client has broken off its answer; how many were begun."""
    ended, begun = threading.Event(), [0]

    def serve(peer: socket.socket) -> None:
        with peer:
            peer.recv(65_536)
            begun[0] += 1
            try:
                peer.sendall(begin)
                for _ in range(BYTES):
                    if stopped.wait(BYTE_EVERY_S):
                        return
                    peer.sendall(b"x")
            except OSError:
                ended.set()

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", ended, begun
        finally:
            stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)


@pytest.mark.parametrize("begin", [HEAD, BODY], ids=["head", "body"])
def test_a_trickle_does_not_outlive_the_time_out_of_an_answer(begin: bytes) -> None:
    with trickling(begin) as (url, ended, _):
        pool = whole_answers(connection_from_url(url))
        with pytest.raises(TimeoutError):
            ask(pool, "GET", "/", {}, timeout=Timeout(connect=5, read=TIMEOUT_S))
        pool.close()
        assert ended.wait(30)


@pytest.mark.parametrize("begin", [HEAD, BODY], ids=["head", "body"])
def test_the_lines_to_the_ledger_and_to_cinder_are_such(begin: bytes) -> None:
    with trickling(begin) as (url, _, begun):
        ledger = LedgerClient(LinkSettings(url=url, token="t", host="h"))
        with pytest.raises(LinkError, match="not reached"):
            ledger.call("GET", "/commands", timeout_s=TIMEOUT_S)
        ledger.close()
        with transport() as ours, pytest.raises(requests.ReadTimeout):
            ours.request("GET", f"{url}/v3", timeout=(5, TIMEOUT_S))
        assert begun[0] == 2


def test_all_calls_of_a_thread_within_some_seconds_share_them() -> None:
    with trickling(BODY) as (url, _, begun):
        settings = CinderSettings(endpoint=f"{url}/v3", backoff=RetryLimits(delay_first_s=0.01))
        cinder = CinderClient(settings)
        with within(TIMEOUT_S):
            for _ in range(10):
                with pytest.raises(PortError) as raised:
                    cinder.volume("9d1f5b0c-6a7e-4d8f-9b2a-3c4d5e6f7a8b")
        assert raised.value.kind is ErrorKind.RETRYABLE, "there was no time left, and nothing sent"
        assert begun[0] == 1
        assert left_s() is None
        cinder.close()


def test_nothing_is_sent_when_no_time_is_left() -> None:
    pool = whole_answers(connection_from_url("http://127.0.0.1:9"))
    with within(1e-9), within(1000), pytest.raises(NotConnectedError, match="no time left"):
        ask(pool, "GET", "/", {}, timeout=Timeout(connect=5, read=5))


def test_a_call_is_not_repeated_later_than_its_thread_has_time() -> None:
    waits: list[float] = []

    def refused() -> None:
        raise PortError(ErrorKind.RETRYABLE, "cinder_unavailable", "no")

    retry = Retry(
        RetryLimits(delay_first_s=60.0, delay_max_s=60.0), sleep=waits.append, chance=lambda: 1.0
    )
    with within(20.0), pytest.raises(PortError):
        retry.run(refused, repeatable=True)
    assert waits == []


def test_a_cinder_that_hangs_is_asked_for_its_versions_once_by_all_who_wait() -> None:
    """Each in turn would make the last of them wait for the sum."""
    many = 8
    together = threading.Barrier(many)
    told: list[str] = []

    def ask_it() -> None:
        together.wait(30)
        try:
            cinder.volume("9d1f5b0c-6a7e-4d8f-9b2a-3c4d5e6f7a8b")
        except PortError as error:
            told.append(error.code)

    with trickling(HEAD) as (url, _, begun):
        limits = RetryLimits(attempts_max=1)
        settings = CinderSettings(endpoint=f"{url}/v3", read_timeout_s=TIMEOUT_S, backoff=limits)
        cinder = CinderClient(settings)
        threads = [threading.Thread(target=ask_it) for _ in range(many)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert told == ["cinder_timeout"] * many
        assert begun[0] < many / 2
        cinder.close()
