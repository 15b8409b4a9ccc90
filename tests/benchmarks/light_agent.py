"""A host's agent as the wire sees it, light enough for thousands of them in one process.

It does what host_agent.line.link does: registers, polls from its cursor, and after a loss comes
back with the same growing pauses, registers again and asks from the beginning.  It keeps
every command it was given.  One that `plays` reports its steps as done.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid5

from host_agent.line.client import LinkSettings
from host_agent.shared.contract.backoff import Backoff
from tests.benchmarks.line import Line
from tests.benchmarks.reports import reports_of
from tests.tokens import token_of

PROJECT = "9d1f5b0c6a7e4d8f9b2a3c4d5e6f7a8b"
_GUESTS = UUID("f7f1c2d0-3f53-4f0f-9a63-6f3b1e5b8a11")
_DEFINITION = (
    "<domain><name>vm</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>"
    "<os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"
)
#: What a host that did as it was told says of its guest's power.
_POWER = {"guest_spawn": "running", "guest_stop": "shutdown"}


@dataclass
class Given:
    """A command that was received; `session` counts registrations after a loss."""

    command: dict[str, Any]
    at: float
    session: int

    @property
    def key(self) -> tuple[str, int]:
        return self.command["operation_id"], self.command["run"]


@dataclass
class LightAgent:
    """`run` until cancelled.  `polling` is true while a poll is sent and not answered."""

    host: str
    port: int
    guests: int = 2
    plays: bool = False
    wait_s: float = LinkSettings.wait_s
    given: list[Given] = field(default_factory=list)
    passed: int = 0  # commands received again below the cursor
    session: int = 0
    polling: bool = False
    on_command: Callable[[Given], None] | None = None
    _after: int = 0
    _epoch: int = 0

    def guest(self, number: int = 0) -> str:
        return str(uuid5(_GUESTS, f"{self.host}/{number}"))

    async def run(self) -> None:
        backoff = Backoff(LinkSettings.backoff_first_s, LinkSettings.backoff_max_s, random.random)
        line = Line(self.port, token_of(self.host))
        try:
            while True:
                try:
                    await self._register(line)
                    while True:
                        await self._poll(line)
                        backoff.reset()
                except (OSError, EOFError):
                    self.polling = False
                    await asyncio.sleep(backoff.next_s())
        finally:
            line.close()

    async def _register(self, line: Line) -> None:
        guests = [
            {
                "server_id": self.guest(number),
                "name": f"vm-{number}",
                "power_state": "running",
                "devices": ["vda"],
                "project_id": PROJECT,
                "user_id": "someone",
                "definition": _DEFINITION,
            }
            for number in range(self.guests)
        ]
        migration = {"uri": f"qemu+tcp://{self.host}/system", "address": self.host}
        said = {
            "service_version": 2,
            "capabilities": {"multiattach": True, "tag": True, "migration": migration},
            "guests": guests,
            "connections": [],
        }
        answer = await self._ask(line, "PUT", "", said)
        self._epoch, self._after = answer["epoch"], 0
        self.session += 1

    async def _poll(self, line: Line) -> None:
        path = f"/commands?after={self._after}&epoch={self._epoch}&wait_s={self.wait_s:g}"
        self.polling = True
        answer = await self._ask(line, "GET", path)
        at, self.polling = time.perf_counter(), False
        for command in answer["commands"]:
            self.passed += command["position"] <= self._after
            given = Given(command, at, self.session)
            self.given.append(given)
            if self.on_command is not None:
                self.on_command(given)
            if self.plays:
                await self._play(line, command)
        self._after = answer["after"]

    async def _play(self, line: Line, command: dict[str, Any]) -> None:
        def outputs_of(step: dict[str, Any]) -> dict[str, Any]:
            power = _POWER.get(step["verb"])
            return {"power_state": power} if power else {}

        for said in reports_of(command, outputs_of):
            await self._ask(line, "POST", "/reports", said)

    async def _ask(self, line: Line, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer; OSError for what host_agent.line.link, too, asks again after a pause."""
        status, answer = await line.ask(method, f"/v1/hosts/{self.host}{path}", body)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ConnectionResetError(status, answer)
        assert status == HTTPStatus.OK, (status, answer)
        return answer
