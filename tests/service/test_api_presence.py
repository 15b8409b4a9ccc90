"""What another host shows refuses what would start, free or delete it: over the API, with the
agents' own requests, the projections and the surveys of production (decision 0088).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pytest

from host_agent.shared.contract.survey import CAPABILITY
from ledger.http.call import projected
from ledger.native import accepting
from tests.service.api_world import HOST, OTHER, Api, eventually, guest
from tests.surveys import survey, whole

AGENT = {"service_version": 3, "capabilities": {"multiattach": True, CAPABILITY: True}}


async def _refusal(answer: Any) -> str:
    assert answer.status == 409, (answer.status, await answer.text())
    told = await answer.json()
    return str(told["conflictingRequest"]["message"])


async def test_a_guest_moved_by_hand_is_not_detached_rebuilt_shelved_or_deleted(api: Api) -> None:
    server, volume = await api.attached()
    moved = guest(server_id=server, devices=["vda"], volumes=[volume])
    await api.register(moved, host=OTHER)
    await api.register(host=HOST)
    path = f"/v2.1/servers/{server}"
    shown = f"on host {OTHER} (its agent shows it)"
    for who, sign in (("member", "(hidden)"), ("operator", shown)):
        detach = await api.ask("DELETE", f"{path}/os-volume_attachments/{volume}", who, "2.89")
        refused = await _refusal(detach)
        assert sign in refused
        assert (OTHER in refused) == (who == "operator")
    for act, body in {
        "rebuild": {"imageRef": ""},
        "shelve": None,
        "reboot": {"type": "HARD"},
    }.items():
        assert OTHER in await _refusal(await api.act(server, act, body, who="admin"))
    assert OTHER in await _refusal(await api.ask("DELETE", path, "operator", "2.89"))
    # What it is on gives it back.
    await api.register(guest(server_id=server, devices=["vda"], volumes=[volume]), host=HOST)
    await api.register(host=OTHER)
    assert (await api.ask("DELETE", path, "member", "2.89")).status == 204


async def test_a_volume_in_a_strange_guest_is_given_to_nobody(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    strange = guest(devices=["vda"], volumes=[volume])
    await api.register(strange, host=OTHER)
    refused = await _refusal(await api.attach(server, volume, who="operator"))
    assert f"volume {volume} in the guest of server {strange['server_id']}" in refused
    refused = await _refusal(await api.attach(server, volume, who="member"))
    assert strange["server_id"] not in refused, "it may be another project's"
    await api.register({**strange, "devices": [], "volumes": []}, host=OTHER)
    assert (await api.attach(server, volume, who="member")).status == 200


@pytest.mark.parametrize("asked", ["hosts_of_server", "unaccounted", "unfenced"])
async def test_who_may_have_a_lost_guest_is_read_when_the_tables_have_the_loss(
    api: Api, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The log has it first: until then a survey of before would account for its host."""
    server, _ = await api.attached()
    await api.register(host=OTHER, **AGENT)
    await api.register(host=HOST, **AGENT)
    queries, order = api.components.queries, list[Any]()
    real = getattr(queries, asked)

    async def noted(components: Any, position: int) -> None:
        await projected(components, position)
        order.append(position)

    def read(*of: str) -> Any:
        order.append(asked)
        return real(*of)

    monkeypatch.setattr(accepting, "projected", noted)
    monkeypatch.setattr(queries, asked, read)
    fleet = accepting.fleet_of(api.components, asyncio.get_running_loop())
    asks: dict[str, tuple[Callable[[], Iterable[str]], str]] = {
        "hosts_of_server": (lambda: fleet.had(server), HOST),
        "unaccounted": (lambda: fleet.unaccounted(server), OTHER),
        "unfenced": (fleet.unfenced, OTHER),
    }
    ask, found = asks[asked]
    assert found in await asyncio.to_thread(ask)
    assert order == [await api.head(), asked]


async def test_a_lost_guest_may_be_on_every_host_until_that_has_said_no(api: Api) -> None:
    """And whoever asks for it has them asked."""
    server, _ = await api.attached()
    await api.register(host=HOST, **AGENT)
    await api.register(host=OTHER, **AGENT)
    refused = await _refusal(await api.ask("DELETE", f"/v2.1/servers/{server}", "operator", "2.89"))
    assert f"on host {OTHER} (it has not said since the guest was lost" in refused
    await _says_no(api, OTHER)
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}", "member", "2.89")
    assert answer.status == 204, await answer.text()


async def _says_no(api: Api, host: str) -> None:
    """Its agent has been asked for a survey, and shows no guest."""
    agent = f"agent-{host[-1]}"

    async def asked() -> Any:
        path = f"/v1/hosts/{host}/commands?after=0&epoch=0&wait_s=0"
        return (await api.get(path, agent))["survey"]

    wanted = await eventually(asked, "the host is asked for a survey")
    body = whole(survey(boot_id=str(uuid4())), wanted["token"])
    answer = await api.ask("PUT", f"/v1/hosts/{host}/survey", agent, json=body)
    assert answer.status == 200, await answer.text()
