"""/v1: servers that are built, refreshed, converted; boot volumes (S2) at our own version."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from aggregates import errors
from ledger.native import accepting
from ledger.native.placement import choose_host
from tests.service.api_world import HOST, OTHER, PROJECT, Api, guest

OURS = "2.105"


async def built(api: Api, *disks: dict[str, Any], who: str = "member", **more: Any) -> Any:
    await api.register()
    body = {"name": "web", "vcpus": 2, "memory_mb": 1024, "disks": list(disks), **more}
    return await api.ask("POST", "/v1/servers", who, json=body)


async def booted(api: Api) -> tuple[str, str]:
    """A running server with a root volume."""
    volume = api.volume(bootable=True)
    answer = await built(api, {"volume_id": volume, "boot_index": 0})
    assert answer.status == 202, await answer.text()
    assert (await api.played(answer))["outcome"] == "completed"
    return (await answer.json())["server_id"], volume


# ---------------------------------------------------------------------------------- build


async def test_a_server_is_built_with_volumes_that_are_there_and_new_ones(api: Api) -> None:
    root = api.volume(bootable=True)
    answer = await built(
        api,
        {"volume_id": root, "boot_index": 0, "delete_on_termination": True},
        {"create": {"size_gb": 3, "name": "data"}, "tag": "data"},
    )
    assert answer.status == 202, await answer.text()
    accepted = await answer.json()
    assert answer.headers["X-Attachment-Ledger-Operation"].endswith(accepted["operation_id"])
    path = f"/v2.1/servers/{accepted['server_id']}"
    shown = (await api.get(path, "member", version="2.47"))["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("BUILD", "spawning")
    assert (shown["name"], shown["tenant_id"]) == ("web", PROJECT)
    assert shown["flavor"]["original_name"] == "c2.m1024"
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.get(path))["server"]["status"] == "ACTIVE"
    rows = (await api.get(f"{path}/os-volume_attachments", version=OURS))["volumeAttachments"]
    assert [(row["boot_index"], row["tag"], row["delete_on_termination"]) for row in rows] == [
        (0, None, True),
        (None, "data", False),
    ]
    made = api.cinder.volume(rows[1]["volumeId"])
    assert (made.size, made.project_id, made.multiattach) == (3, PROJECT, False)


async def test_a_build_repeated_with_its_key_is_the_same_server(api: Api) -> None:
    await api.register(host=OTHER)
    key = {"Idempotency-Key": "web-1"}
    body = {"name": "web", "kernel": "/boot/vmlinuz"}  # of the host: it needs no disk
    await api.register()
    first = await api.ask("POST", "/v1/servers", json=body, headers=key)
    await api.register(guest(), guest())
    again = await api.ask("POST", "/v1/servers", json=body, headers=key)
    assert await first.json() == await again.json()
    other = await api.ask("POST", "/v1/servers", json={**body, "name": "db"}, headers=key)
    assert other.status == 422


async def test_a_failed_build_is_a_server_in_error(api: Api) -> None:
    answer = await built(api, {"volume_id": api.volume()})
    [command] = await api.commands()
    error = {"kind": "final", "code": "no_connector", "message": "no initiator name"}
    await api.report(command, command["steps"][0]["name"], error=error)
    assert (await api.played(answer))["outcome"] == "failed"
    shown = (await api.get(f"/v2.1/servers/{(await answer.json())['server_id']}"))["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("ERROR", None)
    assert "no initiator name" in shown["fault"]["message"]


async def test_what_is_on_hosts_or_was_anothers_is_not_a_members_to_name(api: Api) -> None:
    await api.register()
    head = await api.head()
    for more in (
        {"host": HOST},
        {"kernel": "/boot/vmlinuz"},
        {"initrd": "/etc/shadow"},
        {"disks": [{"create": {"size_gb": 1, "image_id": str(uuid4())}}]},
    ):
        answer = await api.ask("POST", "/v1/servers", "member", json={"name": "web", **more})
        assert (more, answer.status) == (more, 403)
        assert (await api.get("/v2.1/servers"))["servers"] == []
        assert await api.head() == head, more


NO_BUILDS: list[tuple[list[Any], dict[str, Any]]] = [
    ([{}], {}),
    ([{"volume_id": str(uuid4()), "create": {"size_gb": 1}}], {}),
    ([{"create": {"size_gb": 0}}], {}),
    ([{"create": {"size_gb": 1}, "boot_index": 0}] * 2, {}),
    ([{"create": {"size_gb": 1}}] * 27, {}),
    ([], {"name": ""}),
    ([], {"vcpus": 0}),
    ([], {"firmware": "openfirmware"}),
    ([], {"flavor": "m1.tiny"}),
]


async def test_builds_that_are_none(api: Api) -> None:
    for disks, more in NO_BUILDS:
        answer = await built(api, *disks, **more)
        assert (answer.status, (await answer.json())["code"]) == (400, "invalid"), (disks, more)


async def test_a_server_that_has_nothing_to_boot_from_is_not_built(api: Api) -> None:
    answer = await built(api)
    assert (answer.status, (await answer.json())["code"]) == (400, "no_disks")
    assert (await api.get("/v2.1/servers"))["servers"] == []


async def test_a_shared_volume_is_not_built_in_on_a_host_that_cannot_share(api: Api) -> None:
    """S3, and nothing is reserved for a server that does not come to be."""
    shared = api.volume(multiattach=True)
    await api.register(host=OTHER, capabilities={"multiattach": False})
    body = {"name": "web", "host": OTHER, "disks": [{"volume_id": shared}]}
    refused = await api.ask("POST", "/v1/servers", json=body)
    assert (refused.status, (await refused.json())["code"]) == (400, "multiattach_host")
    assert (await api.get("/v2.1/servers"))["servers"] == []
    assert api.cinder.attachments_of(shared) == []
    assert (await built(api, {"volume_id": shared}, who="admin", host=HOST)).status == 202


async def test_what_is_another_project_s_is_not_built_in(api: Api) -> None:
    theirs = api.volume(project_id="another-project")
    for disk in (
        {"volume_id": theirs},
        {"create": {"size_gb": 1, "snapshot_id": api.cinder.add_snapshot(theirs).id}},
    ):
        assert (await built(api, disk)).status == 404


# -------------------------------------------------------------------------------- S2: roots


async def test_a_root_volume_is_detached_and_attached_again_while_stopped(api: Api) -> None:
    server, volume = await booted(api)
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    old = await api.ask("DELETE", f"{path}/{volume}", version="2.104")
    assert (old.status, (await old.json())["badRequest"]["message"]) == (
        400,
        "Cannot detach a root device volume",
    )
    runs = await api.ask("DELETE", f"{path}/{volume}", version=OURS)
    assert runs.status == 403
    assert (await runs.json())["forbidden"]["message"].startswith("Can't detach root device volume")
    await api.played(await api.act(server, "os-stop"))
    detach = await api.ask("DELETE", f"{path}/{volume}", "member", version=OURS)
    assert detach.status == 202, await detach.text()
    assert (await api.played(detach))["outcome"] == "completed"
    for version in ("2.1", OURS):
        assert (await api.get(path, version=version))["volumeAttachments"] == []
    await refused_for_its_root(api, server)
    other = api.volume(bootable=True)
    attach = await api.attach(server, other, OURS, who="member", is_root=True)
    assert (attach.status, await attach.text()) == (202, "")
    assert (await api.played(attach))["outcome"] == "completed"
    shown = (await api.get(f"{path}/{other}", version=OURS))["volumeAttachment"]
    assert (shown["boot_index"], shown["device"]) == (0, "/dev/vda")
    assert (
        "boot_index" not in (await api.get(f"{path}/{other}", version="2.104"))["volumeAttachment"]
    )
    assert (await api.act(server, "os-start")).status == 202


async def refused_for_its_root(api: Api, server: str) -> None:
    """The answer says how the server gets one, by a client that knows Nova's API alone."""
    how = f"`openstack server add volume --device /dev/vda {server} VOLUME`."
    why = "Can't start instance without a root device volume. Attach one by the root's device name"
    start = await api.act(server, "os-start")
    assert (start.status, (await start.json())["forbidden"]["message"]) == (
        403,
        f"{why}: {how}",
    )


