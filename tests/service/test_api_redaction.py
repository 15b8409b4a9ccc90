"""Users see no names of hypervisors, no addresses of storage, no paths and no definitions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.api_world import HOST, OTHER, PROJECT, Api, guest

MONITOR = "10.42.0.7:6789"
DEVICE = "/dev/rbd-of-hypervisor"
ERROR = {
    "kind": "final",
    "code": "connect_failed",
    "message": f"{HOST}: no answer of {MONITOR}",
}
DISK = {"type": "network", "protocol": "rbd", "name": "p/v", "hosts": [MONITOR.split(":")]}
KEPT_BACK = (HOST, OTHER, "10.42.0.7", DEVICE, "<domain", "iscsi-digest")


async def connected(api: Api) -> tuple[str, str]:
    """A server whose volume came with everything that a host may tell of it."""
    shown = guest(PROJECT)
    await api.two_hosts(shown)
    server, volume = shown["server_id"], api.volume()
    answer = await api.attach(server, volume, who="member")
    [command] = await api.commands()
    told: dict[str, Any] = {
        "attachment_update": {"driver": "rbd", "target_digest": "iscsi-digest"},
        "volume_connect": {"device_path": DEVICE, "disk": DISK},
        "disk_plug": {"device_name": "vdb", "bus": "virtio"},
    }
    for step in command["steps"]:
        done = await api.report(command, step["name"], outputs=told.get(step["verb"], {}))
        assert done.status == 200, await done.text()
    assert (await api.finished(answer))["outcome"] == "completed"
    return server, volume


async def parked(api: Api, server: str) -> str:
    """A detach that its host could not do; its operation."""
    [row] = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    path = f"/v2.1/servers/{server}/os-volume_attachments/{row['volume_id']}"
    answer = await api.ask("DELETE", path, "member")
    [command] = await api.commands()
    for step in command["steps"]:
        fails = step["verb"] == "volume_disconnect"
        done = await api.report(command, step["name"], error=ERROR if fails else None)
        assert done.status == 200, await done.text()
        if fails:
            break
    operation = answer.headers["X-Attachment-Ledger-Operation"]
    assert (await api.get(f"{operation}?wait_s=20"))["state"] == "parked"
    return operation


async def readable(api: Api, server: str, operation: str) -> list[str]:
    [row] = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    attachment, compute = f"/v1/attachments/{row['attachment_id']}", f"/v2.1/servers/{server}"
    [action] = [
        each["request_id"]
        for each in (await api.get(f"{compute}/os-instance-actions"))["instanceActions"]
        if each["action"] == "detach_volume"
    ]
    return [
        f"/v1/attachments?server={server}",
        f"/v1/operations?server={server}",
        f"/v1/servers/{server}/history",
        attachment,
        f"{attachment}/history",
        operation,
        f"{operation}/history",
        compute,
        "/v2.1/servers/detail",
        f"{compute}/os-volume_attachments",
        f"{compute}/os-volume_attachments/{row['volume_id']}",
        f"{compute}/os-instance-actions/{action}",
    ]


@pytest.mark.parametrize("who", ["reader", "member"])
async def test_users_read_nothing_of_the_machines_below(api: Api, who: str) -> None:
    server, _ = await connected(api)
    paths = await readable(api, server, await parked(api, server))
    for path in paths:
        answer = await api.ask("GET", path, who, "2.95")
        text = await answer.text()
        assert answer.status == 200, (path, text)
        assert not [word for word in KEPT_BACK if word in text], (path, text)


async def test_operators_read_all_of_it(api: Api) -> None:
    server, _ = await connected(api)
    operation = await parked(api, server)
    texts = [
        await (await api.ask("GET", path, "operator", "2.95")).text()
        for path in await readable(api, server, operation)
    ]
    assert all(any(word in text for text in texts) for word in KEPT_BACK if word != OTHER)
    assert MONITOR in (await api.get(operation))["why"]


async def test_users_see_what_failed_and_who_can_help(api: Api) -> None:
    server, _ = await connected(api)
    shown = await api.get(await parked(api, server), "member")
    assert shown["why"] == "It failed (connect_failed); an operator can read the reason."
    failed = [step for step in shown["steps"] if step["error"]]
    assert {step["error"]["code"] for step in failed} == {"connect_failed"}
    assert {step["place"] for step in shown["steps"]} <= {"ledger", "host"}


@pytest.mark.parametrize("path", ["/v1/operations", "/v1/attachments"])
async def test_a_filter_by_host_does_not_tell_where_a_server_is(api: Api, path: str) -> None:
    server, _ = await connected(api)
    url = f"{path}?server={server}&host={HOST}"
    assert (await api.ask("GET", url, "member")).status == 403
    assert (await api.ask("GET", url, "operator")).status == 200


async def test_a_refusal_does_not_name_the_host(api: Api) -> None:
    server, _ = await connected(api)
    await api.silent()
    for who, named in (("member", "(hidden)"), ("operator", HOST)):
        refused = await api.attach(server, api.volume(), who=who)
        assert refused.status == 409
        assert f"No agent of host {named} has been in contact" in await refused.text()
