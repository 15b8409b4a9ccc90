"""A small HTTP server in the place of the ledger, for what a real one does not do on demand.

Its answers pass through the models of the real API, so a test cannot rely on a form that
the service does not have.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from ledger.http.schemas import Problem
from ledger.native import schemas, schemas_attachments
from ledger.native.drift.schemas_remnants import OperationActed, RemnantSummary
from ledger.native.log import schemas_events

SERVER = "11111111-1111-4111-8111-111111111111"
VOLUME = "22222222-2222-4222-8222-222222222222"
ATTACHMENT = "33333333-3333-4333-8333-333333333333"
OPERATION = "44444444-4444-4444-8444-444444444444"
REQUEST = "req-55555555-5555-4555-8555-555555555555"
START_DEADLINE_S = 60.0

#: The command line: arguments to exit status.
Run = Callable[..., int]
#: The same on a terminal of 80 columns: arguments (and the exit status) to what it shows.
Screen = Callable[..., str]
NOW = datetime(2026, 11, 20, 10, 3, 20, tzinfo=UTC)


class Terminal(io.StringIO):
    """A place to write to that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Stub:
    """Answers by "METHOD /path"; a list gives one after the other, the last one for ever."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(request.method, request.path, dict(request.query), headers, body))
        found = self.answers.get(f"{request.method} {request.path}")
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            return problem(404, "not_found", "The resource could not be found.")
        if isinstance(found, BaseModel):
            return web.json_response(found.model_dump(mode="json"))
        made: web.StreamResponse = await found(request)
        return made


def problem(status: int, code: str, detail: str, hint: str | None = None) -> web.Response:
    shown = Problem(
        type=f"urn:attachment-ledger:problem:{code}",
        title="-",
        status=status,
        detail=detail,
        code=code,
        request_id=REQUEST,
        hint=hint,
    )
    return web.json_response(
        shown.model_dump(mode="json"), status=status, content_type="application/problem+json"
    )


def refusing(*args: Any) -> Callable[[web.Request], Any]:
    async def refuse(_request: web.Request) -> web.Response:
        return problem(*args)

    return refuse


def step(name: str, status: str = "pending", **known: Any) -> dict[str, Any]:
    shown = {"lane": 0, "volume_id": VOLUME, "step": name, "verb": name, "place": "hv1"}
    return {**shown, "undo": False, "status": status, **known}


def operation(**changes: Any) -> schemas.OperationShown:
    """A detach that is under way, or what `changes` make of it."""
    shown = {
        "operation_id": OPERATION,
        "flow": "detach",
        "server_id": SERVER,
        "volume_ids": [VOLUME],
        "host": "hv1",
        "state": "running",
        "outcome": None,
        "unwinding": False,
        "why": None,
        "actor": "alice",
        "request_id": REQUEST,
        "started_at": "2026-11-20T10:00:00Z",
        "finished_at": None,
        "position": 7,
        "error": None,
        "left": [],
        "acts": [],
        "steps": [
            step("unplug", "done", attempts=1, took_ms=12),
            step("disconnect", "running"),
            step("delete"),
            step("unbind", place="ledger"),
        ],
    }
    return schemas.OperationShown.model_validate({**shown, **changes})


BUSY = {"kind": "retryable", "code": "busy", "message": "The device is busy."}


def parked() -> schemas.OperationShown:
    failed = step("disconnect", "failed", attempts=3, error=BUSY)
    rows = [
        {"lane": 0, "volume_id": VOLUME, "step": "disconnect", "undo": False, "error": BUSY},
        {"lane": 0, "volume_id": VOLUME, "step": "delete", "undo": False, "error": None},
    ]
    done = step("unplug", "done", attempts=1, took_ms=12)
    return operation(
        state="parked",
        why=BUSY["message"],
        left=rows,
        acts=["retry", "skip", "give_up"],
        steps=[done, failed, step("delete"), step("unbind", place="ledger")],
    )


def acted(*remnants: RemnantSummary, dry_run: bool = False) -> OperationActed:
    shown = dict(parked() if dry_run else operation())
    return OperationActed(**shown, dry_run=dry_run, remnants=list(remnants))


def operations(**changes: Any) -> schemas.Operations:
    shown = dict(parked())
    long_why = "Terminate volume connection failed: the backend array-7.example.org is away"
    known = {**shown, "server_name": "db-1", "why": long_why, **changes}
    rows = [schemas.OperationSummary.model_validate(known)]
    return schemas.Operations(operations=rows, next=None)


def attachment(**changes: Any) -> schemas_attachments.AttachmentShown:
    shown = {
        "attachment_id": ATTACHMENT,
        "volume_id": VOLUME,
        "server_id": SERVER,
        "server_name": "db-1",
        "host": "hv1",
        "state": "attached",
        "driver": "iscsi",
        "target_digest": None,
        "device_path": None,
        "adopted": False,
        "access_mode": "rw",
        "flow": "new",
        "origin": None,
        "operation_id": OPERATION,
        "created_at": "2026-11-20T10:00:00Z",
        "ended_at": None,
        "updated_at": "2026-11-20T10:00:00Z",
        "position": 7,
    }
    return schemas_attachments.AttachmentShown.model_validate({**shown, **changes})


def finished(outcome: str = "completed") -> schemas.OperationShown:
    return operation(state="finished", outcome=outcome, finished_at="2026-11-20T10:00:09Z")


def event(
    position: int, topic: str, body: dict[str, Any], **about: Any
) -> schemas_events.EventShown:
    return schemas_events.EventShown.model_validate(
        {
            "position": position,
            "recorded_at": f"2026-11-20T10:00:{position:02}.5Z",
            "topic": topic,
            "originator_id": OPERATION,
            "version": 1,
            "operation_id": OPERATION,
            "request_id": REQUEST,
            "actor": "alice",
            "body": body,
            **about,
        }
    )


@contextmanager
def running_stub() -> Iterator[Stub]:
    """Serve it on loopback in a thread."""
    stub, ready, loop = Stub(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", stub.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert ready.wait(START_DEADLINE_S)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
