"""Of files that are put there by others only regular ones are read, and reading them waits for
nobody.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.platform import settings, tls
from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.settings import ConfigError, Source
from ledger.auth import policy as policy_module
from ledger.auth.policy import Policy
from ledger.auth.reading import READ_S_MAX, Reading
from ledger.auth.renewal import Renewal
from ledger.auth.tls import _read
from ledger.config import Settings
from tests.authority import Authority
from tests.stack import eventually

DEADLINE_S = 30.0


@contextmanager
def fifo(path: Path) -> Iterator[None]:
    """In the place of what there was; who does read it is let go at last, so that a test fails."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    over = threading.Event()

    def let_go() -> None:
        over.wait(DEADLINE_S)
        if path.is_fifo():
            path.unlink()
        os.close(writer)

    letting_go = threading.Thread(target=let_go)
    letting_go.start()
    try:
        yield
    finally:
        over.set()
        letting_go.join()


# --- the one way to read ----------------------------------------------------------------------


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """Through a directory that is itself a link, as Kubernetes puts them."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "token").write_text("abc")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    with regular_file(tmp_path / "token") as same:
        assert same.read_text() == "abc"


def test_what_was_found_is_what_is_read(tmp_path: Path) -> None:
    """Whatever is put in its place meanwhile: it is another one."""
    file = tmp_path / "file"
    file.write_text("former")
    with regular_file(file) as same, fifo(file):
        assert same.read_text() == "former"


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (os.mkfifo, "It is no regular file"),
        (lambda path: path.symlink_to("/dev/null"), "It is no regular file"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    ],
    ids=["a FIFO", "a device", "a directory", "a link to nothing"],
)
def test_nothing_else_is_opened(put: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    put(tmp_path / "file")
    with pytest.raises(OSError, match=why), regular_file(tmp_path / "file"):
        pass


def test_no_handle_is_left(tmp_path: Path) -> None:
    before = handles()
    for _ in range(3):
        with pytest.raises(OSError, match="Is a directory"), regular_file(tmp_path):
            pass
    assert handles() == before


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- all that is read again -------------------------------------------------------------------


@dataclass
class Tree:
    """Settings of a test."""

    text: str = ""


READS: dict[str, Callable[[Path, Any], object]] = {
    "settings": lambda file, _: settings.load(Tree, Source("P_", file), None, {}),
    "a token": lambda file, _: settings.secret_in(file),
    "a policy": lambda file, _: Policy(file),
    "a certificate": lambda file, pair: tls.show(context(), str(file), str(pair.key)),
    "a key": lambda file, pair: tls.show(context(), str(pair.certificate), str(file)),
    "authorities": lambda file, _: tls.trust(context(), str(file)),
    "what authorities are known by": lambda file, _: _read(str(file)),
}


def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_fifo_in_the_place_of_a_file_is_refused_at_once(
    read: Callable[[Path, Any], object], tmp_path: Path
) -> None:
    pair = Authority(tmp_path / "ca").pair("service")
    with fifo(tmp_path / "file"), pytest.raises(ConfigError, match=r"file: .*no regular file"):
        read(tmp_path / "file", pair)


async def test_a_fifo_for_a_moment_does_not_end_the_following_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "RELOAD_S", 0.001)
    file = tmp_path / "policy.yaml"
    file.write_text("{}")
    policy = Policy(file)
    following = asyncio.create_task(policy.follow())
    with fifo(file):
        await until(lambda: policy.stale, "told")
        assert "no regular file" in (await policy.check() or "")
        (tmp_path / "new").write_text("{}")
        (tmp_path / "new").replace(file)
        await until(lambda: not policy.stale, "taken")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert await policy.check() is None


async def until(is_so: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(eventually, is_so, what)


# --- a reader that hangs ----------------------------------------------------------------------


async def test_a_reader_that_hangs_is_told_until_it_goes_on() -> None:
    now, answered = 0.0, threading.Event()
    reading = Reading(lambda: now)
    looking = asyncio.create_task(reading.look(answered.wait))
    await asyncio.sleep(0)
    now = READ_S_MAX - 0.1
    before = reading.trouble()
    now = READ_S_MAX + 20
    told = reading.trouble()
    answered.set()
    assert await looking
    assert before is None
    assert "has taken 30 s so far" in (told or "")
    assert reading.trouble() is None


async def test_a_policy_whose_reader_hangs_is_told_and_counts_as_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "RELOAD_S", 0.001)
    monkeypatch.setattr("ledger.auth.reading.READ_S_MAX", 0.0)
    (tmp_path / "policy.yaml").write_text("{}")
    policy, begun, answered = Policy(tmp_path / "policy.yaml"), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        answered.wait()

    monkeypatch.setattr(policy, "refresh", hang)
    following = asyncio.create_task(policy.follow())
    await until(begun.is_set, "a look")
    told, stale = await policy.check(), policy.stale
    answered.set()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert "policy.yaml: reading it again has taken" in (told or "")
    assert (stale, policy.stale) == (True, False)


async def test_a_renewal_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.auth.reading.READ_S_MAX", 0.0)
    begun, answered = threading.Event(), threading.Event()

    class Hanging:
        def changed(self) -> bool:
            begun.set()
            return answered.wait() and False

    again: Any = type("Again", (), {"file": Hanging()})
    renewal = Renewal(Settings(), lambda: 0.0, again)
    warning = renewal.warnings()["renewal"]
    looking = asyncio.create_task(renewal.look(lambda _: None))
    await until(begun.is_set, "a look")
    told = await warning()
    answered.set()
    await looking
    assert "reading it again has taken" in (told or "")
    assert await warning() is None
