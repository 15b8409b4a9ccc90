"""What of a server is changed without an operation: name, metadata, tags, lock, shown state."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from yarl import URL

from tests.service.api_world import NEWEST, OTHER, Api, guest
from tests.service.test_api_v1 import parked_detach
from tests.service.test_console import shown as page_of

WORDS = {
    "name": "web \u20ac",
    "description": "ours",
    "accessIPv4": "192.0.2.1",
    "accessIPv6": "0000:0000:0000:0000:0000:babe:220.12.22.2",
    "OS-DCF:diskConfig": "AUTO",
    "hostname": "web.example.org",
}
SHOWN = {
    "name": "web \u20ac",
    "description": "ours",
    "accessIPv4": "192.0.2.1",
    "accessIPv6": "::babe:dc0c:1602",
    "OS-DCF:diskConfig": "AUTO",
    "OS-EXT-SRV-ATTR:hostname": "web.example.org",
}


async def show(api: Api, server: str, version: str = NEWEST, who: str = "member") -> dict[str, Any]:
    found = await api.get(f"/v2.1/servers/{server}", who, version=version)
    return dict(found["server"])


async def put(
    api: Api, server: str, given: Any, version: str = NEWEST, who: str = "member"
) -> tuple[int, Any]:
    answer = await api.ask("PUT", f"/v2.1/servers/{server}", who, version, json={"server": given})
    body = await answer.json()
    return answer.status, body.get("server") or next(iter(body.values()))["message"]


async def test_what_is_changed_is_shown_and_what_is_not_said_stays(api: Api) -> None:
    server = await api.server()
    assert await put(api, server, {}) == (200, await show(api, server))
    status, changed = await put(api, server, WORDS)
    assert (status, changed) == (200, await show(api, server))
    assert {name: changed[name] for name in SHOWN} == SHOWN
    await put(api, server, {"description": None, "accessIPv6": ""})
    after = {**SHOWN, "description": None, "accessIPv6": ""}
    now = await show(api, server)
    assert {name: now[name] for name in SHOWN} == after
    await api.changes(guest(server_id=server, power_state="shutdown"))  # its host has its own name
    now = await show(api, server, who="admin")
    assert (now["status"], now["name"]) == ("SHUTOFF", SHOWN["name"])
    assert now["OS-EXT-SRV-ATTR:instance_name"] == "vm"
    [listed] = (await api.get("/v2.1/servers", "member"))["servers"]
    assert listed["name"] == SHOWN["name"]


async def test_below_2_75_the_answer_to_a_change_has_what_novas_has(api: Api) -> None:
    """tempest's schema of it takes nothing else."""
    server = await api.server()
    _, changed = await put(api, server, {}, "2.1", "admin")
    assert set(changed) == {
        *("id", "name", "status", "image", "flavor", "user_id", "tenant_id", "created", "updated"),
        *("metadata", "links", "addresses", "hostId", "progress"),
        *("OS-DCF:diskConfig", "accessIPv4", "accessIPv6"),
    }
    _, changed = await put(api, server, {}, "2.74", "admin")
    assert "OS-EXT-STS:vm_state" not in changed
    _, changed = await put(api, server, {}, "2.75", "admin")
    assert changed == await show(api, server, "2.75", "admin")


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"name": ""}, NEWEST, "name"),
    ({"name": "a" * 256}, NEWEST, "name"),
    ({"name": " a"}, NEWEST, "name"),
    ({"name": None}, NEWEST, "name"),
    ({"name": 12345}, NEWEST, "name"),
    ({"description": "mine"}, "2.18", "'description' was unexpected"),
    ({"description": "d" * 256}, NEWEST, "description"),
    ({"accessIPv4": "192.0.2.256"}, NEWEST, "accessIPv4"),
    ({"accessIPv4": "2001:db8::1"}, NEWEST, "accessIPv4"),
    ({"accessIPv4": ["192.0.2.1"]}, NEWEST, "accessIPv4"),
    ({"accessIPv6": "192.0.2.1"}, NEWEST, "accessIPv6"),
    ({"accessIPv6": "fe80::1%x"}, NEWEST, "accessIPv6"),
    ({"OS-DCF:diskConfig": "auto"}, NEWEST, "diskConfig"),
    ({"hostname": "web"}, "2.89", "'hostname' was unexpected"),
    ({"hostname": "web.example.org"}, "2.93", "Invalid hostname"),
    ({"hostname": "web_1 "}, NEWEST, "Invalid hostname"),
    ({"pinned_availability_zone": "nova"}, NEWEST, "'pinned_availability_zone' is not supported"),
    ({"metadata": {"a": "b"}}, NEWEST, "'metadata' was unexpected"),
    ({"status": "ACTIVE"}, NEWEST, "'status' was unexpected"),
]


