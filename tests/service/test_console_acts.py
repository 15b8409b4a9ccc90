"""What is done in the console: said before, allowed as in the API, once, by our own pages alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import ClientResponse

from ledger.config import AuthMode, Settings
from ledger.log.application import Ledger
from ledger.web import acts
from ledger.words.acts import ACTS, BY_NAME
from ledger.words.consequences import will
from tests.service.api_world import HOST, Api, guest, running_api
from tests.service.test_api_drift import found
from tests.service.test_api_repairs import lost
from tests.service.test_api_v1 import parked_detach
from tests.service.test_console import Html, shown
from tests.store.drifting import WHY_BELIEVED, begin_look, end_look
from tests.world import CONTEXT

WHY = "Cinder is mended"


@pytest.fixture
async def parked(api: Api) -> dict[str, Any]:
    """A detach whose volume the host could not let go."""
    operation = (await parked_detach(api))[2]
    found: dict[str, Any] = await api.get(f"/v1/operations/{operation['operation_id']}")
    return found


async def form(api: Api, path: str, who: str | None = "admin") -> tuple[dict[str, str], Html]:
    """What is hidden in the form at this path, and all of its page."""
    html = await shown(api, path, who)
    hidden = [each for each in html.all("input") if each.get("type") == "hidden"]
    return {str(each["name"]): str(each["value"]) for each in hidden}, html


async def send(
    api: Api, path: str, sent: dict[str, str], who: str | None = "admin", **headers: str
) -> ClientResponse:
    return await api.ask("POST", path, who, data=sent, headers=headers, allow_redirects=False)


async def done(api: Api, path: str, **said: str) -> str:
    """Do what the form there is for; where one is led."""
    hidden, _ = await form(api, path)
    answer = await send(api, path.partition("?")[0], {**hidden, **said})
    assert answer.status == 303, await answer.text()
    return answer.headers["Location"]


async def topics(api: Api) -> list[str]:
    events = (await api.get("/v1/events?limit=100&order=desc"))["events"]
    return [each["topic"] for each in events]


# --- said before ------------------------------------------------------------------------------


async def test_an_operation_offers_its_acts_with_what_they_would_do(
    api: Api, parked: dict[str, Any]
) -> None:
    path = f"/ui/operations/{parked['operation_id']}"
    html = await shown(api, path)
    links = [str(each["href"]) for each in html.all("a") if each.get("class") == "act"]
    assert links == [f"{path}/{act}" for act in parked["acts"]]
    assert all(will(parked, act) in html.text for act in parked["acts"])
    past = datetime.now(UTC).isoformat().replace("+", "%2B")
    assert "What can be done" in (await shown(api, f"/ui/hosts/{HOST}")).text
    assert "What can be done" not in (await shown(api, f"/ui/hosts/{HOST}?at={past}")).text


@pytest.mark.parametrize("act", ["skip", "give_up"])
async def test_what_would_stay_behind_is_said_and_nothing_is_changed(
    act: str, api: Api, parked: dict[str, Any]
) -> None:
    head = await api.head()
    _, html = await form(api, f"/ui/operations/{parked['operation_id']}/{act}")
    assert BY_NAME[act].words in html.text
    assert will(parked, act) in html.text
    assert f"leaves behind: devices and sessions of volume {parked['volume_ids'][0]}" in html.text
    assert await api.head() == head


async def test_the_step_to_skip_is_the_one_that_was_chosen(
    api: Api, parked: dict[str, Any]
) -> None:
    path = f"/ui/operations/{parked['operation_id']}/skip"
    hidden, html = await form(api, f"{path}?step=0+disconnect")
    assert hidden["step"] == "0 disconnect"
    assert "takes disconnect as done" in html.text
    assert (await send(api, path, {**hidden, "step": "0 reserve", "reason": WHY})).status == 409


async def test_an_act_that_is_not_possible_has_no_form(api: Api, parked: dict[str, Any]) -> None:
    _, html = await form(api, f"/ui/operations/{parked['operation_id']}/unwind")
    assert "This is not possible now." in html.text
    assert "act" not in [each.get("class") for each in html.all("form")]


# --- done once, and recorded ------------------------------------------------------------------


async def test_what_is_sent_twice_is_done_once(api: Api, parked: dict[str, Any]) -> None:
    path = f"/ui/operations/{parked['operation_id']}/retry"
    hidden, _ = await form(api, path)
    sent = {**hidden, "reason": WHY}
    answers = await asyncio.gather(*(send(api, path, sent) for _ in range(3)))
    assert {each.status for each in answers} == {303}
    assert {each.headers["Location"] for each in answers} == {path.removesuffix("/retry")}
    assert (await topics(api)).count("Operation.RetryRequested") == 1
    history = await shown(api, path.removesuffix("/retry"))
    assert f"Retry requested: {WHY}" in history.text


async def test_without_a_reason_nothing_is_done_and_the_form_is_still_good(
    api: Api, parked: dict[str, Any]
) -> None:
    path = f"/ui/operations/{parked['operation_id']}/retry"
    hidden, _ = await form(api, path)
    head = await api.head()
    for reason in ("", " ", "an \x1b[31m order"):
        answer = await send(api, path, {**hidden, "reason": reason})
        assert answer.status == 400
        assert "Open the form again" in await answer.text()
    assert await api.head() == head
    assert (await send(api, path, {**hidden, "reason": WHY})).status == 303


async def test_every_act_of_a_finding_leads_to_what_came_of_it(api: Api, ledger: Ledger) -> None:
    seen = await found(api, ledger)
    path = f"/ui/drift/{seen.id}"
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert await done(api, f"{path}/ignore", reason="as it should be", until=until) == path
    ignored = await api.get(f"/v1/drift/{seen.id}")
    assert (ignored["state"], ignored["ignored_reason"]) == ("ignored", "as it should be")
    assert ignored["ignored_until"].startswith(until[:19])
    assert await done(api, f"{path}/unignore", reason="it is not") == path
    assert (await api.get(f"/v1/drift/{seen.id}"))["state"] != "ignored"


async def test_what_one_look_has_seen_can_be_looked_at_again(api: Api, ledger: Ledger) -> None:
    for looks, offered in ((1, True), (2, False)):
        seen = await found(api, ledger, looks=looks)
        links = (await shown(api, f"/ui/drift/{seen.id}")).all("a")
        assert (f"/ui/look?host={HOST}" in [each.get("href") for each in links]) is offered
    hidden, _ = await form(api, f"/ui/look?host={HOST}")
    assert hidden["host"] == HOST


async def test_a_repair_shows_its_dry_run_before_it_is_done(api: Api, ledger: Ledger) -> None:
    finding = (await lost(api, ledger, host=HOST)).finding
    head = await api.head()
    _, html = await form(api, f"/ui/drift/{finding}/repair")
    for text in ("say what the host has of the volume and the guest", "not deleted if any of"):
        assert text in html.text, "the plan, and what it never does"
    assert await api.head() == head
    led_to = await done(api, f"/ui/drift/{finding}/repair", reason="seen")
    operation = await api.get(f"/v1{led_to.removeprefix('/ui')}")
    assert operation["flow"] == "drop_attachment"


async def test_what_was_left_behind_is_acknowledged(api: Api, parked: dict[str, Any]) -> None:
    path = f"/ui/operations/{parked['operation_id']}"
    assert await done(api, f"{path}/give_up", reason="the host is gone") == path
    [remnant, *_] = (await api.get("/v1/remnants"))["remnants"]
    finding = f"/ui/drift/{remnant['remnant_id']}"
    assert await done(api, f"{finding}/acknowledge", reason="seen to") == finding
    [same] = [
        each
        for each in (await api.get("/v1/remnants?state=acknowledged"))["remnants"]
        if each["remnant_id"] == remnant["remnant_id"]
    ]
    assert same["acknowledged_reason"] == "seen to"


async def test_a_look_is_asked_for_at_what_was_looked_at(api: Api) -> None:
    await api.server()
    assert "/ui/look?host=compute-1" in str((await shown(api, f"/ui/hosts/{HOST}")).all("a"))
    assert await done(api, f"/ui/look?host={HOST}") == "/ui/drift"
    assert await done(api, "/ui/look") == "/ui/drift"
    assert api.looker.asked == [({"host": HOST}, "asked", "admin"), ({}, "asked", "admin")]
    assert api.looker.believed == [([], None)] * 2


async def test_a_look_is_told_by_its_form_what_to_believe_and_why(api: Api) -> None:
    said = {"believe": "guest_missing, disk_missing,", "reason": "the disk is lost"}
    hidden, _ = await form(api, "/ui/look")
    without = await send(api, "/ui/look", {**hidden, "believe": "guest_missing"})
    assert (without.status, api.looker.asked) == (400, [])
    assert await done(api, "/ui/look", **said) == "/ui/drift"
    assert api.looker.believed == [(["guest_missing", "disk_missing"], "the disk is lost")]


async def test_the_list_of_looks_says_what_was_held_back_and_what_was_believed(
    api: Api, ledger: Ledger
) -> None:
    end_look(ledger, begin_look(ledger), braked={"guest_missing": 12})
    begin_look(ledger, believe=["disk_missing"])
    await api.projected()
    page = " ".join((await shown(api, "/ui/drift")).text.split())
    assert "drift run --accept-many guest_missing --reason TEXT" in page
    assert f"Accepted by {CONTEXT.actor.name}: disk_missing ({WHY_BELIEVED})" in page


async def test_a_host_in_contact_is_fenced_by_force_alone(api: Api) -> None:
    await api.server()
    path, said = f"/ui/hosts/{HOST}/fence", {"reason": "on fire", "evidence": "I see it"}
    hidden, html = await form(api, path)
    assert "corrupts their data" in " ".join(html.text.split())
    refused = await send(api, path, {**hidden, **said})
    assert refused.status == 409
    assert "may be running its guests" in await refused.text()
    assert await done(api, path, **said, force="yes") == f"/ui/hosts/{HOST}"
    assert (await api.get(f"/v1/hosts/{HOST}"))["fence_reason"] == "on fire"
    assert await done(api, f"/ui/hosts/{HOST}/unfence", reason="put out") == f"/ui/hosts/{HOST}"
    assert (await api.get(f"/v1/hosts/{HOST}"))["fenced"] is False


# --- who may ----------------------------------------------------------------------------------


async def test_nobody_may_do_more_than_by_the_api(api: Api) -> None:
    await api.server()
    ids = dict.fromkeys(("operation_id", "finding_id", "look_id"), api.looker.id)
    for act in ACTS:
        path = acts.page(act).format(host=HOST, **ids)
        for who in ("member", "reader", "stranger"):
            await shown(api, path, who, 403)
            assert (await send(api, path, {"form": "x", "reason": WHY}, who)).status == 403
    assert api.looker.asked == []


async def test_who_may_not_act_is_offered_none(api: Api, parked: dict[str, Any]) -> None:
    html = await shown(api, f"/ui/operations/{parked['operation_id']}", "member")
    assert "What can be done" not in html.text


# --- by nobody else's page --------------------------------------------------------------------


async def test_only_the_form_that_was_shown_is_taken(api: Api, parked: dict[str, Any]) -> None:
    path = f"/ui/operations/{parked['operation_id']}/retry"
    hidden, _ = await form(api, path)
    other, _ = await form(api, "/ui/look")
    head = await api.head()
    for name in ("", "guessed", other["form"]):
        assert (await send(api, path, {"form": name, "reason": WHY})).status == 403
    good = {**hidden, "reason": WHY}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await send(api, path, good, **headers)).status == 403
    api.http.session.cookie_jar.clear()
    await form(api, "/ui/look")  # another session of the same person
    assert (await send(api, path, good)).status == 403
    assert await api.head() == head


async def test_who_is_logged_out_meanwhile_comes_back_to_the_form(
    api: Api, parked: dict[str, Any]
) -> None:
    path = f"/ui/operations/{parked['operation_id']}/retry"
    answer = await send(api, path, {"form": "x", "reason": WHY}, None)
    assert answer.status == 303
    assert answer.headers["Location"].endswith(path.replace("/", "%2F"))


async def test_without_authentication_forms_are_as_safe(database_url: str) -> None:
    async with running_api(database_url, Settings(auth=AuthMode.NOAUTH)) as api:
        said = {"service_version": 1, "capabilities": {}, "guests": [guest()]}
        await api.ask("PUT", f"/v1/hosts/{HOST}", None, json=said)
        path = "/ui/look"
        hidden, _ = await form(api, path, None)
        assert (await send(api, path, {"form": "x"}, None)).status == 403
        assert (await send(api, path, hidden, None, Origin="http://evil.example")).status == 403
        assert (await send(api, path, hidden, None)).status == 303
        assert len(api.looker.asked) == 1


async def test_no_page_can_be_put_into_anothers_frame(api: Api) -> None:
    for path in ("/ui/", "/ui/look", "/ui/login", "/ui/files/htmx.min.js", "/ui/nowhere"):
        headers = (await api.ask("GET", path, allow_redirects=False)).headers
        assert headers["X-Frame-Options"] == "DENY"
        policy = headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
