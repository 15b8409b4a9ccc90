"""Large inventories: up to the documented size, in memory a few at once, read beside the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from aggregates.base import Actor, EventContext
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.messages import (
    DEVICES_MAX,
    GUESTS_MAX,
    Guest,
    PowerState,
    Registration,
)
from ledger.config import Settings
from ledger.core import service as service_module
from ledger.core.service import Service
from ledger.http import call
from ledger.http.limits import bulkheads
from ledger.http.limits.bulkheads import BULKHEADS, LARGE_BODIES_AT_ONCE
from ledger.log.application import Ledger
from tests.doubles.direct_cinder import DirectCinder
from tests.service.api_world import DEFINITION, HOST, Api, eventually, guest, running_api

CONTEXT = EventContext(actor=Actor(name="agent"), request_id="req-1", cause="registration")
FOR_EVER_S = 1_000.0


def guests(count: int) -> tuple[Guest, ...]:
    return tuple(
        Guest(
            server_id=str(uuid4()),
            name="vm",
            power_state=PowerState.RUNNING,
            devices=("vda",),
            project_id="p",
            user_id="u",
            definition=DEFINITION,
        )
        for _ in range(count)
    )


def test_as_many_guests_as_are_documented_are_taken(database_url: str) -> None:
    """Each leads to more than one event, and an append has at most so many."""
    log = Ledger(database_url)
    cinder: Any = DirectCinder.__new__(DirectCinder)
    service = Service(log, cinder, time.time)
    shown = Registration(service_version=2, capabilities={}, guests=guests(GUESTS_MAX))
    result = service.register("h", shown, CONTEXT)
    assert not result.again
    [known] = service.unchanged([("h", shown)])
    assert known is not None, "all of it is stored"
    other = tuple(replace(each, definition=DEFINITION + " ") for each in shown.guests)
    assert not service.changed("h", Changes(epoch=0, guests=other, gone=()), CONTEXT)
    gone = tuple(each.server_id for each in shown.guests)
    assert not service.changed("h", Changes(epoch=0, guests=(), gone=gone), CONTEXT)
    log.close()


@pytest.mark.parametrize("how", ["registers", "changes"])
def test_guests_full_of_unexpected_volumes_are_taken(database_url: str, how: str) -> None:
    """Each volume leads to an event when it is seen, and to another when it is not any more."""
    log = Ledger(database_url)
    cinder: Any = DirectCinder.__new__(DirectCinder)
    service = Service(log, cinder, time.time)
    agent = Registration(service_version=2, capabilities={}, guests=())
    full = [
        replace(each, volumes=tuple(str(uuid4()) for _ in range(DEVICES_MAX)))
        for each in guests(12)
    ]
    ids = tuple(each.server_id for each in full)
    service.register("h", agent, CONTEXT)
    if how == "registers":
        service.register("h", replace(agent, guests=tuple(full)), CONTEXT)
        assert service.host("h").shown.keys() == {*ids}
        service.register("h", agent, CONTEXT)
    else:
        service.changed("h", Changes(epoch=0, guests=tuple(full), gone=()), CONTEXT)
        assert service.host("h").shown.keys() == {*ids}
        service.changed("h", Changes(epoch=0, guests=(), gone=ids), CONTEXT)
    assert service.host("h").shown == {}
    log.close()


async def test_an_inventory_in_portions_is_what_it_is_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "INVENTORY_AT_ONCE", 3)
    shown = [guest() for _ in range(8)]
    await api.register(*shown)
    [row] = (await api.get("/v1/hosts"))["hosts"]
    assert row["guests"] == 8
    gone = [each["server_id"] for each in shown[:4]]
    changed = [{**each, "power_state": "paused"} for each in shown[4:]]
    await api.changes(*changed, gone=gone)
    states = [
        (await api.get(f"/v2.1/servers/{each['server_id']}"))["server"]["OS-EXT-STS:power_state"]
        for each in shown
    ]
    assert states == [0] * 4 + [3] * 4


async def test_a_suspect_host_in_portions_is_told_all_its_leftovers(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "INVENTORY_AT_ONCE", 2)
    shown = [guest() for _ in range(5)]
    await api.register(*shown)
    for each in shown:
        answer = await api.ask("DELETE", f"/v2.1/servers/{each['server_id']}", version="2.95")
        assert answer.status == 204, await answer.text()
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)).status == 200

    async def told() -> bool:
        answer = await api.register(*shown)
        return set(answer["release"]["guests"]) == {each["server_id"] for each in shown}

    await eventually(told, "all of them are to be released")


async def test_a_large_body_is_read_in_a_thread_and_a_small_one_is_not(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    from ledger.agents import calls as agents

    read = agents._registration

    def noted(body: dict[str, Any]) -> Registration:
        threads.append(threading.current_thread().name.partition("_")[0])
        return read(body)

    monkeypatch.setattr(agents, "_registration", noted)
    await api.register(guest())
    monkeypatch.setattr(call, "SMALL_BYTES_MAX", 100)
    await api.register(guest(), guest())
    assert threads == ["MainThread", "agents"]


@pytest.fixture
async def open_api(database_url: str) -> AsyncIterator[Api]:
    """Everybody is everything, so that there may be any number of agents."""
    async with running_api(database_url, Settings()) as running:
        yield running


async def test_only_so_many_large_bodies_are_in_memory_at_once(
    open_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first byte that is read until all of it is done; others are told to wait.  One host
    has one at a time.
    """
    api = open_api
    monkeypatch.setattr(call, "SMALL_BYTES_MAX", 600)
    monkeypatch.setattr(bulkheads, "LARGE_BODY_PLACE_S", FOR_EVER_S)
    go_on, inside = threading.Event(), 0
    unchanged = Service.unchanged

    def waits(self: Service, asked: Any) -> Any:
        nonlocal inside
        if any(one.guests for _, one in asked):
            inside += len(asked)
            go_on.wait(FOR_EVER_S)
        return unchanged(self, asked)

    monkeypatch.setattr(Service, "unchanged", waits)
    body = {"service_version": 2, "capabilities": {}, "guests": [guest(), guest()]}
    large = [
        asyncio.create_task(api.ask("PUT", f"/v1/hosts/h{number}", None, json=body))
        for number in range(LARGE_BODIES_AT_ONCE + 3)
    ]
    places = api.http.app[BULKHEADS].large_bodies

    async def full() -> bool:
        waiting = len(places._places._waiters or ())
        return inside > 0 and waiting == len(large) - LARGE_BODIES_AT_ONCE

    try:
        await eventually(full, "the places are taken, and all others wait for one")
        monkeypatch.setattr(bulkheads, "LARGE_BODY_PLACE_S", 0.05)
        for host, why in (("other", "its limit"), ("h0", "another large body of host h0")):
            refused = await api.ask("PUT", f"/v1/hosts/{host}", None, json=body)
            problem = await refused.json()
            assert (refused.status, problem["code"]) == (503, "too_many_bodies")
            assert why in problem["detail"]
        assert not any(task.done() for task in large)
        assert inside <= LARGE_BODIES_AT_ONCE
    finally:
        go_on.set()
    assert {answer.status for answer in await asyncio.gather(*large)} == {200}
    assert (await api.ask("PUT", "/v1/hosts/h0", None, json=body)).status == 200
