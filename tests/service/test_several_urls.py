"""Agents and the command line know several processes, and leave one that is dead or paused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_agent.line.client import POLL_S, SILENT_S
from ledger.cli.client import ALIVE_TIMEOUT_S, Client, UnreachableError
from tests.stack import ADMIN, Stack, eventually, running_stack

pytestmark = pytest.mark.slow
#: A poll under way, the registration elsewhere, and a busy machine.
LEFT_S = POLL_S + SILENT_S + 10.0


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    """Two services, an agent of both, and a running server."""
    with running_stack(tmp_path, database_url) as running:
        running.add_server()
        for number in (0, 1):
            running.start_service(number)
        running.start_agent("compute-1", 0, 1)
        running.wait_for_host()
        yield running


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_a_process_that_is_gone_is_left(end: str, stack: Stack) -> None:
    [server], volume = stack.servers, stack.add_volume()
    getattr(stack.components[0], end)()
    began = time.monotonic()
    eventually(lambda: stack.attach(server, volume, 1).status_code == 200, "an attachment")
    client = Client(f"{stack.url('')},{stack.url('', 1)}", ADMIN)
    assert client.url == stack.url("", 1)

    def ended() -> bool:
        [operation] = client.get("/v1/operations", volume=volume)["operations"]
        return bool(operation["state"] == "finished")

    eventually(ended, "the host's steps")
    assert time.monotonic() - began < LEFT_S + ALIVE_TIMEOUT_S


def test_if_none_answers_the_command_says_so(stack: Stack) -> None:
    stack.kill_all()
    with pytest.raises(UnreachableError):
        Client(f"{stack.url('')},{stack.url('', 1)}", ADMIN).get("/v1/hosts")
