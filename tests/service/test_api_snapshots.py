"""Cinder's os-assisted-volume-snapshots: what it is answered, and what it begins."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from host_agent.shared.contract.messages import SERVICE_VERSION, PowerState
from ledger.trial.cinder.model import snapshots as cinder_snapshots
from tests.service.api_world import Api, guest

PATH = "/v2.1/os-assisted-volume-snapshots"


def taking(volume: str, **more: Any) -> dict[str, Any]:
    """As Cinder's remotefs driver writes it."""
    snapshot = str(uuid4())
    new_file = {"type": "qcow2", "new_file": f"volume-{volume}.{snapshot}"}
    info = {"snapshot_id": snapshot, **new_file, **more}
    return {"snapshot": {"volume_id": volume, "create_info": info}}


def deletion(volume: str, **more: Any) -> dict[str, str]:
    info = {"file_to_merge": None, "merge_target_file": None, "type": "qcow2", "volume_id": volume}
    return {"delete_info": json.dumps(info | more)}


async def take(api: Api, body: dict[str, Any], who: str = "cinder") -> tuple[int, Any]:
    answer = await api.ask("POST", PATH, who, json=body)
    return answer.status, await answer.json()


async def delete(
    api: Api, query: dict[str, str], snapshot: str = str(uuid4()), who: str = "cinder"
) -> tuple[int, str]:
    answer = await api.ask("DELETE", f"{PATH}/{snapshot}", who, params=query)
    return answer.status, await answer.text()


async def on_a_share(api: Api) -> tuple[str, str]:
    """A server with a volume that is a file, and whose agent knows what to do with it."""
    server, volume = await api.attached(driver="nfs")
    await api.register(guest(server_id=server), service_version=SERVICE_VERSION)
    return server, volume


async def begun(api: Api, server: str, flow: str) -> Any:
    answer = await api.ask("GET", f"/v1/operations?server={server}&flow={flow}", "operator")
    return (await answer.json())["operations"]


async def test_cinder_has_a_guest_take_a_snapshot_once(api: Api) -> None:
    server, volume = await on_a_share(api)
    made = cinder_snapshots.begin_online(api.cinder, volume)
    body = taking(volume, snapshot_id=made.id, new_file=made.file, id="a")
    assert await take(api, body) == (200, {"snapshot": {"id": "a", "volumeId": volume}})
    [operation] = await begun(api, server, "snapshot")
    assert (operation["volume_ids"], operation["actor"]) == ([volume], "cinder")
    # Cinder gives up by an answer that is no 2xx, and one 400 is for all that is in the way (Nova).
    status, refused = await take(api, taking(volume))
    assert (status, "claimed" in refused["badRequest"]["message"]) == (400, True)


async def test_a_deletion_says_by_its_query_which_files_are_merged(api: Api) -> None:
    server, volume = await on_a_share(api)
    merged = {"file_to_merge": f"volume-{volume}.a", "merge_target_file": f"volume-{volume}"}
    assert await delete(api, deletion(volume, **merged)) == (204, "")
    [operation] = await begun(api, server, "delete_snapshot")
    assert operation["volume_ids"] == [volume]


async def test_no_snapshot_is_taken_of_a_volume_that_several_servers_may_have(api: Api) -> None:
    """S3: the call names no server."""
    server, volume = await api.attached(driver="nfs", multiattach=True)
    for status, told in (
        await take(api, taking(volume)),
        await delete(api, deletion(volume)),
    ):
        assert status == 400
        assert f"{volume} is a multi-attach volume" in str(told)
    assert await begun(api, server, "snapshot") == []


async def test_what_no_guest_can_take_part_in_is_refused_before_anything_is_done(api: Api) -> None:
    nobodys = api.volume(driver="nfs")
    server, encrypted = await api.attached(driver="nfs", encrypted=True)
    stopped_server, stopped = await api.attached(driver="nfs")
    shown = guest(server_id=stopped_server, power_state=PowerState.SHUTDOWN.value)
    await api.register(shown, guest(server_id=server))
    for volume, why in (
        (nobodys, f"No volume Block Device Mapping with id {nobodys}."),
        (encrypted, "is encrypted"),
        (stopped, "while it is in vm_state stopped"),
    ):
        status, told = await take(api, taking(volume))
        assert (status, why in told["badRequest"]["message"]) == (400, True), told
    assert await begun(api, server, "snapshot") == []


WRONG_FILES: list[dict[str, Any]] = [
    *({"new_file": name} for name in ("../volume-1", "a/b", "..", ".a", "")),
    {"type": "raw"},
    {"snapshot_id": "x"},
    {"other": 1},
]


async def test_a_file_is_named_beside_the_present_one(api: Api) -> None:
    for wrong in WRONG_FILES:
        status, _ = await take(api, taking(str(uuid4()), **wrong))
        assert status == 400, wrong


UNREADABLE: list[dict[str, str]] = [
    {},
    {"delete_info": "{"},
    {"delete_info": "[]"},
    {"delete_info": "{}"},
    {**deletion(str(uuid4())), "more": "1"},
    deletion(str(uuid4()), file_to_merge="../a"),
    deletion(str(uuid4()), type="raw"),
    deletion("x"),
]


async def test_a_deletion_that_cannot_be_read_is_refused(api: Api) -> None:
    for query in UNREADABLE:
        status, _ = await delete(api, query)
        assert status == 400, query


async def test_nobody_but_a_service_takes_part_in_snapshots(api: Api) -> None:
    _, volume = await api.attached(driver="nfs")
    for who in ("member", "operator"):
        assert (await take(api, taking(volume), who))[0] == 403
        assert (await delete(api, deletion(volume), who=who))[0] == 403
