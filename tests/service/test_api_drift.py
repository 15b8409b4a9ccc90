"""/v1/drift: who sees what of what differs, and what people may do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.base import About
from aggregates.finding import UNTIL_MAX_S, Finding
from handlers.drift import judge
from handlers.drift.classes import BY_NAME, CLASSES
from handlers.drift.judge import Sight
from handlers.drift.rows import CinderVolume, VolumeRow
from ledger.log.application import Ledger
from ledger.words.sentences import sentence
from tests.service.api_world import HOST, Api
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import Seen
from tests.world import CONTEXT

SKIP = {"skip": {"step": "disconnect", "reason": "gone"}}
WHY = {"reason": "known"}


async def found(api: Api, ledger: Ledger, server: str | None = None, *, looks: int = 2) -> Seen:
    """A reservation of a server's that the ledger does not know, seen by so many looks."""
    seen = Seen(ledger, host=HOST, server=server or await api.server())
    for _ in range(looks):
        seen.look()
    await api.projected()
    return seen


async def act(api: Api, seen: Seen, name: str, body: Any = WHY, who: str = "admin") -> Any:
    answer = await api.ask("POST", f"/v1/drift/{seen.id}/{name}", who, json=body)
    return answer.status, await answer.json()


# --- what is shown ----------------------------------------------------------------------------


async def test_a_finding_says_what_it_means_what_differs_and_what_may_be_done(
    api: Api, ledger: Ledger
) -> None:
    seen = await found(api, ledger)
    [listed] = (await api.get("/v1/drift"))["findings"]
    shown = await api.get(f"/v1/drift/{seen.id}")
    assert listed.items() <= shown.items()
    assert (shown["drift_class"], shown["state"], shown["host"]) == (
        *("reservation_unknown", "confirmed", HOST),
    )
    assert shown["meaning"].startswith("Cinder reserves the volume")
    assert (shown["repair"], shown["by_hand"]) == ("drop_attachment", None)
    assert shown["acts"] == ["repair", "ignore"]
    assert shown["differs"]["cinder"]["status"] == "reserved"
    assert [event["topic"] for event in shown["history"]] == [
        "Finding.DriftFound",
        "Finding.DriftConfirmed",
    ]


async def test_a_volume_that_only_a_finding_names_is_found_by_the_beginning_of_its_id(
    api: Api, ledger: Ledger
) -> None:
    seen = await found(api, ledger)
    volume = (await api.get(f"/v1/drift/{seen.id}"))["volume_id"]
    assert (await api.get(f"/v1/attachments?volume={volume}"))["attachments"] == []
    told = (await api.get(f"/v1/find?text={volume[:8]}"))["found"]
    assert told == [{"kind": "volume", "id": volume, "name": None}]


async def test_what_only_one_look_has_seen_is_not_to_be_repaired(api: Api, ledger: Ledger) -> None:
    seen = await found(api, ledger, looks=1)
    assert (await api.get(f"/v1/drift/{seen.id}"))["acts"] == ["ignore"]
    seen.look()
    seen.record(Finding.RepairBegun, repair="drop_attachment", by_operation=str(uuid4()), reason="")
    await api.projected()
    assert (await api.get(f"/v1/drift/{seen.id}"))["acts"] == []


QUERIES: list[tuple[str, bool]] = [
    ("", True),
    ("?class=reservation_unknown", True),
    ("?class=volume_gone", False),
    ("?severity=warning&state=confirmed", True),
    ("?severity=critical", False),
    ("?state=suspected", False),
    ("?state=all", True),
    ("?host=compute-1", True),
    ("?host=compute-2", False),
]


async def test_the_list_has_what_is_asked_for(api: Api, ledger: Ledger) -> None:
    one = await found(api, ledger)
    for query, seen in QUERIES:
        told = (await api.get(f"/v1/drift{query}"))["findings"]
        assert [each["finding_id"] for each in told] == ([str(one.id)] if seen else []), query


async def test_the_list_is_in_pages(api: Api, ledger: Ledger) -> None:
    server = await api.server()
    ids = [str((await found(api, ledger, server)).id) for _ in range(3)]
    told, after = [], ""
    for _ in range(3):
        page = await api.get(f"/v1/drift?limit=1&server={server}{after}")
        told += [each["finding_id"] for each in page["findings"]]
        after = f"&after={page['next']}"
    assert told == ids[::-1]


async def test_what_cannot_be_answered_is_refused(api: Api) -> None:
    for query, code in (
        ("?class=no_such_class", "invalid"),
        ("?state=gone", "invalid"),
        ("?at=2026-01-01T00:00:00Z&state=over", "invalid"),
        ("?at=2100-01-01T00:00:00Z", "moment_to_come"),
    ):
        answer = await api.ask("GET", f"/v1/drift{query}")
        assert (query, answer.status, (await answer.json())["code"]) == (query, 400, code)


