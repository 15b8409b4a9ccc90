"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from projections import runner
from tests.service.api_world import Api, running_api

#: How long the projections' thread sleeps, and so how long its end takes at most.
PROJECTIONS_POLL_S = 0.02


@pytest.fixture
async def api(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The API on a fresh database, with the dispatcher at work and no host yet."""
    monkeypatch.setattr(runner, "POLL_INTERVAL_S", PROJECTIONS_POLL_S)
    async with running_api(database_url) as running:
        yield running
