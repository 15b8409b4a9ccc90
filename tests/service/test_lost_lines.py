"""What people and agents are told when PostgreSQL drops its lines: at worst to come again, never
that something is wrong with what they ask, and what they wait for comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from eventsourcing import persistence

from ledger.http.call import Call
from ledger.http.problem import explain
from tests.doubles.cut_lines import CutLines, Lost
from tests.service.api_world import HOST, Api, running_api

#: One of each way in which what is asked is read.
READS = (
    "/v2.1/servers/{server}",
    "/v2.1/servers/detail",
    "/v2.1/servers/{server}/os-volume_attachments",
    "/v1/servers/{server}/history",
    "/v1/find?text={server}",
    "/v1/operations",
    "/v1/attachments",
    "/v1/hosts",
    "/v1/events",
    "/v1/events/checkpoint",
    "/v1/drift",
    "/ui/servers/{server}",
)


@pytest.fixture
async def api(lines: CutLines) -> AsyncIterator[Api]:
    """Of this module: on lines that can be cut."""
    async with running_api(lines.dsn) as running:
        yield running


async def test_a_read_that_meets_lost_lines_is_answered(api: Api, lines: CutLines) -> None:
    server, _ = await api.attached()
    for path in READS:
        for _ in range(2):
            assert lines.drop_all()
            answer = await api.ask("GET", path.format(server=server))
            assert answer.status == 200, await answer.text()


@pytest.mark.parametrize("lost", ["request", "answer", "late"])
async def test_a_request_whose_append_is_lost_is_stored_once(
    lost: Lost, api: Api, lines: CutLines, caplog: pytest.LogCaptureFixture
) -> None:
    server, volume = await api.server(), api.volume()
    lines.lose_next_append(lost)
    answer = await api.attach(server, volume)
    assert answer.status == 200, await answer.text()
    if lost == "late":
        lines.let_in()
    await api.do_next_command()
    assert (await api.finished(answer))["outcome"] == "completed"
    assert len((await api.get("/v1/operations"))["operations"]) == 1
    assert "operation_failed" not in caplog.text


async def test_an_operation_goes_on_whatever_lines_are_dropped_meanwhile(
    api: Api, lines: CutLines, caplog: pytest.LogCaptureFixture
) -> None:
    """Each party has its line: the writer, readers, projections, wake-ups, the clock, leases."""
    server, volume = await api.server(), api.volume()
    polled = asyncio.create_task(api.commands(wait_s=20))
    set_before = api.components.clock.set_count
    assert lines.drop_all() > 3
    answer = await api.attach(server, volume)
    assert answer.status == 200, await answer.text()
    [command] = await polled
    for step in command["steps"]:
        lines.drop_all()
        assert (await api.report(command, step["name"])).status == 200
    assert (await api.finished(answer))["outcome"] == "completed"
    assert api.components.clock.set_count == set_before
    assert "operation_failed" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        psycopg.DatabaseError("server closed the connection unexpectedly"),
        psycopg.OperationalError("consuming input failed"),
        psycopg.errors.AdminShutdown("terminating connection"),
        persistence.OperationalError("no connection to the database; nothing stored"),
    ],
    ids=repr,
)
def test_a_database_that_is_away_is_a_503_with_a_time_to_come_again(error: Exception) -> None:
    failure = explain(error, "req-1", None)
    assert (failure.status, failure.code) == (503, "database_unavailable")
    assert failure.headers["Retry-After"] == "2"


async def test_a_database_that_goes_after_the_append_is_not_said_to_have_stored_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.server()

    async def gone(_call: Call, _position: int) -> None:
        raise psycopg.OperationalError("no connection")

    monkeypatch.setattr(Call, "written", gone)
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    answer = await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    told = await answer.json()
    assert (answer.status, told["code"]) == (503, "database_unavailable")
    assert api.components.service.host(HOST).fenced
    assert "may have been stored" in told["detail"]


@pytest.mark.parametrize(
    "error", [psycopg.errors.UndefinedTable("gone"), persistence.DatabaseError()]
)
def test_what_the_database_refuses_is_no_outage(error: Exception) -> None:
    assert explain(error, "req-1", None).status == 500
