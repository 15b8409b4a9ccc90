"""Runs the site's own program after each fence: it closes the host's storage, or cuts its power.

Theory of operation: the log has the hosts that wait for it (`Host.awaits_hook`), so the death of a
process loses nothing.  Each process checks regularly the fenced hosts whose program has not yet
succeeded as far as it knows.  The first process gets the host (ledger.upkeep.long_work), by a
database connection that ends with the process.  The effect of a program that was cut off is
unknown, so it runs again, and must be safe to repeat.  The end of each run is recorded; a failure
has the time of the next run, by the database's clock, for any process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import IO
from uuid import uuid4

import orjson
import psycopg
import structlog

from aggregates.base import Actor, EventContext
from aggregates.host import Host
from host_agent.shared.platform.text import visible
from ledger.config import Fencing
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.upkeep import long_work
from ledger.upkeep.long_work import BusyError, Checkmark, WorkProgress
from projections.reads.queries import Queries

#: How often it is looked for hosts that wait.
LOOK_S = 1.0
#: Programs that run at once: one that hangs is in the way of few others.
HOOKS_AT_ONCE = 8
#: Of what a program said, so much of its end is kept, in bytes.
SAID_MAX = 2_000
#: How long a killed program is waited for, and how often it is looked at one that runs.
KILLED_S, ENDED_EVERY_S = 5.0, 0.1

ACTOR = Actor(name="after-fence")

_log = structlog.get_logger(__name__)


class HookStoppedError(Exception):
    """The service stops: another process runs the program again."""


@dataclass(frozen=True)
class HookRun:
    """How a program ended; `code` None: it could not be started, or had to be killed."""

    code: int | None
    said: str


class AfterFence:
    """`clock`: the database's clock."""

    def __init__(
        self,
        dsn: str,
        store: AggregateStore,
        queries: Queries,
        settings: Fencing,
        clock: Callable[[], float],
    ) -> None:
        self._dsn, self._store, self._queries = dsn, store, queries
        self._settings, self._clock = settings, clock
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(HOOKS_AT_ONCE, thread_name_prefix="after-fence")
        self._at: dict[str, asyncio.Task[None]] = {}
        self._failing: list[str] = []
        self._done: dict[str, int] = {}  # hosts whose program has ended well, and after which fence

    async def run(self) -> None:
        """Runs until it is cancelled; then call `stop`."""
        while True:
            try:
                for name in await self._due():
                    if name not in self._at:
                        self._at[name] = asyncio.create_task(self._begin(name), name=name)
            except Exception:  # noqa: BLE001 - looked at again
                _log.exception("hooks_not_begun")
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """End running programs: another process runs them again."""
        self._stop.set()
        await asyncio.gather(*self._at.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)

    async def check(self) -> str | None:
        """The hosts whose program has failed since they were fenced."""
        if not self._failing:
            return None
        named = ", ".join(self._failing)
        return f"the program after a fence (fencing.hook) fails for {named}: see their history"

    async def _due(self) -> list[str]:
        fenced = await self._queries.fenced()
        self._done = dict(self._done.items() & fenced.items())
        keys = [(Host, Host.id_of(name)) for name in fenced if name not in self._done]
        # By a thread of ours: `stop` waits for those, and only then the database is left.
        loop = asyncio.get_running_loop()
        hosts: list[Host] = await loop.run_in_executor(
            self._threads, partial(self._store.load_many, *keys)
        )
        self._done |= {host.name: host.epoch for host in hosts if host.hooked}
        self._failing = [host.name for host in hosts if host.hook_failures and not host.hooked]
        now = self._clock()
        return [host.name for host in hosts if host.awaits_hook(now)]

    async def _begin(self, name: str) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._with_right, name)
        except (BusyError, HookStoppedError):
            pass
        except psycopg.OperationalError as error:
            _log.warning("hook_put_off", host=name, why=str(error))
        except Exception:  # noqa: BLE001 - begun again
            _log.exception("hook_put_off", host=name)
        finally:
            del self._at[name]

    def _with_right(self, name: str) -> None:
        def work(_: Checkmark) -> Generator[Checkmark]:
            self._hook(name)
            yield Checkmark(1, 1)

        long_work.run(self._dsn, f"hook after the fence of {name}", work, _unwatched)

    def _hook(self, name: str) -> None:
        """Run it for the host, if that still waits for it."""
        host = self._store.load(Host, Host.id_of(name))
        if not host.awaits_hook(self._clock()):
            return
        _log.info("hook_begun", host=name, epoch=host.epoch)
        ended = run_hook(self._settings.hook, told_of(host), self._settings.hook_s, self._stop)
        _log.info("hook_ended", host=name, code=ended.code, said=ended.said)

        def change(unit: Unit) -> None:
            unit.get(Host, name).ran_hook(host.epoch, ended.code, ended.said, self._clock())
            unit.save(EventContext(actor=ACTOR, request_id=f"req-{uuid4()}", cause="fence"))

        run_optimistically(self._store, change)


def told_of(host: Host) -> bytes:
    """The program's input: a JSON object on one line."""
    told = {"host": host.name, "epoch": host.epoch, "fence": host.fence_reason}
    return orjson.dumps({**told, "controller": host.controller, "connector": host.connector})


def run_hook(
    program: Sequence[str], told: bytes, deadline_s: float, stop: threading.Event
) -> HookRun:
    """Run a program to its end, without a shell, in its own process group, and without the
    service's settings in its environment.  Raises HookStoppedError.
    """
    try:
        with TemporaryFile() as given, TemporaryFile() as said:
            given.write(told + b"\n")
            given.seek(0)
            process = subprocess.Popen(
                program,
                stdin=given,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
            code = _ended(process, deadline_s, stop)
            end = _end_of(said)
    except OSError as error:  # of the program, or of a temporary place that is full
        return HookRun(None, f"It cannot be run: {error}")
    if code is None:
        end = f"{end}\nIt had not ended after {deadline_s:g} s.".strip()
    return HookRun(code, visible(end))


def _ended(
    process: subprocess.Popen[bytes], deadline_s: float, stop: threading.Event
) -> int | None:
    """Its exit code; None: it was killed, with all its children.  Raises HookStoppedError."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            return process.wait(ENDED_EVERY_S)
    with suppress(ProcessLookupError, PermissionError):  # of a program of root's, as by sudo
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)
    if stop.is_set():
        raise HookStoppedError
    return None


def _end_of(said: IO[bytes]) -> str:
    length = said.seek(0, os.SEEK_END)
    said.seek(max(0, length - SAID_MAX))
    return said.read().decode(errors="replace").strip()


def _unwatched(_: WorkProgress) -> None:
    """Its progress is unknown."""
