"""A host that is gone for good is forgotten, by the ledger's own act or by Nova's call."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from aggregates.base import About
from aggregates.finding import Finding
from aggregates.host import Host, host_uuid
from handlers.drift import judge
from handlers.drift.classes import BY_NAME
from handlers.drift.judge import Sight
from handlers.drift.rows import (
    AttachmentRow,
    CinderAttachment,
    LedgerServer,
    Row,
    ServerRow,
    key_of,
)
from ledger.log.application import Ledger
from tests.service.api_world import HOST, NEWEST, OTHER, Api, guest
from tests.service.test_console_acts import done
from tests.service.test_ha_controllers import nova
from tests.world import CONTEXT

PATH = f"/v1/hosts/{HOST}"
SERVICE = f"/v2.1/os-services/{host_uuid(HOST)}"
WHY = {"reason": "scrapped"}


async def fenced(api: Api, host: str = HOST) -> None:
    """Its agent is silent, and an operator has looked at it."""
    await api.silent(host)
    body = {"reason": "no answer", "evidence": "it lies in the yard"}
    answer = await api.ask("POST", f"/v1/hosts/{host}/fence", json=body)
    assert answer.status == 200, await answer.text()


async def forget(api: Api, who: str = "admin", host: str = HOST) -> tuple[int, str]:
    answer = await api.ask("POST", f"/v1/hosts/{host}/forget", who, json=WHY)
    return answer.status, await answer.text()


async def listed(api: Api) -> list[str]:
    return [each["host"] for each in (await api.get("/v1/hosts"))["hosts"]]


async def topics(api: Api) -> list[str]:
    events = (await api.get(f"{PATH}/history"))["events"]
    return [each["topic"].removeprefix("Host.") for each in events]


async def test_a_forgotten_host_is_in_no_list_and_its_history_stays(
    api: Api, ledger: Ledger
) -> None:
    await api.two_hosts()
    await fenced(api)
    assert (await api.components.queries.hosts_by_state(60))["fenced"] == 1
    answer = await api.ask("POST", f"{PATH}/forget", json=WHY)
    assert (answer.status, (await answer.json())["fence_reason"]) == (200, "no answer")
    assert await listed(api) == [OTHER]
    for path, name in (("os-services", "host"), ("os-hypervisors", "hypervisor_hostname")):
        rows = (await api.get(f"/v2.1/{path}", version="2.87"))[path.removeprefix("os-")]
        assert [each[name] for each in rows] == [OTHER], path
    assert (await api.components.queries.hosts_by_state(60))["fenced"] == 0
    assert await api.components.queries.fenced() == {}, "no program is run for it"
    assert await topics(api) == ["HostRegistered", "Fenced", "Deleted"]
    assert not ledger.load(Host, Host.id_of(HOST)).awaits_hook(0.0), "nor for its successor"
    head = await api.head()
    for act, body in (("forget", WHY), ("unfence", WHY), ("fence", {**WHY, "evidence": "x"})):
        answer = await api.ask("POST", f"{PATH}/{act}", json=body)
        assert answer.status == 404, act
    assert (await api.ask("GET", PATH)).status == 404
    assert (await api.ask("DELETE", SERVICE, "admin", NEWEST)).status == 404
    assert await api.head() == head


async def test_what_keeps_a_host_is_said(api: Api) -> None:
    server, _ = await api.attached()
    await api.projected()
    assert (await forget(api))[0] == 409
    assert "is in contact" in (await forget(api))[1]
    await api.silent()
    status, text = await forget(api)
    assert status == 409
    assert f"servers: 1 ({server})" in text
    assert "attachments: 1 (" in text
    await fenced(api)
    status, text = await forget(api)
    assert (status, server in text) == (409, True), "a fence frees nothing"
    answer = await api.ask("DELETE", SERVICE, "admin", NEWEST)
    assert (answer.status, server in await answer.text()) == (409, True)
    assert await listed(api) == [HOST]
    assert (await forget(api, "member"))[0] == 403


async def test_a_silent_host_without_anything_is_forgotten_once_it_is_fenced(api: Api) -> None:
    await api.two_hosts()
    await api.silent()
    status, text = await forget(api)
    assert (status, "Fence it first" in text) == (409, True)
    await fenced(api)
    await api.register()
    await api.projected()
    status, text = await forget(api)
    assert (status, "Stop the agent" in text) == (409, True), "it is fenced, and its agent runs"
    await api.silent()
    assert (await forget(api))[0] == 200


async def test_clients_of_nova_delete_its_service(api: Api) -> None:
    await api.two_hosts()
    theirs = nova(api, "2.53", "admin")
    [one, _] = await to_thread(theirs.services.list)
    old = await api.ask("DELETE", "/v2.1/os-services/1", "admin", "2.52")
    assert old.status == 404
    for who, where, status in (
        ("admin", "disable", 400),
        ("admin", str(uuid4()), 404),
        ("member", one.id, 403),
        ("admin", one.id, 409),
    ):
        answer = await api.ask("DELETE", f"/v2.1/os-services/{where}", who, NEWEST)
        assert answer.status == status, (where, await answer.text())
    await fenced(api)
    await to_thread(theirs.services.delete, one.id)
    assert [each.host for each in await to_thread(theirs.services.list)] == [OTHER]
    [deleted] = [
        each
        for each in (await api.get(f"{PATH}/history"))["events"]
        if each["topic"] == "Host.Deleted"
    ]
    assert (deleted["actor"], deleted["body"]["reason"]) == (
        "admin",
        "compute service deleted",
    )


async def test_the_console_offers_it_for_a_fenced_host(api: Api) -> None:
    await api.two_hosts()
    page = f"/ui/hosts/{HOST}"
    link = f'href="{page}/forget"'
    assert link not in await (await api.ask("GET", page)).text()
    await fenced(api)
    assert link in await (await api.ask("GET", page)).text()
    assert await done(api, f"{page}/forget", **WHY) == "/ui/hosts"
    assert "it was forgotten" in await (await api.ask("GET", page)).text()


# --- who comes back -----------------------------------------------------------------------------


async def test_a_name_that_is_used_again_is_fenced_and_examined_as_before(api: Api) -> None:
    """The old machine is switched on again, and has a guest that runs elsewhere now."""
    moved = await api.server()
    await api.register(host=OTHER)
    await fenced(api)
    await api.played(await api.act(moved, "evacuate", {"host": OTHER}, version="2.95"))
    await api.silent()
    status, text = await forget(api)
    assert status == 200, text
    late = await api.ask("GET", f"{PATH}/commands?after=0&epoch=0&wait_s=0", "agent-1")
    assert (late.status, (await late.json())["code"]) == (409, "stale_epoch"), "it registers again"
    ours = guest(server_id=moved)
    told = await api.register(ours)
    assert (told["fenced"], told["epoch"], told["release"]["guests"]) == (True, 2, [moved])
    await api.projected()
    assert await listed(api) == [HOST, OTHER]
    host = await api.get(PATH)
    assert (host["fenced"], host["suspect"], host["fence_reason"]) == (True, True, "no answer")
    assert (await api.get(f"/v2.1/servers/{moved}"))["server"]["OS-EXT-SRV-ATTR:host"] == OTHER
    answer = await api.ask("POST", f"{PATH}/unfence", json={"reason": "bought back"})
    assert (await answer.json())["suspect"], "it gets no work before it has let go"
    await api.register()
    await api.projected()
    assert not (await api.get(PATH))["suspect"]


@pytest.mark.parametrize("news", [{}, {"service_version": 4}], ids=["as before", "with news"])
async def test_an_agent_that_registers_meanwhile_is_not_lost(
    api: Api, monkeypatch: pytest.MonkeyPatch, news: dict[str, Any]
) -> None:
    """Its registration was decided on before: it is decided on again."""
    await api.two_hosts()
    await fenced(api)
    real, service, calls = Host.register, api.components.service, []

    def register(host: Host, *told: Any) -> None:
        real(host, *told)
        calls.append(host.version)
        if len(calls) == 1:
            service.change_host(HOST, lambda each: each.delete("scrapped"), CONTEXT)

    monkeypatch.setattr(Host, "register", register)
    told = await api.register(**news)
    assert (told["fenced"], told["epoch"]) == (True, 2)
    await api.projected()
    assert (await topics(api))[-2:] == ["Deleted", "HostRegistered"]
    assert await listed(api) == [HOST, OTHER]


async def test_two_that_forget_it_at_once_are_one(api: Api) -> None:
    await api.two_hosts()
    await fenced(api)
    answers = await asyncio.gather(*(forget(api) for _ in range(4)))
    assert sorted(status for status, _ in answers) == [200, 404, 404, 404]
    assert (await topics(api)).count("Deleted") == 1


async def test_a_process_whose_table_is_older_does_nothing_to_it(api: Api) -> None:
    await api.two_hosts()
    await fenced(api)
    assert (await forget(api))[0] == 200
    async with api.connection() as connection:
        await connection.execute("UPDATE hosts SET deleted = false WHERE host = %s", [HOST])
    head = await api.head()
    for act, body in (("forget", WHY), ("unfence", WHY), ("fence", {**WHY, "evidence": "x"})):
        answer = await api.ask("POST", f"{PATH}/{act}", json=body)
        assert (answer.status, (await answer.json())["code"]) == (404, "host_forgotten"), act
    assert await api.head() == head


# --- who could know better ----------------------------------------------------------------------


def _attachment_there(server: str) -> AttachmentRow:
    """Cinder has it there, and the ledger has none."""
    about = About(server_id=server, volume_id=str(uuid4()), attachment_id=str(uuid4()))
    shown = CinderAttachment(status="attached", host=OTHER)
    return AttachmentRow(
        id=str(about.attachment_id), about=about, server="live", ledger=None, cinder=shown
    )


def _guest_there(server: str) -> ServerRow:
    """The host showed it before it fell silent, and it is to be elsewhere."""
    ours = LedgerServer(hosts=(HOST,), power_state="running", built=True, deleted=False)
    about = About(server_id=server, host=HOST)
    return ServerRow(id=server, about=about, ledger=ours, shown=((OTHER, "running"),))


@pytest.mark.parametrize(
    ("name", "found"),
    [("attachment_unknown", _attachment_there), ("guest_elsewhere", _guest_there)],
    ids=["Cinder", "a survey"],
)
async def test_what_somebody_else_has_seen_there_keeps_it_until_that_is_decided(
    api: Api, ledger: Ledger, name: str, found: Callable[[str], Row]
) -> None:
    row, drift_class = found(await api.server()), BY_NAME[name]
    id_ = judge.finding_id(drift_class, key_of(row))
    for _ in range(2):
        finding = ledger.load(Finding, Finding.id_of(id_))
        judge.see(finding, drift_class, row, Sight(look_id=str(uuid4()), position=1))
        ledger.save(finding, context=CONTEXT)
    await api.register(host=OTHER)
    await fenced(api, OTHER)
    status, text = await forget(api, host=OTHER)
    assert (status, f"findings: 1 ({id_})" in text) == (409, True)
    answer = await api.ask("POST", f"/v1/drift/{id_}/ignore", json=WHY)
    assert answer.status == 200, await answer.text()
    assert (await forget(api, host=OTHER))[0] == 200
