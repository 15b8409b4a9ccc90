"""Bugs others had that show at the API, each under its number (Launchpad)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ledger.trial.cinder.compute import ComputeCheck
from ledger.trial.cinder.model.rows import CinderFault, StoredAttachment
from tests.service.api_world import HOST, OTHER, Api
from tests.tokens import token_of

CONNECTOR = {"host": OTHER, "ip": "192.0.2.2"}


#: More rounds than a move has runs.
ROUNDS_MAX = 50

Refuses = Callable[[StoredAttachment], Awaitable[bool]]


@pytest.fixture
async def refuses(api: Api) -> AsyncIterator[Refuses]:
    """Cinder's question before a user may delete an attachment: 404 or another id is a yes."""
    check = ComputeCheck(str(api.http.make_url("/v2.1")), token=token_of("member"))

    async def asked(row: StoredAttachment) -> bool:
        try:
            await check.ask(row, "")
        except CinderFault as refused:
            return refused.status == 409
        return False

    yield asked
    await check.close()


async def test_x14_no_attachment_of_a_move_can_be_deleted_by_a_user(
    api: Api, refuses: Refuses
) -> None:
    """At every step of a live migration, until its host has proven its disconnect."""
    server, volume = await api.attached()
    await api.register(host=OTHER)
    [old] = api.cinder.attachments_of(volume)
    answer = await api.act(server, "os-migrateLive", {"host": OTHER, "block_migration": "auto"})
    assert answer.status == 202, await answer.text()
    asked, let_go = [], set()
    for _ in range(ROUNDS_MAX):
        if (await _operation(api, answer))["state"] != "running":
            break
        for host, command, step in await _steps(api):
            for row in api.cinder.attachments_of(volume):
                which = "old" if row.id == old.id else "new"
                assert row.id in let_go or await refuses(row), f"{which} before {step['name']}"
                asked.append((which, step["name"]))
            await _do(api, command, step, host)
            if step["verb"] == "volume_disconnect":
                let_go.add(command["lane"]["attachment_id"])
    assert (await _operation(api, answer))["outcome"] == "completed"
    assert {("new", "connect"), ("old", "migrate"), ("new", "disconnect")} <= set(asked)
    assert let_go == {old.id}
    [new] = api.cinder.attachments_of(volume)
    assert new.id != old.id
    assert await refuses(new), "the server has it still"


async def _steps(api: Api) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What both hosts are asked to do now: host, command, step."""
    return [
        (host, command, step)
        for host in (HOST, OTHER)
        for command in await api.commands(wait_s=0, host=host)
        for step in command["steps"]
    ]


async def _operation(api: Api, answer: Any) -> Any:
    return await api.get(answer.headers["X-Attachment-Ledger-Operation"])


async def _do(api: Api, command: dict[str, Any], step: dict[str, Any], host: str) -> None:
    """What the host's agent would do in Cinder, and what it would say."""
    lane = command.get("lane") or {}
    outputs: dict[str, Any] = {}
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
