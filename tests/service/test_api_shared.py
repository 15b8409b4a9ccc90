"""Multi-attach volumes at the API (S3): who is refused them, and where servers with them go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles.direct_cinder import DirectCinder
from tests.service.api_world import HOST, OTHER, Api, guest
from tests.service.test_api_builds import OURS, built

PLAIN: dict[str, Any] = {"capabilities": {"multiattach": False, "tag": True}}


async def test_a_host_that_cannot_share_gets_no_shared_volume(api: Api) -> None:
    """S3 finds this out on the host; here nothing is reserved."""
    shared, shown = api.volume(multiattach=True), guest()
    await api.register(shown, **PLAIN)
    refused = await api.attach(shown["server_id"], shared)
    assert refused.status == 400
    assert "'multiattach' set, which is not supported" in await refused.text()
    assert api.cinder.attachments_of(shared) == []
    assert (await api.attach(shown["server_id"], api.volume())).status == 200


async def test_a_server_with_a_shared_volume_is_built_where_it_can_be_shared(api: Api) -> None:
    """The other host has fewer guests, and gets the server that shares nothing."""
    await api.register(guest(), guest())
    await api.register(host=OTHER, **PLAIN)
    for multiattach, host in ((True, HOST), (False, OTHER)):
        for who in ("member", "admin"):
            body = {"name": "web", "disks": [{"volume_id": api.volume(multiattach=multiattach)}]}
            answer = await api.ask("POST", "/v1/servers", who, json=body)
            assert answer.status == 202, await answer.text()
            server = (await api.get(f"/v2.1/servers/{(await answer.json())['server_id']}"))[
                "server"
            ]
            assert server["OS-EXT-SRV-ATTR:host"] == host


async def test_a_shared_volume_is_booted_from(api: Api) -> None:
    """S3: of one with boot_index 0 only `bootable` is checked; the rest is Cinder's policy."""
    shared = api.volume(bootable=True, multiattach=True)
    for _ in range(2):
        answer = await built(api, {"volume_id": shared, "boot_index": 0})
        assert answer.status == 202, await answer.text()
        assert (await api.played(answer))["outcome"] == "completed"
        path = f"/v2.1/servers/{(await answer.json())['server_id']}/os-volume_attachments"
        [row] = (await api.get(path, version=OURS))["volumeAttachments"]
        assert (row["volumeId"], row["boot_index"]) == (shared, 0)


@pytest.mark.parametrize("multiattach", [True, False])
async def test_a_root_volume_that_is_not_bootable_is_refused(api: Api, multiattach: bool) -> None:
    data = api.volume(multiattach=multiattach)
    refused = await built(api, {"volume_id": data, "boot_index": 0})
    assert (refused.status, (await refused.json())["code"]) == (400, "not_bootable")
    assert api.cinder.attachments_of(data) == []
    assert (await built(api, {"volume_id": data})).status == 202


LIVE = {"host": None, "block_migration": "auto"}


@pytest.mark.parametrize(("move", "body"), [("migrate", None), ("os-migrateLive", LIVE)])
async def test_a_server_with_a_shared_volume_moves_where_it_can_be_shared(
    api: Api, move: str, body: dict[str, Any] | None
) -> None:
    sharing, _ = await api.attached(multiattach=True)
    migration = {"uri": "qemu+tcp://compute-2/system", "address": "compute-2"}
    await api.register(host=OTHER, capabilities={**PLAIN["capabilities"], "migration": migration})
    refused = await api.act(sharing, move, body)
    assert refused.status == 400
    assert "not enough hosts" in await refused.text()
    plain, _ = await api.attached()
    assert (await api.act(plain, move, body)).status == 202


async def test_a_server_with_a_shared_volume_is_not_taken_to_a_host_that_cannot_share(
    api: Api,
) -> None:
    """Named by the operator: known before its guest is stopped."""
    server, _ = await api.attached(multiattach=True)
    await api.register(host=OTHER, **PLAIN)
    refused = await api.act(server, "migrate", {"host": OTHER})
    assert refused.status == 400
    assert "it cannot share multi-attach volumes" in await refused.text()
    await api.register(host=OTHER)
    assert (await api.act(server, "migrate", {"host": OTHER})).status == 202


async def test_a_cinder_without_attachments_means_the_old_flow(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: the new calls only where Cinder offers 3.44; S3: and shared volumes only by them."""
    monkeypatch.setattr(DirectCinder, "new_flow", lambda _: False)
    server, volume = await api.attached()
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    [row] = (await api.get(path, version="2.88"))["volumeAttachments"]
    assert row["volumeId"] == volume
    assert (await api.get(path, version="2.89"))["volumeAttachments"] == []
    shared = api.volume(multiattach=True, bootable=True)
    assert (await api.attach(server, shared)).status == 409
    assert (await built(api, {"volume_id": shared})).status == 409