@pytest.mark.parametrize("version", [OURS, "2.1", "2.104"])
async def test_a_root_volume_is_attached_by_its_device_name_at_every_version(
    api: Api, version: str
) -> None:
    """The unmodified client cannot say `is_root`: a bootable volume that is not named is data."""
    server, volume = await booted(api)
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    await api.played(await api.act(server, "os-stop"))
    await api.played(await api.ask("DELETE", f"{path}/{volume}", version=OURS))
    data = api.volume(bootable=True)
    await api.played(await api.attach(server, data, version, who="member"))
    await refused_for_its_root(api, server)
    attach = await api.attach(server, volume, version, who="member", device="/dev/vda")
    assert attach.ok, await attach.text()
    if version == "2.1":  # from 2.101 on there is no body
        assert (await attach.json())["volumeAttachment"]["device"] == "/dev/vda"
    assert (await api.played(attach))["outcome"] == "completed"
    rows = (await api.get(path, version=OURS))["volumeAttachments"]
    assert {(row["volumeId"], row["device"], row["boot_index"]) for row in rows} == {
        (data, "/dev/vdb", None),
        (volume, "/dev/vda", 0),
    }
    assert (await api.act(server, "os-start")).status == 202


@pytest.mark.parametrize(
    ("action", "status", "why"),
    [("pause", 403, "root device volume: instance"), ("migrate", 409, "in vm_state resized")],
)
async def test_a_root_volume_stays_where_it_is_in_paused_and_resized(
    api: Api, action: str, status: int, why: str
) -> None:
    server, volume = await booted(api)
    await api.register(host=OTHER)
    assert (await api.played(await api.act(server, action)))["outcome"] == "completed"
    other = api.volume(bootable=True)
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    detach = await api.ask("DELETE", f"{path}/{volume}", version=OURS)
    attach = await api.attach(server, other, OURS, is_root=True)
    for answer in (detach, attach):
        assert answer.status == status
        assert why in await answer.text()
    rows = (await api.get(path, version=OURS))["volumeAttachments"]
    assert [row["volumeId"] for row in rows] == [volume]
    assert api.cinder.attachments_of(other) == []


