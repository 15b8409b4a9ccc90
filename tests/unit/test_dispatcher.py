"""The dispatcher keeps its threads busy, and gives a lease back when that is right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledger.core import dispatcher as dispatcher_module
from ledger.core.dispatcher import Dispatcher
from ledger.core.wakeups import Subscription

THREADS = 3
SOON_S = 10


def project_of(operation_id: str) -> str:
    return operation_id.partition(" of ")[2]


class Leases:
    """What is due, in memory; the order of calls is kept."""

    def __init__(self, *due: str, left_behind: Sequence[str] = ()) -> None:
        self.waiting = [*left_behind, *due]
        self.left_behind = left_behind
        self.late: list[str] = []  # due for ever, by projections that are held back
        self.held: set[str] = set()
        self.released: list[list[str]] = []
        self.asked: list[int] = []
        self.leased_for: set[float] = set()
        self.renewed: list[tuple[str, list[str], float]] = []
        self.broken = False  # the database is away
        self.heirs: list[tuple[str, str]] = []
        self.left_by_fences: list[str] = []

    async def due(
        self, limit: int, _holder: str, lease_s: float, but: Sequence[str]
    ) -> list[tuple[str, str, bool]]:
        self.asked.append(limit)
        self.leased_for.add(lease_s)
        if self.broken:
            raise ConnectionError
        taken = [each for each in self.waiting if project_of(each) not in but][:limit]
        self.waiting = [each for each in self.waiting if each not in taken]
        taken += [each for each in self.late if each not in self.held][: limit - len(taken)]
        self.held |= set(taken)
        return [(each, project_of(each), each in self.left_behind) for each in taken]

    async def renew(self, holder: str, ids: Sequence[str], lease_s: float) -> list[str]:
        self.renewed.append((holder, list(ids), lease_s))
        if self.broken:
            raise ConnectionError
        return list(ids)

    async def release(self, _holder: str, ids: Sequence[str]) -> None:
        self.released.append(list(ids))
        self.held -= set(ids)

    async def expire_previous_leases(self, place: str, holder: str) -> None:
        self.held.clear()
        self.heirs.append((place, holder))

    async def waiting_on_old_epoch(self) -> list[tuple[str, str]]:
        if self.broken:
            raise ConnectionError
        return [(operation_id, "host") for operation_id in self.left_by_fences]


class Work:
    """What is done for operations, in threads; it can be stopped on the way."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.ended: list[str] = []
        self.handed_over: list[tuple[str, str]] = []
        self.at_once = self.at_once_max = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self._lock = threading.Lock()

    def on_dispatcher_lost(self, operation_id: str) -> int:
        if operation_id in {"bad", "cannot be ended"}:
            raise RuntimeError(operation_id)
        self.ended.append(operation_id)
        return 1

    def carry_on(self, operation_id: str) -> int:
        with self._lock:
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        assert self.goes_on.wait(SOON_S)
        with self._lock:
            self.at_once -= 1
        if operation_id == "bad":
            raise RuntimeError(operation_id)
        self.done.append(operation_id)
        return 0 if operation_id.startswith("late") else len(self.done)

    def on_host_fenced(self, operation_id: str, host: str) -> None:
        if operation_id == "bad":
            raise RuntimeError(operation_id)
        self.handed_over.append((operation_id, host))


