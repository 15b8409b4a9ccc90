"""The program after a fence: once for each fence, by one process at a time, until it succeeds."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from aggregates.base import Actor, Aggregate, EventContext
from aggregates.host import HOOK_PAUSE_S, Host
from ledger.config import Fencing
from ledger.core import after_fence
from ledger.core.after_fence import AfterFence, HookStoppedError, run_hook
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.log.unit import Unit, run_optimistically
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.runner import ProjectionRunner
from tests import stack
from tests.service.api_world import eventually

HOST = "compute-1"
CONTEXT = EventContext(actor=Actor(name="operator"), request_id="req-1", cause="operator")
DEADLINE_S = 30.0
NEVER = threading.Event()


@dataclass
class World:
    """A log with one host, and any number of processes that run its program."""

    dsn: str
    ledger: Ledger
    queries: Queries
    runner: ProjectionRunner
    directory: Path
    ahead_s: float = 0.0  # of the database's clock, in all processes
    clock: Callable[[], float] = field(default=lambda: 0.0)

    def change(self, act: Callable[[Host], None]) -> None:
        def change(unit: Unit) -> int:
            act(unit.get(Host, HOST))
            return unit.save(CONTEXT)

        position = run_optimistically(self.ledger, change)
        self.runner.projected(position).result(DEADLINE_S)

    def fence(self) -> None:
        self.change(lambda host: host.fence("dead", "seen"))

    @property
    def host(self) -> Host:
        return self.ledger.load(Host, Host.id_of(HOST))

    @property
    def runs(self) -> list[Any]:
        """How each run ended, as the log has it."""
        found: list[Any] = list(self.ledger.events.get(Host.id_of(HOST)))
        return [each for each in found if isinstance(each, Host.HookRan)]

    def program(self, body: str) -> Fencing:
        """A program of Python; what it is told is appended to the file `told`."""
        file = self.directory / "hook.py"
        file.write_text(
            "import json, os, pathlib, sys, time\n"
            f"here = pathlib.Path({str(self.directory)!r})\n"
            "told = sys.stdin.read()\n"
            "with (here / 'told').open('a') as out: out.write(told)\n" + body
        )
        return Fencing(hook=(sys.executable, str(file)))

    @property
    def told(self) -> list[Any]:
        file = self.directory / "told"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @asynccontextmanager
    async def process(self, settings: Fencing) -> AsyncIterator[AfterFence]:
        """One process of the service, as far as it concerns these programs."""
        clock = self.clock
        after = AfterFence(
            self.dsn, self.ledger, self.queries, settings, lambda: clock() + self.ahead_s
        )
        task = asyncio.create_task(after.run())
        try:
            yield after
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await after.stop()

    async def until(self, look: Callable[[], bool], what: str) -> None:
        async def looked() -> bool:
            return look()

        await eventually(looked, what)


@pytest.fixture
async def world(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(after_fence, "LOOK_S", 0.05)
    async with AsyncExitStack() as stack:
        ledger = Ledger(database_url)
        stack.callback(ledger.close)
        queries = Queries(await stack.enter_async_context(read_pool(database_url)))
        runner = ProjectionRunner(database_url, ALL)
        runner.start()
        stack.callback(runner.stop)
        clock = DatabaseClock.of(database_url)
        world = World(database_url, ledger, queries, runner, tmp_path, clock=clock)
        connector = {"initiator": "iqn.1994-05.com.example:1", "nqn": "nqn.2014-08.org:1"}
        world.change(lambda host: host.register(HOST, 3, {}, connector))
        yield world


async def test_it_is_told_the_host_and_its_connector_once_for_each_fence(world: World) -> None:
    settings = world.program("print('blocked', len(os.environ))")
    async with world.process(settings) as after, world.process(settings):
        world.fence()
        await world.until(lambda: world.host.hooked, "the first fence's")
        [told] = world.told
        assert (told["host"], told["epoch"], told["fence"]) == (HOST, 1, "dead (seen)")
        assert told["connector"]["initiator"] == "iqn.1994-05.com.example:1"
        world.fence()
        await world.until(lambda: world.host.hooked, "the second fence's")
        assert [each["epoch"] for each in world.told] == [1, 2], "by one of two processes each"
        assert await after.check() is None
    last = world.runs[-1]
    assert (last.code, last.next_at) == (0, None)
    assert last.output.startswith("blocked ")
    assert int(last.output.split()[1]) <= 2, "no setting of ours, nor a secret"


async def test_what_fails_is_run_again_after_a_pause_by_whoever_is_there(world: World) -> None:
    settings = world.program(
        "print('x' * 5000, 'the array says no')\nsys.exit(not (here / 'mended').exists())"
    )
    world.fence()
    async with world.process(settings) as after:
        await world.until(lambda: world.host.hook_failures == 1, "it failed")
        assert await after._due() == [], "it is not run again before its time"
        assert "compute-1" in (await after.check() or "")
        world.ahead_s += HOOK_PAUSE_S
        await world.until(lambda: world.host.hook_failures == 2, "it failed again")
    failed = world.runs
    assert [each.code for each in failed] == [1, 1]
    assert failed[0].output.endswith("x the array says no")
    assert len(failed[0].output) <= after_fence.SAID_MAX
    (world.directory / "mended").touch()
    world.ahead_s += HOOK_PAUSE_S
    async with world.process(settings) as after:  # another one, after a restart
        await world.until(lambda: world.host.hooked, "it succeeded")
        await after._due()
        assert await after.check() is None, "nobody is warned of what has passed"
    assert world.host.hook_failures == 2


async def test_a_process_without_a_temporary_place_has_failed_and_waits_and_it_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.program("print('blocked')")
    world.fence()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    async with world.process(settings) as after:
        await world.until(lambda: world.host.hook_failures == 1, "it failed")
        assert await after._due() == [], "it is not run again before its time"
        assert "compute-1" in (await after.check() or "")
    assert world.runs[0].output.startswith("It cannot be run: [Errno 2] No such file")


async def test_a_host_whose_program_has_ended_well_is_not_read_again_before_its_next_fence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.program("print('blocked')")
    world.fence()
    async with world.process(settings):
        await world.until(lambda: world.host.hooked, "the program")
    after = AfterFence(world.dsn, world.ledger, world.queries, settings, world.clock)
    real, read = world.ledger.load_many, list[Any]()

    def load_many(*keys: tuple[type[Aggregate], UUID]) -> list[Any]:
        read.extend(keys)
        return real(*keys)

    monkeypatch.setattr(world.ledger, "load_many", load_many)
    for _ in range(3):
        assert await after._due() == []
    assert read == [(Host, Host.id_of(HOST))], "once by a process that has just begun"
    world.fence()
    assert await after._due() == [HOST]
    await after.stop()


async def test_a_host_that_is_unfenced_is_left_alone(world: World) -> None:
    settings = world.program("sys.exit(1)")
    world.fence()
    async with world.process(settings) as after:
        await world.until(lambda: world.host.hook_failures == 1, "it failed")
        world.change(lambda host: host.unfence("it is back"))
        world.ahead_s += HOOK_PAUSE_S
        assert await after._due() == []
        assert await after.check() is None


async def test_a_process_that_stops_ends_its_program_and_another_runs_it(world: World) -> None:
    settings = world.program("if not (here / 'second').exists(): time.sleep(600)\nprint('done')")
    world.fence()
    async with world.process(settings), world.process(settings):
        await world.until(lambda: len(world.told) == 1, "one runs it")
    assert not world.host.hooked
    assert world.host.hook_failures == 0, "it was not its fault"
    (world.directory / "second").touch()
    async with world.process(settings):
        await world.until(lambda: world.host.hooked, "the next process runs it")


def test_a_clock_that_was_set_back_keeps_no_program_waiting() -> None:
    host = Host(Host.id_of(HOST))
    host.register(HOST, 3, {})
    host.fence("dead", "seen")
    host.ran_hook(1, 1, "no", now=1e9)
    assert not host.awaits_hook(1e9 + 1)
    assert host.awaits_hook(1e9 + 5)
    assert host.awaits_hook(1e9 - 86_400)
    for _ in range(2000):
        host.ran_hook(1, None, "no", now=1e9)
    assert not host.awaits_hook(1e9 + HOOK_PAUSE_S - 1)
    assert host.awaits_hook(1e9 + HOOK_PAUSE_S)


def test_an_older_fences_program_says_nothing_of_the_newer() -> None:
    host = Host(Host.id_of(HOST))
    host.register(HOST, 3, {})
    host.fence("dead", "seen")
    host.fence("dead", "seen again")
    host.ran_hook(1, 0, "blocked", now=1e9)
    assert not host.hooked
    assert host.awaits_hook(1e9)


def test_a_program_that_hangs_is_killed_with_all_that_it_began(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    shell = f"sleep 600 & echo $! > {pid}; echo waiting; wait"
    ended = run_hook(("/bin/sh", "-c", shell), b"{}", 1.0, NEVER)
    assert ended.code is None
    assert ended.said == "waiting\nIt had not ended after 1 s."
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    stack.eventually(
        lambda: not status.exists() or "State:\tZ" in status.read_text(), "the child is gone"
    )


def test_a_program_that_is_not_there_or_prints_what_cannot_be_shown() -> None:
    assert run_hook(("/nowhere/block",), b"{}", 5.0, NEVER).code is None
    ended = run_hook(("/bin/printf", "a\\000b\\377"), b"{}", 5.0, NEVER)
    assert (ended.code, ended.said) == (0, "a\\u0000b\N{REPLACEMENT CHARACTER}")


def test_a_program_is_stopped_with_the_service() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(HookStoppedError):
        run_hook(("/bin/sleep", "600"), b"{}", 600.0, stop)


@pytest.mark.parametrize(
    "given",
    [{"hook": ("block",)}, {"hook_required": True}, {"controllers": ("",)}],
    ids=lambda given: next(iter(given)),
)
def test_settings_that_cannot_be_meant(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        Fencing(**given)
