"""Nova's form: discovery, microversions, servers, and what each version shows."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import Any

import psycopg
import pytest

from ledger.config import PAGE_ITEMS_MAX, Limits
from ledger.http.microversions import requested, shown
from ledger.http.problem import ApiError
from ledger.nova.volume_attachments import _shown
from tests.service.api_world import OTHER, PROJECT, SETTINGS, Api, guest, running_api

# ------------------------------------------------------------------------ discovery


async def test_the_version_documents_are_open_to_everybody(api: Api) -> None:
    answer = await api.ask("GET", "/", None)
    assert answer.headers["Server"] == f"attachment-ledger/{version('attachment-ledger')}"
    _, listed = (await answer.json())["versions"]
    for path in ("/v2.1", "/v2.1/"):
        single = (await api.get(path, None))["version"]
        assert (single["id"], single["status"]) == ("v2.1", "CURRENT")
        assert (single["min_version"], single["version"]) == ("2.1", "2.105")
        assert listed["links"] == single["links"]
        assert single["links"][0]["href"].endswith("/v2.1/")


# --------------------------------------------------------------------- microversions

OUT_OF_RANGE = "Version {} is not supported by the API. Minimum is 2.1 and maximum is 2.105."
MALFORMED = "API Version String {} is of invalid format. Must be of format MajorNum.MinorNum."


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, "2.1"),
        ({"X-OpenStack-Nova-API-Version": "2.26"}, "2.26"),
        ({"OpenStack-API-Version": "compute 2.89"}, "2.89"),
        ({"OpenStack-API-Version": "volume 3.69, compute 2.60"}, "2.60"),
        ({"OpenStack-API-Version": "volume 3.69", "X-OpenStack-Nova-API-Version": "2.3"}, "2.3"),
        ({"OpenStack-API-Version": "compute 2.79", "X-OpenStack-Nova-API-Version": "2.3"}, "2.79"),
        ({"OpenStack-API-Version": "compute latest"}, "2.105"),
        ({"X-OpenStack-Nova-API-Version": "2.latest"}, "2.105"),
    ],
)
def test_the_version_spoken(headers: dict[str, str], version: str) -> None:
    assert shown(requested(headers)) == version


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("2.106", 406, OUT_OF_RANGE),
        ("2.0", 406, OUT_OF_RANGE),
        ("3.1", 406, OUT_OF_RANGE),
        ("two", 400, MALFORMED),
        ("2.01", 400, MALFORMED),
        ("2", 400, MALFORMED),
        ("2.1.1", 400, MALFORMED),
    ],
)
def test_versions_we_do_not_speak(text: str, status: int, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        requested({"X-OpenStack-Nova-API-Version": text})
    assert (refused.value.status, str(refused.value)) == (status, message.format(text))


async def test_answers_say_their_version_both_ways_and_that_they_vary(api: Api) -> None:
    answer = await api.ask("GET", "/v2.1/servers", version="2.89")
    assert answer.headers["OpenStack-API-Version"] == "compute 2.89"
    assert answer.headers["X-OpenStack-Nova-API-Version"] == "2.89"
    assert answer.headers["Vary"] == "OpenStack-API-Version, X-OpenStack-Nova-API-Version"
    answer = await api.ask("GET", "/v2.1/servers")
    assert answer.headers["X-OpenStack-Nova-API-Version"] == "2.1"
    answer = await api.ask("GET", "/v2.1/servers", version="2.106")
    assert answer.status == 406
    assert list(await answer.json()) == ["computeFault"]


ROW = {
    "bdm_id": "00000000-0000-4000-8000-00000000000b",
    "server_id": "00000000-0000-4000-8000-00000000000c",
    "volume_id": "00000000-0000-4000-8000-00000000000d",
    "attachment_id": "00000000-0000-4000-8000-00000000000a",
    "device_name": "vdb",
    "tag": "logs",
    "delete_on_termination": True,
    "boot_index": 0,
}
IDS = {"volumeId": ROW["volume_id"], "serverId": ROW["server_id"]}
DEVICE = {"device": "/dev/vdb"}
FLAG = {"delete_on_termination": True}
NEW_IDS = {"attachment_id": ROW["attachment_id"], "bdm_uuid": ROW["bdm_id"]}


@pytest.mark.parametrize(
    ("minor", "wanted"),
    [
        (1, {**IDS, **DEVICE, "id": ROW["volume_id"]}),
        (69, {**IDS, **DEVICE, "id": ROW["volume_id"]}),
        (70, {**IDS, **DEVICE, "id": ROW["volume_id"], "tag": "logs"}),
        (79, {**IDS, **DEVICE, "id": ROW["volume_id"], "tag": "logs", **FLAG}),
        (88, {**IDS, **DEVICE, "id": ROW["volume_id"], "tag": "logs", **FLAG}),
        (89, {**IDS, **DEVICE, "tag": "logs", **FLAG, **NEW_IDS}),
        (104, {**IDS, **DEVICE, "tag": "logs", **FLAG, **NEW_IDS}),
        (105, {**IDS, **DEVICE, "tag": "logs", **FLAG, **NEW_IDS, "boot_index": 0}),
    ],
)
def test_what_each_version_shows_of_an_attachment(minor: int, wanted: dict[str, Any]) -> None:
    assert _shown(ROW, (2, minor)) == wanted


def test_a_device_that_is_not_set_is_left_out_before_2_70() -> None:
    row = {**ROW, "device_name": None}
    assert "device" not in _shown(row, (2, 69))
    assert _shown(row, (2, 70))["device"] is None


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        ("2.1", {"id", "volumeId", "serverId", "device"}),
        ("2.70", {"id", "volumeId", "serverId", "device", "tag"}),
        ("2.79", {"id", "volumeId", "serverId", "device", "tag", "delete_on_termination"}),
        ("2.89", {"id", "volumeId", "serverId", "device", "tag", "delete_on_termination"}),
    ],
)
async def test_what_each_version_answers_to_an_attach(
    api: Api, version: str, keys: set[str]
) -> None:
    answer = await api.attach(await api.server(), api.volume(), version)
    assert set((await answer.json())["volumeAttachment"]) == keys


@pytest.mark.parametrize(
    ("field", "value", "before", "since"),
    [
        ("tag", "logs", "2.48", "2.49"),
        ("delete_on_termination", True, "2.78", "2.79"),
        ("delete_on_termination", "yes", "2.78", "2.79"),
        ("is_root", False, "2.104", "2.105"),
    ],
)
async def test_keys_of_newer_versions_are_unknown_before(
    api: Api, field: str, value: Any, before: str, since: str
) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume, before, **{field: value})
    assert answer.status == 400
    text = (await answer.json())["badRequest"]["message"]
    assert text == f"Additional properties are not allowed ('{field}' was unexpected)"
    assert (await api.attach(server, volume, since, **{field: value})).status in {200, 202}


async def test_attachments_are_listed_in_pages(api: Api) -> None:
    server = await api.server()
    volumes = [api.volume() for _ in range(3)]
    for number, volume in enumerate(volumes):
        assert (await api.attach(server, volume)).status == 200
        await api.do_next_command()
        path = f"/v2.1/servers/{server}/os-volume_attachments?limit=1&offset={number}"
        [row] = (await api.get(path))["volumeAttachments"]
        assert (row["volumeId"], row["device"]) == (volume, f"/dev/vd{'bcd'[number]}")
    path = f"/v2.1/servers/{server}/os-volume_attachments?limit=0"
    assert len((await api.get(path))["volumeAttachments"]) == 3, "Nova's own exception"


# --------------------------------------------------------------------------- servers


async def test_a_name_is_no_id_and_finds_the_server_in_the_list(api: Api) -> None:
    server = await api.server(name="web-1")
    assert (await api.ask("GET", "/v2.1/servers/web-1")).status == 404
    [found] = (await api.get("/v2.1/servers/detail?name=web-1"))["servers"]
    assert found["id"] == server
    assert (await api.get("/v2.1/servers?name=db-1"))["servers"] == []


async def test_a_server_has_what_clients_print(api: Api) -> None:
    server, volume = await api.attached()
    shown = (await api.get(f"/v2.1/servers/{server}", version="2.89"))["server"]
    assert shown["status"] == "ACTIVE"
    assert (shown["OS-EXT-STS:vm_state"], shown["OS-EXT-STS:power_state"]) == ("active", 1)
    assert shown["OS-EXT-SRV-ATTR:host"] == "compute-1"
    assert (shown["image"], shown["addresses"]) == ("", {})
    assert shown["flavor"]["original_name"]
    assert shown["tenant_id"] == PROJECT
    attached = shown["os-extended-volumes:volumes_attached"]
    assert attached == [{"id": volume, "delete_on_termination": False}]
    old = (await api.get(f"/v2.1/servers/{server}", version="2.1"))["server"]
    assert old["os-extended-volumes:volumes_attached"] == [{"id": volume}]
    assert "id" in old["flavor"]
    user = (await api.get(f"/v2.1/servers/{server}", "member"))["server"]
    assert "OS-EXT-SRV-ATTR:host" not in user


#: Each property that came to servers later, and when (Nova's REST API version history).
SINCE = {
    (2, 9): "locked",
    (2, 19): "description",
    (2, 26): "tags",
    (2, 63): "trusted_image_certificates",
    (2, 71): "server_groups",
    (2, 73): "locked_reason",
    (2, 96): "pinned_availability_zone",
    (2, 100): "scheduler_hints",
}


async def test_a_server_has_the_properties_of_its_version_alone_and_listed(api: Api) -> None:
    server = await api.server()
    for minor in (minor + step for _, minor in SINCE for step in (-1, 0)):
        wanted = {name for since, name in SINCE.items() if since <= (2, minor)}
        alone = (await api.get(f"/v2.1/servers/{server}", version=f"2.{minor}"))["server"]
        assert alone.keys() & set(SINCE.values()) == wanted, minor
        [listed] = (await api.get("/v2.1/servers/detail", version=f"2.{minor}"))["servers"]
        assert listed.keys() & set(SINCE.values()) == wanted - {"server_groups"}, minor


LISTED: list[tuple[str, str]] = [
    ("servers", "servers"),
    ("servers/detail", "servers"),
    ("flavors", "flavors"),
    ("os-hypervisors", "hypervisors"),
    ("os-migrations", "migrations"),
    ("servers/{}/os-instance-actions", "instanceActions"),
]


async def test_a_page_of_none_is_empty_and_leads_nowhere(api: Api) -> None:
    server, _ = await api.attached()
    await api.register(host=OTHER)
    await api.act(server, "os-migrateLive", {"host": OTHER, "block_migration": False})
    for path, listed in LISTED:
        assert (await api.get(f"/v2.1/{path.format(server)}", version="2.89"))[listed]
        page = await api.get(f"/v2.1/{path.format(server)}?limit=0", version="2.89")
        assert page == {listed: []}


async def test_servers_are_filtered_and_paged(api: Api) -> None:
    guests = [guest(name=f"vm-{number}") for number in range(5)]
    guests[0]["power_state"] = "shutdown"
    await api.register(*guests, guest(name="theirs", project_id="another-project"))
    [stopped] = (await api.get("/v2.1/servers/detail?status=SHUTOFF"))["servers"]
    assert stopped["name"] == "vm-0"
    seen: list[str] = []
    path: str | None = "/v2.1/servers?limit=2"
    while path:
        page = await api.get(path)
        assert len(page["servers"]) <= 2
        seen += [server["name"] for server in page["servers"]]
        [link] = page.get("servers_links") or [None]
        path = "/v2.1" + link["href"].partition("/v2.1")[2] if link else None
    assert sorted(seen) == [f"vm-{number}" for number in range(5)]
    everybody = (await api.get("/v2.1/servers?all_tenants=1"))["servers"]
    assert len(everybody) == 6
    assert (await api.get("/v2.1/servers?host=compute-2&all_tenants=True"))["servers"] == []


async def test_a_page_of_more_than_the_setting_is_cut_and_leads_on(database_url: str) -> None:
    """As in Nova; but no `limit` of /v1 is above what the setting can be."""
    limits = Limits(page_items_default=1, page_items_max=2)
    async with running_api(database_url, dataclasses.replace(SETTINGS, limits=limits)) as api:
        await api.register(*(guest(name=f"vm-{number}") for number in range(3)))
        most = PAGE_ITEMS_MAX
        nova = await api.get(f"/v2.1/servers?limit={most + 1}")
        ours = await api.get(f"/v1/events?limit={most}")
        refused = await api.ask("GET", f"/v1/events?limit={most + 1}")
    assert (len(nova["servers"]), len(nova["servers_links"])) == (2, 1)
    assert (len(ours["events"]), bool(ours["next"])) == (2, True)
    assert refused.status == 400


async def test_the_largest_page_leads_to_what_is_behind_it(database_url: str) -> None:
    """One row is read ahead, beyond the largest page there can be."""
    settings = dataclasses.replace(SETTINGS, limits=Limits(page_items_max=PAGE_ITEMS_MAX))
    async with running_api(database_url, settings) as api:
        await api.server()
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "INSERT INTO instances SELECT (jsonb_populate_record("
                "i, jsonb_build_object('server_id', gen_random_uuid()))).* "
                "FROM instances i, generate_series(1, %s)",
                [PAGE_ITEMS_MAX],
            )
        page = await api.get("/v2.1/servers")
        [link] = page["servers_links"]
        rest = await api.get("/v2.1" + link["href"].partition("/v2.1")[2])
    names = {server["id"] for server in page["servers"] + rest["servers"]}
    assert (len(page["servers"]), len(names)) == (PAGE_ITEMS_MAX, PAGE_ITEMS_MAX + 1)
    assert "servers_links" not in rest


async def test_a_parked_operation_shows_as_error_with_a_fault(api: Api) -> None:
    """S1: "put the instance into the ERROR state", with a fault that says why."""
    server, volume = await api.attached()
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    [command] = await api.commands()
    await api.report(command, "unplug")
    error = {"kind": "final", "code": "busy", "message": "multipath device is busy"}
    await api.report(command, "disconnect", error=error)
    operation = await api.finished(answer)
    assert operation["state"] == "parked"

    shown = (await api.get(f"/v2.1/servers/{server}"))["server"]
    assert shown["status"] == "ERROR"
    assert "multipath device is busy" in shown["fault"]["message"]