@pytest.fixture(autouse=True)
def _nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is not woken is not done."""
    monkeypatch.setattr(dispatcher_module, "POLL_S", 1_000.0)


async def at_once(_position: int) -> None:
    """Projections that are never late."""


@asynccontextmanager
async def running(
    leases: Leases, work: Work, projected: Any = at_once, threads: int = THREADS
) -> AsyncIterator[Subscription]:
    woken = Subscription()
    dispatcher = Dispatcher("me", leases, work, projected, woken, threads)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield woken
    finally:
        task.cancel()
        await until(dispatcher._stopping.is_set)
        work.goes_on.set()
        await asyncio.gather(task, return_exceptions=True)


async def until(look: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not look():  # noqa: ASYNC110 - threads change what is looked at
            await asyncio.sleep(0.001)


async def test_all_that_is_due_is_done_without_another_wake_up() -> None:
    ids = [f"operation {number}" for number in range(50)]
    leases, work = Leases(*ids), Work()
    async with running(leases, work):
        await until(lambda: len(work.done) == len(ids) and not leases.held)
    assert sorted(work.done) == sorted(ids)
    assert work.at_once_max <= THREADS


async def test_as_many_as_are_worked_on_are_held_ready_and_no_more() -> None:
    leases, work = Leases(*map(str, range(50))), Work()
    work.goes_on.clear()
    async with running(leases, work) as woken:
        await until(lambda: len(leases.held) == 2 * THREADS)
        for _ in range(3):
            woken.event.set()
            await until(lambda: not woken.event.is_set())
        assert work.at_once == THREADS
        assert leases.asked == [2 * THREADS]


async def test_a_wake_up_brings_what_is_due_now() -> None:
    leases, work = Leases(), Work()
    async with running(leases, work) as woken:
        await until(lambda: leases.asked)
        leases.waiting.append("new")
        woken.event.set()
        await until(lambda: work.done == ["new"] and not leases.held)


async def test_what_is_due_is_found_if_a_wake_up_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "POLL_S", 0.01)
    leases, work = Leases(), Work()
    async with running(leases, work):
        await until(lambda: leases.asked)
        leases.waiting.append("new")
        await until(lambda: work.done == ["new"])


async def test_a_lease_is_kept_until_the_projection_shows_what_was_done() -> None:
    leases, work = Leases("a", "b"), Work()
    positions: dict[int, asyncio.Event] = {1: asyncio.Event(), 2: asyncio.Event()}

    async def projected(position: int) -> None:
        await positions[position].wait()

    async with running(leases, work, projected):
        await until(lambda: len(work.done) == 2)
        assert leases.held == {"a", "b"}
        positions[1].set()
        await until(lambda: len(leases.held) == 1)
        assert leases.released == [[work.done[0]]]
        positions[2].set()
        await until(lambda: not leases.held)


async def test_a_failure_keeps_its_lease_and_hinders_nobody() -> None:
    """The lease runs out by itself: that is the pause before the next attempt."""
    leases, work = Leases("bad", *map(str, range(10))), Work()
    async with running(leases, work):
        await until(lambda: len(work.done) == 10 and leases.held == {"bad"})


async def test_stopping_ends_what_is_under_way_and_gives_the_rest_back() -> None:
    leases, work = Leases(*map(str, range(50))), Work()
    work.goes_on.clear()
    async with running(leases, work):
        await until(lambda: work.at_once == THREADS)
    assert len(work.done) == THREADS
    assert leases.held == set()


async def test_what_another_left_behind_is_given_time_and_takes_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that the other sent may still arrive; whoever looked at once would repeat it."""
    monkeypatch.setattr(dispatcher_module, "LATE_S", 0.2)
    left_behind = [f"left {number}" for number in range(3 * THREADS)]
    leases, work = Leases("new", left_behind=left_behind), Work()
    began = asyncio.get_running_loop().time()
    async with running(leases, work):
        await until(lambda: work.done == ["new"])
        await until(lambda: len(work.done) == len(left_behind) + 1 and not leases.held)
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_what_another_left_behind_is_ended_in_the_log_before_its_time_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one that lives after all could have its result taken, beside a request of ours."""
    monkeypatch.setattr(dispatcher_module, "LATE_S", SOON_S * 100)
    leases, work = Leases("new", left_behind=["left"]), Work()
    async with running(leases, work):
        await until(lambda: work.ended == ["left"] and work.done == ["new"])


async def test_what_cannot_be_ended_in_the_log_is_not_carried_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease runs out, and the next one takes it over."""
    monkeypatch.setattr(dispatcher_module, "LATE_S", 0.0)
    left = "cannot be ended"
    leases, work = Leases("new", left_behind=[left]), Work()
    async with running(leases, work):
        await until(lambda: work.done == ["new"] and leases.held == {left})
    assert (work.done, work.ended, leases.held) == (["new"], [], {left})


