"""A thousand hosts in one process: the agents' side of the contract, and nothing behind it.

    python -m tests.benchmarks.hosts PORT HOSTS SERVERS_PER_HOST

Each registers with its guests, polls for commands, and reports their steps as done, at once,
with what a host would tell of it.  A line on stdin says what to do from now on: `answer`
(report), `hold` (take commands and sit on them).  A lost connection is what it is to an agent: it
polls again and reports again.  On stdout it says `registered` when all are, and after the
service was away, when it gave commands again (seconds since the epoch).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tests.benchmarks.line import Line
from tests.benchmarks.reports import reports_of
from tests.tokens import token_of

POLL_S = 20
AGAIN_S = 0.2
#: Commands that are carried out at the same moment, by all hosts together; far more than the
#: service has threads.
AT_ONCE = 100
REGISTERING_MAX = 32
#: The same as an agent would say, by step.
OUTPUTS: dict[str, dict[str, Any]] = {
    "update": {"driver": "iscsi", "target_digest": "0" * 64},
    "connect": {
        "device_path": "/dev/sdb",
        "disk": {"type": "block", "path": "/dev/sdb", "format": "raw", "discard": False},
    },
}


def names(count: int) -> list[str]:
    return [f"compute-{number}" for number in range(count)]


def servers_of(host: str, count: int) -> list[str]:
    return [str(uuid5(NAMESPACE_URL, f"{host}/{number}")) for number in range(count)]


@dataclass
class Shared:
    """What all hosts share: whether they report, and whether the service was away."""

    answering: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    admitted: int = 1
    away: bool = False

    def reported(self) -> None:
        """Admit one more with each report, up to AT_ONCE.

        Hosts that began together would go through their steps in time with each other: all
        their operations would end at the same moment, and no rate could be told.
        """
        if self.admitted < AT_ONCE:
            self.admitted += 1
            self.at_once.release()

    def given(self) -> None:
        if self.away:
            self.away = False
            _say(str(time.time()))


class SimulatedHost:
    """One host's agent."""

    def __init__(self, name: str, port: int, servers: int, shared: Shared) -> None:
        self._path, self._name, self._servers = f"/v1/hosts/{name}", name, servers
        self._polls, self._reports = Line(port, token_of(name)), Line(port, token_of(name))
        self._shared = shared
        self._taken = asyncio.Queue[dict[str, Any]]()
        self._epoch = self._after = 0

    async def register(self) -> None:
        guests = [
            {
                "server_id": server_id,
                "name": f"vm-{server_id[:8]}",
                "power_state": "running",
                "devices": [],
                "project_id": "bench",
                "user_id": "bench",
                "definition": "<domain/>",
            }
            for server_id in servers_of(self._name, self._servers)
        ]
        said = {"service_version": 2, "capabilities": {}, "guests": guests, "connections": []}
        status, told = await self._polls.ask("PUT", self._path, said)
        assert status == 200, told
        self._epoch = told["epoch"]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report())
            async for command in self._commands():
                self._taken.put_nowait(command)

    async def _commands(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            query = f"after={self._after}&epoch={self._epoch}&wait_s={POLL_S}"
            told = await self._answered(self._polls, "GET", f"{self._path}/commands?{query}")
            self._after = told["after"]
            for command in told["commands"]:
                self._shared.given()
                yield command

    async def _report(self) -> None:
        while True:
            command = await self._taken.get()
            await self._shared.answering.wait()
            async with self._shared.at_once:
                for said in reports_of(command, lambda step: OUTPUTS.get(step["name"], {})):
                    await self._answered(self._reports, "POST", f"{self._path}/reports", said)
                    self._shared.reported()

    async def _answered(
        self, line: Line, method: str, path: str, body: Any = None
    ) -> dict[str, Any]:
        """The answer, however often it has to be asked for."""
        while True:
            try:
                status, told = await line.ask(method, path, body)
            except (OSError, EOFError):
                self._shared.away, status = True, 503
            if status == 200:
                return told
            assert status == 503, (path, status, told)
            await asyncio.sleep(AGAIN_S)


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def _obey(shared: Shared) -> None:
    """Follow stdin; its end is ours."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while order := (await reader.readline()).strip():
        shared.answering.set() if order == b"answer" else shared.answering.clear()


async def main(port: int, hosts: int, servers: int) -> None:
    shared = Shared()
    everybody = [SimulatedHost(name, port, servers, shared) for name in names(hosts)]
    at_once = asyncio.Semaphore(REGISTERING_MAX)

    async def register(host: SimulatedHost) -> None:
        async with at_once:
            await host.register()

    await asyncio.gather(*map(register, everybody))
    _say("registered")
    running = [asyncio.create_task(host.run()) for host in everybody]
    over = asyncio.create_task(_obey(shared))
    done, _ = await asyncio.wait([over, *running], return_when=asyncio.FIRST_COMPLETED)
    await next(iter(done))  # an agent never ends: its error is ours
    for task in running:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
