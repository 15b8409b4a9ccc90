"""What the agent's tests share: a simulated host with a simulated Cinder, and a ledger to talk to.

`Bench` is everything in this process; `FakeLedger` serves the agent's endpoints over
HTTP with rules as strict as the ledger's: one expected step at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web

from host_agent.context import Context, Waits
from host_agent.contract import (
    Command,
    CommandStep,
    GuestOrder,
    Lane,
    PowerState,
    Registration,
    Report,
    Verb,
)
from host_agent.executor import Executor, Hooks, Limits, Verdict, World
from host_agent.faults import Faults
from host_agent.locks import Locks
from host_agent.ports import Brick, Cinder, Guests, OldCinder
from host_agent.records import Record
from host_agent.simulated import SimulatedBrick, SimulatedGuests
from host_agent.simulated_state import Store, guest_state
from host_agent.verbs import GUEST_VERBS, VERBS
from ledger.simulation.cinder_direct import DirectCinder
from ledger.simulation.cinder_model import CinderModel

ATTACH = (
    Verb.ATTACHMENT_UPDATE,
    Verb.VOLUME_WAIT_READY,
    Verb.VOLUME_CONNECT,
    Verb.DISK_PLUG,
    Verb.ATTACHMENT_COMPLETE,
)
DETACH = (Verb.DISK_UNPLUG, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
WAIT_S = 10.0


def eventually(holds: Callable[[], Any], what: str, deadline_s: float = WAIT_S) -> Any:
    """Wait until `holds()` is true, and return what it returned."""
    end = time.monotonic() + deadline_s
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)
    return found


class FakeClock:
    """Time that passes by waiting."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waited: list[float] = []

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.time += seconds


class Recorder:
    """A port that notes the calls that go through it."""

    def __init__(self, port: Any, name: str, calls: list[str]) -> None:
        self._port, self._name, self._calls = port, name, calls

    def __getattr__(self, call: str) -> Any:
        method = getattr(self._port, call)

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(f"{self._name}.{call}")
            return method(*args, **kwargs)

        return noted


@dataclass
class Servers:
    """The ledger's answer to who else uses a volume on this host (ports.Users)."""

    by_attachment: dict[str, tuple[str, str]] = field(default_factory=dict)

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        return [
            server_id
            for id_, (volume, server_id) in self.by_attachment.items()
            if volume == volume_id and id_ != attachment_id
        ]


@dataclass(kw_only=True)
class Bench:
    """One host: its Cinder, its state, and calls made on any port, in order."""

    host: str = "compute-1"
    driver: str = "iscsi"
    model: CinderModel = field(default_factory=CinderModel)
    faults: Faults = field(default_factory=Faults)
    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)
    calls: list[str] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    users: Servers = field(default_factory=Servers)

    def __post_init__(self) -> None:
        direct = DirectCinder(self.model, self.faults)
        self.cinder: Cinder = Recorder(direct, "cinder", self.calls)
        self.old_cinder: OldCinder = Recorder(direct, "old_cinder", self.calls)
        brick = SimulatedBrick(self.store, self.faults, self.host)
        guests = SimulatedGuests(self.store, self.faults, self.host)
        self.brick: Brick = Recorder(brick, "brick", self.calls)
        self.guests: Guests = Recorder(guests, "guests", self.calls)

    def server(self, power: PowerState = PowerState.RUNNING, **definition: Any) -> str:
        server_id = str(uuid.uuid4())
        with self.store.edit() as state:
            state["guests"][server_id] = guest_state(
                server_id=server_id, power_state=power.value, **definition
            )
        return server_id

    def lane(self, server_id: str | None = None, volume_id: str | None = None, **over: Any) -> Lane:
        """A reserved attachment of a (new) volume to a (new) server."""
        server_id = server_id or self.server()
        known = {key: over.pop(key) for key in ("shared_targets", "service_uuid") if key in over}
        if volume_id is None:
            multi = over.get("multiattach", False)
            driver = over.pop("driver", self.driver)
            volume_id = self.model.add_volume(driver=driver, multiattach=multi, **known).id
        view = DirectCinder(self.model).attachment_create(volume_id, server_id)
        over.setdefault("device_name", "vdb")
        return Lane(
            server_id=server_id,
            volume_id=volume_id,
            bdm_id=str(uuid.uuid4()),
            attachment_id=view.id,
            **over,
        )

    def old_lane(self, server_id: str | None = None, **over: Any) -> Lane:
        """A volume reserved by Cinder's old calls, for a (new) server."""
        volume_id = self.model.add_volume(driver=self.driver).id
        self.old_cinder.reserve(volume_id)
        over.setdefault("device_name", "vdb")
        over.setdefault("attachment_id", str(uuid.uuid4()))
        server_id = server_id or self.server()
        return Lane(
            server_id=server_id, volume_id=volume_id, bdm_id=str(uuid.uuid4()), legacy=True, **over
        )

    def context(self, **over: Any) -> Context:
        waits = Waits(ready_deadline_s=30.0, ready_poll_s=1.0)
        return Context(**{**vars(self.world()), "clock": self.clock, "waits": waits, **over})

    def run(self, lane: Lane, *verbs: Verb, context: Context | None = None) -> dict[str, Any]:
        """Run verbs in order in one context; the outputs of the last."""
        context = context or self.context()
        outputs: dict[str, Any] = {}
        for verb in verbs:
            outputs = VERBS[verb](context, lane)
        return outputs

    def order(self, verb: Verb, order: GuestOrder, **over: Any) -> dict[str, Any]:
        """Run a verb for a whole server."""
        return GUEST_VERBS[verb](self.context(**over), order)

    def attached(self, server_id: str | None = None, **over: Any) -> Lane:
        lane = self.lane(server_id, **over)
        self.run(lane, *ATTACH)
        self.calls.clear()
        return lane

    def two_users(self, **over: Any) -> tuple[Lane, Lane]:
        """A multi-attach volume in two guests; the ledger knows of both."""
        first = self.attached(multiattach=True, **over)
        second = self.attached(volume_id=first.volume_id, multiattach=True)
        for lane in (first, second):
            self.users.by_attachment[lane.attachment_id or ""] = (lane.volume_id, lane.server_id)
        return first, second

    def world(self) -> World:
        return World(
            cinder=self.cinder,
            old_cinder=self.old_cinder,
            brick=self.brick,
            guests=self.guests,
            users=self.users,
            records=self.records,
        )


