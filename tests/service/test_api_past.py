"""What an operation, a finding and the log were at a moment; and the log's events of one kind."""

from __future__ import annotations

from itertools import product
from typing import Any
from urllib.parse import quote

import pytest

from ledger.log.application import Ledger
from projections.reads import log as log_reads
from tests.service.api_world import Api
from tests.service.test_api_drift import found
from tests.service.test_api_v1 import parked_detach
from tests.service.test_console import shown

UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def last_at(api: Api, path: str) -> str:
    """When the last event of a history was recorded, as a part of a query."""
    return quote((await api.get(f"{path}/history?order=desc&limit=1"))["events"][0]["recorded_at"])


async def given_up(api: Api, path: str) -> None:
    wanted = {"give_up": {"reason": "the host burnt down"}}
    assert (await api.ask("POST", f"{path}/actions", json=wanted)).status == 200


async def test_an_operation_is_told_as_it_was_then(api: Api) -> None:
    server, volume = await api.attached()
    before = await last_at(api, f"/v1/servers/{server}")
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    path = answer.headers["X-Attachment-Ledger-Operation"]
    told = []

    async def look() -> None:
        await api.projected()
        told.append((await last_at(api, path), await api.get(path)))

    await look()
    [command] = await api.commands()
    await api.report(command, "unplug")
    await look()
    error = {"kind": "final", "code": "busy", "message": "device is busy"}
    await api.report(command, "disconnect", error=error)
    await look()
    await given_up(api, path)
    await look()
    assert [each["state"] for _, each in told] == ["running", "running", "parked", "finished"]
    for at, then in told:
        again = await api.get(f"{path}?at={at}")
        assert again == {**then, "acts": [], "progress": [], "server_name": None}
    assert (await api.ask("GET", f"{path}?at={before}")).status == 404
    assert (await api.ask("GET", f"{path}?at={before}&wait_s=1")).status == 400
    at, _ = told[2]
    page = await shown(api, path.replace("/v1", "/ui") + f"?at={at}")
    assert "device is busy" in page.text
    assert "What can be done" not in page.text


async def test_a_finding_is_told_as_it_was_known_then(api: Api, database_url: str) -> None:
    server = await api.server()
    before = await last_at(api, f"/v1/servers/{server}")
    with Ledger(database_url) as ledger:
        seen = await found(api, ledger, server, looks=1)
        path = f"/v1/drift/{seen.id}"
        suspected = await api.get(path)
        seen.look()
        await api.projected()
    confirmed = await api.get(path)
    assert (suspected["state"], confirmed["state"]) == ("suspected", "confirmed")
    for then in (suspected, confirmed):
        at = quote(then["history"][-1]["recorded_at"])
        assert await api.get(f"{path}?at={at}") == {**then, "acts": []}
    assert (await api.ask("GET", f"{path}?at={before}")).status == 404
    assert (await api.ask("GET", f"{path}?at={at}", "member")).status == 403
    page = await shown(api, f"/ui/drift/{seen.id}?at={quote(suspected['found_at'])}")
    assert "suspected" in page.text
    assert "confirmed" not in page.text


async def test_what_was_parked_and_is_over_was_a_finding_then(api: Api) -> None:
    _, _, operation = await parked_detach(api)
    id_ = operation["operation_id"]
    then = await api.get(f"/v1/drift/{id_}")
    at = await last_at(api, f"/v1/operations/{id_}")
    await given_up(api, f"/v1/operations/{id_}")
    assert (await api.get(f"/v1/drift/{id_}"))["state"] == "over"
    again = await api.get(f"/v1/drift/{id_}?at={at}")
    assert (again["state"], again["over_at"]) == ("confirmed", None)
    assert again["history"] == then["history"]


@pytest.fixture
async def parked(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A log with one operation parked, of which a page searches a small part."""
    await parked_detach(api)
    monkeypatch.setattr(log_reads, "SEARCHED_MAX", 4)
    events: list[dict[str, Any]] = (await api.get("/v1/events?limit=1000"))["events"]
    return events


async def test_events_of_one_topic_are_found_page_by_page(
    api: Api, parked: list[dict[str, Any]]
) -> None:
    topics = ("Operation.StepSucceeded", "Operation.Parked", "Host.Fenced")
    for topic, order, limit in product(topics, ("asc", "desc"), (1, 2, 100)):
        wanted = [each for each in parked if each["topic"] == topic]
        had: list[dict[str, Any]] = []
        asked: str | None = f"/v1/events?topic={topic}&order={order}&limit={limit}"
        first, pages = asked, 0
        while asked:
            page = await api.get(asked)
            assert len(page["events"]) <= limit
            had, pages = had + page["events"], pages + 1
            asked = page["next"] and f"{first}&after={page['next']}"
        assert had == (wanted if order == "asc" else wanted[::-1])
        assert pages >= len(parked) // 4


async def test_the_log_ends_at_the_moment_that_is_asked_for(
    api: Api, parked: list[dict[str, Any]]
) -> None:
    at = parked[3]["recorded_at"]
    then = [each for each in parked if each["recorded_at"] <= at]
    assert (await api.get(f"/v1/events?at={quote(at)}"))["events"] == then
    topic = then[-1]["topic"]
    page = await api.get(f"/v1/events?topic={topic}&at={quote(at)}&order=desc&limit=1")
    assert page["events"] == then[-1:]


async def test_what_was_known_of_a_moment_is_asked_for_by_both(api: Api) -> None:
    server, volume = await api.attached()
    at = await last_at(api, f"/v1/servers/{server}")
    asked = f"/v1/attachments?volume={volume}"
    then = await api.get(f"{asked}&at={at}")
    assert [each["certain"] for each in then["attachments"]] == [True]
    known = await api.get(f"{asked}&at={at}&known_at={at}")
    assert known == {**then, "known_at": then["at"]}
    for refused, why in (
        (f"known_at={at}", "needs 'at'"),
        (f"at={at}&known_at=2026-01-01T00:00:00Z", "the future cannot be known"),
        (f"at={at}&known_at=2999-01-01T00:00:00Z", "'known_at' is in the future"),
    ):
        answer = await api.ask("GET", f"{asked}&{refused}")
        assert answer.status == 400
        assert why in (await answer.json())["detail"]


async def test_what_no_event_is_called_is_refused(api: Api) -> None:
    answer = await api.ask("GET", "/v1/events?topic=Operation.Exploded")
    assert answer.status == 400
    assert "docs/events.md" in (await answer.json())["detail"]


async def test_the_console_s_log_shows_the_events_of_one_kind(
    api: Api, parked: list[dict[str, Any]]
) -> None:
    [event] = [each for each in parked if each["topic"] == "Operation.Parked"]
    at = {"position": event["position"], "end": parked[-1]["position"]}
    assert at["position"] > at["end"] - 4, "on the first page"
    page = await shown(api, "/ui/log?topic=Operation.Parked&after=&at=")
    [chosen] = [each for each in page.all("option") if "selected" in each]
    rows = [link for link in page.all("a") if "/ui/operations/" in (link["href"] or "")]
    assert len(rows) == 1
    assert "Earlier" in page.text
    assert chosen is not None
    none = await shown(api, f"/ui/log?topic=Host.Fenced&at={quote(parked[3]['recorded_at'])}")
    assert "There is none" in none.text
    assert "Chain there" not in none.text, "that is of now"
