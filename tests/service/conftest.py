"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.service.api_world import Api, running_api


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """The API on a fresh database, with the dispatcher at work and no host yet."""
    async with running_api(database_url) as running:
        yield running
