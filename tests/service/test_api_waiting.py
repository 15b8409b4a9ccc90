"""A request that comes a moment too early for the detach before it waits for that."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.api_world import OTHER, Api, guest
from tests.service.test_api_builds import OURS, booted


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
