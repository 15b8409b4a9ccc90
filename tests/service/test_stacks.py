"""SIGUSR2 shows what a process does at the moment, and the process goes on; after SIGHUP, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Process, Stack, eventually, running_stack


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    with running_stack(tmp_path, database_url) as running:
        running.start_service(0)
        running.start_agent("compute-1")
        running.wait_for_host()
        yield running


@pytest.mark.further
def test_service_and_agent_show_their_threads(stack: Stack) -> None:
    service, agent = stack.components[0], stack.agents["compute-1"]
    _shows(service, "ledger/bootstrap.py")
    _shows(agent, "host_agent/__main__.py")
    assert service.stop() == agent.stop() == 0


@pytest.mark.further
def test_service_and_agent_go_on_after_a_hangup(stack: Stack) -> None:
    service, agent = stack.components[0], stack.agents["compute-1"]
    for process, where in ((service, "ledger/bootstrap.py"), (agent, "host_agent/__main__.py")):
        os.kill(process.pid, signal.SIGHUP)
        _shows(process, where)
    assert service.stop() == agent.stop() == 0


def _shows(process: Process, where: str) -> None:
    os.kill(process.pid, signal.SIGUSR2)
    eventually(lambda: where in process.log.read_text(), f"the stack in {where}")
    assert "Thread 0x" in process.log.read_text()
    assert process.running
