"""What /metrics says moves with what it counts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregates.finding import Finding
from ledger.http.probes import health
from ledger.log.application import Ledger
from ledger.upkeep import restored
from tests.doubles.direct_cinder import DirectCinder
from tests.service.api_world import HOST, OTHER, Api, eventually
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import Seen, begin_look, end_look
from tests.store.histories import LOCK

HELD_S = 20


@pytest.fixture(autouse=True)
def _counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_AGE_S", 0.0)


async def shown(api: Api) -> dict[str, float]:
    """Every sample by its name, with its labels if it has any."""
    page = await (await api.ask("GET", "/metrics", None)).text()
    return {
        "".join([sample.name, *(f" {value}" for value in sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_appends_are_timed_and_their_batches_measured(api: Api) -> None:
    server, before = await api.server(), await shown(api)
    head = await api.head()
    await (await api.attach(server, api.volume())).read()
    after, written = await shown(api), await api.head() - head
    appends = after["ledger_append_seconds_count"] - before["ledger_append_seconds_count"]
    assert 1 < appends <= written
    took_s = after["ledger_append_seconds_sum"] - before["ledger_append_seconds_sum"]
    assert 0 < took_s < HELD_S
    for unit, total in (("appends", appends), ("events", written)):
        name = f"ledger_append_batch_{unit}"
        assert after[f"{name}_sum"] - before[f"{name}_sum"] == total
        buckets = [value for key, value in after.items() if key.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == after[f"{name}_count"] == after[f"{name}_bucket +Inf"]


async def test_requests_are_counted_and_timed_by_route(api: Api) -> None:
    for who in ("member", "member", "wrong"):
        await api.ask("GET", "/v2.1/servers", who)
    await api.ask("PROPFIND", "/nowhere", None)
    page = await shown(api)
    assert page["ledger_http_requests_total GET servers 200"] == 2
    assert page["ledger_http_requests_total GET servers 401"] == 1
    assert page["ledger_http_requests_total other unknown 401"] == 1
    seconds = "ledger_http_request_seconds"
    assert page[f"{seconds}_count GET servers"] == page[f"{seconds}_bucket +Inf GET servers"] == 3
    assert 0 < page[f"{seconds}_sum GET servers"] < HELD_S


async def test_what_differs_is_counted_by_class_and_state_and_the_oldest_has_an_age(
    api: Api, database_url: str
) -> None:
    states = ("suspected", "confirmed", "ignored")
    names = [f"ledger_drift_open reservation_unknown {state}" for state in states]
    before = await shown(api)
    assert [before[name] for name in names] == [0, 0, 0]
    assert "ledger_look_age_seconds all" not in before
    with Ledger(database_url) as ledger:
        first, second, ignored = (Seen(ledger) for _ in range(3))
        for each in (ignored, first, first, second):
            each.look()
        ignored.record(Finding.DriftIgnored, reason="known", until=None)
        braked = {"guest_missing": 12}
        end_look(ledger, begin_look(ledger, host="h1"), braked={"volume_gone": 11})
        end_look(ledger, begin_look(ledger), braked=braked)
        end_look(ledger, begin_look(ledger), "void")
        await api.projected()

        page = await shown(api)
        open_ = "ledger_drift_open reservation_unknown"
        assert [page[f"{open_} {state}"] for state in ("suspected", "confirmed", "ignored")] == [
            1
        ] * 3
        assert page["ledger_drift_oldest_seconds reservation_unknown"] > 0
        assert page["ledger_drift_oldest_seconds volume_gone"] == 0
        assert (page["ledger_looks_total completed"], page["ledger_looks_total void"]) == (2, 1)
        assert page["ledger_drift_held_back guest_missing"] == 12
        assert page["ledger_drift_held_back volume_gone"] == 0, "that was at a part"
        assert 0 <= page["ledger_look_age_seconds all"] < HELD_S

        first.miss()
        second.miss()
        await api.projected()
    page = await shown(api)
    assert [page[f"{open_} {state}"] for state in ("suspected", "confirmed", "ignored")] == [
        0,
        0,
        1,
    ]
    assert page["ledger_drift_oldest_seconds reservation_unknown"] == 0


async def test_what_is_parked_is_counted_as_drift(api: Api) -> None:
    await parked_detach(api)
    page = await shown(api)
    assert page["ledger_drift_open operation_parked confirmed"] == 1
    assert page["ledger_drift_oldest_seconds operation_parked"] > 0


async def test_an_agent_is_connected_while_its_poll_is_held(api: Api) -> None:
    await api.server()
    assert (await shown(api))["ledger_agents_connected"] == 0
    poll = asyncio.create_task(api.commands(wait_s=HELD_S))

    async def connected() -> bool:
        return (await shown(api))["ledger_agents_connected"] == 1

    await eventually(connected, "the poll is held")
    assert (await shown(api))["ledger_http_requests_held"] == 1
    await api.act((await api.get("/v2.1/servers"))["servers"][0]["id"], "os-stop")
    assert await poll
    assert (await shown(api))["ledger_agents_connected"] == 0


async def test_what_is_due_is_counted_until_it_is_done(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, may_go_on = await api.server(), threading.Event()
    create = DirectCinder.attachment_create

    def waits(*args: Any) -> Any:
        assert may_go_on.wait(HELD_S)
        return create(*args)

    monkeypatch.setattr(DirectCinder, "attachment_create", waits)
    attaching = asyncio.create_task(api.attach(server, api.volume()))
    names = [f"ledger_operations_{what}" for what in ("due", "leased", "open running")]

    async def counted() -> bool:
        page = await shown(api)
        return [page[name] for name in names] == [1, 1, 1]

    await eventually(counted, "the operation is due, and a dispatcher is at it")
    earlier = (await shown(api))["ledger_operation_oldest_due_seconds"]
    later = (await shown(api))["ledger_operation_oldest_due_seconds"]
    assert 0 < earlier < later < HELD_S
    may_go_on.set()
    assert (await attaching).status == 200

    async def done() -> bool:
        page = await shown(api)
        return [page[name] for name in names] == [0, 0, 1]  # now it is the host's turn

    await eventually(done, "nothing is due")
    assert (await shown(api))["ledger_operation_oldest_due_seconds"] == 0


async def test_hosts_are_counted_by_what_can_be_asked_of_them(api: Api) -> None:
    await api.two_hosts()
    states = ("alive", "silent", "fenced")

    async def counted() -> list[float]:
        page = await shown(api)
        return [page[f"ledger_hosts {state}"] for state in states]

    assert await counted() == [2, 0, 0]
    body = {"reason": "it burns", "evidence": "seen", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=body)
    assert await counted() == [1, 0, 1]


async def test_hosts_that_nobody_has_vouched_for_are_counted(api: Api, database_url: str) -> None:
    await api.two_hosts()
    assert (await shown(api))["ledger_hosts_unvouched"] == 0
    await asyncio.to_thread(restored.mark, database_url, "db1 was lost", "root")

    async def counted() -> bool:
        return (await shown(api))["ledger_hosts_unvouched"] == 2

    await eventually(counted, "both are in doubt")


async def test_a_projection_that_is_held_back_shows_its_lag(api: Api) -> None:
    server = await api.server()
    lag = "ledger_projection_lag_{} operations"
    assert (await shown(api))[lag.format("events")] == 0
    async with api.connection() as line, line.transaction():
        await line.execute(LOCK, {"names": ["operations"]})
        attaching = asyncio.create_task(api.attach(server, api.volume()))

        async def late() -> bool:
            page = await shown(api)
            return page[lag.format("events")] > 0 and page[lag.format("seconds")] > 0

        await eventually(late, "the projection is late")
    await (await attaching).read()
    assert (await shown(api))[lag.format("seconds")] == 0


async def test_steps_are_timed_by_flow_and_step_as_their_events_say(api: Api) -> None:
    answer = await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    error = {"kind": "retryable", "code": "busy", "message": "busy"}
    first, *rest = command["steps"]
    assert (await api.report(command, first["name"], error=error)).status == 200
    page = await shown(api)
    assert page[f"ledger_step_failures_total attach retryable {first['name']}"] == 1
    assert page["ledger_step_seconds_count attach reserve"] == 1
    assert f"ledger_step_seconds_count attach {first['name']}" not in page

    path = answer.headers["X-Attachment-Ledger-Operation"]
    acted = await api.ask("POST", f"{path}/actions", json={"retry": {"reason": "now"}})
    assert acted.status == 200, await acted.text()
    await api.played(answer)
    page = await shown(api)
    for step in (first, *rest):
        assert page[f"ledger_step_seconds_count attach {step['name']}"] == 1
        assert page[f"ledger_step_seconds_sum attach {step['name']}"] == 0.005
    assert "ledger_step_seconds_count attach undo reserve" not in page


async def test_the_undoing_of_a_step_is_timed_as_a_step_of_its_own(api: Api) -> None:
    answer = await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    error = {"kind": "final", "code": "no", "message": "no"}
    await api.report(command, command["steps"][0]["name"], error=error)
    await api.played(answer)
    page = await shown(api)
    assert page["ledger_step_seconds_count attach reserve"] == 1
    assert page["ledger_step_seconds_count attach undo reserve"] == 1


async def test_agents_are_counted_by_their_version(api: Api) -> None:
    await api.register()
    await api.register(host=OTHER, service_version=2)
    page = await shown(api)
    assert (page["ledger_agents 2"], page["ledger_agents 3"]) == (1, 1)


async def test_each_check_of_readiness_is_shown_also_where_the_database_is_gone(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await shown(api)
    assert (page["ledger_ready database"], page["ledger_ready projections"]) == (1, 1)
    assert "ledger_hosts alive" in page

    async def gone(*_: Any) -> Any:
        raise psycopg.OperationalError("gone")

    for name in ("head", "missing_rights"):
        monkeypatch.setattr(api.components.inner, name, gone)
    page = await shown(api)
    assert (page["ledger_ready database"], page["ledger_ready projections"]) == (0, 1)
    assert "ledger_hosts alive" not in page, "what nobody knows is not told"
    assert page["ledger_http_requests_total GET metrics 200"] > 0
