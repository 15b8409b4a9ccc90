"""One clock, the database's, for all that is shared; others may be wrong, and it is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
import pytest
import structlog

from handlers.engine.verbs import PUT_OFF_MAX_S, VERBS
from host_agent.shared.contract.messages import Verb
from host_agent.shared.platform.clocks import AHEAD_HEADER, SKEW_MAX_S, TIME_HEADER
from ledger.agents.batches import AGENT_BATCHER
from ledger.core import wakeups
from ledger.log.clock import DatabaseClock
from tests.doubles.database_time import DatabaseTime
from tests.service.api_world import HOST, Api, eventually, guest, running_api
from tests.service.test_metrics import shown

HOURS_S = 7_200.0
RETRYABLE = {"kind": "retryable", "code": "busy", "message": "Not now."}


@pytest.fixture
def database_time(database_url: str) -> Iterator[DatabaseTime]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield DatabaseTime(connection)


@pytest.fixture(autouse=True)
def _time_is_asked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "POLL_INTERVAL_S", 0.05)


@pytest.fixture
async def api(database_url: str, database_time: DatabaseTime) -> AsyncIterator[Api]:
    async with running_api(database_url) as running:
        yield running


async def told(api: Api, ahead_s: float) -> None:
    """Wait until the process knows how far the database's clock is ahead of its own."""

    async def knows() -> bool:
        return abs(api.components.clock.skew_s + ahead_s) < 0.5

    await eventually(knows, f"the database's clock is known to be {ahead_s:g} s ahead")


async def warnings(api: Api) -> str:
    answer = await api.ask("GET", "/readyz", None)
    health = await answer.json()
    assert (answer.status, health["status"]) == (200, "ok")
    return "; ".join(health["warnings"])


async def last_recorded(api: Api) -> float:
    head = await api.components.queries.head()
    return float(head["recorded_at"].timestamp())


@pytest.mark.parametrize("ahead_s", [-61, -HOURS_S, 61, HOURS_S])
async def test_a_service_whose_clock_is_wrong_works_as_any_other(
    database_url: str, database_time: DatabaseTime, ahead_s: float
) -> None:
    database_time.set_ahead(ahead_s)
    async with running_api(database_url) as api:
        server, volume = await api.attached()
        answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
        assert answer.status == 202
        [command] = await api.commands()
        await api.report(command, command["steps"][0]["name"], error=RETRYABLE)
        await api.do_next_command(after=command["position"])
        assert (await api.finished(answer))["outcome"] == "completed"
        [host] = (await api.get("/v1/hosts"))["hosts"]
        assert host["alive"]
        page = await shown(api)
        assert page["ledger_clock_skew_seconds"] == pytest.approx(-ahead_s, abs=0.5)
        assert 0 < page["ledger_clock_error_seconds"] < 0.5
        way = "behind" if ahead_s > 0 else "ahead of"
        assert f"this host's clock is {abs(ahead_s):.0f} s {way} the database's" in await warnings(
            api
        )


async def test_where_clocks_are_right_nothing_is_said(api: Api) -> None:
    await api.attached()
    assert await warnings(api) == ""
    page = await shown(api)
    assert abs(page["ledger_clock_skew_seconds"]) < 0.5
    assert page["ledger_log_ahead_seconds"] == page["ledger_database_clock_sets_total"] == 0


async def test_a_retry_is_not_put_off_by_a_jump_of_the_clock(
    api: Api, database_time: DatabaseTime
) -> None:
    """Two hours on while a retry is scheduled, and back."""
    answer = await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    database_time.set_ahead(HOURS_S)
    await told(api, HOURS_S)
    await api.report(command, "update", error=RETRYABLE)
    database_time.set_ahead(0)
    await told(api, 0)
    await api.do_next_command(after=command["position"])
    assert (await api.finished(answer))["outcome"] == "completed"
    assert (await shown(api))["ledger_database_clock_sets_total"] == 2


