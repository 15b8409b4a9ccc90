"""A compute endpoint for the simulated Cinder to ask: every answer is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.doubles.served import Handler, served


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    version: str | None
    token: str | None
    body: Any


@dataclass(frozen=True, kw_only=True)
class Compute:
    url: str
    asked: list[Asked]


@contextmanager
def running_compute(status: int, attachment_id: str | None = None) -> Iterator[Compute]:
    """Answers `status`, with this attachment's id if there is one, and remembers who asked."""
    asked: list[Asked] = []
    found = {"attachment_id": attachment_id} if attachment_id else {}
    told = b"" if status == 202 else json.dumps({"volumeAttachment": found}).encode()

    class Nova(Handler):
        def respond(self) -> None:
            asked.append(
                Asked(
                    method=self.command,
                    path=self.path,
                    version=self.headers.get("OpenStack-API-Version"),
                    token=self.headers.get("X-Auth-Token"),
                    body=json.loads(self.body() or "null"),
                )
            )
            self.answer(status, told, Content_Type="application/json")

    with served(Nova) as url:
        yield Compute(url=f"{url}/v2.1", asked=asked)
