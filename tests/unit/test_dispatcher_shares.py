"""No project has all of the dispatcher's threads: its storage may hang."""

from __future__ import annotations

import pytest

from ledger.core import dispatcher as dispatcher_module
from tests.unit.test_dispatcher import Leases, Work, _nobody_polls, running, until

__all__ = ["_nobody_polls"]  # a fixture

THREADS, SHARE = 8, 6


class Hanging(Work):
    """The steps of the project "hangs" do, the others' go on."""

    def carry_on(self, operation_id: str) -> int:
        if not operation_id.endswith(" of hangs"):
            self.done.append(operation_id)
            return len(self.done)
        return super().carry_on(operation_id)


def steps(project: str, count: int) -> list[str]:
    return [f"{number} of {project}" for number in range(count)]


async def test_others_go_on_beside_a_project_whose_steps_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though all it has was due before theirs: more than is held ready at once."""
    monkeypatch.setattr(dispatcher_module, "POLL_S", 0.05)
    hanging, others = steps("hangs", 10 * THREADS), steps("another", 2 * THREADS)
    leases, work = Leases(*hanging, *others), Hanging()
    work.goes_on.clear()
    async with running(leases, work, threads=THREADS):
        await until(lambda: sorted(work.done) == sorted(others))
        assert work.at_once == SHARE
        assert len(leases.held) < len(hanging)
        work.goes_on.set()
        await until(lambda: len(work.done) == len(hanging) + len(others) and not leases.held)
    assert work.at_once_max == SHARE


async def test_what_is_due_of_others_is_looked_for_no_oftener_than_it_is_polled() -> None:
    """A wake-up means most often that the project that has its share has more."""
    leases, work = Leases(*steps("hangs", 10 * THREADS)), Hanging()
    work.goes_on.clear()
    async with running(leases, work, threads=THREADS) as woken:
        await until(lambda: work.at_once == SHARE)
        for _ in range(3):
            woken.event.set()
            await until(lambda: not woken.event.is_set())
        assert leases.asked == [2 * THREADS]


async def test_a_project_that_has_its_share_gets_more_when_it_goes_on() -> None:
    """Without a wake-up: what it had due was there all the time."""
    hanging = steps("hangs", 10 * THREADS)
    leases, work = Leases(*hanging), Hanging()
    work.goes_on.clear()
    async with running(leases, work, threads=THREADS):
        await until(lambda: work.at_once == SHARE)
        work.goes_on.set()
        await until(lambda: sorted(work.done) == sorted(hanging) and not leases.held)


async def test_projects_that_all_hang_are_not_taken_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "POLL_S", 0.001)
    projects = [f"{number} hangs" for number in range(10)]
    leases = Leases(*(step for each in projects for step in steps(each, THREADS)))
    work = Work()
    work.goes_on.clear()
    async with running(leases, work, threads=THREADS) as woken:
        # Of two projects all, of which six each count, and of a third one the four that are left.
        await until(lambda: len(leases.held) == 2 * THREADS + 4)
        for _ in range(3):
            woken.event.set()
            await until(lambda: not woken.event.is_set())
        assert leases.asked == [2 * THREADS, 4]
