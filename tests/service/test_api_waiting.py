"""Who comes too early for the operation before waits for that: a moment, a detach longer, and the
deletion of a server until its end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.core.wakeups import ended_key
from ledger.native import accepting
from tests.service.api_world import OTHER, Api, guest
from tests.service.test_api_builds import OURS, booted, built


@pytest.mark.parametrize("to", ["the same", "another"])
async def test_an_attach_waits_for_the_detach_that_is_at_the_volume(api: Api, to: str) -> None:
    """Cinder says `available` a moment before the operation is over."""
    server, volume = await api.attached()
    target = server
    if to == "another":
        other = guest()
        target = other["server_id"]
        await api.register(other, host=OTHER)
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    detach = await api.ask("DELETE", path)
    await api.played(detach, until="delete")
    api.cinder.drop_attachment(api.cinder.attachments_of(volume)[0].id)
    assert api.cinder.volume(volume).status == "available"
    attach = asyncio.create_task(api.attach(target, volume))
    await api.played(detach)
    answer = await attach
    assert answer.status == 200, await answer.text()


async def test_a_root_waits_for_the_detach_of_the_one_before(api: Api) -> None:
    server, volume = await booted(api)
    await api.played(await api.act(server, "os-stop"))
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    detach = await api.ask("DELETE", f"{path}/{volume}", version=OURS)
    attach = asyncio.create_task(api.attach(server, api.volume(bootable=True), OURS, is_root=True))
    await api.played(detach)
    answer = await attach
    assert answer.status == 202, await answer.text()


async def waiting(api: Api, path: str, *in_the_way: str) -> asyncio.Task[Any]:
    """A DELETE that waits for these operations, one of them at least by now."""
    keys = set(map(ended_key, in_the_way))
    deletion = asyncio.create_task(api.ask("DELETE", path))
    async with asyncio.timeout(10):
        while not keys & api.components.wakeups._watches.keys():
            assert not deletion.done(), await deletion.result().text()
            await asyncio.sleep(0.005)
    return deletion


async def test_a_server_that_is_being_built_can_be_deleted(api: Api) -> None:
    """Nova takes a deletion at any time, and clients do not expect another answer."""
    build = await built(api, {"volume_id": api.volume(bootable=True), "boot_index": 0})
    made = await build.json()
    path = f"/v2.1/servers/{made['server_id']}"
    answer = await api.ask("DELETE", path)
    assert (answer.status, await answer.text()) == (204, "")
    await api.played(build)
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.ask("GET", path)).status == 404


async def test_a_deletion_that_waits_is_shown_lists_as_asked_for_and_refuses_the_rest(
    api: Api,
) -> None:
    """As Nova's: a server that is being deleted is there, and nothing else can be done to it."""
    server = await api.server()
    path, lists = f"/v2.1/servers/{server}", "/v2.1/servers/detail"
    attaches = [await api.attach(server, api.volume()) for _ in range(2)]
    for _ in range(2):  # who asks again is told the same
        answer = await api.ask("DELETE", path, "member")
        assert (answer.status, await answer.text()) == (204, "")
    for at in (lists, lists + "?task_state=deleting"):
        [shown] = (await api.get(at))["servers"]
        assert (shown["id"], shown["OS-EXT-STS:task_state"]) == (server, "deleting")
    refused = await api.act(server, "reboot", {"type": "HARD"})
    assert refused.status == 409
    message = (await refused.json())["conflictingRequest"]["message"]
    assert message == f"Cannot 'reboot' instance {server} while it is in task_state deleting"
    for attach in attaches:
        assert (await api.get(path))["server"]["id"] == server
        await api.played(attach)
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.ask("GET", path)).status == 404


async def test_a_deletion_takes_over_what_parks_while_it_waits(api: Api) -> None:
    server, volume = await api.attached()
    detach = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    [command] = await api.commands()
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}")
    assert answer.status == 204, await answer.text()
    await api.report(command, "unplug")
    error = {"kind": "final", "code": "busy", "message": "device is busy"}
    await api.report(command, "disconnect", error=error)
    assert (await api.finished(detach))["outcome"] == "cancelled"
    assert (await api.played(answer))["outcome"] == "completed"


async def test_what_parks_is_waited_for_once_and_then_named(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on only if a person has it: to ask again until the deadline would be a busy loop."""
    server, volume = await api.attached()
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    detach = await api.ask("DELETE", path)
    [command] = await api.commands()
    await api.report(command, "unplug")
    error = {"kind": "final", "code": "busy", "message": "device is busy"}
    await api.report(command, "disconnect", error=error)
    await api.finished(detach)
    rests, waited = accepting._ends_or_parks, list[str]()

    async def noted(call: Any, operation_id: str, wait_s: float) -> bool:
        assert operation_id not in waited, "it would wait for ever"
        waited.append(operation_id)
        return await rests(call, operation_id, wait_s)

    monkeypatch.setattr(accepting, "_ends_or_parks", noted)
    answer = await api.ask("DELETE", path)
    assert (answer.status, waited) == (409, [command["operation_id"]])


async def test_a_detach_that_is_asked_for_twice_is_404_when_the_first_has_ended(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cinder says `in-use` until then: a client cannot see that it has asked before."""
    monkeypatch.setattr(accepting, "CLAIM_WAIT_S", 0.0)
    server, volume = await api.attached()
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    detach = await api.ask("DELETE", path)
    [command] = await api.commands()
    again = await waiting(api, path, command["operation_id"])
    await api.played(detach)
    assert (await again).status == 404
