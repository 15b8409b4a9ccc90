"""Bugs others had that show at the API, each under its number (Launchpad)."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.simulation.cinder_compute import ComputeCheck
from ledger.simulation.cinder_rows import Attachment, CinderFault
from tests.service.api_world import HOST, OTHER, Api

CONNECTOR = {"host": OTHER, "ip": "192.0.2.2"}


class Cinder:
    """Cinder's question before a user may delete an attachment: 404 or another id is a yes."""

    def __init__(self, api: Api) -> None:
        self._check = ComputeCheck(str(api.http.make_url("/v2.1")), token="member-token")

    async def refuses(self, row: Attachment) -> bool:
        try:
            await self._check.ask(row, "")
        except CinderFault as refused:
            assert refused.status == 409
            return True
        return False

    async def close(self) -> None:
        await self._check.close()


async def test_x14_no_attachment_of_a_move_can_be_deleted_by_a_user(api: Api) -> None:
    """At every step of a live migration, of whatever host."""
    server, volume = await api.attached()
    await api.register(host=OTHER)
    [old] = api.cinder.attachments_of(volume)
    cinder = Cinder(api)
    assert await cinder.refuses(old)
    answer = await api.act(server, "os-migrateLive", {"host": OTHER, "block_migration": "auto"})
    assert answer.status == 202, await answer.text()
    asked = 0
    while (await _operation(api, answer))["state"] == "running":
        for host in (HOST, OTHER):
            for command in await api.commands(wait_s=0, host=host):
                for step in command["steps"]:
                    for row in api.cinder.attachments_of(volume):
                        assert await cinder.refuses(row), f"{row.host} before {step['name']}"
                        asked += 1
                    await _do(api, command, step, host)
    assert (await _operation(api, answer))["outcome"] == "completed"
    [new] = api.cinder.attachments_of(volume)
    assert new.id != old.id
    assert asked > 8
    assert await cinder.refuses(new), "the server has it still"
    await cinder.close()


async def _operation(api: Api, answer: Any) -> Any:
    return await api.get(answer.headers["X-Attachment-Ledger-Operation"])


async def _do(api: Api, command: dict[str, Any], step: dict[str, Any], host: str) -> None:
    """What the host's agent would do in Cinder, and what it would say."""
    lane, outputs = command["lane"] or {}, {}
    match step["verb"]:
        case "attachment_create":
            made = api.cinder.attachment_create(lane["volume_id"], lane["server_id"], CONNECTOR)
            outputs = {"attachment_id": made.id}
        case "volume_connect":
            disk = {"type": "block", "path": "/dev/x", "format": "raw"}
            outputs = {"device_path": "/dev/x", "disk": disk}
        case "attachment_complete":
            api.cinder.attachment_complete(lane["attachment_id"])
        case "attachment_delete":
            api.cinder.drop_attachment(lane["attachment_id"])
    done = await api.report(command, step["name"], host, outputs=outputs)
    assert done.status == 200, await done.text()


@pytest.mark.parametrize("call", ["volume_show", "attachment_create"])
async def test_lp1554631_cinders_403_is_a_403(api: Api, call: str) -> None:
    server, volume = await api.server(), api.volume()
    rule = {"call": call, "do": "fail", "status": 403, "message": "Policy does not allow it"}
    api.faults.replace([rule])
    answer = await api.attach(server, volume, who="member")
    assert answer.status == 403, await answer.text()


async def test_lp2112187_a_swap_without_a_migration_behind_it_is_refused(api: Api) -> None:
    server, volume = await api.attached()
    other = api.volume()
    answer = await api.ask(
        "PUT",
        f"/v2.1/servers/{server}/os-volume_attachments/{volume}",
        "member",
        "2.89",
        json={"volumeAttachment": {"volumeId": other}},
    )
    assert answer.status == 409
    assert volume in await answer.text()
    assert api.cinder.volume(other).status == "available"
    assert len(api.cinder.attachments_of(volume)) == 1