_positions = itertools.count(1)


def command(what: Lane | GuestOrder, verbs: tuple[Verb, ...] = ATTACH, **over: Any) -> Command:
    defaults: dict[str, Any] = {
        "operation_id": str(uuid.uuid4()),
        "run": 1,
        "position": next(_positions),
        "epoch": 1,
        "request_id": f"req-{uuid.uuid4()}",
        "flow": "attach",
        "steps": tuple(CommandStep(name=verb.value, verb=verb) for verb in verbs),
    }
    about = "guest" if isinstance(what, GuestOrder) else "lane"
    return Command(**{**defaults, about: what, **over})


@contextmanager
def running_executor(
    world: World,
    lock_path: Path,
    report: Callable[[Report], Verdict],
    *,
    workers: int = 4,
    queue_max: int = 64,
    **hooks: Any,
) -> Iterator[Executor]:
    executor = Executor(
        world,
        Locks(lock_path),
        Hooks(report=report, **hooks),
        limits=Limits(workers=workers, queue_max=queue_max),
        waits=Waits(ready_deadline_s=2.0, ready_poll_s=0.01),
    )
    executor.start()
    try:
        yield executor
    finally:
        assert executor.stop(WAIT_S), "a run did not end"


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
        self.commands: dict[str, Command] = {}
        self.next_step: dict[str, int] = {}
        self.reports: list[Report] = []
        self.refused: list[tuple[str, Report]] = []
        self.registrations: list[Registration] = []
        self.polls: list[int] = []
        self.release: Callable[[Registration], dict[str, Any]] | None = None
        self.users: dict[str, list[str]] = {}  # servers by attachment that asks
        self.progress: list[dict[str, Any]] = []
        self.fail_next: list[int] = []  # HTTP statuses to answer instead, any endpoint
        self.fail_reports: list[int] = []  # the same, for reports only
        self.drop_answers = 0  # so many reports are recorded and then answered by a closed line
        self.denied = False
        self.expects_nothing = False  # every report is stale
        self.port = 0
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
        return [r.step for r in self.reports if r.operation_id == command.operation_id]

    # --- server -------------------------------------------------------------------------

    def start(self) -> None:
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

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._gate])
        app.router.add_put("/v1/hosts/{host}", self._register)
        app.router.add_get("/v1/hosts/{host}/commands", self._poll)
        app.router.add_post("/v1/hosts/{host}/reports", self._report)
        app.router.add_post("/v1/hosts/{host}/progress", self._progress)
        app.router.add_get("/v1/hosts/{host}/volumes/{volume}/users", self._users)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.denied or request.headers.get("X-Auth-Token") != self.TOKEN:
            return web.json_response({"code": "unauthorized"}, status=401)
        if self.fail_next:
            return web.json_response({"code": "broken"}, status=self.fail_next.pop(0))
        response: web.StreamResponse = await handler(request)
        return response

    async def _register(self, request: web.Request) -> web.Response:
        said = Registration.from_wire(await request.json())
        self.registrations.append(said)
        told = {"host": request.match_info["host"], "epoch": self.epoch, "fenced": self.fenced}
        if self.release is not None:
            told["release"] = self.release(said)
        return web.json_response(told)

    async def _users(self, request: web.Request) -> web.Response:
        servers = self.users.get(request.query["attachment_id"], [])
        return web.json_response({"servers": servers})

    async def _progress(self, request: web.Request) -> web.Response:
        self.progress.append(await request.json())
        return web.json_response({})

    async def _poll(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        self.polls.append(after)
        if int(request.query["epoch"]) != self.epoch:
            return web.json_response({"code": "stale_epoch"}, status=409)
        end = time.monotonic() + float(request.query["wait_s"])
        while time.monotonic() < end:
            if found := [c for c in self.commands.values() if c.position > after]:
                found.sort(key=lambda c: c.position)
                wire = [self._rest(c).to_wire() for c in found]
                return web.json_response({"commands": wire, "after": found[-1].position})
            await asyncio.sleep(0.01)
        return web.json_response({"commands": [], "after": after})

    def _rest(self, given: Command) -> Command:
        """A command is handed out with the steps that have no result yet."""
        return replace(given, steps=given.steps[self.next_step[given.id] :])

    async def _report(self, request: web.Request) -> web.Response:
        report = Report.from_wire(await request.json())
        if self.fail_reports:
            return web.json_response({"code": "broken"}, status=self.fail_reports.pop(0))
        if report.epoch != self.epoch:
            self.refused.append(("stale_epoch", report))
            return web.json_response({"code": "stale_epoch"}, status=409)
        command_id = f"{report.operation_id}/{report.run}"
        given = self.commands.get(command_id)
        expected = given.steps[self.next_step[command_id]].name if given else None
        if self.expects_nothing or given is None or report.step != expected:
            self.refused.append(("stale_report", report))
            return web.json_response({"code": "stale_report"}, status=409)
        self._accept(given, report)
        if self.drop_answers:
            self.drop_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"continue": report.error is None})

    def _accept(self, given: Command, report: Report) -> None:
        """Record it; what is left of the command is what will be handed out again."""
        self.reports.append(report)
        self.next_step[given.id] += 1
        if report.error is not None or self.next_step[given.id] == len(given.steps):
            del self.commands[given.id]


