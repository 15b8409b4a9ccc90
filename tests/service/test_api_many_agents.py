"""Many agents at once are served together, and each as if it were alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from operator import methodcaller
from typing import Any

import pytest
from aiohttp import web

from handlers.requests import inventory
from host_agent.shared.contract.messages import Registration
from host_agent.shared.contract.wire import read
from ledger.agents import batches, calls, contacts
from ledger.agents.batches import AGENT_BATCHER, AgentBatcher
from ledger.config import Settings
from ledger.core.service import RegistrationResult, Service
from ledger.http.call import projected
from ledger.http.components import Components, is_gone
from ledger.http.limits.bulkheads import AGENT_THREADS, BULKHEADS
from tests.service.api_world import Api, guest, running_api, so
from tests.world import CONTEXT

HOSTS = [f"compute-{number}" for number in range(40)]


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """Everybody is everything, so that there may be any number of agents."""
    async with running_api(database_url, Settings()) as running:
        yield running


async def register(api: Api, host: str, *guests: dict[str, Any], **said: Any) -> Any:
    body = {"service_version": 2, "capabilities": {}, "guests": list(guests), **said}
    answer = await api.ask("PUT", f"/v1/hosts/{host}", None, json=body)
    return answer.status, await answer.json()


async def poll(api: Api, host: str, wait_s: float = 0, after: int = 0, epoch: int = 0) -> Any:
    path = f"/v1/hosts/{host}/commands?after={after}&epoch={epoch}&wait_s={wait_s}"
    answer = await api.ask("GET", path, None)
    return answer.status, await answer.json()


def desk_of(api: Api) -> AgentBatcher:
    batcher: AgentBatcher = api.http.app[AGENT_BATCHER]
    return batcher


async def stop(api: Api, server_id: str) -> None:
    answer = await api.act(server_id, "os-stop")
    assert answer.status == 202, await answer.text()


async def test_all_that_come_at_once_are_registered_in_contact_and_known(api: Api) -> None:
    guests = {host: guest() for host in HOSTS}
    answers = await asyncio.gather(*(register(api, host, guests[host]) for host in HOSTS))
    assert [(status, body["host"]) for status, body in answers] == [(200, host) for host in HOSTS]
    shown = (await api.get("/v1/hosts"))["hosts"]
    assert {row["host"]: (row["alive"], row["guests"]) for row in shown} == dict.fromkeys(
        HOSTS, (True, 1)
    )


async def test_a_storm_that_says_nothing_new_writes_nothing_and_reads_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests = {host: guest() for host in HOSTS}
    await asyncio.gather(*(register(api, host, guests[host]) for host in HOSTS))
    head = await api.head()
    batches: list[int] = []
    unchanged = Service.unchanged

    def counted(self: Service, asked: Any) -> list[RegistrationResult | None]:
        batches.append(len(asked))
        return unchanged(self, asked)

    monkeypatch.setattr(Service, "unchanged", counted)
    answers = await asyncio.gather(*(register(api, host, guests[host]) for host in HOSTS))
    assert {status for status, _ in answers} == {200}
    assert await api.head() == head
    assert sum(batches) == len(HOSTS)
    assert len(batches) < len(HOSTS) / 2


async def test_what_is_wrong_with_one_is_answered_to_that_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch: unchanged, new, one that cannot be taken, one that lost its guest."""
    kept, lost = guest(), guest()
    await register(api, "kept", kept)
    await register(api, "lost", lost)
    take = Service.register

    def failing(self: Service, name: str, *said: Any) -> RegistrationResult:
        if name == "broken":
            raise RuntimeError("a mistake of ours")
        return take(self, name, *said)

    monkeypatch.setattr(Service, "register", failing)
    look = inventory.seen

    def failing_look(host: str, said: Any, book: Any) -> bool:
        if host == "odd":
            raise RuntimeError("a mistake of ours")
        return look(host, said, book)

    monkeypatch.setattr(inventory, "seen", failing_look)
    answers = await asyncio.gather(
        register(api, "kept", kept),
        register(api, "new", guest()),
        register(api, "broken", guest()),
        register(api, "odd", guest()),
        register(api, "lost"),
    )
    assert [status for status, _ in answers] == [200, 200, 500, 500, 200]
    shown = await api.get(f"/v2.1/servers/{lost['server_id']}")
    assert shown["server"]["OS-EXT-STS:power_state"] == 0
    shown = await api.get(f"/v2.1/servers/{kept['server_id']}")
    assert shown["server"]["OS-EXT-STS:power_state"] == 1


