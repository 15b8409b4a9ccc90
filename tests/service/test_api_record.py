"""Who, when and where: what the API says of each event, and of requests that left none."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import structlog

from ledger.auth.tokens import NOBODY
from ledger.http.problem import Failure
from ledger.native.log import refusals
from ledger.native.log.refusals import Refusals
from ledger.words.timeline import Entry
from projections.reads.queries import Queries, read_pool
from tests.service.api_world import HOST, PROJECT, Api


async def first_result(api: Api, **fields: Any) -> dict[str, Any]:
    """The event of the first step that the host reports, of an attach that Cinder passed on."""
    headers = {"X-OpenStack-Global-Request-Id": THROUGH}
    await api.attach(await api.server(), api.volume(), who="member", headers=headers)
    [command] = await api.commands()
    assert (await api.report(command, command["steps"][0]["name"], **fields)).status == 200
    history = await api.get(f"/v1/operations/{command['operation_id']}/history")
    return next(
        event
        for event in history["events"]
        if event["body"].get("step") == command["steps"][0]["name"]
    )


THROUGH = f"req-{uuid4()}"
RETRYABLE = {"kind": "retryable", "code": "busy", "message": "busy"}


@pytest.mark.parametrize("error", [None, RETRYABLE], ids=["done", "to be retried"])
async def test_a_steps_result_says_who_asked_who_told_and_where(api: Api, error: Any) -> None:
    event = await first_result(api, error=error)
    assert event["actor"] == "agent-1"
    assert event["asked_by"] == {
        "name": "member",
        "user_id": "user-member",
        "project_id": PROJECT,
        "global_request_id": THROUGH,
        "address": "127.0.0.1",
        "agent": event["asked_by"]["agent"],
    }
    assert event["host"] == event["body"]["host"] == HOST
    theirs = await api.get(f"/v1/hosts/{HOST}/history")
    assert event["position"] in [each["position"] for each in theirs["events"]]
    assert f"member through {THROUGH}" in Entry.of(event).row


async def test_what_is_told_late_says_when_it_was(api: Api) -> None:
    """By the ledger's clock: this host's is 100 s ahead, and it tells 14 s late."""
    occurred = {"at": time.time() + 100 - 14, "offset_s": 100.0, "error_s": 0.01}
    event = await first_result(api, occurred=occurred)
    was = datetime.fromisoformat(event["occurred_at"])
    late = datetime.fromisoformat(event["recorded_at"]) - was
    assert timedelta(seconds=13) < late < timedelta(seconds=40)
    assert "s late" in Entry.of(event).what
    soon = {**event, "occurred_at": event["recorded_at"]}
    assert "late" not in Entry.of(soon).what


async def test_a_moment_to_come_is_refused_as_one_nothing_is_known_of(api: Api) -> None:
    server, volume = await api.attached()
    del server
    for path in (f"/v1/volumes/{volume}/history", f"/v1/hosts/{HOST}/history"):
        answer = await api.ask("GET", f"{path}?at=2999-01-01T00:00:00Z")
        assert (answer.status, (await answer.json())["code"]) == (400, "moment_to_come")
        before = await api.ask("GET", f"{path}?at=2001-01-01T00:00:00Z")
        assert before.status == 404, "as it was answered then"
    for path in (f"/v1/attachments?volume={volume}", f"/v1/operations?volume={volume}"):
        answer = await api.ask("GET", f"{path}&at=2999-01-01T00:00:00Z")
        assert (answer.status, (await answer.json())["code"]) == (400, "moment_to_come")


# ----------------------------------------------------------------------- refused requests


async def refused(api: Api) -> str:
    answer = await api.attach(await api.server(), str(uuid4()), who="member")
    assert answer.status == 404, await answer.text()
    return str(answer.headers["X-Openstack-Request-Id"])


async def test_a_refused_request_is_found_by_its_id_by_who_sent_it(api: Api) -> None:
    request_id = await refused(api)
    for who, status in (("member", 200), ("operator", 200), ("reader", 404), ("stranger", 404)):
        answer = await api.ask("GET", f"/v1/requests/{request_id}", who)
        assert answer.status == status, who
    shown = await api.get(f"/v1/requests/{request_id}", "member")
    assert (shown["method"], shown["route"]) == ("POST", "volume_attachment_create")
    assert (shown["status"], shown["actor"], shown["project_id"]) == (404, "member", PROJECT)
    assert "could not be found" in shown["message"]
    assert (await api.ask("GET", "/v1/requests/req-nothing")).status == 404


async def test_a_refusal_is_found_while_it_is_being_written(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks at that moment waits for it, and is not told that there is none."""
    begun, goes_on = asyncio.Event(), asyncio.Event()
    note_refusals = Queries.note_refusals

    async def slow(self: Queries, rows: Any) -> None:
        begun.set()
        await goes_on.wait()
        await note_refusals(self, rows)

    monkeypatch.setattr(Queries, "note_refusals", slow)
    request_id = await refused(api)
    asked = asyncio.create_task(api.ask("GET", f"/v1/requests/{request_id}", "member"))
    await begun.wait()
    again = asyncio.create_task(api.ask("GET", f"/v1/requests/{request_id}", "member"))
    done, _ = await asyncio.wait([again], timeout=0.5)
    goes_on.set()
    assert not done
    assert [(await asked).status, (await again).status] == [200, 200]


