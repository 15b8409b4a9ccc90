"""The key managers: Cinder's fixed key, and Barbican over HTTP."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Keys, PortError
from host_agent.shared.platform import masking
from host_agent.storage.keys import FIXED_KEY_ID, NO_KEYS, Barbican, KeyManagers

KEY = bytes(range(200, 232))
KEY_ID = "7a1f1c9e-1111-4222-8333-444455556666"


class FakeBarbican(ThreadingHTTPServer):
    """Has one key; `status` is what it answers instead."""

    status = 200

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeBarbican

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Accept"]))
        known = self.path == f"/v1/secrets/{KEY_ID}/payload"
        status = self.server.status if known else 404
        body = KEY if status == 200 else b"refused"
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


@contextmanager
def serving() -> Iterator[FakeBarbican]:
    with FakeBarbican() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def barbican() -> Iterator[FakeBarbican]:
    with serving() as server:
        yield server


def refused(keys: Keys, key_id: str) -> PortError:
    with pytest.raises(PortError) as raised:
        keys.passphrase(key_id)
    return raised.value


def test_fixed_key_is_told_as_nova_and_cinder_do() -> None:
    assert KeyManagers("C0FFEE" * 8).passphrase(FIXED_KEY_ID) == "c0ffee" * 8


def test_fixed_key_is_no_other_key() -> None:
    error = refused(KeyManagers("c0ffee"), KEY_ID)
    assert (error.kind, error.code) == (ErrorKind.FINAL, "no_key_manager")
    assert "[keys] barbican" in error.message


def test_host_without_any_says_which_setting_is_missing() -> None:
    assert "[keys] fixed_key_file" in refused(NO_KEYS, FIXED_KEY_ID).message


def test_fixed_key_that_is_no_hexadecimal_is_a_wrong_setting() -> None:
    with pytest.raises(ValueError, match="hexadecimal") as raised:
        KeyManagers("no-hex-at-all")
    assert "no-hex-at-all" not in str(raised.value)


def test_fixed_key_is_masked_from_the_start() -> None:
    KeyManagers("fa57f00d" * 8)
    assert "fa57f00d" not in masking.mask(f"key is {'fa57f00d' * 8}")


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_barbicans_key_is_told_in_hexadecimal(barbican: FakeBarbican, path: str) -> None:
    keys = KeyManagers(barbican=Barbican(CinderSettings(), barbican.url + path))
    assert keys.passphrase(KEY_ID) == KEY.hex()
    assert barbican.asked == [(f"/v1/secrets/{KEY_ID}/payload", "application/octet-stream")]


def test_fixed_key_and_barbican_serve_side_by_side(barbican: FakeBarbican) -> None:
    keys = KeyManagers("c0ffee", Barbican(CinderSettings(), barbican.url))
    assert (keys.passphrase(FIXED_KEY_ID), keys.passphrase(KEY_ID)) == ("c0ffee", KEY.hex())


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, ErrorKind.FINAL, "key_forbidden"),
        (403, ErrorKind.FINAL, "key_forbidden"),
        (404, ErrorKind.FINAL, "no_key"),
        (500, ErrorKind.RETRYABLE, "key_manager_unavailable"),
        (503, ErrorKind.RETRYABLE, "key_manager_unavailable"),
    ],
)
def test_what_barbican_answers_instead_of_a_key(
    barbican: FakeBarbican, status: int, kind: ErrorKind, code: str
) -> None:
    barbican.status = status
    error = refused(Barbican(CinderSettings(), barbican.url), KEY_ID)
    assert (error.kind, error.code) == (kind, code)


def test_key_that_barbican_does_not_know_is_final(barbican: FakeBarbican) -> None:
    assert refused(Barbican(CinderSettings(), barbican.url), str(uuid.uuid4())).code == "no_key"


def test_barbican_that_is_away_is_asked_again_later() -> None:
    with serving() as server:
        url = server.url
    error = refused(Barbican(CinderSettings(), url), KEY_ID)
    assert (error.kind, error.code) == (ErrorKind.RETRYABLE, "key_manager_unavailable")


def test_key_id_is_nothing_but_an_id(barbican: FakeBarbican) -> None:
    """It comes from another service, and goes into a URL."""
    error = refused(Barbican(CinderSettings(), barbican.url), f"../orders/{KEY_ID}")
    assert error.code == "no_key"
    assert barbican.asked == []