async def test_each_poll_of_many_is_given_its_own_commands(api: Api) -> None:
    guests = {host: guest() for host in HOSTS}
    await asyncio.gather(*(register(api, host, guests[host]) for host in HOSTS))
    polls = {host: asyncio.create_task(poll(api, host, wait_s=30)) for host in HOSTS}
    batcher = desk_of(api)
    await so(lambda: batcher.connected == len(HOSTS), "all polls are held")
    given = HOSTS[::4]
    await asyncio.gather(*(stop(api, guests[host]["server_id"]) for host in given))
    for host in given:
        status, body = await asyncio.wait_for(polls[host], 10)
        [command] = body["commands"]
        assert (status, command["guest"]["server_id"]) == (200, guests[host]["server_id"])
        assert (await poll(api, host, after=body["after"]))[1]["commands"] == []
    waiting = [host for host in HOSTS if host not in given]
    assert not any(polls[host].done() for host in waiting)
    again = await asyncio.gather(*(poll(api, host) for host in HOSTS))
    assert [len(body["commands"]) for _, body in again] == [int(host in given) for host in HOSTS]
    for task in polls.values():
        task.cancel()


async def test_an_unknown_host_and_an_old_epoch_are_told_so_among_others(api: Api) -> None:
    await register(api, "known")
    answers = await asyncio.gather(
        poll(api, "known"), poll(api, "nobody"), poll(api, "known", epoch=7), poll(api, "known")
    )
    assert [(status, body.get("code")) for status, body in answers] == [
        (200, None),
        (404, "host_not_found"),
        (409, "stale_epoch"),
        (200, None),
    ]


async def test_a_poll_that_is_held_hears_at_once_that_its_host_was_fenced(api: Api) -> None:
    await register(api, "known")
    held = asyncio.create_task(poll(api, "known", wait_s=30))
    batcher = desk_of(api)
    await so(lambda: batcher.connected == 1, "the poll is held")
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    assert (await api.ask("POST", "/v1/hosts/known/fence", json=why)).status == 200
    status, body = await asyncio.wait_for(held, 10)
    assert (status, body["code"]) == (409, "stale_epoch")


async def test_a_poll_that_is_held_hears_at_once_that_its_host_was_unfenced(api: Api) -> None:
    """Its next registration without this may be five minutes away."""
    await register(api, "known")
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    assert (await api.ask("POST", "/v1/hosts/known/fence", json=why)).status == 200
    await register(api, "known")
    held = asyncio.create_task(poll(api, "known", wait_s=30, epoch=1))
    desk = desk_of(api)
    await so(lambda: desk.connected == 1, "the poll is held")
    let_in = {"reason": "repaired"}
    assert (await api.ask("POST", "/v1/hosts/known/unfence", json=let_in)).status == 200
    status, body = await asyncio.wait_for(held, 10)
    assert (status, body["code"]) == (409, "registration_awaited")
    await register(api, "known")
    assert await poll(api, "known", epoch=1) == (200, {"commands": [], "after": 0, "survey": None})


async def test_contact_is_written_when_the_service_stops(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contacts, "WRITE_INTERVAL_S", 1_000.0)
    async with running_api(database_url, Settings()) as api:
        await register(api, "known")
        registered_at = await api.components.queries.seen_at("known")
        await poll(api, "known")
        assert await api.components.queries.seen_at("known") == registered_at, "not by each poll"
    async with running_api(database_url, Settings()) as api:
        polled_at = await api.components.queries.seen_at("known")
    assert registered_at is not None
    assert polled_at is not None
    assert polled_at > registered_at