async def test_a_server_without_its_root_can_leave_a_dead_host(api: Api) -> None:
    """It does not run there, so it needs no root to."""
    server, volume = await booted(api)
    await api.played(await api.act(server, "os-stop"))
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    await api.played(await api.ask("DELETE", f"{path}/{volume}", version=OURS))
    await api.register(host=OTHER)
    dead = {"reason": "no heartbeat", "evidence": "powered off", "force": True}
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", "operator", json=dead)).status == 200
    evacuated = await api.act(server, "evacuate", {"host": OTHER})
    assert evacuated.ok, await evacuated.text()
    assert (await api.played(evacuated))["outcome"] == "completed"
    attach = await api.attach(server, volume, OURS, is_root=True)
    assert attach.ok, await attach.text()
    assert (await api.played(attach))["outcome"] == "completed"


async def test_a_local_disk_is_nothing_that_could_be_detached_or_carried_away(api: Api) -> None:
    """S2: "we will not support detaching ephemeral disks"."""
    server = await api.server(devices=["vda"])
    await api.register(host=OTHER)
    await api.played(await api.act(server, "os-stop"))
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    assert (await api.get(path, version=OURS))["volumeAttachments"] == []
    attach = await api.attach(server, api.volume(bootable=True), OURS, is_root=True)
    assert attach.status == 400
    assert "it was not built to boot from a volume" in await attach.text()
    for action in ("shelve", "migrate"):
        refused = await api.act(server, action)
        assert refused.status == 409
        assert "disks that are not volumes (vda)" in await refused.text()
    in_its_place = await api.attach(server, api.volume(), device="/dev/vda")
    assert in_its_place.status == 409
    assert "(/dev/vda) is in use" in await in_its_place.text()


# ---------------------------------------------------------------------------------- repair


async def test_a_server_is_refreshed_and_all_of_a_host_with_refusals(api: Api) -> None:
    server, _ = await api.attached()
    answer = await api.ask("POST", f"/v1/servers/{server}/refresh", "operator")
    assert answer.status == 202
    every = await api.ask("POST", "/v1/refresh", "operator", json={"host": HOST})
    [refused] = (await every.json())["servers"]
    assert (refused["server_id"], refused["operation_id"]) == (server, None)
    assert answer.headers["X-Attachment-Ledger-Operation"].rpartition("/")[2] in refused["refused"]
    assert (await api.played(answer))["outcome"] == "completed"
    every = await api.ask("POST", "/v1/refresh", "operator", json={})
    body = await every.json()
    assert every.status == 202
    assert body["servers"][0]["operation_id"]
    assert body["next"] is None
    await api.register(host=OTHER)
    nowhere = await api.ask("POST", "/v1/refresh", "operator", json={"host": OTHER})
    assert (await nowhere.json())["servers"] == []
    assert (await api.ask("POST", "/v1/refresh", "member", json={})).status == 403