async def test_a_refusal_that_cannot_be_written_is_told_to_the_log(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: Queries, _rows: Any) -> None:
        raise psycopg.OperationalError("the database is gone")

    monkeypatch.setattr(Queries, "note_refusals", broken)
    with structlog.testing.capture_logs() as logs:
        request_id = await refused(api)
        answer = await api.ask("GET", f"/v1/requests/{request_id}", "member")
    assert answer.status == 404
    assert ("refusals_not_written", "the database is gone") in [
        (line["event"], line.get("why")) for line in logs
    ]


async def test_reads_leave_nothing_and_callers_without_a_token_only_what_operators_see(
    api: Api,
) -> None:
    """Nobody fills a table without having proven who it is: a sample is kept."""
    path = f"/v2.1/servers/{uuid4()}/action"
    for answer in (
        await api.ask("GET", f"/v1/attachments/{uuid4()}"),
        await api.ask("POST", path, "wrong", json={}),
        await api.ask("POST", path, None, json={}),
    ):
        assert answer.status in {401, 404}
        request_id = answer.headers["X-Openstack-Request-Id"]
        kept = 200 if answer.status == 401 else 404
        assert (await api.ask("GET", f"/v1/requests/{request_id}")).status == kept
        assert (await api.ask("GET", f"/v1/requests/{request_id}", "member")).status == 404


def note(notes: Refusals, name: str, project: str) -> None:
    actor = type(NOBODY.actor)(name=name, project_id=project)
    failure = Failure(status=409, code="claimed", detail="No.\x00")
    how = {"method": "POST", "route": "server_action"}
    notes.note(actor, failure, request_id=name, global_request_id=None, **how)


async def test_refusals_are_bounded_by_asker_number_and_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One project's flood drops its own; the newest stay, and nothing longer than it may."""
    monkeypatch.setattr(refusals, "NOTED_OF_ASKER_MAX", 5)
    monkeypatch.setattr(refusals, "NOTED_MAX", 8)
    count = "SELECT project_id, count(*) FROM refusals GROUP BY 1 ORDER BY 1"
    async with read_pool(database_url) as pool:
        db = psycopg.connect(database_url, autocommit=True)
        queries = Queries(pool)
        notes = Refusals(queries)
        for number in range(100):
            note(notes, f"a{number}", "flood")
        for number in range(100):
            note(notes, f"b{number}", "other")
        await notes.written()
        assert db.execute(count).fetchall() == [("flood", 5), ("other", 3)]
        note(notes, "newest", "flood")
        await notes.written()
        await queries.trim_refusals(3_600.0, 2, 100)
        assert db.execute(count).fetchall() == [("flood", 2), ("other", 2)]
        assert await queries.refusal("newest") is not None
        await queries.trim_refusals(3_600.0, 2, 3)
        assert sum(n for _, n in db.execute(count).fetchall()) == 3
        db.execute("UPDATE refusals SET refused_at = refused_at - interval '2 hours'")
        await queries.trim_refusals(3_600.0, 2, 100)
        assert db.execute(count).fetchall() == []
        db.close()


async def test_a_refused_request_is_known_for_a_day(database_url: str) -> None:
    async with read_pool(database_url) as pool:
        db = psycopg.connect(database_url, autocommit=True)
        queries = Queries(pool)
        notes = Refusals(queries)
        note(notes, "old", "project")
        await notes.written()
        for hours, known in ((23, True), (25, False)):
            age = timedelta(hours=hours)
            db.execute("UPDATE refusals SET refused_at = clock_timestamp() - %s", [age])
            await notes._trim()
            assert (await queries.refusal("old") is not None) is known
        db.close()
