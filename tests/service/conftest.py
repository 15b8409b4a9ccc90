"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from ledger.cli import shell, table
from projections import runner
from tests.doubles.simulated_keystone import SimulatedKeystone, running_keystone
from tests.service.api_world import Api, running_api
from tests.service.cli_stub import NOW, Run, Screen, Stub, Terminal, running_stub

#: How long the projections' thread sleeps, and so how long its end takes at most.
PROJECTIONS_POLL_S = 0.02


@pytest.fixture
async def api(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The API on a fresh database, with the dispatcher at work and no host yet."""
    monkeypatch.setattr(runner, "POLL_INTERVAL_S", PROJECTIONS_POLL_S)
    async with running_api(database_url) as running:
        yield running


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
