from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from host_agent.shared.platform import logs
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
def log_lines() -> Iterator[io.StringIO]:
    """What is logged, in the form for people."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("debug", "human", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def reports() -> Reports:
    return Reports()