async def test_what_another_left_behind_stays_so_if_we_stop_as_well() -> None:
    """Its lease is not given back: whoever takes it next has to give it the same time."""
    leases, work = Leases(left_behind=["left"]), Work()
    async with running(leases, work):
        await until(lambda: work.ended)
    assert (work.done, leases.released, leases.held) == ([], [], {"left"})


async def test_what_was_taken_over_and_done_makes_room_for_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "LATE_S", 0.0)
    leases, work = Leases("a", "b", left_behind=["left", "behind"]), Work()
    async with running(leases, work) as woken:
        await until(lambda: len(work.done) == 4 and not leases.held)
        so_far = len(leases.asked)
        woken.event.set()
        await until(lambda: len(leases.asked) > so_far)
        assert leases.asked[-1] == 2 * THREADS


async def test_what_is_only_held_ready_when_the_process_stops_has_nothing_to_show() -> None:
    """No position to be waited for: it was not begun."""
    shown: list[int] = []

    async def projected(position: int) -> None:
        shown.append(position)

    leases, work = Leases(*map(str, range(2 * THREADS))), Work()
    work.goes_on.clear()
    async with running(leases, work, projected):
        await until(lambda: work.at_once == THREADS and len(leases.held) == 2 * THREADS)
    assert len(work.done) == len(shown) == THREADS
    assert leases.held == set()


async def test_more_is_asked_for_as_soon_as_no_more_is_held_ready_than_is_worked_on() -> None:
    leases, work = Leases(*map(str, range(3 * THREADS))), Work()
    gates = iter(threading.Event() for _ in range(3 * THREADS))
    opened: list[threading.Event] = []
    carry_on = work.carry_on

    def gated(operation_id: str) -> int:
        opened.append(gate := next(gates))
        assert gate.wait(SOON_S)
        return carry_on(operation_id)

    work.carry_on = gated  # type: ignore[method-assign]
    async with running(leases, work):
        for number in range(THREADS):
            await until(lambda number=number: len(opened) > number)
            opened[number].set()
        await until(lambda: leases.asked[-1] == THREADS)
        for number in range(THREADS, 3 * THREADS):
            await until(lambda number=number: len(opened) > number)
            opened[number].set()
        await until(lambda: len(work.done) == 3 * THREADS)


async def test_nothing_goes_on_beside_a_dispatcher_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases, left = Leases(), list[bool]()

    async def until_cancelled(_self: Dispatcher) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            left.append(True)

    monkeypatch.setattr(Dispatcher, "_renew", until_cancelled)
    async with running(leases, Work()):
        await until(lambda: leases.asked)
    assert left == [True]


async def test_each_life_holds_its_leases_under_a_name_of_its_own() -> None:
    """One that was taken for dead, and goes on, does not take its successor's for its own."""
    leases = Leases()
    for lives in (1, 2):
        async with running(leases, Work()):
            await until(lambda lives=lives: len(leases.heirs) == lives)
    [(place, first), (same, second)] = leases.heirs
    assert place == same
    assert first != second
    assert {first.startswith(f"{place}/"), second.startswith(f"{place}/")} == {True}