async def test_what_cannot_be_changed_is_refused_by_name(api: Api) -> None:
    server = await api.server()
    head = await api.head()
    for given, version, why in BAD:
        status, text = await put(api, server, given, version)
        assert status == 400, given
        assert why in text, given
    for who, where, status in (("stranger", server, 404), ("reader", server, 403)):
        assert (await put(api, where, {"name": "x"}, who=who))[0] == status
    assert (await put(api, OTHER, {"name": ""}))[0] == 404
    answer = await api.ask("PUT", f"/v2.1/servers/{server}", json={"name": "x"})
    assert answer.status == 400
    assert await api.head() == head


async def test_a_new_server_keeps_what_can_be_changed_later(api: Api) -> None:
    await api.register()
    root = api.volume(bootable=True)
    asked = {
        **WORDS,
        "flavorRef": "c1.m512",
        "networks": "none",
        "block_device_mapping_v2": [{"boot_index": 0, "uuid": root, "source_type": "volume"}],
    }
    answer = await api.ask("POST", "/v2.1/servers", "member", NEWEST, json={"server": asked})
    made = (await answer.json())["server"]
    assert (answer.status, made["OS-DCF:diskConfig"]) == (202, "AUTO")
    shown = await show(api, made["id"])
    assert {name: shown[name] for name in SHOWN} == SHOWN


async def test_a_resize_says_how_the_disk_is_to_be_shown(api: Api) -> None:
    moving = guest()
    await api.two_hosts(moving)
    server = moving["server_id"]
    for asked, shown in (({}, "MANUAL"), ({"OS-DCF:diskConfig": "AUTO"}, "AUTO")):
        answer = await api.act(server, "resize", {"flavorRef": "c2.m1024", **asked}, "member")
        assert answer.status == 202, await answer.text()
        assert (await show(api, server))["OS-DCF:diskConfig"] == shown
        assert (await api.played(answer))["outcome"] == "completed"
        assert (await api.played(await api.act(server, "revertResize")))["outcome"] == "completed"


async def test_a_progress_is_told_where_nova_tells_one(api: Api) -> None:
    server = await api.server()
    assert (await show(api, server))["progress"] == 0
    await api.changes(guest(server_id=server, power_state="shutdown"))
    assert "progress" not in await show(api, server)


# ------------------------------------------------------------------- metadata and tags


async def test_metadata_is_added_set_replaced_and_deleted(api: Api) -> None:
    server = await api.server()
    path = f"/v2.1/servers/{server}/metadata"
    own = {"attachment-ledger:shown_by_host": "true"}

    async def ask(method: str, key: str = "", body: Any = None, who: str = "member") -> Any:
        sent = {} if body is None else {"json": body}
        answer = await api.ask(method, path + key, who, **sent)
        return answer.status, await answer.json() if answer.status == 200 else None

    given: Any = {"metadata": {"a": "1", "b": "2"}}
    assert await ask("POST", body=given) == (200, {"metadata": {"a": "1", "b": "2", **own}})
    assert await ask("POST", body={"metadata": {"b": "3"}}) == (
        200,
        {"metadata": {"a": "1", "b": "3", **own}},
    )
    assert await ask("PUT", "/c", {"meta": {"c": "4"}}) == (200, {"meta": {"c": "4"}})
    assert await ask("DELETE", "/b") == (204, None)
    assert (await show(api, server))["metadata"] == {"a": "1", "c": "4", **own}
    assert await ask("PUT", body={"metadata": {"d": ""}}) == (200, {"metadata": {"d": "", **own}})
    head = await api.head()
    many = {f"k{number}": "v" for number in range(129)}
    for method, key, body, status in (
        ("DELETE", "/b", None, 404),
        ("DELETE", "/attachment-ledger:shown_by_host", None, 400),
        ("PUT", "/c", {"meta": {"other": "4"}}, 400),
        ("PUT", "/c", {"meta": {"c": "4", "d": "5"}}, 400),
        ("PUT", "/c", {"meta": {}}, 400),
        ("POST", "", {"metadata": {"": "1"}}, 400),
        ("POST", "", {"metadata": {"k" * 256: "1"}}, 400),
        ("POST", "", {"metadata": {"k": "v" * 256}}, 400),
        ("POST", "", {"metadata": {"k": None}}, 400),
        ("POST", "", {"metadata": own}, 400),
        ("PUT", "", {"a": "1"}, 400),
        ("POST", "", {"metadata": many}, 403),
        ("PUT", "", {"metadata": many}, 403),
    ):
        assert (await ask(method, key, body))[0] == status, (method, key, body)
    assert (await ask("POST", body=given, who="stranger"))[0] == 404
    assert (await ask("POST", body=given, who="reader"))[0] == 403
    assert await api.head() == head