async def test_the_log_goes_on_and_its_times_never_go_back(
    api: Api, database_time: DatabaseTime
) -> None:
    database_time.set_ahead(HOURS_S)
    server = await api.server()
    ahead = await last_recorded(api)
    assert ahead > time.time() + HOURS_S - 60
    await told(api, HOURS_S)  # else it may hear of the jump when the clock is right again
    database_time.set_ahead(0)
    await told(api, 0)
    await api.register(guest(server_id=server))
    answer = await api.attach(server, api.volume())
    assert await last_recorded(api) == ahead
    await api.do_next_command()
    assert (await api.finished(answer))["outcome"] == "completed", "nothing waits for the clock"

    async def says() -> bool:
        return "ahead of the database's clock, which was set back" in await warnings(api)

    await eventually(says, "times of the log are wrong, and it is told")
    page = await shown(api)
    assert HOURS_S - 60 < page["ledger_log_ahead_seconds"] < HOURS_S
    times = [e["recorded_at"] for e in (await api.get("/v1/events?limit=100"))["events"]]
    assert times == sorted(times)


async def test_a_jump_of_the_databases_clock_makes_no_host_silent(
    api: Api, database_time: DatabaseTime
) -> None:
    server = await api.server()
    for ahead_s in (HOURS_S, 0, -HOURS_S, 0):
        database_time.set_ahead(ahead_s)
        await told(api, ahead_s)

        async def alive() -> bool:
            return (await shown(api))["ledger_hosts alive"] == 1 and (
                (await api.get("/v1/hosts"))["hosts"][0]["alive"] is True
            )

        await eventually(alive, "what was heard is known by the clock as it is now")
    assert (await api.attach(server, api.volume())).status == 200


async def test_a_contact_of_the_future_is_none(api: Api, database_time: DatabaseTime) -> None:
    """The process that heard it is gone, and nobody knows any more how long ago that was."""
    database_time.set_ahead(HOURS_S)
    await told(api, HOURS_S)
    await api.register(guest())
    app = api.http.app
    assert app is not None
    app[AGENT_BATCHER]._contacts._all.clear()
    database_time.set_ahead(0)
    await told(api, 0)
    [host] = (await api.get("/v1/hosts"))["hosts"]
    assert not host["alive"]
    await counted(api, "ledger_hosts silent")
    await api.register(guest())
    [host] = (await api.get("/v1/hosts"))["hosts"]
    assert host["alive"]
    await counted(api, "ledger_hosts alive")


async def counted(api: Api, name: str) -> None:
    """The metrics are counted once a second at most."""

    async def one() -> bool:
        return (await shown(api))[name] == 1

    await eventually(one, f"{name} is 1")