async def test_leases_are_renewed_while_their_operations_are_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three times in the life of one: two renewals may be lost before another takes it."""
    monkeypatch.setattr(dispatcher_module, "LEASE_S", 0.03)
    leases, work = Leases("a", "b"), Work()
    work.goes_on.clear()
    async with running(leases, work):
        await until(lambda: leases.held == {"a", "b"})
        assert leases.leased_for == {0.03}
        leases.broken = True
        await until(lambda: len(leases.renewed) > 2)
        leases.broken = False
        began, so_far = asyncio.get_running_loop().time(), len(leases.renewed)
        await until(lambda: len(leases.renewed) > so_far + 2)
        assert asyncio.get_running_loop().time() - began > 0.02
    [(_, holder)] = leases.heirs
    assert leases.renewed[-1] == (holder, ["a", "b"], 0.03)


async def test_what_a_life_before_held_is_inherited_before_anything_is_taken() -> None:
    """Else its own place would look like another's, whose operations are left alone for a time."""
    leases, work = Leases("a"), Work()
    asked_first: list[bool] = []
    expire_previous_leases = leases.expire_previous_leases

    async def noted(place: str, holder: str) -> None:
        asked_first.append(not leases.asked)
        await expire_previous_leases(place, holder)

    leases.expire_previous_leases = noted  # type: ignore[method-assign]
    async with running(leases, work):
        await until(lambda: work.done == ["a"])
    assert asked_first == [True]


async def test_a_database_that_is_away_for_a_moment_ends_nothing() -> None:
    leases, work = Leases("a"), Work()
    leases.broken = True
    async with running(leases, work) as woken:
        await until(lambda: leases.asked)
        leases.broken = False
        woken.event.set()
        await until(lambda: work.done == ["a"] and not leases.held)


async def test_what_is_held_counts_as_worked_on_until_it_is_given_back() -> None:
    leases, work = Leases(*map(str, range(50))), Work()
    work.goes_on.clear()
    woken = Subscription()
    dispatcher = Dispatcher("me", leases, work, at_once, woken, THREADS)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: dispatcher.working == 2 * THREADS)
    task.cancel()
    await until(dispatcher._stopping.is_set)
    work.goes_on.set()
    await asyncio.gather(task, return_exceptions=True)
    assert dispatcher.working == 0


async def test_a_row_that_is_late_is_not_asked_about_again_and_again() -> None:
    """The projection may be held back for hours; the log knows that nothing is to be done."""
    leases, work = Leases(), Work()
    leases.late = [f"late {number}" for number in range(5 * THREADS)]
    async with running(leases, work) as woken:
        await until(lambda: len(work.done) == len(leases.late))
        leases.waiting.append("new")
        woken.event.set()
        await until(lambda: "new" in work.done and leases.held == set(leases.late))
    assert sorted(work.done) == sorted([*leases.late, "new"])


async def test_a_row_that_is_late_is_asked_about_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "POLL_S", 0.01)
    leases, work = Leases(), Work()
    leases.late = ["late"]
    async with running(leases, work):
        await until(lambda: work.done.count("late") > 1)


async def test_what_asks_no_cinder_waits_for_no_thread_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All threads hang in Cinder: a fence's work, and a dead process's, go on beside them."""
    monkeypatch.setattr(dispatcher_module, "STRANDED_EVERY_S", 0.001)
    leases, work = Leases(*(f"operation {n}" for n in range(THREADS))), Work()
    work.goes_on.clear()
    async with running(leases, work) as woken:
        await until(lambda: work.at_once == THREADS)
        leases.left_by_fences = ["fenced"]
        await until(lambda: ("fenced", "host") in work.handed_over)
        leases.left_behind = leases.waiting = ["left behind"]
        woken.event.set()
        await until(lambda: work.ended == ["left behind"])


async def test_what_a_fence_has_left_waiting_is_handed_over_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever fenced the host may have died in between; one that fails stops no other."""
    monkeypatch.setattr(dispatcher_module, "STRANDED_EVERY_S", 0.001)
    leases, work = Leases(), Work()
    leases.broken = True
    async with running(leases, work):
        leases.left_by_fences = ["bad", "good"]
        leases.broken = False
        await until(lambda: work.handed_over.count(("good", "host")) > 1)
