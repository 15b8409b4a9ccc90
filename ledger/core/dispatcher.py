"""Does the ledger's own steps of operations: takes a due operation, and works until it waits.

Theory of operation: an operation is due when its row in the `operations` projection says so.  Any
number of dispatchers, in any number of processes, take due operations by a lease row; the lease
only avoids double work.  Correctness depends on the log: an intent is stored before its effect, the
effect is an ensure, and of two results for one intent the second finds the step done.  When a
dispatcher dies, its lease expires.  After an unexpected error (a database restart, a bug) it logs
the error and lets the lease expire, which is the pause before the next attempt.

When a dispatcher takes over an operation whose holder did not release it, it first ends the earlier
attempt in the log.  If the other process still lives, its result is refused, and it undoes what it
created (`undo_refused_result`).  Then the operation rests for LATE_S: a request that the other
process has sent arrives in that time, and the effects find its result (ledger.core.effects).  That
pause uses no thread.

Leases are acquired and released in batches.  The dispatcher works on `concurrency_max` operations
at once, holds as many again ready, and reads the next ones when those are used up, so no thread
waits for a query.  A lease is released when the projection shows the result, because until then the
row still says "due"; the thread is free before that.

No project gets all threads, because they may hang in its storage.  When a project has its share,
and as much again is held ready, due operations of other projects are read every POLL_S.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Protocol
from uuid import uuid4

import structlog

from host_agent.shared.contract.ports import LATE_S
from ledger.rooms import Room

#: A lease not renewed for so long is free; renewed at a third of it.
LEASE_S = 10.0
#: Of the threads, the part that one project's steps may have at once.
PROJECT_SHARE = 0.75
#: How often it is looked for operations that a fence has left waiting for its host.
STRANDED_EVERY_S = 10.0
#: How long a due operation waits at most if every wake-up is lost, or one project is everywhere.
POLL_S = 1.0

_log = structlog.get_logger(__name__)


class Leases(Protocol):
    """Which operations are due, which process works on them, and which wait for a host that was
    fenced (projections.reads.queries).
    """

    async def due(
        self, limit: int, holder: str, lease_s: float, but: Sequence[str]
    ) -> list[tuple[str, str, bool]]: ...
    async def renew(self, holder: str, ids: Sequence[str], lease_s: float) -> list[str]: ...
    async def release(self, holder: str, ids: Sequence[str]) -> None: ...
    async def expire_previous_leases(self, place: str, holder: str) -> None: ...
    async def waiting_on_old_epoch(self) -> list[tuple[str, str]]: ...


class OperationRunner(Protocol):
    """What a dispatcher calls for an operation (ledger.core.service); it blocks."""

    def carry_on(self, operation_id: str) -> int:
        """Do the next steps; returns the position of the last event written, 0 for none."""

    def on_dispatcher_lost(self, operation_id: str) -> object:
        """End the attempts of a dispatcher that never released its lease (`handover`)."""

    def on_host_fenced(self, operation_id: str, host: str) -> object:
        """Hand over what a fenced host had to do (handlers.results.handover)."""


class Woken(Protocol):
    """Set when an operation may have become due (wakeups.Subscription)."""

    event: asyncio.Event

    async def wait(self, timeout_s: float) -> bool: ...


class Dispatcher:
    """Takes due operations and does their steps.

    `place`: only one living process can have it.  Each process start in the place holds its leases
    under its own name, so that nobody mistakes another's leases for its own.  Leases of earlier,
    dead processes in the place are free as soon as there is a new one.  `operations` run in
    threads, at most `concurrency_max` at once; Cinder may block each of them.  Work without Cinder
    (ending another's attempt, handing over for a fenced host) waits for none of these threads.
    `projected` returns when the projections have reached a position; `woken` is set when an
    operation has become due.
    """

    def __init__(
        self,
        place: str,
        leases: Leases,
        operations: OperationRunner,
        projected: Callable[[int], Awaitable[object]],
        woken: Woken,
        concurrency_max: int,
    ) -> None:
        self._place, self._holder = place, f"{place}/{uuid4()}"
        self._leases = leases
        self._operations = operations
        self._projected = projected
        self._woken = woken
        self._concurrency_max = concurrency_max
        self._share = ceil(concurrency_max * PROJECT_SHARE)
        self._room = Room("dispatcher", concurrency_max, self._share)
        self._held: dict[str, asyncio.Task[None]] = {}  # all whose lease we have
        self._unfinished = Counter[str]()  # of these, by project: worked on, or ready to be
        self._asked_at = float("-inf")
        self._backlog = False  # more were due than were asked for
        self._done: list[str] = []  # whose leases can be given back
        self._stopping = asyncio.Event()

    @property
    def working(self) -> int:
        """How many operations this process has taken and not yet released."""
        return len(self._held)

    def state(self) -> list[str]:
        """The leases of this process and the progress of their operations, for people."""
        room, ids = self._room, sorted(self._held.copy())
        steps = f"{room.inside} under way, {room.waiting} wait for a thread"
        return [
            f"Leases: {len(ids)}, held as {self._holder}",
            *(f"  operation {id_}" for id_ in ids),
            f"Steps: {steps}, {len(self._done)} leases to be given back",
        ]

    async def run(self) -> None:
        """Runs until cancelled; then running work continues to its next recorded point."""
        beside = [
            asyncio.create_task(self._renew()),
            asyncio.create_task(self._tell_of_fences()),
        ]
        try:
            with _log_and_continue("leases_not_inherited"):
                await self._leases.expire_previous_leases(self._place, self._holder)
            while True:
                with _log_and_continue("dispatcher_failed"):
                    await self._give_back()
                    await self._take()
                await self._woken.wait(POLL_S)
        finally:
            self._stopping.set()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, *self._held.values(), return_exceptions=True)
            with _log_and_continue("leases_not_released"):
                await self._give_back()
            self._room.close()

    async def _take(self) -> None:
        now = asyncio.get_running_loop().time()
        working = sum(min(each, self._share) for each in self._unfinished.values())
        wanted = 2 * self._concurrency_max - working
        if wanted <= 0 or (self._enough and now < self._asked_at + POLL_S):
            return
        self._asked_at = now
        full = [each for each, count in self._unfinished.items() if count >= 2 * self._share]
        rows = await self._leases.due(wanted, self._holder, LEASE_S, full)
        self._backlog = len(rows) == wanted or bool(full)
        for operation_id, project, taken_over in rows:
            if operation_id not in self._held:
                hold = self._take_over if taken_over else self._hold
                self._unfinished[project] += not taken_over
                self._held[operation_id] = asyncio.create_task(hold(operation_id, project))
        self._ask_again_if_short()

    @property
    def _enough(self) -> bool:
        return self._unfinished.total() > self._concurrency_max

    async def _take_over(self, operation_id: str, project: str) -> None:
        """Wait for the other process's request; if this process stops meanwhile, the next one waits
        again.
        """
        ended = False
        with _log_and_continue("operation_not_taken_over", operation=operation_id):
            await asyncio.to_thread(self._operations.on_dispatcher_lost, operation_id)
            ended = not await self._stopped_within(LATE_S)
        if ended:
            self._unfinished[project] += 1
            await self._hold(operation_id, project)
        else:
            del self._held[operation_id]

    async def _hold(self, operation_id: str, project: str) -> None:
        try:
            with _log_and_continue("operation_failed", operation=operation_id):
                if position := await self._work(operation_id, project):
                    await self._projected(position)
                else:  # it was done already, and its row is late: do not ask at once again
                    await self._stopped_within(POLL_S)
                self._done.append(operation_id)
                self._woken.event.set()
        finally:
            del self._held[operation_id]

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        return False

    async def _work(self, operation_id: str, project: str) -> int:
        try:
            return await self._room.let_in(project, partial(self._next, operation_id))
        finally:
            self._unfinished -= Counter([project])
            self._ask_again_if_short()

    def _ask_again_if_short(self) -> None:
        if self._backlog and not self._enough:
            self._woken.event.set()

    def _next(self, operation_id: str) -> int:
        """In a thread.  Operations that are only held ready when the process stops are left to
        others.
        """
        return 0 if self._stopping.is_set() else self._operations.carry_on(operation_id)

    async def _give_back(self) -> None:
        done, self._done = self._done, []
        if done:
            await self._leases.release(self._holder, done)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with _log_and_continue("lease_renewal_failed"):
                await self._leases.renew(self._holder, list(self._held), LEASE_S)

    async def _tell_of_fences(self) -> None:
        """The process that fenced a host may have died before it handed over everything that waits
        for it.
        """
        while True:
            await asyncio.sleep(STRANDED_EVERY_S)
            with _log_and_continue("stranded_not_read"):
                for operation_id, host in await self._leases.waiting_on_old_epoch():
                    with _log_and_continue("not_handed_over", operation=operation_id, host=host):
                        await asyncio.to_thread(self._operations.on_host_fenced, operation_id, host)


@contextlib.contextmanager
def _log_and_continue(event: str, **fields: str) -> Iterator[None]:
    """Log the error and continue: the lease, or the next poll, is the retry."""
    try:
        yield
    except Exception:  # noqa: BLE001 - logged, and retried by whoever comes next
        _log.exception(event, **fields)
