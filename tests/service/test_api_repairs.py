"""/v1/drift/{id}/repair: what would be done, doing it, and who may."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.base import About
from aggregates.finding import Finding
from handlers.drift import judge
from handlers.drift.automatic import RepairPolicy, SoFar
from handlers.drift.classes import BY_NAME, DriftClass
from handlers.drift.rows import (
    AttachmentRow,
    CinderAttachment,
    LedgerAttachment,
    LedgerServer,
    Row,
    ServerRow,
)
from handlers.requests.guards import Contact
from ledger.core.requests import Fleet, Requests
from ledger.http.limits.bulkheads import BULKHEADS
from ledger.http.problem import ApiError
from ledger.log.application import Ledger
from ledger.reconcile.automatic import ACTOR, Automatic
from tests.doubles.direct_cinder import DirectCinder
from tests.service.api_world import HOST, OTHER, OUTPUTS, Api
from tests.world import CONTEXT


@dataclass
class Lost:
    """An attachment in Cinder that the ledger does not know, found by so many looks."""

    finding: str
    attachment: str
    server: str


async def lost(api: Api, ledger: Ledger, *, looks: int = 2, host: str | None = None) -> Lost:
    server, volume = await api.server(), api.volume()
    made = api.cinder.attachment_create(volume, server, {"host": host} if host else None, "rw")
    if host:
        api.cinder.attachment_complete(made.id)
    drift = BY_NAME["attachment_unknown" if host else "reservation_unknown"]
    row = AttachmentRow(
        id=made.id,
        about=About(server_id=server, volume_id=volume, attachment_id=made.id),
        server="live",
        ledger=None,
        cinder=CinderAttachment(status=made.status, host=host),
    )
    return Lost(await _seen(api, ledger, drift, row, looks), made.id, server)


async def _seen(api: Api, ledger: Ledger, drift: DriftClass, row: Row, looks: int = 2) -> str:
    """The finding, once so many looks have seen it."""
    id_ = judge.id_of(drift, row)
    for number in range(looks):
        found = ledger.load(Finding, UUID(id_))
        judge.see(found, drift, row, judge.Sight(look_id=str(UUID(int=number)), position=1))
        ledger.save(found, context=CONTEXT)
    await api.projected()
    return id_


async def repair(api: Api, finding: str, who: str = "operator", **body: Any) -> Any:
    headers = body.pop("headers", {})
    path = f"/v1/drift/{finding}/repair"
    return await api.ask("POST", path, who, json={"reason": "seen", **body}, headers=headers)


async def test_a_dry_run_shows_plan_and_evidence_and_changes_nothing(
    api: Api, ledger: Ledger
) -> None:
    found = await lost(api, ledger, host=HOST)
    head = await api.head()
    answer = await repair(api, found.finding)
    assert answer.status == 200, await answer.text()
    plan = await answer.json()
    assert plan["flow"] == "drop_attachment"
    assert [(step["step"], step["place"]) for step in plan["steps"]] == [
        *(("look", HOST), ("again", "ledger"), ("all_agree", "ledger"), ("drop", "ledger")),
    ]
    assert plan["steps"][0]["does"] == "say what the host has of the volume and the guest"
    assert (plan["hosts"], plan["asks_again"]) == ([HOST], ["ledger", "cinder", "host"])
    assert plan["differs"]["cinder"]["host"] == HOST
    assert "not deleted if any of these hosts" in plan["never"]
    assert await api.head() == head
    assert found.attachment in api.cinder.attachments


async def test_what_is_applied_is_an_operation_and_the_finding_tells_it(
    api: Api, ledger: Ledger
) -> None:
    found = await lost(api, ledger, host=HOST)
    answer = await repair(api, found.finding, apply=True)
    assert answer.status == 202, await answer.text()
    begun = await answer.json()
    operation = await api.played(answer)
    assert operation["why"] is None
    assert (operation["outcome"], operation["server_id"]) == ("completed", found.server)
    assert operation["operation_id"] == begun["operation_id"]
    assert found.attachment not in api.cinder.attachments
    shown = await api.get(f"/v1/drift/{found.finding}")
    assert (shown["state"], shown["over_how"]) == ("over", "repaired")
    assert shown["repaired_by"] == begun["operation_id"]


SHOWN = OUTPUTS["drift_look"]["shown"]


WRONG_LOOKS: list[dict[str, Any]] = [
    {"guests": ["../../etc"]},
    {"records": {"x": "y"}},
    {"records": None},
    {"record": "yes"},
    {"power_state": "tired"},
    {"process": "no"},
    {"readonly_live": "no"},
    {"differs": [{"password": "x"}]},
    {"live": "/dev/vdb"},
]


async def test_what_a_host_says_that_it_has_is_checked(api: Api, ledger: Ledger) -> None:
    """By it an attachment may be deleted; and it is stored."""
    found = await lost(api, ledger, host=HOST)
    await repair(api, found.finding, apply=True)
    [command] = await api.commands()
    for wrong in WRONG_LOOKS:
        shown = {"shown": {**SHOWN, **wrong}}
        assert (await api.report(command, "look", outputs=shown)).status == 400, wrong


async def test_a_host_that_says_nothing_has_not_said_no(api: Api, ledger: Ledger) -> None:
    found = await lost(api, ledger, host=HOST)
    answer = await repair(api, found.finding, apply=True)
    [command] = await api.commands()
    await api.report(command, "look", outputs={})
    operation = await api.finished(answer)
    assert (operation["outcome"], operation["error"]["code"]) == ("failed", "drift_unproven")
    assert found.attachment in api.cinder.attachments


async def test_a_bare_reservation_is_dropped_without_any_host(api: Api, ledger: Ledger) -> None:
    found = await lost(api, ledger)
    operation = await api.finished(await repair(api, found.finding, apply=True))
    assert (operation["flow"], operation["outcome"]) == ("drop_reservation", "completed")
    assert found.attachment not in api.cinder.attachments


async def test_a_repeated_request_is_the_same_repair(api: Api, ledger: Ledger) -> None:
    found, key = await lost(api, ledger), {"Idempotency-Key": "once"}
    first = await repair(api, found.finding, apply=True, headers=key)
    await api.finished(first)
    again = await repair(api, found.finding, apply=True, headers=key)
    assert (await again.json()) == (await first.json())


async def test_what_cannot_be_repaired_is_refused_in_words(api: Api, ledger: Ledger) -> None:
    rows: list[tuple[dict[str, Any], int, int, str]] = [
        ({}, 1, 409, "only what a second look has confirmed"),
        ({"repair": "plug_disk"}, 2, 409, "its repairs are drop_attachment"),
        ({"repair": "Pray!"}, 2, 400, "repair"),
        ({"reason": ""}, 2, 400, "reason"),
    ]
    for body, looks, status, words in rows:
        found = await lost(api, ledger, looks=looks)
        answer = await repair(api, found.finding, **body)
        assert (body, answer.status) == (body, status)
        assert words in await answer.text()


async def test_a_host_whose_agent_is_silent_is_no_evidence(api: Api, ledger: Ledger) -> None:
    found = await lost(api, ledger, host="compute-2")
    answer = await repair(api, found.finding, apply=True)
    assert answer.status == 409
    assert "no agent has ever registered" in await answer.text()


async def test_hosts_that_had_a_volume_of_the_server_are_asked_too(
    api: Api, ledger: Ledger
) -> None:
    """By the spans of its attachments, those that are deleted, too."""
    server, volume = await api.attached()
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    await api.played(await api.ask("DELETE", path, version="2.89"))
    assert await api.components.queries.hosts_of_server(server) == [HOST]
    assert await api.components.queries.hosts_of_server(str(uuid4())) == []


async def test_what_a_resize_has_to_end_for_is_not_offered_before_and_says_so(
    api: Api, ledger: Ledger
) -> None:
    server, volume = await api.attached()
    await api.register(host=OTHER)
    await api.played(await api.act(server, "migrate", {"host": OTHER}))
    every = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    [held] = [each for each in every if each["host"] == OTHER]
    about = About(server_id=server, volume_id=volume, attachment_id=held["attachment_id"])
    lost_there = AttachmentRow(
        id=held["attachment_id"],
        about=about,
        server="live",
        ledger=LedgerAttachment(
            state="attached", host=OTHER, access_mode="rw", legacy=False, mapped=True
        ),
        cinder=None,
    )
    no_guest = ServerRow(
        id=server,
        about=About(server_id=server, host=OTHER),
        ledger=LedgerServer(hosts=(OTHER,), power_state="running", built=True, deleted=False),
        shown=(),
    )
    ids = [
        await _seen(api, ledger, BY_NAME["attachment_lost"], lost_there),
        await _seen(api, ledger, BY_NAME["guest_missing"], no_guest),
    ]

    async def told(finding: str) -> tuple[Any, Any, Any]:
        shown = await api.get(f"/v1/drift/{finding}", "operator")
        [row] = [
            each
            for each in (await api.get("/v1/drift", "operator"))["findings"]
            if each["finding_id"] == finding
        ]
        return shown["acts"], row["repair"], shown["by_hand"]

    for finding in ids:
        acts, offered, why = await told(finding)
        assert (acts, offered) == (["ignore"], None)
        assert why == "The server is being resized: confirm or revert that first."
        answer = await repair(api, finding)
        assert answer.status == 409
        assert why.lower() in (await answer.text()).lower()
    await api.played(await api.act(server, "confirmResize"))
    for finding, name in zip(ids, ("replace_attachment", "forget_server"), strict=True):
        acts, offered, _ = await told(finding)
        assert (acts, offered) == (["repair", "ignore"], name)


async def test_only_operators_repair(api: Api, ledger: Ledger) -> None:
    found = await lost(api, ledger)
    for who in ("member", "reader", "stranger"):
        answer = await repair(api, found.finding, who)
        assert (who, answer.status) == (who, 403)


async def test_a_finding_that_there_is_not_is_not_found(api: Api) -> None:
    answer = await repair(api, str(uuid4()))
    assert answer.status == 404


async def test_automatic_repairs_of_the_last_hour_are_counted_from_the_log(
    api: Api, ledger: Ledger
) -> None:
    """So a second process, or one that was started anew, does not begin anew."""
    server, _ = await api.attached()
    found = await lost(api, ledger)
    queries, loop = api.components.queries, asyncio.get_running_loop()
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)

    def so_far(host: str | None) -> SoFar:
        asked = queries.repairs_so_far(ACTOR.name, an_hour_ago, host)
        return SoFar(**asyncio.run_coroutine_threadsafe(asked, loop).result())

    cinder, fleet = DirectCinder(api.cinder), Fleet(contact=lambda _: Contact(alive=True, since=""))
    policy = RepairPolicy(classes=frozenset({"reservation_unknown"}), per_hour_max=1)

    def process() -> Automatic:
        requests = Requests(ledger, cinder, api.components.clock)
        return Automatic(ledger, requests, lambda: fleet, so_far, policy)

    assert await asyncio.to_thread(so_far, HOST) == SoFar(
        begun=0, begun_there=0, attachments_there=1
    )
    begun = await asyncio.to_thread(process().confirmed, found.finding)
    assert begun is not None
    await api.projected()
    assert (await asyncio.to_thread(so_far, None)).begun == 1
    there = [(await asyncio.to_thread(so_far, host)).begun_there for host in (HOST, "compute-2")]
    assert there == [1, 0]
    another = await lost(api, ledger)
    assert await asyncio.to_thread(process().confirmed, another.finding) is None
    operation = await api.get(f"/v1/operations/{begun}?wait_s=20")
    assert (operation["actor"], operation["outcome"]) == (ACTOR.name, "completed")
    assert server != operation["server_id"]


# --- servers whose guests have vanished ---------------------------------------------------------


async def vanished(api: Api, ledger: Ledger, *, looks: int = 2) -> str:
    """A server with a volume, whose guest its host does not show."""
    server, _ = await api.attached()
    about = About(server_id=server, host=HOST)
    told = LedgerServer(hosts=(HOST,), power_state="running", built=True, deleted=False)
    row = ServerRow(id=server, about=about, ledger=told, shown=())
    await _seen(api, ledger, BY_NAME["guest_missing"], row, looks)
    return server


async def forget(api: Api, who: str = "operator", **body: Any) -> Any:
    return await api.ask("POST", "/v1/forget", who, json={"reason": "rack 4 burnt", **body})


async def test_servers_of_a_host_whose_guests_have_vanished_are_shown_before_they_are_forgotten(
    api: Api, ledger: Ledger
) -> None:
    both = {await vanished(api, ledger), await vanished(api, ledger)}
    await api.attached()  # whose guest is there
    head = await api.head()
    first = await (await forget(api, host=HOST, limit=1)).json()
    rest = await (await forget(api, host=HOST, after=first["next"])).json()
    shown = [*first["servers"], *rest["servers"]]
    assert {each["server_id"] for each in shown} == both
    assert (len(first["servers"]), rest["next"]) == (1, None)
    plan = shown[0]["plan"]
    assert (plan["flow"], plan["hosts"]) == ("forget_server", [HOST])
    assert plan["differs"]["host"] is None
    assert "No volume is deleted" in plan["never"]
    assert await api.head() == head


async def test_a_page_ends_where_there_is_no_room_to_ask_cinder_and_the_next_one_says_why(
    api: Api, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = await vanished(api, ledger), await vanished(api, ledger)
    room, asked = api.http.app[BULKHEADS].cinder, []
    run = room.run

    async def once(project: str, ask: Any) -> Any:
        asked.append(project)
        if len(asked) > 1:  # as when users' requests wait for a Cinder that hangs
            raise ApiError(503, "cinder_busy", "The service waits for Cinder.")
        return await run(project, ask)

    monkeypatch.setattr(room, "run", once)
    page = await (await forget(api, host=HOST)).json()
    assert [each["server_id"] for each in page["servers"]] == [newer]
    assert (await forget(api, host=HOST, after=page["next"])).status == 503
    monkeypatch.undo()
    page = await (await forget(api, host=HOST, after=page["next"])).json()
    assert ([each["server_id"] for each in page["servers"]], page["next"]) == ([older], None)


GONE = {**SHOWN, "power_state": None, "running": False, "record": True, "process": False}


async def test_a_vanished_server_is_forgotten_by_the_word_of_its_host(
    api: Api, ledger: Ledger
) -> None:
    server = await vanished(api, ledger)
    answer = await forget(api, server=server, apply=True)
    assert answer.status == 202, await answer.text()
    [begun] = (await answer.json())["servers"]
    [command] = await api.commands()
    await api.report(command, "look", outputs={"shown": GONE})
    [command] = await api.commands()
    await api.report(command, "release")
    operation = await api.get(f"/v1/operations/{begun['operation_id']}?wait_s=20")
    assert (operation["outcome"], operation["why"]) == ("completed", None)
    assert (await api.ask("GET", f"/v2.1/servers/{server}")).status == 404
    assert (await api.get(f"/v1/drift/{begun['finding_id']}"))["over_how"] == "repaired"


@pytest.mark.parametrize(
    ("looks", "words"), [(0, "drift run --wait --server"), (1, "only what a second look")]
)
async def test_a_server_that_two_looks_have_not_missed_is_not_forgotten(
    looks: int, words: str, api: Api, ledger: Ledger
) -> None:
    server = await vanished(api, ledger, looks=looks)
    [told] = (await (await forget(api, server=server, apply=True)).json())["servers"]
    assert told["operation_id"] is None
    assert words in told["refused"]
    assert (await (await forget(api, host=HOST)).json())["servers"] == []


@pytest.mark.parametrize("body", [{}, {"server": str(UUID(int=1)), "host": HOST}])
async def test_a_server_or_a_host_is_named(body: dict[str, Any], api: Api) -> None:
    answer = await forget(api, **body)
    assert answer.status == 400
    assert "either" in await answer.text()


async def test_only_operators_forget(api: Api) -> None:
    assert (await forget(api, "member", host=HOST)).status == 403