async def test_the_address_of_a_new_tag_leads_to_it(api: Api) -> None:
    server = await api.server()
    for tag in ("a b", "caf\u00e9", "50%", "who?#1"):
        path = URL(f"/v2.1/servers/{server}/tags/{quote(tag)}", encoded=True)
        where = (await api.ask("PUT", path, version=NEWEST)).headers["Location"]
        there = URL(where.partition("127.0.0.1")[2].partition("/")[2], encoded=True)
        assert where.isascii(), where
        found = await api.ask("GET", URL(f"/{there}", encoded=True), version=NEWEST)
        assert found.status == 204, where


async def test_tags_are_replaced_added_looked_for_and_deleted(api: Api) -> None:
    server = await api.server()
    path = f"/v2.1/servers/{server}/tags"

    async def ask(method: str, tag: str = "", body: Any = None, version: str = "2.26") -> Any:
        sent = {} if body is None else {"json": body}
        answer = await api.ask(method, path + tag, "member", version, **sent)
        return answer.status, await answer.json() if answer.status == 200 else None

    for method, tag, body, wanted in (
        ("PUT", "", {"tags": ["a", "b", "a"]}, (200, {"tags": ["a", "b"]})),
        ("PUT", "/c", None, (201, None)),
        ("PUT", "/c", None, (204, None)),
        ("GET", "/c", None, (204, None)),
        ("DELETE", "/a", None, (204, None)),
        ("DELETE", "/a", None, (404, None)),
        ("GET", "/a", None, (404, None)),
        ("PUT", "/" + "t" * 61, None, (400, None)),
        ("PUT", "/a,b", None, (400, None)),
        ("PUT", "", {"tags": ["a/b"]}, (400, None)),
        ("PUT", "", {"tags": [f"t{number}" for number in range(51)]}, (400, None)),
        ("GET", "", None, (200, {"tags": ["b", "c"]})),
        ("DELETE", "", None, (204, None)),
        ("GET", "", None, (200, {"tags": []})),
    ):
        assert await ask(method, tag, body) == wanted, (method, tag, body)
    for method, tag in (("PUT", "/a"), ("GET", "/a"), ("DELETE", "/a"), ("DELETE", "")):
        assert (await ask(method, tag, version="2.25"))[0] == 404, method


# ------------------------------------------------------------------------------- locks