async def _late(api: Api, server: dict[str, Any], how: str) -> tuple[str, str, str, Any]:
    """What says that the guest is paused, or gone: the work that stands still, and the request."""
    paused = {**server, "power_state": "paused"}
    about = {"service_version": 2, "capabilities": {}, "guests": []}
    if how == "a registration":
        return "unchanged", "PUT", "", {**about, "guests": [paused]}
    if how == "a registration without it":
        return "unchanged", "PUT", "", about
    if how == "a change":
        return "changed", "POST", "/guests", {"epoch": 0, "guests": [paused], "gone": []}
    await stop(api, server["server_id"])
    [command] = (await poll(api, "host", wait_s=30))[1]["commands"]
    report = {name: command[name] for name in ("operation_id", "run", "epoch")}
    report["results"] = [{"step": step["name"], "took_ms": 1} for step in command["steps"]]
    return "report", "POST", "/reports", {**report, "guest": paused}


@pytest.mark.parametrize(
    "how", ["a registration", "a registration without it", "a change", "a report"]
)
async def test_a_list_is_not_taken_whose_agent_waits_no_more(
    api: Api, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The process has stood still; the agent shows itself anew to another one meanwhile."""
    server = guest()
    await register(api, "host", server)
    work, method, path, body = await _late(api, server, how)
    asked, goes_on, ended = list[web.Request](), threading.Event(), threading.Event()
    real, while_awaited = getattr(Service, work), calls.while_awaited

    def stands_still(self: Service, *what: Any) -> Any:
        goes_on.wait(60)
        try:
            return real(self, *what)
        finally:
            ended.set()

    def noted(call: Any, cause: str) -> Any:
        asked.append(call.request)
        return while_awaited(call, cause)

    with monkeypatch.context() as patched:
        patched.setattr(Service, work, stands_still)
        patched.setattr(calls, "while_awaited", noted)
        late = asyncio.create_task(api.ask(method, f"/v1/hosts/host{path}", None, json=body))
        await so(lambda: bool(asked), "it has come")
        late.cancel()
        await so(lambda: is_gone(asked[0]), "nobody waits for the answer")
        said = read({"service_version": 2, "capabilities": {}, "guests": [server]}, Registration)
        await asyncio.to_thread(api.components.service.register, "host", said, CONTEXT)
        await api.projected()
        goes_on.set()
        await so(ended.is_set, "it has gone on")
        await register(api, "another")  # comes after it
    shown = await api.get(f"/v2.1/servers/{server['server_id']}")
    assert shown["server"]["OS-EXT-STS:power_state"] == 1


async def test_a_suspect_host_waits_for_late_tables_in_no_thread(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, service = HOSTS[:AGENT_THREADS], api.components.service
    empty = Registration(service_version=2, capabilities={}, guests=())
    for host in hosts:
        await register(api, host)
        await asyncio.to_thread(service.fence, host, "dead", "power is off", CONTEXT)
        await asyncio.to_thread(service.change_host, host, methodcaller("unfence", "up"), CONTEXT)
    waiting, come = list[int](), asyncio.Event()

    async def late(components: Components, position: int) -> None:
        waiting.append(position)
        await come.wait()
        await projected(components, position)

    monkeypatch.setattr(batches, "projected", late)
    desk = desk_of(api)
    at_once = asyncio.gather(*(desk.register(host, empty, CONTEXT) for host in hosts))
    await so(lambda: len(waiting) == len(hosts), "all of them wait")
    async with asyncio.timeout(10):
        assert await api.http.app[BULKHEADS].agents(list[int]) == []
    come.set()
    assert [shown.host.suspect for shown in await at_once] == [False] * len(hosts)
