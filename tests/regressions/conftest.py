"""The API, for the bugs that only show there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.service.api_world import Api, running_api


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with running_api(database_url) as running:
        yield running