async def test_what_differed_on_a_host_at_a_moment_is_told_when_it_is_over(
    api: Api, ledger: Ledger
) -> None:
    seen = await found(api, ledger)
    confirmed = (await api.get(f"/v1/drift/{seen.id}"))["history"][-1]["recorded_at"]
    seen.miss()
    await api.projected()
    assert (await api.get(f"/v1/drift?host={HOST}"))["findings"] == []

    then = await api.get("/v1/drift", params={"host": HOST, "at": confirmed})

    [told] = then["findings"]
    assert (told["finding_id"], told["state"]) == (str(seen.id), "confirmed")
    assert (told["over_at"], told["over_how"]) == (None, None)
    first = (await api.get(f"/v1/drift/{seen.id}"))["history"][0]["recorded_at"]
    before = datetime.fromisoformat(first) - timedelta(microseconds=1)
    assert (await api.get("/v1/drift", params={"at": before.isoformat()}))["findings"] == []


async def test_the_classes_are_those_of_the_table(api: Api) -> None:
    told = (await api.get("/v1/drift/classes", "reader"))["classes"]
    assert [each["name"] for each in told] == [each.name for each in CLASSES]
    for each in told:
        known = BY_NAME[each["name"]]
        assert each["compares"] == list(known.parties)
        assert (each["meaning"], each["severity"]) == (known.meaning, known.severity)
        assert (each["repair"], each["by_hand"] or "") == (known.repair, known.by_hand)
    subjects = {each["name"]: each["subject"] for each in told}
    assert [subjects[name] for name in ("attachment_lost", "remnant", "operation_parked")] == [
        *("attachment", "remnant", "operation"),
    ]


async def test_the_live_feed_has_what_happens_to_findings(api: Api, ledger: Ledger) -> None:
    head = await api.head()
    stream = await api.ask("GET", f"/v1/events/stream?after={head}")
    seen = Seen(ledger, host=HOST)
    seen.look()
    text = ""
    while "Finding.DriftFound" not in text:
        text += (await stream.content.readany()).decode()
    stream.close()
    assert seen.attachment_id in text


# --- who sees what ----------------------------------------------------------------------------


async def test_users_see_what_concerns_their_servers_without_hosts(
    api: Api, ledger: Ledger
) -> None:
    server = await api.server()
    seen = await found(api, ledger, server)
    [listed] = (await api.get(f"/v1/drift?server={server}", "reader"))["findings"]
    shown = await api.get(f"/v1/drift/{seen.id}", "reader")
    for told in (listed, shown):
        assert HOST not in str(told)
        assert (told["server_id"], told["drift_class"]) == (server, "reservation_unknown")
    assert (shown["differs"], shown["acts"]) == (None, [])


NOT_THEIRS: list[tuple[str, str, int]] = [
    ("/v1/drift", "reader", 403),
    ("/v1/drift?server={server}", "stranger", 404),
    ("/v1/drift?server={server}&host=compute-1", "reader", 403),
    ("/v1/drift?server={server}&at=2026-01-01T00:00:00Z", "reader", 403),
    ("/v1/drift/{finding}", "stranger", 404),
    ("/v1/drift/runs", "reader", 403),
]


async def test_users_are_not_told_what_is_not_theirs(api: Api, ledger: Ledger) -> None:
    server = await api.server()
    seen = await found(api, ledger, server)
    for path, who, status in NOT_THEIRS:
        answer = await api.ask("GET", path.format(server=server, finding=seen.id), who)
        assert answer.status == status, await answer.text()


@pytest.mark.parametrize("name", ["ignore", "unignore"])
async def test_only_operators_act_on_findings(name: str, api: Api, ledger: Ledger) -> None:
    seen = await found(api, ledger)
    assert (await act(api, seen, name, who="member"))[0] == 403


# --- ignoring ---------------------------------------------------------------------------------


async def test_an_ignored_finding_is_out_of_the_list_until_it_is_heeded(
    api: Api, ledger: Ledger
) -> None:
    seen = await found(api, ledger)
    until = datetime.now(UTC) + timedelta(days=1)
    status, told = await act(api, seen, "ignore", {**WHY, "until": until.isoformat()}, "operator")
    assert (status, told["state"], told["ignored_reason"]) == (200, "ignored", "known")
    assert datetime.fromisoformat(told["ignored_until"]) == until
    assert told["acts"] == ["unignore"]
    assert (await api.get("/v1/drift"))["findings"] == []
    assert len((await api.get("/v1/drift?state=ignored"))["findings"]) == 1
    assert told["history"][-1]["actor"] == "operator"

    status, told = await act(api, seen, "unignore", {"reason": "look at it"})
    assert (status, told["state"], told["ignored_reason"]) == (200, "suspected", None)
    assert len((await api.get("/v1/drift"))["findings"]) == 1


