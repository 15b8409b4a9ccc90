"""A leader that is frozen, or whose standby is, stops nobody for longer than the deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from aiohttp import ClientResponse
from eventsourcing.persistence import StoredEvent
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ledger.core.wakeups import ANY_EVENT
from ledger.log import writer as writer_module
from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import UnknownOutcomeError
from projections.catalog import ALL
from projections.database_connections import LIMITS, AsyncDbConnection, DbConnection, limited
from tests.doubles.two_leaders import TwoLeaders, two_leaders
from tests.service.api_world import running_api
from tests.stack import eventually

ANSWER_S = 2.0
#: Beside the lines' own deadline: connecting in vain to the frozen one, twice, and a busy machine.
SLACK_S = 20.0
_CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
            AND application_name = 'attachment-ledger projections'"""

pytestmark = pytest.mark.slow


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoLeaders]:
    monkeypatch.setattr(DbConnection, "answer_s", ANSWER_S)
    monkeypatch.setattr(AsyncDbConnection, "answer_s", ANSWER_S)
    with two_leaders() as both:
        yield both


async def test_a_frozen_leader_is_left_for_the_new_one(both: TwoLeaders) -> None:
    async with running_api(both.dsn) as api:
        server, volume = await api.server(), api.volume()
        before = await api.attach(server, volume)
        assert before.status == 200, await before.text()
        await asyncio.to_thread(both.first.freeze)
        await asyncio.to_thread(both.second.promote)
        began = time.monotonic()
        answer = await api.attach(server, api.volume())
        assert answer.status == 200, await answer.text()
        found = await api.ask("GET", f"/v1/operations/{_operation(answer)}")
        assert found.status == 200, await found.text()
        assert time.monotonic() - began < ANSWER_S + SLACK_S


def test_a_commit_that_waits_for_its_standby_ends_at_the_deadline(
    both: TwoLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "APPEND_DEADLINE_S", 3.0)
    recorder = LedgerRecorder(both.dsn)
    try:
        assert recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")]) == [1]
        both.second.freeze()
        began, late = time.monotonic(), uuid4()
        with pytest.raises(UnknownOutcomeError):
            recorder.insert_events([StoredEvent(late, 1, "T", b"{}")])
        assert time.monotonic() - began < 3.0 + SLACK_S
        both.second.thaw()
        assert recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")]) == [3]
        assert len(recorder.select_events(late)) == 1
    finally:
        recorder.close()


async def test_what_is_in_the_log_and_not_projected_yet_is_no_404(database_url: str) -> None:
    """A new leader has all of the log, and may lack the last that was projected."""
    async with running_api(database_url) as api:
        server, volume = await api.server(), api.volume()
        operation = _operation(await api.attach(server, volume))
        with psycopg.connect(database_url, autocommit=True) as leader:
            [lacks] = [each for each in ALL if each.name == "operations"]
            for table in (lacks.table, *(each.table for each in lacks.derived)):
                leader.execute(f"DELETE FROM {table}".encode())
            leader.execute("UPDATE tracking SET position = 0 WHERE projection = 'operations'")
            asked = asyncio.create_task(api.ask("GET", f"/v1/operations/{operation}"))
            watches = api.components.wakeups._watches
            waits = partial(eventually, lambda: asked.done() or watches.get(ANY_EVENT))
            await asyncio.to_thread(waits, "an answer that waits")
            assert not asked.done(), await (await asked).text()
            leader.execute(_CUT)  # the projector looks anew where it is
            answer = await asked
            assert answer.status == 200, await answer.text()


def _operation(answer: ClientResponse) -> str:
    return answer.headers["X-Attachment-Ledger-Operation"].rpartition("/")[2]


def test_the_dsn_has_the_last_word_on_its_lines() -> None:
    own = conninfo_to_dict(limited("host=a,b keepalives_idle=60 connect_timeout=2"))
    said = {"host": "a,b", "keepalives_idle": "60", "connect_timeout": "2"}
    assert own == {**{name: str(value) for name, value in LIMITS.items()}, **said}


@pytest.mark.parametrize("place", ["dsn", "environment"])
def test_options_of_the_site_are_added_and_win(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of two `-c` counts.  A connection of a pool is given its DSN more than once."""
    site = "-c jit=on -c search_path=ledger"
    dsn = make_conninfo("host=a", options=site) if place == "dsn" else "host=a"
    if place == "environment":
        monkeypatch.setenv("PGOPTIONS", site)
    for _ in range(2):
        dsn = limited(dsn)
        assert conninfo_to_dict(dsn)["options"] == f"{LIMITS['options']} {site}"
