"""From where a request came, and by what program: in the log, in what is refused, and told on."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ledger.forward.forms import cadf, ocsf
from ledger.forward.told import ToldItem, of_event, of_refusal
from ledger.http.limits.connections import AGENT_CHARS_MAX
from ledger.native.log import refusals
from ledger.native.log.refusals import REFUSALS, Refusals
from ledger.reconcile.asking import LookRequests
from projections.reads.queries import Queries, read_pool
from tests.service.api_world import HOST, Api
from tests.service.test_api_v1 import parked_detach
from tests.world import CONTEXT

LOG = UUID(int=7)
AGENT = "python-novaclient " + "x" * 300
HERE = {"address": "127.0.0.1", "agent": AGENT[:AGENT_CHARS_MAX]}
SAID = {"reason": "no answer", "evidence": "off", "force": True}


async def events(api: Api, **of: str) -> list[dict[str, Any]]:
    """Of the whole log, as operators see it."""
    found = (await api.get("/v1/events?limit=1000"))["events"]
    return [each for each in found if of.items() <= each.items()]


def told_from(told: ToldItem) -> dict[str, str | None]:
    return {"address": told.address, "agent": told.agent}


async def test_all_of_an_operation_tell_from_where_it_was_asked_for_and_one_stores_it(
    api: Api,
) -> None:
    server = await api.server()
    answer = await api.attach(
        server, api.volume(), who="member", headers={"User-Agent": AGENT, "X-Forwarded-For": "::2"}
    )
    await api.played(answer)
    [operation] = [each for each in await events(api) if each["topic"].endswith("OperationStarted")]
    found = await events(api, operation_id=operation["operation_id"])
    assert len(found) > 10
    for event in found:
        told = of_event(LOG, event)
        assert told_from(told) == HERE, event["topic"]
        assert cadf(LOG, told)["initiator"]["host"] == HERE
        assert ocsf(LOG, told)["src_endpoint"] == {"ip": "127.0.0.1"}
        assert ocsf(LOG, told)["http_request"] == {"user_agent": HERE["agent"]}
    assert [e["topic"] for e in found if "sender" in e["body"]] == ["Operation.OperationStarted"]


async def test_users_do_not_see_where_an_operator_sits(api: Api) -> None:
    server = await api.server()
    await api.played(await api.attach(server, api.volume()))
    text = await (await api.ask("GET", f"/v1/servers/{server}/history", "member")).text()
    assert '"asked_by"' in text
    assert "127.0.0.1" not in text


async def test_an_act_tells_from_where_it_came_and_what_hosts_report_does_not(api: Api) -> None:
    *_, operation = await parked_detach(api)
    act = {"retry": {"reason": "array is back"}}
    path = f"/v1/operations/{operation['operation_id']}/actions"
    assert (await api.ask("POST", path, json=act, headers={"User-Agent": "t"})).status == 200
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=SAID)).status == 200
    by_topic = {each["topic"]: each for each in await events(api)}
    retried = by_topic["Operation.RetryRequested"]
    assert retried["body"]["sender"] == {"address": "127.0.0.1", "agent": "t"}
    assert of_event(LOG, retried).by == "admin", "and not who asked for the operation"
    assert by_topic["Host.Fenced"]["body"]["sender"]["address"] == "127.0.0.1"
    assert not [
        each["topic"]
        for each in await events(api)
        if each["cause"] in {"report", "registration", "dispatcher"} and "sender" in each["body"]
    ]


# --- refused requests ----------------------------------------------------------------------------


async def rows(api: Api, database_url: str, **of: Any) -> list[dict[str, Any]]:
    notes: Refusals = api.http.app[REFUSALS]
    await notes.written()
    async with read_pool(database_url) as pool:
        found = await Queries(pool).refusals_after(None, "", 0.0, 10_000)
    return [each for each in found if of.items() <= each.items()]


async def test_a_flood_of_wrong_tokens_is_a_few_rows_and_a_number(
    api: Api, database_url: str
) -> None:
    for _ in range(30):
        await api.ask("DELETE", f"/v1/servers/{uuid4()}", None, headers={"User-Agent": "hydra"})
    few = await rows(api, database_url, status=401)
    assert len(few) == refusals.SAMPLES_OF_ASKER_MAX
    notes: Refusals = api.http.app[REFUSALS]
    notes.tell_left_out()  # as at the end of the hour
    *before, last = await rows(api, database_url, status=401)
    assert before == few
    assert last["left_out"] == 30 - len(few) - 1, "all but itself"
    told = of_refusal(LOG, last)
    assert told_from(told) == {"address": "127.0.0.1", "agent": "hydra"}
    assert f"({last['left_out']} more in the hour before are not told.)" in told.what
    assert cadf(LOG, told)["initiator"]["host"] == {"address": "127.0.0.1", "agent": "hydra"}
    notes.tell_left_out()
    assert len(await rows(api, database_url, status=401)) == len(few) + 1


async def test_reads_that_are_forbidden_are_sampled_by_project(api: Api, database_url: str) -> None:
    for _ in range(8):
        assert (await api.ask("GET", "/v1/hosts", "member")).status == 403
    found = await rows(api, database_url, status=403, actor="member")
    assert len(found) == refusals.SAMPLES_OF_ASKER_MAX
    assert {each["address"] for each in found} == {"127.0.0.1"}
    assert (await api.ask("GET", f"/v1/requests/{found[0]['request_id']}", "member")).status == 200


async def test_a_flood_from_everywhere_is_bounded_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each address has its own few, but only so many addresses; of the others one row says."""
    monkeypatch.setattr(refusals, "ASKERS_MAX", 3)
    monkeypatch.setattr(refusals, "SAMPLES_OF_ASKER_MAX", 2)
    sample = refusals.RefusalSample()
    kept = [
        (number, turn)
        for turn in range(10)
        for number in range(50)
        if sample.keeps(f"198.51.100.{number}", {"actor": "nobody", "address": "198..."})
    ]
    assert kept == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    *known, others = sorted(sample.left(), key=lambda row: row["left_out"])
    assert [row["left_out"] for row in known] == [7, 7, 7]
    assert (others["left_out"], others["actor"], others["address"]) == (469, "others", None)


async def test_an_hour_ends_by_itself(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "SAMPLED_S", 0.0)
    assert refusals.RefusalSample().is_over()
    monkeypatch.setattr(refusals, "SAMPLED_S", 3600.0)
    assert not refusals.RefusalSample().is_over()


async def test_what_0_2_0_noted_is_told_without_an_address(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(
            "INSERT INTO refusals (request_id, method, route, status, code, message, actor)"
            " VALUES ('req-1', 'POST', 'fence', 403, 'forbidden', 'No.', 'eve')"
        )
    async with read_pool(database_url) as pool:
        [row] = await Queries(pool).refusals_after(None, "", 0.0, 10)
    assert "host" not in cadf(LOG, of_refusal(LOG, row))["initiator"]


def test_a_look_is_asked_for_in_words_that_0_2_0_reads(database_url: str) -> None:
    LookRequests(database_url).ask({}, "asked", CONTEXT)
    with psycopg.connect(database_url) as db:
        [(kept,)] = db.execute("SELECT context FROM looks_asked").fetchall()
    known = {"actor", "request_id", "cause", "operation_id", "global_request_id", "traceparent"}
    assert kept.keys() == known | {"passes_locks"}
    assert CONTEXT.sender is not None