async def test_an_operator_may_retry_what_is_put_off(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = VERBS[Verb.ATTACHMENT_UPDATE]
    longest = replace(spec.retry, first_s=spec.retry.max_s)  # or it is due before it is asked for
    monkeypatch.setitem(VERBS, Verb.ATTACHMENT_UPDATE, replace(spec, retry=longest))
    answer = await api.attach(await api.server(), api.volume())
    path = answer.headers["X-Attachment-Ledger-Operation"]
    after = 0
    for _ in range(5):
        [command] = await api.commands(after)
        after = command["position"]
        await api.report(command, "update", error=RETRYABLE)
        page = await shown(api)
        assert 0 < page["ledger_operation_latest_due_seconds"] < PUT_OFF_MAX_S
        shown_ = await api.get(path)
        assert "retry" in shown_["acts"]
        done = await api.ask("POST", f"{path}/actions", json={"retry": {"reason": "it is back"}})
        assert done.status == 200, await done.text()
        assert "retry" not in (await done.json())["acts"]
        [again] = await api.commands(after, wait_s=0)
        assert again["steps"][0]["name"] == "update"
    [command] = await api.commands(after, wait_s=0)
    again = await api.ask("POST", f"{path}/actions", json={"retry": {"reason": "once more"}})
    assert again.status == 409
    assert "no step waits to be tried again" in await again.text()
    assert (await api.get(path))["state"] == "running"


# ----------------------------------------------------------------------- clocks of hosts


async def test_what_an_agent_says_of_its_clock_is_shown_counted_and_logged_once(api: Api) -> None:
    headers = {AHEAD_HEADER: "-14.250"}
    body = {"service_version": 2, "capabilities": {}, "guests": []}
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            put = await api.ask("PUT", f"/v1/hosts/{HOST}", "agent-1", json=body, headers=headers)
            assert put.status == 200
    [line] = [line for line in lines if line["event"] == "host_clock_skewed"]
    assert (line["host"], line["ahead_s"], line["wrong"]) == (HOST, -14.25, True)
    assert (await api.get(f"/v1/hosts/{HOST}"))["clock_ahead_s"] == -14.25
    assert (await shown(api))["ledger_host_clock_skew_max_seconds"] == 14.25


async def test_what_is_no_number_of_seconds_is_not_kept(api: Api) -> None:
    body = {"service_version": 2, "capabilities": {}, "guests": []}
    for said in ("nan", "inf", "-1e300", "soon", ""):
        path, headers = f"/v1/hosts/{HOST}", {AHEAD_HEADER: said}
        assert (await api.ask("PUT", path, "agent-1", json=body, headers=headers)).status == 200
        assert (await api.get(path))["clock_ahead_s"] is None, said


async def test_agents_are_told_the_databases_time(api: Api, database_time: DatabaseTime) -> None:
    database_time.set_ahead(HOURS_S)
    await told(api, HOURS_S)
    body = {"service_version": 2, "capabilities": {}, "guests": []}
    answer = await api.ask("PUT", f"/v1/hosts/{HOST}", "agent-1", json=body)
    assert float(answer.headers[TIME_HEADER]) == pytest.approx(time.time() + HOURS_S, abs=10)


async def reported(api: Api, **fields: Any) -> Any:
    """The event of a step that was reported so."""
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    assert (await api.report(command, "update", **fields)).status == 200
    events = (await api.get("/v1/events?limit=100"))["events"]
    return next(e for e in events if e["body"].get("step") == "update")


async def test_when_a_step_ended_is_stored_beside_when_it_was_recorded(api: Api) -> None:
    """A host that is 100 s ahead, and reports 14 s late."""
    occurred = {"at": time.time() + 100 - 14, "offset_s": 100.0, "error_s": 0.01}
    event = await reported(api, occurred=occurred)
    assert event["body"]["occurred"] == occurred
    recorded = datetime.fromisoformat(event["recorded_at"]).timestamp()
    late_s = recorded - (occurred["at"] - occurred["offset_s"])
    assert late_s == pytest.approx(14, abs=5)


async def test_so_it_is_of_a_step_that_failed(api: Api) -> None:
    occurred = {"at": time.time(), "offset_s": 0.0, "error_s": 0.01}
    event = await reported(api, occurred=occurred, error=RETRYABLE)
    assert (event["topic"], event["body"]["occurred"]) == ("Operation.StepRetried", occurred)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": 4e9},
        {"offset_s": -100.0},
        {"error_s": -1.0},
        {"at": 1e300},
        {"at": 0.0},
    ],
    ids=["in the future", "by its offset", "no error", "no time", "before all time"],
)
async def test_what_cannot_have_been_then_is_not_kept(api: Api, wrong: dict[str, float]) -> None:
    occurred = {"at": time.time(), "offset_s": 0.0, "error_s": 0.01, **wrong}
    assert (await reported(api, occurred=occurred))["body"]["occurred"] is None


async def test_an_older_agent_says_nothing_of_it(api: Api) -> None:
    assert (await reported(api))["body"]["occurred"] is None


# ------------------------------------------------------------------------ what is logged


def test_a_skew_is_logged_when_it_comes_and_when_it_goes() -> None:
    wall = [1_000.0]
    clock = DatabaseClock(lambda: wall[0], lambda: 0.0)
    with structlog.testing.capture_logs() as lines:
        for wall_s, log_ahead_s in ((1_000, 0), (1_045, 0), (1_045, 9), (1_000, 0)):
            wall[0] = wall_s
            clock.synchronise(0.0, 1_000.0, log_ahead_s)
    assert [(line["event"], line["wrong"], line["ahead_s"]) for line in lines] == [
        ("service_clock_skewed", True, 45.0),
        ("log_ahead_of_database_clock", True, 9),
        ("service_clock_skewed", False, 0.0),
        ("log_ahead_of_database_clock", False, 0),
    ]
    assert SKEW_MAX_S < 9
