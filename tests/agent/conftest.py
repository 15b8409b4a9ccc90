from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.bench import Bench, Reports
from tests.agent.fake_ledger import FakeLedger


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def fake_ledger() -> Iterator[FakeLedger]:
    with FakeLedger().running() as ledger:
        yield ledger


@pytest.fixture
def reports() -> Reports:
    return Reports()
