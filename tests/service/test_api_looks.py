"""/v1/drift/runs: who asks for looks, what they show, and how they are stopped and resumed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ledger.log.application import Ledger
from tests.service.api_world import HOST, Api, eventually
from tests.store.drifting import WHY_BELIEVED, begin_look, end_look
from tests.world import CONTEXT


async def test_a_look_is_asked_for_at_everything_or_one_thing(api: Api) -> None:
    server = await api.server()
    volume = str(uuid4())
    for scope in ({}, {"host": HOST}, {"server": server}, {"volume": volume}):
        answer = await api.ask("POST", "/v1/drift/runs", "operator", json=scope)
        assert answer.status == 202, await answer.text()
        assert await answer.json() == {"look_id": api.looker.id, "scope": scope}
        assert api.looker.asked[-1] == (scope, "asked", "operator")


NOTHING: list[tuple[dict[str, str], int]] = [
    ({"host": HOST, "volume": str(uuid4())}, 400),
    ({"host": "no-such-host"}, 404),
    ({"server": str(uuid4())}, 404),
    ({"project": "p"}, 400),
]


async def test_a_look_at_nothing_is_refused(api: Api) -> None:
    await api.server()
    for scope, status in NOTHING:
        answer = await api.ask("POST", "/v1/drift/runs", json=scope)
        assert answer.status == status, await answer.text()
        assert api.looker.asked == []


async def test_a_look_is_told_what_to_believe_and_why(api: Api) -> None:
    told = {"believe": ["guest_missing", "disk_missing"], "reason": WHY_BELIEVED}
    await api.server()
    answer = await api.ask("POST", "/v1/drift/runs", "operator", json={"host": HOST, **told})
    assert answer.status == 202, await answer.text()
    assert (await answer.json())["scope"] == {"host": HOST}
    assert api.looker.asked == [({"host": HOST}, "asked", "operator")]
    assert api.looker.believed == [(told["believe"], told["reason"])]


UNBELIEVED: list[tuple[dict[str, Any], str]] = [
    ({"believe": ["guest_missing"]}, "together"),
    ({"believe": [], "reason": "seen"}, "together"),
    ({"believe": ["guest_missing"], "reason": " "}, "reason"),
    ({"believe": ["all"], "reason": "seen"}, "no class of drift all"),
    ({"believe": ["operation_parked"], "reason": "seen"}, "No look finds operation_parked"),
    ({"believe": "guest_missing", "reason": "seen"}, "list"),
]


async def test_nothing_is_believed_without_class_and_reason(api: Api) -> None:
    for body, said in UNBELIEVED:
        answer = await api.ask("POST", "/v1/drift/runs", json=body)
        assert (answer.status, said in (await answer.json())["detail"]) == (400, True), body
        assert api.looker.asked == []


async def test_a_look_shows_what_it_held_back_and_what_it_was_told_to_believe(
    api: Api, ledger: Ledger
) -> None:
    first = begin_look(ledger, host=HOST)
    some = {"guest_missing": [f"s{n} on {HOST}" for n in range(3)]}
    end_look(ledger, first, braked={"guest_missing": 12}, examples=some)
    second = begin_look(ledger, believe=["guest_missing"], host=HOST)
    await api.projected()

    shown = await api.get(f"/v1/drift/runs/{first.id}")
    assert (shown["braked"], shown["examples"]) == ({"guest_missing": 12}, some)
    [text] = shown["held_back"]
    assert f"drift run --host {HOST} --accept-many guest_missing" in text
    assert (shown["believe"], shown["reason"]) == ([], None)

    shown = await api.get(f"/v1/drift/runs/{second.id}")
    assert (shown["believe"], shown["reason"]) == (["guest_missing"], WHY_BELIEVED)
    assert (shown["asked_by"], shown["held_back"]) == (CONTEXT.actor.name, [])


async def test_looks_are_listed_with_how_far_they_are(
    api: Api, ledger: Ledger, database_url: str
) -> None:
    first = begin_look(ledger, host=HOST)
    end_look(ledger, first, compared={"disk": 3}, found={"disk_missing": 1})
    second = begin_look(ledger)
    with psycopg.connect(database_url) as db:
        db.execute(
            """INSERT INTO long_work (name, done, total, kept, began_at, began_done, noted_at)
               VALUES ('look', 300, 1000, jsonb_build_object('look_id', %s::text),
                       now() - interval '10 s', 100, now())""",
            [str(second.id)],
        )
    await api.projected()

    newest, oldest = (await api.get("/v1/drift/runs"))["looks"]

    assert (newest["state"], newest["done"], newest["total"]) == ("under_way", 300, 1000)
    assert newest["eta_s"] == pytest.approx(700 / 20, rel=0.01)
    assert (oldest["outcome"], oldest["scope"], oldest["done"]) == (
        *("completed", {"host": HOST}, None),
    )
    assert await api.get(f"/v1/drift/runs/{second.id}") == newest
    [under_way] = (await api.get("/v1/drift/runs?state=under_way"))["looks"]
    assert under_way == newest
    answer = await api.ask("GET", f"/v1/drift/runs/{uuid4()}")
    assert (answer.status, (await answer.json())["code"]) == (404, "look_not_found")


async def test_a_look_is_shown_from_when_it_is_asked_for(api: Api, database_url: str) -> None:
    """Also in the moment between its beginning and its row."""
    look_id, gone = str(uuid4()), str(uuid4())
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(
            "INSERT INTO looks_asked (look_id, scope, why, context, believe, reason)"
            """ VALUES (%s, '{"host": "compute-1"}', 'asked',
                '{"actor": {"name": "night shift"}}', '["disk_missing"]', 'seen')""",
            [look_id],
        )
        db.execute(
            """INSERT INTO long_work (name, kept) VALUES ('look', jsonb_build_object(
               'look_id', %s::text, 'scope', '{}'::jsonb, 'why', 'schedule'))""",
            [gone],
        )
    asked, begun = [await api.get(f"/v1/drift/runs/{each}") for each in (look_id, gone)]
    told = ("state", "scope", "kind", "why", "began_at", "outcome")
    assert [asked[name] for name in told] == ["asked", {"host": HOST}, "host", "asked", None, None]
    assert [asked[name] for name in ("believe", "reason", "asked_by")] == [
        *(["disk_missing"], "seen", "night shift")
    ]
    assert [begun[name] for name in told] == ["asked", {}, "all", "schedule", None, None]
    listed = await api.get("/v1/drift/runs?limit=1")
    assert (listed["asked"], listed["looks"]) == ([asked], []), "of the other nobody has to hear"
    page = await (await api.ask("GET", "/ui/drift")).text()
    assert "Requested, not begun yet" in page
    assert "None yet" not in page


async def test_a_look_that_is_under_way_is_stopped_and_resumed(api: Api, ledger: Ledger) -> None:
    look = begin_look(ledger)
    await api.projected()

    async def act(name: str, who: str = "operator") -> Any:
        path = f"/v1/drift/runs/{look.id}/{name}"
        answer = await api.ask("POST", path, who, json={"reason": "Cinder is slow"})
        return answer.status, await answer.json()

    for name, opposite, state in (("stop", "resume", "under_way"), ("resume", "stop", "stopped")):
        status, told = await act(opposite)
        assert (status, told["code"]) == (409, "look_state")
        assert (await api.get(f"/v1/drift/runs/{look.id}"))["state"] == state
        status, told = await act(name)
        assert (status, told["state"]) == (200, {"stop": "stopped"}.get(name, "under_way"))
    assert (await act("stop", "reader"))[0] == 403
    listed = await api.get("/v1/drift/runs?state=stopped")
    assert listed["looks"] == []


async def test_a_look_that_another_process_begins_is_shown(api: Api, ledger: Ledger) -> None:
    look = begin_look(ledger)

    async def shown() -> bool:
        return (await api.ask("GET", f"/v1/drift/runs/{look.id}")).status == 200

    await eventually(shown, "the look is shown")
