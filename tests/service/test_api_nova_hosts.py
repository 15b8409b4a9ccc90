"""Nova's calls beside servers: hosts, zones, flavors, limits; and every address of theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from aggregates.host import host_uuid
from ledger.config import Flavor
from ledger.nova.servers.actions import ACTIONS, NOT_HERE
from tests.service.api_world import (
    HOST,
    NEWEST,
    OTHER,
    PROJECT,
    SETTINGS,
    Api,
    guest,
    running_api,
)
from tests.service.test_api_lists import DEFINED

SERVICE = f"/v2.1/os-services/{host_uuid(HOST)}"


async def disabled(api: Api, reason: str | None = "new board") -> Any:
    body = {"status": "disabled"} | ({"disabled_reason": reason} if reason else {})
    answer = await api.ask("PUT", SERVICE, "operator", NEWEST, json=body)
    assert answer.status == 200, await answer.text()
    return (await answer.json())["service"]


async def enabled(api: Api) -> Any:
    answer = await api.ask("PUT", SERVICE, "operator", NEWEST, json={"status": "enabled"})
    assert answer.status == 200, await answer.text()
    return (await answer.json())["service"]


# ------------------------------------------------------------------------------- services


async def test_a_host_is_disabled_and_enabled_and_says_why(api: Api) -> None:
    await api.two_hosts(guest())
    shown = await disabled(api)
    assert (shown["status"], shown["disabled_reason"], shown["state"]) == (
        "disabled",
        "new board",
        "up",
    )
    host = await api.get(f"/v1/hosts/{HOST}")
    assert (host["disabled"], host["disabled_reason"], host["fenced"]) == (True, "new board", False)
    head = await api.head()
    await disabled(api)
    assert await api.head() == head, "the same again is nothing new"
    [one, other] = (await api.get("/v2.1/os-services", version=NEWEST))["services"]
    assert [one["host"], one["status"], other["status"]] == [HOST, "disabled", "enabled"]
    assert (one["binary"], one["zone"], one["forced_down"]) == ("nova-compute", "nova", False)
    again = await enabled(api)
    assert (again["status"], again["disabled_reason"]) == ("enabled", None)
    events = (await api.get(f"/v1/hosts/{HOST}/history"))["events"]
    told = [(each["topic"], each["actor"]) for each in events[-2:]]
    assert told == [("Host.Disabled", "operator"), ("Host.Enabled", "operator")]


async def test_no_server_comes_to_a_disabled_host_and_those_there_stay(api: Api) -> None:
    moved, there = guest(), guest()
    await api.register(there)
    await api.register(moved, host=OTHER)
    await api.projected()
    await disabled(api)
    build = {"name": "web", "vcpus": 1, "memory_mb": 64, "kernel": "/boot/vmlinuz"}
    for who, path, body in (
        ("operator", "/v1/servers", {**build, "host": HOST}),
        ("admin", f"/v2.1/servers/{moved['server_id']}/action", {"migrate": {"host": HOST}}),
        ("admin", f"/v2.1/servers/{moved['server_id']}/action", {"migrate": None}),
    ):
        answer = await api.ask("POST", path, who, "2.95", json=body)
        assert answer.status == 400, (body, await answer.text())
        assert "No valid host was found." in await answer.text()
    named = await api.act(moved["server_id"], "migrate", {"host": HOST})
    assert "it is disabled (new board)" in await named.text()
    volume = api.volume()
    assert (await api.attach(there["server_id"], volume)).status == 200
    await enabled(api)
    assert (await api.act(moved["server_id"], "migrate", {"host": HOST})).status == 202


async def test_services_are_listed_by_host_and_binary(api: Api) -> None:
    await api.two_hosts()
    for query, wanted in (
        (f"host={OTHER}", [OTHER]),
        ("binary=nova-compute", [HOST, OTHER]),
        ("binary=nova-conductor", []),
        ("host=", [HOST, OTHER]),
    ):
        shown = (await api.get(f"/v2.1/os-services?{query}"))["services"]
        assert [each["host"] for each in shown] == wanted, query
    assert "forced_down" not in (await api.get("/v2.1/os-services"))["services"][0]
    assert isinstance(
        (await api.get("/v2.1/os-services", version="2.52"))["services"][0]["id"], int
    )
    assert (await api.ask("GET", "/v2.1/os-services", "member")).status == 403


NOT_TOLD: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("2.53", str(host_uuid(HOST)), {}, 400, "No updates were requested"),
    ("2.53", str(host_uuid(HOST)), {"status": "gone"}, 400, "status"),
    ("2.53", str(host_uuid(HOST)), {"forced_down": True}, 403, "Fence the host with evidence"),
    (
        "2.53",
        str(host_uuid(HOST)),
        {"status": "enabled", "disabled_reason": "x"},
        400,
        "with status 'enabled' is invalid",
    ),
    ("2.53", "disable", {"status": "disabled"}, 400, "Invalid uuid disable"),
    ("2.53", str(host_uuid("nowhere")), {"status": "disabled"}, 404, "not found"),
    ("2.52", "disable", {"host": "nowhere", "binary": "nova-compute"}, 404, "nowhere"),
    ("2.52", "disable", {"host": HOST, "binary": "nova-scheduler"}, 400, "nova-scheduler"),
    ("2.52", "disable-log-reason", {"host": HOST, "binary": "nova-compute"}, 400, "reason"),
    ("2.11", "force-down", {"host": HOST, "binary": "nova-compute"}, 400, "Missing forced_down"),
    ("2.10", "force-down", {"host": HOST, "binary": "nova-compute"}, 404, "Unknown action"),
]


async def test_what_a_service_is_not_told(api: Api) -> None:
    await api.register()
    head = await api.head()
    for version, where, body, status, text in NOT_TOLD:
        answer = await api.ask("PUT", f"/v2.1/os-services/{where}", "admin", version, json=body)
        assert answer.status == status, await answer.text()
        assert text in await answer.text()
        assert await api.head() == head


async def test_old_clients_disable_by_name(api: Api) -> None:
    await api.register()
    body = {"host": HOST, "binary": "nova-compute", "disabled_reason": "dust"}
    path = "/v2.1/os-services/disable-log-reason"
    answer = await api.ask("PUT", path, "admin", "2.1", json=body)
    shown = {
        "host": HOST,
        "binary": "nova-compute",
        "status": "disabled",
        "disabled_reason": "dust",
    }
    assert (await answer.json())["service"] == shown
    assert (await api.get(f"/v1/hosts/{HOST}"))["disabled_reason"] == "dust"
    del body["disabled_reason"]
    assert (
        await api.ask("PUT", "/v2.1/os-services/enable", "admin", "2.1", json=body)
    ).status == 200
    assert not (await api.get(f"/v1/hosts/{HOST}"))["disabled"]


# ---------------------------------------------------------------------------- hypervisors


async def test_hypervisors_show_what_is_known_and_guess_nothing(api: Api) -> None:
    there = guest(name="web", definition=DEFINED.format(512, 2))
    await api.two_hosts(there)
    await api.projected()
    await disabled(api)
    [one, other] = (await api.get("/v2.1/os-hypervisors", version="2.87"))["hypervisors"]
    assert one == {
        "id": str(host_uuid(HOST)),
        "hypervisor_hostname": HOST,
        "state": "up",
        "status": "disabled",
    }
    detail = await api.get("/v2.1/os-hypervisors/detail?with_servers=1", version="2.87")
    [one, other] = detail["hypervisors"]
    assert one["servers"] == [{"uuid": there["server_id"], "name": "web"}]
    assert other["servers"] == []
    assert (one["vcpus_used"], one["memory_mb_used"], one["running_vms"]) == (2, 512, 1)
    assert (one["vcpus"], one["memory_mb"], one["free_ram_mb"]) == (None, None, None)
    assert one["service"]["disabled_reason"] == "new board"
    newer = await api.get(f"/v2.1/os-hypervisors/{host_uuid(HOST)}", version="2.88")
    assert newer["hypervisor"]["uptime"] is None
    assert "vcpus" not in newer["hypervisor"]
    number = (await api.get("/v2.1/os-hypervisors", version="2.52"))["hypervisors"][0]["id"]
    old = await api.get(f"/v2.1/os-hypervisors/{number}", version="2.52")
    assert old["hypervisor"]["hypervisor_hostname"] == HOST


async def test_hypervisors_are_found_and_paged(api: Api) -> None:
    await api.two_hosts()
    pattern = "/v2.1/os-hypervisors?hypervisor_hostname_pattern="
    [found] = (await api.get(f"{pattern}TE-2", version="2.53"))["hypervisors"]
    assert found["hypervisor_hostname"] == OTHER
    first = await api.get("/v2.1/os-hypervisors?limit=1", version="2.53")
    [link] = first["hypervisors_links"]
    second = await api.get("/v2.1" + link["href"].partition("/v2.1")[2], version="2.53")
    assert [each["hypervisor_hostname"] for each in second["hypervisors"]] == [OTHER]
    assert "hypervisors_links" not in second
    for path, version, status in (
        (f"{pattern}none", "2.53", 404),
        (f"{pattern}compute&limit=1", "2.53", 400),
        (f"{pattern}compute", "2.52", 400),
        ("/v2.1/os-hypervisors?limit=1", "2.32", 400),
        ("/v2.1/os-hypervisors?marker=x", "2.53", 400),
        ("/v2.1/os-hypervisors/1", "2.53", 400),
        ("/v2.1/os-hypervisors/1", "2.52", 404),
    ):
        assert (await api.ask("GET", path, version=version)).status == status, path


# ---------------------------------------------------------------- zones, flavors, and more


async def test_the_one_zone_is_available_while_a_host_is_enabled(api: Api) -> None:
    await api.register()
    path = "/v2.1/os-availability-zone"
    [zone] = (await api.get(path, "member"))["availabilityZoneInfo"]
    assert zone == {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None}
    [zone] = (await api.get(f"{path}/detail"))["availabilityZoneInfo"]
    assert zone["hosts"][HOST]["nova-compute"]["available"] is True
    await disabled(api, None)
    [zone] = (await api.get(f"{path}/detail"))["availabilityZoneInfo"]
    assert (zone["zoneState"], zone["hosts"]) == ({"available": False}, None)
    assert (await api.ask("GET", f"{path}/detail", "member")).status == 403


async def test_flavors_are_the_sizes_in_use_of_what_one_may_see(api: Api) -> None:
    sizes = ((512, 1), (2048, 2), (2048, 2), (1024, 4))
    guests = [guest(definition=DEFINED.format(*size)) for size in sizes]
    foreign = guest(project_id="another-project", definition=DEFINED.format(64, 1))
    await api.register(*guests, foreign)
    await api.projected()
    for query, who, wanted in (
        ("", "member", "c1.m512 c2.m2048 c4.m1024"),
        ("", "stranger", "c1.m64"),
        ("sort_key=memory_mb&sort_dir=desc", "member", "c2.m2048 c4.m1024 c1.m512"),
        ("minRam=1024", "member", "c2.m2048 c4.m1024"),
        ("minDisk=1", "member", ""),
        ("is_public=None", "member", "c1.m512 c2.m2048 c4.m1024"),
        ("is_public=False", "member", ""),
        ("name=c4.m1024", "member", "c4.m1024"),
        ("limit=1&marker=c1.m512", "member", "c2.m2048"),
    ):
        for path in ("/v2.1/flavors", "/v2.1/flavors/detail"):
            shown = (await api.get(f"{path}?{query}", who, version=NEWEST))["flavors"]
            assert " ".join(each["id"] for each in shown) == wanted, query
    brief = (await api.get("/v2.1/flavors", "member"))["flavors"][0]
    assert set(brief) == {"id", "name", "links"}
    for query in ("minRam=x", "sort_key=colour", "marker=c9.m9", "is_public=x"):
        assert (await api.ask("GET", f"/v2.1/flavors?{query}", "member")).status == 400, query


FLAVORS = (
    Flavor(name="m1.small", id="2", vcpus=1, memory_mb=2048),
    Flavor(name="m1.also-small", vcpus=1, memory_mb=2048),
    Flavor(name="m1.medium", vcpus=2, memory_mb=4096),
)


async def test_flavors_of_the_settings_are_listed_and_are_sizes_by_other_names(
    database_url: str,
) -> None:
    small, medium = ((DEFINED.format(memory, cpus)) for cpus, memory in ((1, 2048), (2, 4096)))
    one, other, odd = guest(definition=small), guest(definition=medium), guest()
    async with running_api(database_url, replace(SETTINGS, flavors=FLAVORS)) as api:
        await api.register(one, other, odd)
        await api.register(host=OTHER)
        await api.projected()
        for query, wanted in (
            ("", "2 c1.m512 m1.also-small m1.medium"),
            ("?name=m1.small", "2"),
            ("?marker=2&limit=1", "c1.m512"),
            ("?minRam=4096", "m1.medium"),
            ("?sort_key=vcpus&sort_dir=desc", "m1.medium m1.also-small 2 c1.m512"),
        ):
            shown = (await api.get(f"/v2.1/flavors{query}", "member", version=NEWEST))["flavors"]
            assert " ".join(each["id"] for each in shown) == wanted, query
        for key, name, size in (
            ("2", "m1.small", (1, 2048)),
            ("m1.also-small", "m1.also-small", (1, 2048)),
            ("c1.m2048", "c1.m2048", (1, 2048)),
        ):
            found = (await api.get(f"/v2.1/flavors/{key}", "member"))["flavor"]
            assert (found["id"], found["name"], (found["vcpus"], found["ram"])) == (key, name, size)
        assert (await api.ask("GET", "/v2.1/flavors/m1.small", "member")).status == 404
        path = f"/v2.1/servers/{one['server_id']}"
        new = (await api.get(path, "member", version="2.47"))["server"]["flavor"]
        assert (new["original_name"], new["ram"]) == ("m1.small", 2048)
        old = (await api.get(path, "member", version="2.1"))["server"]["flavor"]
        assert old["id"] == "2"
        for key, found in (("2", one), ("m1.also-small", one), ("m1.medium", other)):
            listed = (await api.get(f"/v2.1/servers?flavor={key}", "member"))["servers"]
            assert [each["id"] for each in listed] == [found["server_id"]]
        same = await api.act(one["server_id"], "resize", {"flavorRef": "m1.also-small"})
        assert "must change flavor" in await same.text()
        reference = "http://elsewhere/v2.1/flavors/m1.medium"
        answer = await api.act(one["server_id"], "resize", {"flavorRef": reference})
        assert answer.status == 202, await answer.text()
        assert (await api.played(answer))["outcome"] == "completed"
        new = (await api.get(path, "member", version="2.47"))["server"]["flavor"]
        assert new["original_name"] == "m1.medium"
        disk = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
        body = {"name": "web", "flavorRef": "2", "networks": "none"}
        body["block_device_mapping_v2"] = [{**disk, "boot_index": 0}]  # type: ignore[assignment]
        answer = await api.ask("POST", "/v2.1/servers", "member", NEWEST, json={"server": body})
        assert answer.status == 202, await answer.text()
        made = (await answer.json())["server"]["id"]
        shown = (await api.get(f"/v2.1/servers/{made}", "member", version=NEWEST))["server"]
        assert shown["flavor"]["original_name"] == "m1.small"


async def test_limits_tell_what_a_project_uses(api: Api) -> None:
    guests = [guest(definition=DEFINED.format(512, 2)) for _ in range(2)]
    await api.register(*guests, guest(project_id="another-project"))
    await api.projected()
    shown = (await api.get("/v2.1/limits", "member", version=NEWEST))["limits"]["absolute"]
    used = [shown[f"total{what}Used"] for what in ("Instances", "Cores", "RAM")]
    assert used == [2, 4, 1024]
    assert shown["maxTotalInstances"] == -1
    assert "maxPersonality" not in shown
    assert (await api.ask("GET", "/v2.1/limits?reserved=False", "member")).status == 200
    path = "/v2.1/limits?tenant_id=another-project"
    assert (await api.get(path))["limits"]["absolute"]["totalInstancesUsed"] == 1
    assert (await api.ask("GET", path, "member")).status == 403


async def test_a_server_has_no_addresses_in_any_network(api: Api) -> None:
    path = f"/v2.1/servers/{await api.server()}/ips"
    assert await api.get(path, "member") == {"addresses": {}}
    for gone in (f"{path}/private", f"/v2.1/servers/{uuid4()}/ips"):
        answer = await api.ask("GET", gone, "member")
        assert (answer.status, list(await answer.json())) == (404, ["itemNotFound"]), gone


async def test_a_server_that_its_host_showed_says_so_in_its_metadata(api: Api) -> None:
    server = f"/v2.1/servers/{await api.server()}"
    shown_by = {"attachment-ledger:shown_by_host": "true"}
    assert (await api.get(f"{server}/metadata", "member"))["metadata"] == shown_by
    item = await api.get(f"{server}/metadata/attachment-ledger:shown_by_host", "member")
    assert item == {"meta": shown_by}
    assert (await api.get(f"{server}/tags", "member", version="2.26")) == {"tags": []}
    for path, version in (
        ("metadata/other", "2.26"),
        ("tags", "2.25"),
        ("tags/a", "2.26"),
    ):
        answer = await api.ask("GET", f"{server}/{path}", "member", version)
        assert (answer.status, list(await answer.json())) == (404, ["itemNotFound"]), path


async def test_actions_that_are_not_here_say_why_and_change_nothing(api: Api) -> None:
    server = await api.server()
    assert not set(NOT_HERE) & set(ACTIONS)
    head = await api.head()
    for name, why in NOT_HERE.items():
        answer = await api.act(server, name)
        assert answer.status == 400, name
        assert why in (await answer.json())["badRequest"]["message"]
        assert (await api.act(str(uuid4()), name)).status == 404, name
    assert await api.head() == head
    assert (await api.get(f"/v2.1/servers/{server}", version="2.9"))["server"]["locked"] is False


async def test_there_are_no_aggregates(api: Api) -> None:
    """`openstack hypervisor show` asks for them."""
    assert await api.get("/v2.1/os-aggregates") == {"aggregates": []}


async def test_extensions_are_those_that_are_served(api: Api) -> None:
    listed = (await api.get("/v2.1/extensions", "member"))["extensions"]
    assert "os-services" in {each["alias"] for each in listed}
    one = await api.get("/v2.1/extensions/os-services", "member")
    assert one["extension"] in listed
    assert (await api.ask("GET", "/v2.1/extensions/os-cells", "member")).status == 404


# ------------------------------------------------------------------------------ addresses


async def test_the_project_of_an_address_is_the_tokens(api: Api) -> None:
    server, volume = await api.attached()
    for root in ("/v2.1", "/v2", f"/v2.1/{PROJECT}", f"/v2/{PROJECT}"):
        listed = await api.get(f"{root}/servers?limit=1", "member")
        assert [each["id"] for each in listed["servers"]] == [server], root
        [shown] = (await api.get(f"{root}/servers/{server}/os-volume_attachments", "member"))[
            "volumeAttachments"
        ]
        assert shown["volumeId"] == volume
    for path in (f"/v2.1/{PROJECT}/servers", f"/v2/{PROJECT}/servers/{server}"):
        answer = await api.ask("GET", path, "stranger")
        assert answer.status == 400
        text = (await answer.json())["badRequest"]["message"]
        assert text == (
            f"Malformed request URL: URL's project_id '{PROJECT}' doesn't match Context's "
            "project_id 'another-project'"
        )
    assert (await api.ask("GET", f"/v2.1/{PROJECT}/servers", None)).status == 401
    assert (await api.ask("DELETE", f"/v2.1/{PROJECT}/servers/{server}", "stranger")).status == 400


async def test_pages_of_an_address_with_a_project_lead_on_in_it(api: Api) -> None:
    await api.register(guest(), guest())
    await api.projected()
    page = await api.get(f"/v2.1/{PROJECT}/servers?limit=1", "member")
    [link] = page["servers_links"]
    assert f"/v2.1/{PROJECT}/servers?limit=1&marker=" in link["href"]


async def test_v2_is_2_1_whatever_version_is_asked_for(api: Api) -> None:
    server, _ = await api.attached()
    answer = await api.ask("GET", f"/v2/servers/{server}", "member", NEWEST)
    assert answer.status == 200
    assert "locked" not in (await answer.json())["server"]
    assert "OpenStack-API-Version" not in answer.headers
    for path, name in (("/v2", "v2.0"), ("/v2/", "v2.0"), ("/v2.1", "v2.1")):
        assert (await api.get(path, None))["version"]["id"] == name
    listed = (await api.get("/", None))["versions"]
    assert [each["id"] for each in listed] == ["v2.0", "v2.1"]


async def test_what_is_not_there_is_so_in_novas_form(api: Api) -> None:
    for path in (
        "/v2.1/os-keypairs",
        f"/v2.1/{PROJECT}/os-keypairs",
        f"/v2.1/{PROJECT}",
        "/v2/os-networks",
        "/v2.1/servers/x/os-interface",
        "/v2.2",
    ):
        answer = await api.ask("GET", path)
        assert answer.status == 404, path
        assert list(await answer.json()) == ["itemNotFound"], path
    answer = await api.ask("POST", "/v2.1/flavors", json={})
    assert (answer.status, list(await answer.json())) == (405, ["badMethod"])
