"""/v1/remnants, the dry run of an act, and what a refusal says of the operation in the way."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.service.api_world import HOST, Api
from tests.service.test_api_v1 import parked_detach

SKIP = {"skip": {"step": "disconnect", "reason": "gone"}}


async def test_a_dry_run_says_what_would_stay_behind_and_changes_nothing(api: Api) -> None:
    _, volume, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    answer = await api.ask("POST", path + "?dry_run=true", json=SKIP)
    assert answer.status == 200, await answer.text()
    said = await answer.json()
    assert (said["dry_run"], said["state"]) == (True, "parked")
    [remnant] = said["remnants"]
    assert (remnant["kind"], remnant["host"], remnant["volume_id"]) == ("connection", HOST, volume)
    assert remnant["detail"] == f"devices and sessions of volume {volume} on host {HOST}"
    assert (await api.get("/v1/remnants"))["remnants"] == []
    assert await api.get(f"/v1/operations/{parked['operation_id']}") == parked


async def test_what_stays_behind_is_listed_until_somebody_has_seen_to_it(api: Api) -> None:
    server, _, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    said = await (await api.ask("POST", path, json=SKIP)).json()
    [left] = said["remnants"]
    assert not said["dry_run"]
    [listed] = (await api.get(f"/v1/remnants?state=open&server={server}&host={HOST}"))["remnants"]
    assert left.items() <= listed.items()
    assert (listed["act"], listed["reason"]) == ("skip", "gone")
    assert listed["from_operation"] == parked["operation_id"]
    path = f"/v1/remnants/{left['remnant_id']}/acknowledge"
    answer = await api.ask("POST", path, json={"reason": "flushed by hand"})
    assert (await answer.json())["state"] == "acknowledged"
    assert (await api.get("/v1/remnants?state=open"))["remnants"] == []
    [kept] = (await api.get("/v1/remnants?state=acknowledged"))["remnants"]
    assert kept["acknowledged_reason"] == "flushed by hand"
    again = await api.ask("POST", path, json={"reason": "again"})
    assert (again.status, (await again.json())["code"]) == (409, "acknowledged")


@pytest.mark.parametrize(
    ("act", "why"), [(SKIP, "skip"), ({"give_up": {"reason": "scrap"}}, "give_up")], ids=str
)
async def test_a_look_at_the_server_follows_what_may_leave_something(
    api: Api, act: dict[str, Any], why: str
) -> None:
    server, _, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    await api.ask("POST", path + "?dry_run=true", json=act)
    assert api.looker.asked == []
    assert (await api.ask("POST", path, json=act)).status == 200
    assert [(scope, asked) for scope, asked, _ in api.looker.asked] == [({"server": server}, why)]


async def test_no_look_follows_a_retry(api: Api) -> None:
    _, _, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    assert (await api.ask("POST", path, json={"retry": {"reason": "again"}})).status == 200
    assert api.looker.asked == []


async def test_an_unknown_remnant_is_not_found(api: Api) -> None:
    path = f"/v1/remnants/{uuid4()}/acknowledge"
    answer = await api.ask("POST", path, json={"reason": "why not"})
    assert (answer.status, (await answer.json())["code"]) == (404, "remnant_not_found")


async def test_remnants_are_listed_in_pages_newest_first(api: Api) -> None:
    _, _, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    given_up = await api.ask("POST", path, json={"give_up": {"reason": "scrap"}})
    assert len((await given_up.json())["remnants"]) == 2
    kinds, after = [], ""
    for _ in range(3):
        page: Any = await api.get(f"/v1/remnants?limit=1{after}")
        kinds += [remnant["kind"] for remnant in page["remnants"]]
        after = f"&after={page['next']}"
    assert kinds == ["attachment", "connection"]


async def test_a_refusal_names_the_operation_in_the_way_and_what_can_be_done(api: Api) -> None:
    server, _, parked = await parked_detach(api)
    answer = await api.ask("POST", f"/v1/servers/{server}/refresh")
    assert answer.status == 409
    problem = await answer.json()
    assert problem["code"] == "claimed"
    assert problem["operation"] == parked["operation_id"]
    assert problem["blocked_by"] == {
        "operation_id": parked["operation_id"],
        "flow": "detach",
        "state": "parked",
        "acts": ["retry", "skip", "give_up"],
    }
    assert all(word in problem["detail"] for word in ("detach", "parked", "give_up"))
