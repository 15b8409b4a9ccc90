"""SIGUSR2 shows what a process is at at the moment, and it goes on; after SIGHUP, too.

SIGABRT, the signal of systemd's watchdog, shows the stacks as the process ends.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.stack import ADMIN, Process, Stack, eventually, running_stack


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    with running_stack(tmp_path, database_url) as running:
        running.add_server()
        running.start_service(0)
        running.start_agent("compute-1")
        running.wait_for_host()
        yield running


def test_service_and_agent_show_their_threads(stack: Stack) -> None:
    service, agent = stack.components[0], stack.agents["compute-1"]
    _shows(service, "ledger/bootstrap.py")
    _shows(agent, "host_agent/__main__.py")
    assert service.stop() == agent.stop() == 0


def test_service_and_agent_go_on_after_a_hangup(stack: Stack) -> None:
    service, agent = stack.components[0], stack.agents["compute-1"]
    for process, where in ((service, "ledger/bootstrap.py"), (agent, "host_agent/__main__.py")):
        os.kill(process.pid, signal.SIGHUP)
        _shows(process, where)
    assert service.stop() == agent.stop() == 0


def test_a_busy_process_that_is_asked_often_lives_on(tmp_path: Path) -> None:
    """Their stacks change meanwhile: printed by C, twenty times were enough to kill the process."""
    busy = Process(tmp_path / "log", "tests.doubles.busy")
    eventually(lambda: "busy" in busy.log.read_text(), "its start")
    for _ in range(100):
        _shown(busy)
    assert busy.running
    os.kill(busy.pid, signal.SIGABRT)
    eventually(partial(_ended, busy), "its end")
    assert "Fatal Python error: Aborted" in busy.log.read_text()


def test_stacks_are_shown_where_the_state_cannot_be_told(tmp_path: Path) -> None:
    busy = Process(tmp_path / "log", "tests.doubles.busy", "untold")
    eventually(lambda: "busy" in busy.log.read_text(), "its start")
    os.kill(busy.pid, signal.SIGUSR2)
    eventually(lambda: "cannot be told: RuntimeError" in busy.log.read_text(), "its word")
    assert "in _work" in busy.log.read_text()
    assert busy.stop() == 0


def test_a_signal_that_another_thread_gets_is_heeded(stack: Stack) -> None:
    """The kernel gives it to any thread, where the main one has just got another one."""
    for process in (stack.components[0], stack.agents["compute-1"]):
        _signal_another_thread(process, signal.SIGUSR2)
        eventually(partial(_told, process), "its state")
        _signal_another_thread(process, signal.SIGTERM)
        eventually(partial(_ended, process), "its end")


def _told(process: Process) -> bool:
    return "Open calls: " in process.log.read_text()


def _ended(process: Process) -> bool:
    return not process.running


def _signal_another_thread(process: Process, number: int) -> None:
    threads = {int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()}
    other = max(threads - {process.pid})
    assert ctypes.CDLL(None).tgkill(process.pid, other, number) == 0


def test_what_waits_for_cinder_is_shown_with_the_call_it_waits_for(stack: Stack) -> None:
    """First the host's step, whose attachment Cinder does not update; then the ledger's own."""
    service, agent = stack.components[0], stack.agents["compute-1"]
    [server], volume = stack.servers, stack.add_volume()
    stack.cinder.faults.replace([{"call": "attachment_update", "do": "delay", "seconds": 25.0}])
    stack.attach(server, volume)
    run = rf"operation \S+, server {server}, volume {volume}: \w+, \d+\.\d s"
    call = r"  PUT 127.0.0.1:\d+ /v3/\S*attachments/\S+, \d+\.\d s, thread run-"
    call = rf"Open calls: \d\n(  .*\n)*{call}"
    _shows_soon(agent, rf"Runs: 1 under way, 0 wait\n  {run}\nLedger: in contact\n{call}")
    assert re.search(r"Leases: \d+, held as .*\nSteps: ", _shown(service))
    stack.cinder.faults.replace([{"call": "attachment_create", "do": "delay", "seconds": 25.0}])
    other = stack.add_volume()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(stack.attach, server, other)
        _shows_soon(service, r"POST 127.0.0.1:\d+ /v3/\S*attachments, \d+\.\d s, thread ")
        shown = _shown(service)
        service.kill()  # nobody waits for Cinder
        assert asked.exception() is not None
    assert "Requests: " in shown
    assert "Appends: " in shown
    logs = agent.log.read_text() + service.log.read_text()
    assert not [line for line in logs.splitlines() if ADMIN in line]


def _shown(process: Process) -> str:
    """What it tells of itself when it is asked now."""
    before = process.log.stat().st_size
    os.kill(process.pid, signal.SIGUSR2)

    def said() -> str | None:
        assert process.running, "it died of being asked"
        new = process.log.read_bytes()[before:].decode()
        return new if re.search(r"Open calls: (0\n|\d+\n  .*\n)", new) else None

    return eventually(said, "its state")


def _shows_soon(process: Process, what: str) -> None:
    eventually(lambda: re.search(what, _shown(process)), what)


def _shows(process: Process, where: str) -> None:
    os.kill(process.pid, signal.SIGUSR2)
    eventually(lambda: where in process.log.read_text(), f"the stack in {where}")
    assert "Thread 0x" in process.log.read_text()
    eventually(partial(_told, process), "its state")
    assert process.running
