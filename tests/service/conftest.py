"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledger.cli import shell, table
from ledger.log.application import Ledger
from tests.doubles.recording_nova import RecordingNova, recording_nova
from tests.doubles.simulated_keystone import SimulatedKeystone, running_keystone
from tests.doubles.simulated_nova import running_nova
from tests.service.api_world import Api, running_api
from tests.service.cli_stub import NOW, Run, Screen, Stub, Terminal, running_stub
from tests.service.passing_world import Both, both_worlds
from tests.service.watched_world import Watched
from tests.stack import Stack, running_stack


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """The API on a fresh database, with the dispatcher at work and no host yet."""
    async with running_api(database_url) as running:
        yield running


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """What a look in another process records with."""
    with Ledger(database_url) as ledger:
        yield ledger


@pytest.fixture
def keystone() -> Iterator[SimulatedKeystone]:
    """A Keystone without users, which a test fills."""
    with running_keystone() as running:
        yield running


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A service that answers what a test tells it to."""
    with running_stub() as running:
        yield running


@pytest.fixture
def run(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process, at that service; capsys has what it prints."""
    monkeypatch.setenv("LEDGER_URL", stub.url)
    monkeypatch.delenv("LEDGER_TOKEN", raising=False)
    return lambda *arguments: shell.main(arguments)


@pytest.fixture
def screen(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """What a command shows on a terminal of 80 columns that wants no colours."""
    for name, value in {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_URL", stub.url)
    monkeypatch.setattr(table, "now", lambda: NOW)

    def shown(*arguments: str, code: int = 0) -> str:
        out = Terminal()
        monkeypatch.setattr("sys.stdout", out)
        assert shell.main(arguments) == code
        return out.getvalue()

    return shown


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    """Services and agents as processes of their own, none of which is started yet."""
    with running_stack(tmp_path, database_url) as running:
        yield running


@pytest.fixture
def ready(stack: Stack) -> Stack:
    """One service, one agent, one running server."""
    stack.add_server()
    stack.start_service()
    stack.start_agent()
    stack.wait_for_host()
    return stack


@pytest.fixture
async def nova() -> AsyncIterator[RecordingNova]:
    """A Nova that keeps what it is asked."""
    async with recording_nova() as running:
        yield running


@pytest.fixture
async def both(
    database_url: str, keystone: SimulatedKeystone, nova: RecordingNova
) -> AsyncIterator[Both]:
    """The API, and a Nova to which it passes requests on."""
    async with both_worlds(database_url, keystone, nova) as running:
        yield running


@pytest.fixture
def watched(tmp_path: Path, database_url: str) -> Iterator[Watched]:
    """A simulated Nova that runs, and the service beside it, not yet started."""
    hosts = ("compute-1", "hv1")
    with (
        running_stack(tmp_path, database_url, hosts=hosts) as stack,
        running_nova(stack.cinder.model) as nova,
    ):
        yield Watched(stack, nova)
