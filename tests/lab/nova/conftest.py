"""Fixtures of the tests beside a real Nova; `up.sh nova` has started it.

What of ours is beside it, the tests start themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lab.nova.cloud import NovaCloud

if os.environ.get("LAB_TIER") != "nova":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _processes_run() -> None:
    """In place of the other tiers': there is no agent."""


@pytest.fixture(scope="session")
def cloud() -> NovaCloud:
    """Of Nova itself: who logs in again, after an hour, may be given a catalog that names us."""
    from tests.lab.nova.beside import NOVA_URL
    from tests.lab.nova.cloud import NovaCloud

    return NovaCloud(f"{NOVA_URL}/v2.1")


@pytest.fixture(autouse=True)
def _left_clean(cloud: NovaCloud) -> Iterator[None]:
    """Whatever a test leaves is removed, as a drift of one would be found by the next."""
    yield
    cloud.clear()