class Reports:
    """A ledger in this process: records reports, answers from `verdicts`, can hold them."""

    def __init__(self) -> None:
        self.got: list[Report] = []
        self.verdicts: list[Verdict] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, report: Report) -> Verdict:
        self.got.append(report)
        assert self.gate.wait(WAIT_S)
        if self.verdicts:
            return self.verdicts.pop(0)
        return Verdict.STOP if report.error else Verdict.CONTINUE

    def steps(self) -> list[str]:
        return [report.step for report in self.got]

    def wait(self, count: int) -> list[Report]:
        eventually(lambda: len(self.got) >= count, f"{count} reports, got {self.steps()}")
        return self.got


class Gauge:
    """Counts how many calls are inside at once, and can hold them there."""

    def __init__(self, expected: int = 1) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0
        self.together = threading.Event()
        self._expected = expected

    @contextmanager
    def __call__(self, wait_s: float = 0.05) -> Any:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside >= self._expected:
                self.together.set()
        try:
            self.together.wait(wait_s)
            yield
        finally:
            with self._lock:
                self.inside -= 1


class Holder:
    """Another process that holds a lock until released or killed."""

    def __init__(self, path: Path, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_hold, args=(str(path), name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._ours.poll(WAIT_S), "the other process did not get the lock"

    def release(self) -> None:
        self._ours.close()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._ours.close()
        self._process.join(WAIT_S)
        assert not self._process.is_alive()


def _hold(path: str, name: str, line: Connection) -> None:
    with Locks(Path(path)).hold([name], FakeClock()):
        line.send("held")
        line.poll(WAIT_S)  # also true when the other end is closed


@contextmanager
def lock_held_elsewhere(path: Path, name: str) -> Iterator[Holder]:
    holder = Holder(path, name)
    try:
        yield holder
    finally:
        holder.end()
