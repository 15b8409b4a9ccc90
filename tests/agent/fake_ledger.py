"""A ledger for the agent's tests to talk to, with rules as strict as the real one's."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from aiohttp import web

from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.messages import (
    SURVEY_HEADER,
    TOLD_HEADER,
    Command,
    Registration,
    Report,
)
from host_agent.shared.contract.survey import Survey, SurveyAnswer, SurveySent
from host_agent.shared.contract.wire import plain, read
from host_agent.shared.platform.clocks import AHEAD_HEADER, TIME_HEADER
from ledger.trial.cloud import free_port
from tests.agent.bench import WAIT_S


class FakeLedger:
    """The ledger's side for one host, over real HTTP in a thread of its own.

    Expects the steps of each command in order; a report for another step, or another
    epoch, is refused as the ledger refuses it.  Restartable: `stop`, then `start` on
    the same port, with all that was acknowledged still known.
    """

    TOKEN = "host-token"

    def __init__(self) -> None:
        self.epoch = 1
        self.fenced = False
        self.again = False  # a guest could not be looked at
        self.commands: dict[str, Command] = {}
        self.next_step: dict[str, int] = {}
        self.reports: list[Report] = []
        self.refused: list[tuple[str, Report]] = []
        self.registrations: list[Registration] = []  # and what changes make of them
        self.changes: list[Changes] = []
        self.knows_no_changes = False
        self.polls: list[int] = []
        self.release: Callable[[Registration], dict[str, Any]] | None = None
        self.users: dict[str, list[str]] = {}  # servers by attachment that asks
        self.progress: list[dict[str, Any]] = []
        self.fail_next: list[int] = []  # HTTP statuses to answer instead, any endpoint
        self.fail_reports: list[int] = []  # the same, for reports only
        self.drop_answers = 0  # so many reports are recorded and then answered by a closed line
        self.denied = False
        self.expects_nothing = False  # every report is stale
        self.ahead_s: float | None = 0.0  # its clock, of this machine's; None: it tells no time
        self.wanted: dict[str, Any] | None = None  # a survey: its token, and the digest known
        self.surveys: list[tuple[SurveyAnswer, Survey | None]] = []
        self.sent: list[tuple[SurveySent, Survey | None]] = []  # unasked
        self.refuses_sent = False
        self.lost_surveys = False  # it does not have the document of any digest
        self.fail_surveys: list[int] = []  # HTTP statuses to answer instead
        self.got: list[str | None] = []  # which question the agent said it had, poll by poll
        self.said_told: list[str | None] = []  # what it was told last, by each registration
        self.said_ahead: list[str | None] = []  # what the agent said of its host's clock
        self.position = 0  # where the log ends when somebody registers
        self.takes_guests = True  # in reports; older ones do not know of them
        self.port, self._held = 0, ExitStack()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._new = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def give(self, command: Command) -> Command:
        with self._new:
            self.commands[command.id] = command
            self.next_step[command.id] = 0
        return command

    def is_done(self, command: Command) -> bool:
        return command.id not in self.commands

    def steps_of(self, command: Command) -> list[str]:
        mine = [r for r in self.reports if r.operation_id == command.operation_id]
        return [result.step for report in mine for result in report.results]

    # --- server -------------------------------------------------------------------------

    def start(self) -> None:
        self.port = self.port or free_port(self._held)
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(WAIT_S)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    @contextmanager
    def running(self) -> Iterator[FakeLedger]:
        self.start()
        try:
            yield self
        finally:
            assert self._thread is not None
            if self._thread.is_alive():
                self.stop()
            self._held.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._gate])
        app.router.add_put("/v1/hosts/{host}", self._register)
        app.router.add_post("/v1/hosts/{host}/guests", self._guests)
        app.router.add_get("/v1/hosts/{host}/commands", self._poll)
        app.router.add_post("/v1/hosts/{host}/reports", self._report)
        app.router.add_post("/v1/hosts/{host}/progress", self._progress)
        app.router.add_put("/v1/hosts/{host}/survey", self._survey)
        app.router.add_put("/v1/hosts/{host}/survey/sent", self._survey_sent)
        app.router.add_get("/v1/hosts/{host}/volumes/{volume}/users", self._users)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        with socket.create_server(("127.0.0.1", self.port)) as listening:
            await web.SockSite(runner, listening).start()
            ready.set()
            await self._stop.wait()
            # A connection that is let in as asyncio's server closes would never be closed itself.
            self._loop.remove_reader(listening)
            for _ in range(3):
                await asyncio.sleep(0)
            await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.denied or request.headers.get("X-Auth-Token") != self.TOKEN:
            return web.json_response({"code": "unauthorized"}, status=401)
        if self.fail_next:
            return web.json_response({"code": "broken"}, status=self.fail_next.pop(0))
        self.said_ahead.append(request.headers.get(AHEAD_HEADER))
        response: web.StreamResponse = await handler(request)
        if self.ahead_s is not None:
            response.headers[TIME_HEADER] = str(time.time() + self.ahead_s)
        return response

    async def _register(self, request: web.Request) -> web.Response:
        said = read(await request.json(), Registration)
        self.registrations.append(said)
        self.said_told.append(request.headers.get(TOLD_HEADER))
        told: dict[str, Any] = {
            "host": request.match_info["host"],
            "epoch": self.epoch,
            "fenced": self.fenced,
        }
        told |= {"again": self.again, "position": self.position}
        told["release"] = self.release(said) if self.release is not None else {}
        return web.json_response(told)

    async def _guests(self, request: web.Request) -> web.Response:
        """The registration that it amounts to."""
        if self.knows_no_changes:
            return web.json_response({"code": "not_found"}, status=404)
        said = read(await request.json(), Changes)
        if said.epoch != self.epoch:
            return web.json_response({"code": "stale_epoch"}, status=409)
        self.changes.append(said)
        last = self.registrations[-1]
        guests = {guest.server_id: guest for guest in (*last.guests, *said.guests)}
        left = tuple(guest for id_, guest in guests.items() if id_ not in said.gone)
        self.registrations.append(replace(last, guests=left))
        return web.json_response({"again": self.again})

    async def _users(self, request: web.Request) -> web.Response:
        servers = self.users.get(request.query["attachment_id"], [])
        return web.json_response({"servers": servers})

    async def _progress(self, request: web.Request) -> web.Response:
        self.progress.append(await request.json())
        return web.json_response({})

    async def _survey(self, request: web.Request) -> web.Response:
        body = await request.json()
        said, shown = read(body, SurveyAnswer), read(body, Survey) if "boot_id" in body else None
        if self.fail_surveys:
            return web.json_response({"code": "broken"}, status=self.fail_surveys.pop(0))
        self.surveys.append((said, shown))
        if said.epoch != self.epoch:
            return web.json_response({"code": "stale_epoch"}, status=409)
        if self.wanted is None or said.token != self.wanted["token"]:
            return web.json_response({"code": "survey_not_wanted"}, status=409)
        if shown is None and (self.lost_surveys or said.digest != self.wanted["digest"]):
            return web.json_response({"again": True})
        self.wanted = None
        return web.json_response({"again": False})

    async def _survey_sent(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuses_sent:
            return web.json_response({"detail": "it asks itself"}, status=409)
        said, shown = read(body, SurveySent), read(body, Survey) if "boot_id" in body else None
        known = {each.digest() for _, each in self.sent if each is not None}
        self.sent.append((said, shown))
        return web.json_response({"again": shown is None and said.digest not in known})

    async def _poll(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        self.polls.append(after)
        got = request.headers.get(SURVEY_HEADER)
        self.got.append(got)
        if int(request.query["epoch"]) != self.epoch:
            return web.json_response({"code": "stale_epoch"}, status=409)
        end = time.monotonic() + float(request.query["wait_s"])
        while time.monotonic() < end:
            if found := [c for c in self.commands.values() if c.position > after]:
                found.sort(key=lambda c: c.position)
                wire = [plain(self._rest(c)) for c in found]
                return web.json_response({"commands": wire, "after": found[-1].position})
            if self.wanted and self.wanted["token"] != got:
                told = {"commands": [], "after": after, "survey": self.wanted}
                return web.json_response(told)
            await asyncio.sleep(0.01)
        return web.json_response({"commands": [], "after": after})

    def _rest(self, given: Command) -> Command:
        """A command is handed out with the steps that have no result yet."""
        return replace(given, steps=given.steps[self.next_step[given.id] :])

    async def _report(self, request: web.Request) -> web.Response:
        report = read(await request.json(), Report)
        if self.fail_reports:
            return web.json_response({"code": "broken"}, status=self.fail_reports.pop(0))
        if report.epoch != self.epoch:
            self.refused.append(("stale_epoch", report))
            return web.json_response({"code": "stale_epoch"}, status=409)
        command_id = f"{report.operation_id}/{report.run}"
        given = self.commands.get(command_id)
        steps = [result.step for result in report.results]
        owed = [step.name for step in self._rest(given).steps] if given else []
        if self.expects_nothing or given is None or steps != owed[: len(steps)]:
            self.refused.append(("stale_report", report))
            return web.json_response({"code": "stale_report"}, status=409)
        self._accept(given, report)
        if self.drop_answers:
            self.drop_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        told = {"goes_on": command_id in self.commands, "taken": len(steps)}
        if self.takes_guests and report.guest is not None:
            told["shown"] = True
        return web.json_response(told)

    def _accept(self, given: Command, report: Report) -> None:
        """Record it; what is left of the command is what will be handed out again."""
        self.reports.append(report)
        self.next_step[given.id] += len(report.results)
        if report.results[-1].error is not None or self.next_step[given.id] == len(given.steps):
            del self.commands[given.id]