async def test_it_may_be_ignored_for_good(api: Api, ledger: Ledger) -> None:
    seen = await found(api, ledger)
    status, told = await act(api, seen, "ignore")
    assert (status, told["state"], told["ignored_until"]) == (200, "ignored", None)


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00"])
async def test_a_moment_after_the_last_one_is_the_last_one(
    until: str, api: Api, ledger: Ledger
) -> None:
    """No calendar has it, and the projection of findings stood for ever."""
    seen = await found(api, ledger)
    status, told = await act(api, seen, "ignore", {**WHY, "until": until})
    assert (status, told["ignored_until"]) == (200, "9999-12-31T23:59:59Z")
    event = told["history"][-1]
    assert "until 9999-12-31 23:59Z" in sentence(event["topic"], event["body"])
    assert (await act(api, seen, "unignore"))[0] == 200


async def test_a_log_that_has_a_later_moment_is_projected_and_told(
    api: Api, ledger: Ledger
) -> None:
    """0.2.0 took it."""
    seen = await found(api, ledger)
    seen.record(Finding.DriftIgnored, reason="known", until=UNTIL_MAX_S + 1)
    await api.projected()
    shown = await api.get(f"/v1/drift/{seen.id}")
    assert shown["ignored_until"] == "9999-12-31T23:59:59Z"
    event = shown["history"][-1]
    assert "until 9999-12-31 23:59Z" in sentence(event["topic"], event["body"])


async def test_what_cannot_be_ignored_or_heeded_is_refused(api: Api, ledger: Ledger) -> None:
    seen = await found(api, ledger)
    over = {**WHY, "until": "2026-01-01T00:00:00+00:00"}
    for name, body, status, code in (
        ("ignore", over, 400, "moment_over"),
        ("ignore", {}, 400, "invalid"),
        ("ignore", {**WHY, "until": "tomorrow"}, 400, "invalid"),
        ("unignore", WHY, 409, "finding_state"),
    ):
        told = await act(api, seen, name, body)
        assert (told[0], told[1]["code"]) == (status, code)
    seen.miss()
    await api.projected()
    told = await act(api, seen, "ignore")
    assert (told[0], told[1]["code"]) == (409, "finding_state")


async def test_an_unknown_finding_is_not_found(api: Api) -> None:
    for method, path in (("GET", ""), ("POST", "/ignore"), ("POST", "/unignore")):
        answer = await api.ask(method, f"/v1/drift/{uuid4()}{path}", json=WHY)
        assert (answer.status, (await answer.json())["code"]) == (404, "finding_not_found")


# --- what needs no look -----------------------------------------------------------------------


async def test_what_is_parked_and_what_that_leaves_is_in_the_list_at_once(api: Api) -> None:
    server, _, parked = await parked_detach(api)
    operation = parked["operation_id"]
    [told] = (await api.get(f"/v1/drift?server={server}"))["findings"]
    assert (told["drift_class"], told["finding_id"]) == ("operation_parked", operation)
    shown = await api.get(f"/v1/drift/{operation}")
    assert (shown["acts"], shown["host"]) == (["operation"], HOST)
    assert shown["history"][-1]["topic"] == "Operation.Parked"

    await api.ask("POST", f"/v1/operations/{operation}/actions", json=SKIP)

    [told] = (await api.get(f"/v1/drift?server={server}&class=remnant"))["findings"]
    shown = await api.get(f"/v1/drift/{told['finding_id']}")
    assert (shown["state"], shown["acts"]) == ("confirmed", ["acknowledge"])
    assert (await api.get("/v1/drift?class=operation_parked"))["findings"] == []


async def test_what_needs_no_look_is_settled_and_never_ignored(api: Api) -> None:
    *_, parked = await parked_detach(api)
    operation = parked["operation_id"]
    answer = await api.ask("POST", f"/v1/drift/{operation}/ignore", json=WHY)
    told = await answer.json()
    assert (answer.status, told["code"]) == (409, "not_ignorable")
    assert f"operation show {operation}" in told["hint"]


async def test_a_repair_that_cannot_work_is_not_offered_and_what_does_is_named(
    api: Api, ledger: Ledger
) -> None:
    volume_id, drift_class = str(uuid4()), BY_NAME["volume_status_differs"]
    about = About(volume_id=volume_id)
    for status, acts in (("detaching", ["repair", "ignore"]), ("available", ["ignore"])):
        cinder = CinderVolume(status=status, attachments=1)
        row = VolumeRow(id=volume_id, about=about, mappings=1, had=True, cinder=cinder)
        seen = ledger.load(Finding, UUID(judge.id_of(drift_class, row)))
        for look in range(2):
            judge.see(seen, drift_class, row, Sight(look_id=str(UUID(int=look)), position=1))
        ledger.save(seen, context=CONTEXT)
        await api.projected()
        shown = await api.get(f"/v1/drift/{seen.id}")
        assert (shown["state"], shown["acts"]) == ("confirmed", acts)
        offered = "repair" in acts
        assert shown["repair"] == ("settle_volume" if offered else None)
        command = f"openstack volume set --state in-use {volume_id}"
        assert (command in (shown["by_hand"] or "")) is not offered
    assert (await api.get(f"/v1/drift?volume={volume_id}"))["findings"][0]["repair"] is None