async def test_a_locked_server_is_changed_by_operators_alone(api: Api) -> None:
    server, volume = await api.attached()
    other = api.volume()
    assert not (await show(api, server))["locked"]
    assert (await api.act(server, "lock", {"locked_reason": "mine"}, "member")).status == 202
    shown = await show(api, server, "2.73")
    assert (shown["locked"], shown["locked_reason"]) == (True, "mine")
    shown = await show(api, server, "2.72")
    assert shown["locked"] is True
    assert "locked_reason" not in shown
    page, row = [await page_of(api, f"/ui/servers{path}") for path in (f"/{server}", "")]
    assert "Locked" in page.text
    assert "mine" in page.text
    assert ", locked" in row.text
    head = await api.head()
    volumes = f"/v2.1/servers/{server}/os-volume_attachments"
    for method, path, body in (
        ("POST", volumes, {"volumeAttachment": {"volumeId": other}}),
        ("DELETE", f"{volumes}/{volume}", None),
        ("POST", f"/v2.1/servers/{server}/action", {"os-stop": None}),
        ("POST", f"/v2.1/servers/{server}/action", {"reboot": {"type": "HARD"}}),
        ("POST", f"/v2.1/servers/{server}/action", {"rebuild": {"imageRef": ""}}),
        ("POST", f"/v2.1/servers/{server}/metadata", {"metadata": {"a": "1"}}),
        ("DELETE", f"/v2.1/servers/{server}", None),
    ):
        answer = await api.ask(method, path, "member", NEWEST, json=body)
        assert answer.status == 409, (method, path)
        assert await answer.json() == {
            "conflictingRequest": {"code": 409, "message": f"Instance {server} is locked"}
        }
    assert await api.head() == head
    assert (await put(api, server, {"name": "still"}))[0] == 200
    assert (await api.act(server, "os-stop", who="operator")).status == 202


async def test_what_an_operator_locked_a_member_does_not_unlock(api: Api) -> None:
    server = await api.server()
    for who in ("stranger", "reader"):
        assert (await api.act(server, "lock", who=who)).status in {403, 404}
    assert (await api.act(server, "lock", who="operator")).status == 202
    refused = await api.act(server, "unlock", who="member")
    assert refused.status == 403
    assert "os_compute_api:os-lock-server:unlock:unlock_override" in await refused.text()
    assert (await api.act(server, "lock", who="member")).status == 202
    assert (await api.act(server, "unlock", who="member")).status == 403
    assert (await api.act(server, "unlock", who="operator")).status == 202
    assert not (await show(api, server))["locked"]
    assert (await api.act(server, "lock", who="member")).status == 202
    assert (await api.act(server, "unlock", who="operator")).status == 202
    assert (await api.act(server, "os-stop", who="member")).status == 202


async def test_a_live_migration_of_a_locked_server_is_not_aborted(api: Api) -> None:
    """Nova: live_migrate_abort has check_instance_lock."""
    moving = guest()
    await api.two_hosts(moving)
    server = moving["server_id"]
    body = {"host": OTHER, "block_migration": False}
    assert (await api.act(server, "os-migrateLive", body)).status == 202
    [row] = (await api.get("/v2.1/os-migrations"))["migrations"]
    assert (await api.act(server, "lock", who="operator")).status == 202
    path = f"/v2.1/servers/{server}/migrations/{row['id']}"
    assert (await api.ask("DELETE", path, "manager", "2.24")).status == 409
    assert (await api.ask("DELETE", path, "operator", "2.24")).status == 202


# ------------------------------------------------------------------------------- state


async def test_a_state_is_set_by_operators_and_a_flow_takes_it_away(api: Api) -> None:
    server, _ = await api.attached()
    assert (await api.act(server, "os-resetState", {"state": "error"}, "member")).status == 403
    assert (await api.act(server, "os-resetState", {"state": "error"})).status == 202
    shown = await show(api, server)
    assert (shown["status"], shown["OS-EXT-STS:vm_state"]) == ("ERROR", "error")
    assert "operator" in shown["fault"]["message"]
    assert [
        s["id"] for s in (await api.get("/v2.1/servers?status=ERROR", "member"))["servers"]
    ] == [server]
    assert (await api.act(server, "os-resetState", {"state": "active"})).status == 202
    shown = await show(api, server)
    assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
    await api.act(server, "os-resetState", {"state": "error"})
    answer = await api.act(server, "reboot", {"type": "HARD"}, "member")
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await show(api, server))["status"] == "ACTIVE"


async def test_an_error_that_is_taken_off_leaves_its_operation_parked(api: Api) -> None:
    server, _, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}"
    assert (await show(api, server))["status"] == "ERROR"
    assert (await api.act(server, "os-resetState", {"state": "active"})).status == 202
    assert (await show(api, server))["status"] == "ACTIVE"
    again = await api.get(path)
    assert (again["state"], again["acts"]) == ("parked", parked["acts"])
    assert (await api.act(server, "os-stop", who="member")).status == 202  # as before (0054)
