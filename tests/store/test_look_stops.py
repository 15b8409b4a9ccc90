"""Looks that somebody stops: they rest, go on when they are resumed, and give way to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from host_agent.shared.cinder.lists import ListedVolume
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.reconcile.asking import LookRequests
from ledger.reconcile.cinder_side import StoppedError
from ledger.reconcile.findings import Findings
from ledger.reconcile.job import Looking
from projections.reads.queries import Queries, read_pool
from tests.store.following import wait_until
from tests.store.looking import Cloud
from tests.world import CONTEXT

WHY = "Cinder is slow"


def phase(cloud: Cloud) -> Any:
    row = cloud.db.execute("SELECT kept->>'phase' AS phase FROM long_work").fetchone()
    return row and row["phase"]


def stopped_at(cloud: Cloud, name: str) -> str:
    """A look that somebody stops in this phase."""
    look_id = cloud.ask()

    def watch(_: Any) -> None:
        if phase(cloud) == name and not cloud.stop.is_set():
            Findings(cloud.ledger).stop_look(look_id, WHY, CONTEXT)
            cloud.stop.set()  # as job.Looking does

    with pytest.raises(StoppedError):
        cloud.run(watch=watch)
    cloud.stop.clear()
    return look_id


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("name", ["attachments", "volumes", "believe"])
def test_a_stopped_look_rests_in_any_phase_and_goes_on_when_it_is_resumed(
    name: str, cloud: Cloud
) -> None:
    """Also where it asks nobody: between what it believes."""
    for row in [cloud.attached() for _ in range(5)]:
        cloud.model.attachments[row.id].status = "attaching"
    look_id = stopped_at(cloud, name)
    with pytest.raises(StoppedError):
        cloud.run()
    assert phase(cloud) == name
    Findings(cloud.ledger).resume_look(look_id, WHY, CONTEXT)
    cloud.run()
    ended = cloud.ended(look_id)
    assert (ended.outcome, ended.found["attachment_status_differs"]) == ("completed", 5)


@pytest.mark.usefixtures("small_pages")
def test_another_look_that_is_to_begin_ends_one_that_is_stopped(cloud: Cloud) -> None:
    for row in [cloud.attached() for _ in range(5)]:
        cloud.model.attachments[row.id].status = "attaching"
    first, second = stopped_at(cloud, "volumes"), cloud.ask()
    cloud.run()
    assert (cloud.ended(first).outcome, cloud.ended(first).found) == ("stopped", {})
    assert cloud.ended(second).found["attachment_status_differs"] == 5
    for table in ("look_cases", "looks_asked", "long_work"):
        assert cloud.db.execute(f"SELECT * FROM {table}").fetchall() == []


@asynccontextmanager
async def looking(cloud: Cloud) -> AsyncIterator[None]:
    """As the service has it."""
    async with read_pool(cloud.dsn) as pool:
        job = Looking(cloud.sides(1.0), LookRequests(cloud.dsn), Queries(pool), 0.0)
        running = asyncio.create_task(job.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await job.stop()


async def until(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, true)


@pytest.mark.usefixtures("small_pages")
async def test_the_process_that_is_at_a_look_lets_go_when_somebody_stops_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Cinder does not answer; another look may run then, and it goes on when resumed."""
    monkeypatch.setattr("ledger.reconcile.job.TICK_S", 0.05)
    row = cloud.attached()
    real, asked, away = cloud.lists.volumes, [0], threading.Event()
    away.set()

    def volumes(after: Sequence[str], limit: int) -> list[ListedVolume]:
        asked[0] += 1
        if away.is_set():
            raise PortError(ErrorKind.UNKNOWN, "cinder_timeout", "no answer")
        return real(after, limit)

    monkeypatch.setattr(cloud.lists, "volumes", volumes)
    look_id, acts = cloud.ask(), Findings(cloud.ledger)

    def state(of: str) -> Any:
        found = cloud.db.execute("SELECT state FROM looks WHERE look_id = %s", [of]).fetchone()
        return found and found["state"]

    def held() -> bool:
        return bool(cloud.db.execute("SELECT FROM long_work WHERE holder_pid > 0").fetchall())

    async with looking(cloud):
        await until(lambda: asked[0] > 0)
        await asyncio.to_thread(acts.stop_look, look_id, WHY, CONTEXT)
        await until(lambda: state(look_id) == "stopped" and not held())
        part = cloud.ask(volume=row.volume_id)
        await until(lambda: state(part) == "ended" and not held())
        assert asked[0] == 1
        away.clear()
        await asyncio.to_thread(acts.resume_look, look_id, WHY, CONTEXT)
        await until(lambda: state(look_id) == "ended")
    assert cloud.ended(look_id).outcome == "completed"


async def test_a_process_asks_for_one_look_in_an_interval_whatever_the_clock_says() -> None:
    """A look that begins while the clock is behind the log is of a time to come at once."""
    asked: list[str] = []

    async def overdue(_: float) -> bool:
        return True

    async def waiting(*_: str) -> list[str]:
        return []

    queries: Any = SimpleNamespace(look_overdue=overdue, looks_waiting=waiting)
    looks: Any = SimpleNamespace(ask=lambda _scope, why, _context: asked.append(why))
    sides: Any = None
    job = Looking(sides, looks, queries, 3600.0)
    for _ in range(2):
        assert await job._waiting() == []
    assert asked == ["schedule"]


async def test_a_look_that_could_not_be_asked_for_is_asked_for_again() -> None:
    """At the next tick, not after an interval."""
    asked: list[str] = []

    def ask(_scope: object, why: str, _context: object) -> None:
        asked.append(why)
        if len(asked) == 1:
            raise psycopg.OperationalError("read only")

    async def overdue(_: float) -> bool:
        return True

    async def waiting(*_: str) -> list[str]:
        return []

    queries: Any = SimpleNamespace(look_overdue=overdue, looks_waiting=waiting)
    looks: Any = SimpleNamespace(ask=ask)
    sides: Any = None
    job = Looking(sides, looks, queries, 3600.0)
    with pytest.raises(psycopg.OperationalError):
        await job._waiting()
    for _ in range(2):
        assert await job._waiting() == []
    assert len(asked) == 2