async def test_who_is_begun_before_cinder_breaks_is_told_and_the_next_page_says_why(
    api: Api,
) -> None:
    servers = sorted(str(uuid4()) for _ in range(3))
    await api.register(*(guest(server_id=id_) for id_ in servers))
    volumes = [api.volume() for _ in servers]
    for server, volume in zip(servers, volumes, strict=True):
        assert (await api.played(await api.attach(server, volume)))["outcome"] == "completed"
    broken = {"call": "volume_show", "do": "fail", "status": 500, "count": 100}
    api.faults.replace([{**broken, "match": {"volume_id": volumes[1]}}])

    async def refresh(**body: Any) -> Any:
        return await api.ask("POST", "/v1/refresh", "operator", json=body)

    page = await (await refresh()).json()
    [begun] = page["servers"]
    assert (begun["server_id"], page["next"]) == (servers[0], servers[0])
    assert (await api.get(f"/v1/operations/{begun['operation_id']}"))["flow"] == "refresh"
    why = await refresh(after=page["next"])
    assert (why.status, (await why.json())["code"]) == (503, "cinder_error")
    api.faults.replace([])
    page = await (await refresh(after=page["next"])).json()
    assert [each["server_id"] for each in page["servers"]] == servers[1:]
    assert page["next"] is None


async def test_a_page_ends_when_it_has_taken_long_and_the_next_one_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before whoever asked has given it up, and knows of nothing that was begun."""
    monkeypatch.setattr(accepting, "PAGE_S", 0.0)
    servers = sorted(str(uuid4()) for _ in range(2))
    await api.register(*(guest(server_id=id_) for id_ in servers))
    for server in servers:
        await api.played(await api.attach(server, api.volume()))
    after: dict[str, str] = {}
    for server in servers:
        answer = await api.ask("POST", "/v1/refresh", "operator", json=after)
        page = await answer.json()
        assert [each["server_id"] for each in page["servers"]] == [server]
        after = {"after": page["next"]}
    assert page["next"] is None


async def test_only_what_the_old_calls_attached_is_converted(api: Api) -> None:
    server, _ = await api.attached()
    answer = await api.ask("POST", f"/v1/servers/{server}/convert")
    assert (answer.status, (await answer.json())["code"]) == (400, "not_legacy")


async def test_an_old_agent_anywhere_means_the_old_flow_and_hidden_ids(api: Api) -> None:
    """S1: the new flow only when all hosts know it."""
    server, volume = await api.server(), api.volume()
    await api.register(host=OTHER, service_version=0)
    answer = await api.attach(server, volume)
    assert answer.status == 200, await answer.text()
    assert (await api.played(answer))["outcome"] == "completed"
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    assert (await api.get(f"{path}/{volume}", version="2.88"))["volumeAttachment"]
    assert len((await api.get(path, version="2.88"))["volumeAttachments"]) == 1
    assert (await api.get(path, version="2.89"))["volumeAttachments"] == []
    assert (await api.ask("GET", f"{path}/{volume}", version="2.89")).status == 404
    shared = api.volume(multiattach=True)
    assert (await api.attach(server, shared)).status == 409
    await api.register(host=OTHER)
    answer = await api.ask("POST", f"/v1/servers/{server}/convert")
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.get(f"{path}/{volume}", version="2.89"))["volumeAttachment"]["attachment_id"]


# -------------------------------------------------------------------------------- placement

FIT = {
    "host": "a",
    "alive": True,
    "fenced": False,
    "suspect": False,
    "unvouched": None,
    "disabled": False,
    "capabilities": {"migration": {"uri": "u", "address": "a"}},
    "guests": 1,
}


def test_the_emptiest_host_is_chosen_and_of_equals_the_first_by_name() -> None:
    hosts = [{**FIT, "host": name, "guests": n} for name, n in (("c", 1), ("b", 1), ("a", 2))]
    assert choose_host(hosts) == "b"
    assert choose_host(hosts, without="b") == "c"


@pytest.mark.parametrize(
    "flaw",
    [
        {"alive": False},
        {"fenced": True},
        {"suspect": True},
        {"unvouched": True},
        {"disabled": True},
        {"capabilities": {}},
    ],
)
def test_a_host_that_could_not_do_it_is_not_chosen(flaw: dict[str, Any]) -> None:
    with pytest.raises(errors.DomainError, match="No valid host was found"):
        choose_host([{**FIT, **flaw}], migration=True)
    if "capabilities" in flaw:
        assert choose_host([{**FIT, **flaw}]) == "a"
