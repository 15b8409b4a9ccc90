"""Server actions in Nova's form: what each begins, what it demands, what the server shows."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from ledger.native import accepting
from tests.service.api_world import HOST, OTHER, Api, guest


async def shown(api: Api, server: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/v2.1/servers/{server}", **options))["server"]
    return found


async def states(api: Api, server: str) -> tuple[str, str, str | None]:
    found = await shown(api, server)
    return found["status"], found["OS-EXT-STS:vm_state"], found["OS-EXT-STS:task_state"]


async def with_volume(api: Api) -> tuple[str, str]:
    """A server with a volume on compute-1, and an empty compute-2."""
    server, volume = await api.attached()
    await api.register(host=OTHER)
    return server, volume


async def text_of(answer: Any, status: int) -> str:
    assert answer.status == status, (answer.status, await answer.text())
    [body] = (await answer.json()).values()
    return str(body["message"])


# --------------------------------------------------------------------------------- power


async def test_a_server_is_stopped_started_paused_unpaused_and_rebooted(api: Api) -> None:
    server, _ = await with_volume(api)
    for action, body, during, after in (
        ("os-stop", None, ("ACTIVE", "active", "powering-off"), ("SHUTOFF", "stopped", None)),
        ("os-start", None, ("SHUTOFF", "stopped", "powering-on"), ("ACTIVE", "active", None)),
        ("pause", None, ("ACTIVE", "active", "pausing"), ("PAUSED", "paused", None)),
        ("unpause", None, ("PAUSED", "paused", "unpausing"), ("ACTIVE", "active", None)),
        ("reboot", {"type": "soft"}, ("REBOOT", "active", "rebooting"), ("ACTIVE", "active", None)),
    ):
        answer = await api.act(server, action, body, who="member")
        assert (answer.status, await answer.text()) == (202, ""), action
        assert await states(api, server) == during, action
        assert (await api.played(answer))["outcome"] == "completed", action
        assert await states(api, server) == after, action


async def test_a_soft_reboot_needs_a_guest_that_runs_and_a_hard_one_starts_it(api: Api) -> None:
    server, _ = await with_volume(api)
    await api.played(await api.act(server, "os-stop"))
    refused = await api.act(server, "reboot", {"type": "SOFT"})
    assert await text_of(refused, 409) == (
        f"Cannot 'reboot' instance {server} while it is in vm_state stopped"
    )
    answer = await api.act(server, "reboot", {"type": "HARD"})
    await api.played(answer, until="spawn")
    [command] = await api.commands()
    assert (command["guest"]["force"], command["guest"]["running"]) == (True, True)
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await shown(api, server))["status"] == "ACTIVE"


async def test_what_is_under_way_refuses_the_next_by_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "CLAIM_WAIT_S", 0.0)
    server, _ = await with_volume(api)
    stop = await api.act(server, "os-stop")
    operation = stop.headers["X-Attachment-Ledger-Operation"].rpartition("/")[2]
    assert operation in await text_of(await api.act(server, "pause"), 409)


async def test_a_rebuild_keeps_the_volumes_and_knows_no_images(api: Api) -> None:
    server, volume = await with_volume(api)
    refused = await api.act(server, "rebuild", {"imageRef": str(uuid4())})
    assert "no images" in await text_of(refused, 400)
    answer = await api.act(server, "rebuild", {"imageRef": ""})
    body = (await answer.json())["server"]
    assert (answer.status, body["status"]) == (202, "REBUILD")
    assert (await api.played(answer))["outcome"] == "completed"
    listed = (await shown(api, server))["os-extended-volumes:volumes_attached"]
    assert [each["id"] for each in listed] == [volume]


async def test_lp1489304_a_rebuild_is_refused_while_cinder_works_on_a_volume(api: Api) -> None:
    """Without an image, too."""
    server, volume = await with_volume(api)
    api.cinder.volume(volume).status = "retyping"
    refused = await api.act(server, "rebuild", {"imageRef": ""})
    assert f"Volume {volume} is retyping in Cinder" in await text_of(refused, 409)
    assert (await shown(api, server))["status"] == "ACTIVE"
    api.cinder.volume(volume).status = "in-use"
    assert (await api.act(server, "rebuild", {"imageRef": ""})).status == 202


async def test_who_rebuilds_is_shown_what_nova_would_put_into_the_server_anew(api: Api) -> None:
    server = (await with_volume(api))[0]
    since = {"key_name": 54, "user_data": 57}
    for minor in (53, 54, 56, 57, 75):
        answer = await api.act(server, "rebuild", {"imageRef": ""}, version=f"2.{minor}")
        body = (await answer.json())["server"]
        await api.played(answer)
        wanted = {name for name, first in since.items() if first <= minor}
        assert since.keys() & body.keys() == wanted, minor


# --------------------------------------------------------------------------------- moves


async def test_a_live_migration_goes_where_it_is_told_or_to_the_emptiest_host(api: Api) -> None:
    server, volume = await with_volume(api)
    body = {"host": None, "block_migration": "auto"}
    answer = await api.act(server, "os-migrateLive", body)
    assert answer.status == 202, await answer.text()
    assert await states(api, server) == ("MIGRATING", "active", "migrating")
    assert (await api.played(answer))["destination"] == OTHER
    assert (await shown(api, server))["OS-EXT-SRV-ATTR:host"] == OTHER
    back = await api.act(server, "os-migrateLive", {**body, "host": HOST})
    assert (await api.played(back))["outcome"] == "completed"
    [row] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    assert row["host"] == HOST
    text = await text_of(await api.act(server, "os-migrateLive", {**body, "host": "no-where"}), 400)
    assert text.startswith("No valid host was found.")


async def test_without_another_host_there_is_no_valid_one(api: Api) -> None:
    server, _ = await api.attached()
    refused = await api.act(server, "migrate")
    assert await text_of(refused, 400) == (
        "No valid host was found. There are not enough hosts available."
    )


async def test_while_two_attachments_are_connected_neither_may_be_deleted(api: Api) -> None:
    """Cinder takes a 409 for a no (CVE-2023-2088); lists and older versions go on."""
    server, volume = await with_volume(api)
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    before = (await api.get(f"{path}/{volume}", version="2.89"))["volumeAttachment"]
    answer = await api.act(server, "os-migrateLive", {"host": OTHER, "block_migration": False})
    operation = (await api.played(answer, until="migrate"))["operation_id"]
    asked = await api.ask("GET", f"{path}/{volume}", "member", "2.89")
    assert operation in await text_of(asked, 409)
    assert (await api.ask("GET", f"{path}/{volume}", version="2.88")).status == 200
    [listed] = (await api.get(path, version="2.89"))["volumeAttachments"]
    assert listed == before
    assert (await api.played(answer))["outcome"] == "completed"
    after = (await api.get(f"{path}/{volume}", version="2.89"))["volumeAttachment"]
    assert after["attachment_id"] != before["attachment_id"]


async def test_a_resize_is_confirmed_or_reverted(api: Api) -> None:
    server, volume = await with_volume(api)
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    same = await api.act(server, "resize", {"flavorRef": "c1.m512"})
    assert await text_of(same, 400) == "When resizing, instances must change flavor!"
    assert "could not be found" in await text_of(
        await api.act(server, "resize", {"flavorRef": "m1.tiny"}), 400
    )
    answer = await api.act(server, "resize", {"flavorRef": "c2.m2048"}, who="member")
    assert (await states(api, server))[::2] == ("RESIZE", "resize_migrating")
    assert (await api.played(answer))["outcome"] == "completed"
    resized = await shown(api, server, version="2.47")
    assert (resized["status"], resized["OS-EXT-SRV-ATTR:host"]) == ("VERIFY_RESIZE", OTHER)
    assert resized["flavor"]["original_name"] == "c2.m2048"
    assert (await api.ask("GET", path, version="2.89")).status == 409, "both hosts have it"

    back = await api.act(server, "revertResize", who="member")
    assert (back.status, (await states(api, server))[0]) == (202, "REVERT_RESIZE")
    assert (await api.played(back))["outcome"] == "completed"
    assert (await shown(api, server))["flavor"] == {"id": "c1.m512", "links": []}

    await api.played(await api.act(server, "migrate", {"host": OTHER}))
    done = await api.act(server, "confirmResize", who="member")
    assert (done.status, await done.text()) == (204, "")
    assert (await api.played(done))["outcome"] == "completed"
    found = await shown(api, server)
    assert (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", OTHER)
    assert (await api.ask("GET", path, version="2.89")).status == 200


async def test_an_evacuation_needs_a_fenced_host_and_ends_stopped_from_2_95(api: Api) -> None:
    server, _ = await with_volume(api)
    assert await text_of(await api.act(server, "evacuate", {}), 400) == (
        f"Compute service of {HOST} is still in use. Fence it first, with the evidence that "
        "nothing on it accesses volumes any more."
    )
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    answer = await api.act(server, "evacuate", {})
    assert (answer.status, await answer.text()) == (200, "")
    assert (await states(api, server))[::2] == ("REBUILD", "rebuilding")
    await api.played(answer, until="spawn")
    [command] = await api.commands(host=OTHER)
    assert command["guest"]["running"] is False
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await shown(api, server))["OS-EXT-SRV-ATTR:host"] == OTHER


async def test_an_old_evacuation_answers_the_password(api: Api) -> None:
    server, _ = await with_volume(api)
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    body = {"onSharedStorage": False, "adminPass": "secret"}
    answer = await api.act(server, "evacuate", body, version="2.13")
    assert (answer.status, await answer.json()) == (200, {"adminPass": "secret"})


async def test_shelving_offloads_at_once_and_unshelving_finds_a_host(api: Api) -> None:
    server, volume = await with_volume(api)
    answer = await api.act(server, "shelve", who="member")
    assert (await states(api, server))[::2] == ("ACTIVE", "shelving_offloading")
    assert (await api.played(answer))["outcome"] == "completed"
    assert await states(api, server) == ("SHELVED_OFFLOADED", "shelved_offloaded", None)
    assert await text_of(await api.act(server, "shelveOffload"), 409) == (
        f"Cannot 'shelveOffload' instance {server} while it is in vm_state shelved_offloaded"
    )
    more = api.volume()
    attached = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    for action, answer in {
        "attach": await api.attach(server, more, "2.19"),
        "detach": await api.ask("DELETE", attached, version="2.19"),
    }.items():
        assert await text_of(answer, 409) == (
            f"Cannot '{action}_volume' instance {server} while it is in vm_state shelved_offloaded"
        )
    assert (await api.attach(server, more, "2.20")).status == 200, "it is reserved, no more"
    assert api.cinder.volume(more).status == api.cinder.volume(volume).status == "reserved"
    refused = await api.act(server, "unshelve", {"host": OTHER}, who="member")
    assert refused.status == 403
    answer = await api.act(server, "unshelve", who="member")
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await shown(api, server))["status"] == "ACTIVE"
    hosts = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    assert {row["host"] for row in hosts} <= {HOST, OTHER}
    assert len(hosts) == 2


# -------------------------------------------------------------------------------- delete


async def test_a_deleted_server_is_gone_and_its_volumes_still_answer_cinder(api: Api) -> None:
    """CVE-2023-2088: as long as a host may have the volume, a user must not delete that.

    The server itself says until then that it is being deleted: clients take 404 for a sign that
    its volumes are free, and delete those next.
    """
    server, volume = await with_volume(api)
    path = f"/v2.1/servers/{server}"
    answer = await api.ask("DELETE", path, "member")
    assert (answer.status, await answer.text()) == (204, "")
    going = await shown(api, server)
    assert (going["status"], going["OS-EXT-STS:task_state"]) == ("ACTIVE", "deleting")
    assert going["OS-EXT-STS:vm_state"] == "active"
    for gone in ("/os-volume_attachments", "/migrations"):
        assert (await api.ask("GET", path + gone, version="2.89")).status == 404, gone
    assert (await api.act(server, "os-stop")).status == 404
    assert (await api.get("/v2.1/servers"))["servers"] == []
    one = f"{path}/os-volume_attachments/{volume}"
    kept = (await api.get(one, "member", version="2.89"))["volumeAttachment"]
    assert kept["attachment_id"]
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.ask("GET", one, "member", version="2.89")).status == 404
    assert (await api.ask("GET", path)).status == 404
    assert (await api.ask("DELETE", path)).status == 404


async def test_a_deletion_that_nobody_works_on_does_not_keep_its_server_in_sight(api: Api) -> None:
    server, _ = await with_volume(api)
    path = f"/v2.1/servers/{server}"
    answer = await api.ask("DELETE", path, "member")
    [command] = await api.commands()
    assert (await shown(api, server))["OS-EXT-STS:task_state"] == "deleting"
    error = {"kind": "final", "code": "busy", "message": "the guest does not end"}
    await api.report(command, "remove", error=error)
    assert (await api.finished(answer))["state"] == "parked"
    assert (await api.ask("GET", path)).status == 404


# ------------------------------------------------------------------------------- refusals


async def test_moves_are_the_operators_and_the_rest_is_the_members(api: Api) -> None:
    server, _ = await with_volume(api)
    head = await api.head()
    for name in ("os-migrateLive", "migrate", "evacuate", "shelveOffload"):
        assert "Policy doesn't allow" in await text_of(
            await api.act(server, name, {}, "member"), 403
        )
    assert (await api.act(server, "os-stop", who="reader")).status == 403
    assert (await api.act(server, "os-stop", who="stranger")).status == 404
    assert await api.head() == head


LIVE = {"host": OTHER, "block_migration": False}

BODIES: list[tuple[str, str, Any, bool]] = [
    ("os-migrateLive", "2.24", {**LIVE, "disk_over_commit": False}, True),
    ("os-migrateLive", "2.24", LIVE, False),
    ("os-migrateLive", "2.25", {**LIVE, "disk_over_commit": False}, False),
    ("os-migrateLive", "2.25", {**LIVE, "block_migration": "auto"}, True),
    ("os-migrateLive", "2.29", {**LIVE, "force": True}, False),
    ("os-migrateLive", "2.30", {**LIVE, "force": True}, True),
    ("os-migrateLive", "2.68", {**LIVE, "force": True}, False),
    ("os-migrateLive", "2.68", {"block_migration": False}, False),
    ("os-migrateLive", "2.68", None, False),
    ("migrate", "2.55", {"host": OTHER}, False),
    ("migrate", "2.56", {"host": OTHER}, True),
    ("migrate", "2.1", None, True),
    ("resize", "2.1", {}, False),
    ("resize", "2.1", {"flavorRef": "c9.m99", "OS-DCF:diskConfig": "AUTO"}, True),
    ("reboot", "2.1", {"type": "warm"}, False),
    ("reboot", "2.1", None, False),
    ("rebuild", "2.1", {}, False),
    ("suspend", "2.1", None, False),
    ("os-resetState", "2.1", {"state": "error"}, True),
    ("os-resetState", "2.1", {"state": "shelved"}, False),
    ("os-resetState", "2.1", {"state": "error", "why": "x"}, False),
    ("os-resetState", "2.1", None, False),
    ("lock", "2.1", None, True),
    ("lock", "2.72", {"locked_reason": "mine"}, False),
    ("lock", "2.73", {"locked_reason": "mine"}, True),
    ("lock", "2.73", {"locked_reason": ""}, False),
    ("lock", "2.73", {"locked_reason": "r" * 256}, False),
    ("lock", "2.73", {"reason": "mine"}, False),
    ("os-start", "2.1", None, False),  # 409: it runs
]


async def test_bodies_that_a_microversion_has_not_are_refused_whole(api: Api) -> None:
    await api.two_hosts(server := guest())
    head = await api.head()
    for name, version, body in (row[:3] for row in BODIES if not row[3]):
        answer = await api.act(server["server_id"], name, body, version=version)
        assert answer.status == (409 if name == "os-start" else 400), (name, version, body)
        assert await api.head() == head


async def test_bodies_that_a_microversion_has_are_taken(api: Api) -> None:
    for name, version, body in (row[:3] for row in BODIES if row[3]):
        await api.two_hosts(server := guest())
        head = await api.head()
        answer = await api.act(server["server_id"], name, body, version=version)
        assert answer.status == 202, (name, version, body, await answer.text())
        assert await api.head() > head, (name, version, body)


async def test_a_request_with_the_same_key_is_the_same_operation(api: Api) -> None:
    """Even though the emptiest host has become another one meanwhile."""
    server, _ = await with_volume(api)
    key = {"Idempotency-Key": "once"}
    first = await api.act(server, "migrate", **key)
    await api.register(guest(), guest(), host=OTHER)
    again = await api.act(server, "migrate", **key)
    name = "X-Attachment-Ledger-Operation"
    assert (first.status, first.headers[name]) == (again.status, again.headers[name])
