"""Lists of /v2.1: what is asked is answered truly, or refused by name, and never ignored."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from yarl import URL

from ledger.http.route import Route
from ledger.http.routes import ROUTES
from ledger.nova import parameters_nova
from ledger.nova.servers import filters as server_filters
from ledger.nova.servers import state as server_state
from projections.reads import server_lists
from tests.service.api_world import HOST, NEWEST, OTHER, PROJECT, Api, guest

#: nova/api/openstack/compute/schemas/servers.py, index_query_v275, and `uuid` of `index_query`.
NOVAS = """
user_id project_id tenant_id launch_index image_ref image kernel_id ramdisk_id hostname key_name
power_state vm_state task_state host node flavor reservation_id launched_at terminated_at
availability_zone name display_name description display_description locked_by uuid root_device_name
config_drive access_ip_v4 access_ip_v6 auto_disk_config progress sort_key sort_dir all_tenants
soft_deleted deleted status changes-since ip ip6 created_at limit marker tags tags-any not-tags
not-tags-any changes-before locked
"""
DEFINED = "<domain><memory unit='MiB'>{}</memory><vcpu>{}</vcpu><devices/></domain>"
GONE = "00000000-0000-4000-8000-00000000dead"


def test_every_parameter_of_novas_is_answered_or_refused() -> None:
    table = {each.name: each for each in parameters_nova.SERVERS}
    assert set(table) == set(NOVAS.split())
    answered = {name for name, each in table.items() if not each.refused}
    assert answered == server_filters.READ_HERE | server_filters.READ_ELSEWHERE


def test_a_status_is_asked_for_by_the_states_that_show_it() -> None:
    tasks: list[str | None] = [None, *server_state.TASK_OF_FLOW]
    for vm_state in ("active", "paused", "stopped", "resized", "error", "building", "deleted"):
        for flow in tasks:
            claims = {"a": {"flow": flow}} if flow else {}
            row = {"vm_state": vm_state, "claims": claims, "faults": {}}
            pair = (vm_state, server_state.task_state(row) or "")
            assert pair in server_state.states_of([server_state.status(row).lower()])
            assert pair not in server_state.states_of({*NOT_A_STATUS, "NONE"})
    assert server_state.states_of(["nonsense"]) == ()


NOT_A_STATUS = {"HARD_REBOOT", "SUSPENDED", "UNKNOWN"}


async def fleet(api: Api) -> dict[str, str]:
    """Servers of all sorts, by name, in the order in which they came; their ids."""
    web1 = guest(name="web-1", definition=DEFINED.format(512, 1))
    web2 = guest(name="web-2", power_state="shutdown", definition=DEFINED.format(2048, 2))
    database = guest(name="db.1", power_state="paused", user_id="somebody-else")
    theirs = guest(name="theirs", project_id="another-project")
    gone = guest(name="gone")
    guests = [web1, web2, database, theirs, gone]
    await api.register(*guests[:3], gone)
    await api.register(theirs, host=OTHER)
    answer = await api.ask("DELETE", f"/v2.1/servers/{gone['server_id']}")
    await api.played(answer)
    await api.register(*guests[:3])  # and no more
    await api.projected()
    return {each["name"]: each["server_id"] for each in guests}


#: Query, who asks, and the names that are found: {} is an id.
FOUND: list[tuple[str, str, str]] = [
    ("", "member", "web-1 web-2 db.1"),
    ("", "stranger", "theirs"),
    ("all_tenants=1", "admin", "web-1 web-2 db.1 theirs"),
    ("all_tenants", "admin", "web-1 web-2 db.1 theirs"),
    ("all_tenants=False", "admin", "web-1 web-2 db.1"),
    ("all_tenants=1&project_id=another-project", "admin", "theirs"),
    ("all_tenants=1&tenant_id=another-project", "admin", "theirs"),
    (f"project_id={PROJECT}", "member", "web-1 web-2 db.1"),
    ("name=web", "member", "web-1 web-2"),
    ("name=^web-[2-9]$", "member", "web-2"),
    ("name=b.1", "member", "web-1 db.1"),
    (r"name=b\.1", "member", "db.1"),
    ("name=WEB", "member", ""),
    ("name=theirs", "member", ""),
    ("status=ACTIVE", "member", "web-1"),
    ("status=active&status=SHUTOFF", "member", "web-1 web-2"),
    ("status=ERROR", "member", ""),
    ("status=DELETED&all_tenants=1", "admin", "gone"),
    ("vm_state=stopped", "member", "web-2"),
    ("power_state=1", "member", "web-1"),
    ("power_state=3", "member", "db.1"),
    ("task_state=migrating", "member", ""),
    ("flavor=c2.m2048", "member", "web-2"),
    ("flavor=m1.small", "member", ""),
    ("uuid={web-1}", "member", "web-1"),
    ("uuid={theirs}", "member", ""),
    ("uuid=web-1", "member", ""),
    ("user_id=somebody-else", "member", "db.1"),
    (f"host={HOST}", "admin", "web-1 web-2 db.1"),
    (f"host={OTHER}&all_tenants=1", "admin", "theirs"),
    (f"node={OTHER}", "admin", ""),
    (f"host={HOST}&node={OTHER}&all_tenants=1", "admin", ""),
    ("availability_zone=nova", "member", "web-1 web-2 db.1"),
    ("availability_zone=other", "member", ""),
    ("availability_zone=", "member", ""),
    ("deleted=False", "member", "web-1 web-2 db.1"),
    ("deleted=true", "admin", "gone"),
    ("deleted=true&name=web", "admin", ""),
    ("changes-since=2020-01-01T00:00:00Z", "member", "web-1 web-2 db.1 gone"),
    ("changes-since=2020-01-01T00:00:00Z&deleted=false", "member", "web-1 web-2 db.1"),
    ("changes-since=2120-01-01T00:00:00+01:00", "member", ""),
    ("changes-before=2020-01-01", "member", ""),
    ("changes-before=2120-01-01", "member", "web-1 web-2 db.1 gone"),
    ("created_at=2020-01-01T00:00:00", "member", ""),
    ("tags=a", "member", ""),
    ("tags-any=a,b", "member", ""),
    ("not-tags=a", "member", "web-1 web-2 db.1"),
    ("not-tags-any=a", "member", "web-1 web-2 db.1"),
    ("locked=True", "member", "web-2"),
    ("locked=false", "member", "web-1 db.1"),
    ("access_ip_v4=192.0.2.", "member", "web-1"),
    ("access_ip_v4=^92", "member", ""),
    ("access_ip_v6=db8", "member", "web-1"),
    ("access_ip_v4=192&access_ip_v6=fe80", "member", ""),
]


async def names(api: Api, query: str, who: str, path: str = "/v2.1/servers") -> list[str]:
    answer = await api.get(f"{path}?{query}", who, version=NEWEST)
    return [server["name"] for server in answer["servers"]]


async def test_servers_are_found_by_what_is_asked(api: Api) -> None:
    ids = await fleet(api)
    assert (await api.act(ids["web-2"], "lock", who="member")).status == 202
    said = {"accessIPv4": "192.0.2.7", "accessIPv6": "2001:db8::7"}
    path = f"/v2.1/servers/{ids['web-1']}"
    assert (await api.ask("PUT", path, "member", json={"server": said})).status == 200
    for query, who, wanted in FOUND:
        asked = query
        for name, server in ids.items():
            asked = asked.replace(f"{{{name}}}", server)
        for path in ("/v2.1/servers", "/v2.1/servers/detail"):
            found = await names(api, quote(asked, safe="=&-.:"), who, path)
            assert sorted(found) == sorted(wanted.split()), (path, query)
    created = (await api.get(f"/v2.1/servers/{ids['web-1']}"))["server"]["created"]
    assert "web-1" in await names(api, f"created_at={created}", "member")


async def test_a_task_is_found_by_its_name_and_by_the_status_that_it_gives(api: Api) -> None:
    ids = await fleet(api)
    await api.register(guest(), host=OTHER)
    answer = await api.act(
        ids["web-1"], "os-migrateLive", {"host": OTHER, "block_migration": "auto"}
    )
    assert answer.status == 202, await answer.text()
    await api.projected()
    for query, wanted in (
        ("status=MIGRATING", ["web-1"]),
        ("task_state=migrating", ["web-1"]),
        ("status=ACTIVE&name=web", []),
        ("vm_state=active&name=web", ["web-1"]),
    ):
        assert await names(api, query, "member") == wanted, query


#: Query, who asks, in which version, the status and what the message has.
REFUSED: list[tuple[str, str, str, int, str]] = [
    ("colour=red", "admin", "2.1", 400, "'colour' was unexpected"),
    ("changes-before=2020-01-01", "admin", "2.65", 400, "'changes-before' was unexpected"),
    ("locked=1", "admin", "2.72", 400, "'locked' was unexpected"),
    ("tags=a", "admin", "2.25", 400, "'tags' was unexpected"),
    ("ip=192.0.2.1", "member", NEWEST, 400, "'ip' is not supported: the ledger has no addresses"),
    ("image=x", "member", "2.1", 400, "'image' is not supported: the ledger has no images"),
    ("reservation_id=r-1", "member", "2.1", 400, "'reservation_id' is not supported"),
    ("soft_deleted=1", "admin", NEWEST, 400, "'soft_deleted' is not supported"),
    ("host=compute-1", "member", "2.1", 403, "'host' to be used"),
    ("node=compute-1", "reader", NEWEST, 403, "'node' to be used"),
    ("deleted=1", "member", NEWEST, 403, "Only administrators may list deleted instances"),
    ("status=deleted", "member", NEWEST, 403, "Only administrators may list deleted instances"),
    ("all_tenants=1", "member", NEWEST, 403, "get_all_tenants"),
    ("all_tenants=maybe", "admin", NEWEST, 400, "all_tenants. Value: maybe"),
    ("project_id=another-project", "member", NEWEST, 403, "'project_id' to be used"),
    ("project_id=another-project", "admin", NEWEST, 400, "use all_tenants"),
    ("tenant_id=another-project", "admin", NEWEST, 400, "use all_tenants"),
    ("status=nonsense", "member", "2.38", 400, "Invalid status value"),
    ("name=(", "member", NEWEST, 400, "no regular expression: parentheses () not balanced"),
    (r"name=(a)\1", "member", NEWEST, 400, "back references"),
    (f"name={'a' * 256}", "member", NEWEST, 400, "at most 255"),
    ("name=%01", "member", NEWEST, 400, "control character"),
    ("name=a&name=b", "member", NEWEST, 400, "'name' is given twice"),
    ("power_state=running", "member", NEWEST, 400, "power_state. Value: running"),
    ("changes-since=soon", "member", NEWEST, 400, "changes-since. Value: soon"),
    (
        "changes-since=2021-01-01&changes-before=2020-01-01",
        "member",
        NEWEST,
        400,
        "must be less than or equal to changes-before",
    ),
    ("access_ip_v4=(", "member", NEWEST, 400, "access_ip_v4. Value: (. it is no regular"),
    ("access_ip_v6=a&name=(", "member", NEWEST, 400, "name, access_ip_v6. Value: (, a."),
    ("locked=perhaps", "member", NEWEST, 400, "locked. Value: perhaps"),
    ("deleted=perhaps", "admin", NEWEST, 400, "deleted. Value: perhaps"),
    ("sort_key=colour", "member", NEWEST, 400, "sort_key. Value: colour"),
    ("sort_key=key_name", "member", NEWEST, 400, "sort_key. Value: key_name"),
    ("sort_key=host", "member", NEWEST, 403, "Only administrators can sort servers by host"),
    ("sort_dir=up", "member", NEWEST, 400, "must be 'desc' or 'asc'"),
    ("sort_dir=asc&sort_dir=asc", "member", NEWEST, 400, "exceeds sort key size"),
    ("limit=-1", "member", NEWEST, 400, "limit. Value: -1"),
    (f"marker={GONE}", "member", NEWEST, 400, f"Marker {GONE} could not be found."),
]


async def test_what_is_not_answered_is_refused_by_name(api: Api) -> None:
    await api.server()
    for query, who, version, status, text in REFUSED:
        for path in ("/v2.1/servers", "/v2.1/servers/detail"):
            answer = await api.ask("GET", f"{path}?{query}", who, version)
            assert answer.status == status, (query, await answer.text())
            [(_, fault)] = (await answer.json()).items()
            assert text in fault["message"], query
    assert (await api.get("/v2.1/servers?status=nonsense", version="2.37"))["servers"] == []


async def test_a_backslash_in_a_name_is_no_back_reference(api: Api) -> None:
    server = await api.server(name="DOMAIN\\1")
    await api.register(guest(server_id=server, name="DOMAIN\\1"), guest(name="DOMAIN1"))
    url = URL("/v2.1/servers").with_query(name=re.escape("DOMAIN\\1"))
    answer = await api.ask("GET", url)
    assert [each["id"] for each in (await answer.json())["servers"]] == [server]
    refused = await api.ask("GET", URL("/v2.1/servers").with_query(name=r"(D)\\\1"))
    assert "back references" in await refused.text()


async def test_a_name_is_not_looked_for_for_ever(
    api: Api, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    await api.server()
    monkeypatch.setattr(server_lists, "PATTERN_MS_MAX", 50)
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE instances IN ACCESS EXCLUSIVE MODE")  # as slow as can be
        answer = await api.ask("GET", "/v2.1/servers?name=vm")
        assert answer.status == 400
        assert "took longer than 0.05 s" in await answer.text()
    assert len((await api.get("/v2.1/servers?name=vm"))["servers"]) == 1
    monkeypatch.undo()
    settings = await api.components.queries.instances(
        server_lists.ServerFilter(), server_filters.WORDS
    )
    assert len(settings) == 1, "the connection's next statement has its own time"


ORDERS: list[tuple[str, str | None]] = [
    ("sort_key=display_name&sort_dir=asc", "a a b c d"),
    ("sort_key=display_name", "d c b a a"),
    ("sort_key=vm_state&sort_key=display_name&sort_dir=desc&sort_dir=asc", "c a a b d"),
    ("sort_key=power_state&sort_key=display_name&sort_dir=asc", "a a b d c"),
    ("sort_key=instance_type_id&sort_key=display_name&sort_dir=desc&sort_dir=asc", "d a a b c"),
    ("sort_key=host&sort_key=display_name&sort_dir=asc", "a a b c d"),
    ("sort_dir=asc", None),
    ("", None),
]


async def test_pages_are_the_whole_list_in_its_order(api: Api) -> None:
    """A page ends where it ends, whatever fits; its link leads on, in the same order."""
    guests = [guest(name=name) for name in "abac"]
    guests[3]["power_state"] = "shutdown"
    guests.append(guest(name="d", definition=DEFINED.format(64, 64)))
    await api.register(*guests)
    for order, wanted in ORDERS:
        await api.projected()
        path: str | None = f"/v2.1/servers?limit=2&name=^[a-d]$&{order}"
        seen: list[Any] = []
        while path:
            page = await api.get(path)
            seen += page["servers"]
            [link] = page.get("servers_links") or [None]
            path = "/v2.1" + link["href"].partition("/v2.1")[2] if link else None
            assert len(page["servers"]) <= 2
            assert len(seen) <= 5, "a page leads to itself"
        whole = (await api.get(f"/v2.1/servers?{order}"))["servers"]
        assert [each["id"] for each in seen] == [each["id"] for each in whole]
        if wanted is not None:
            assert " ".join(each["name"] for each in seen) == wanted


async def test_a_page_may_begin_after_what_no_longer_fits(api: Api) -> None:
    ids = await fleet(api)
    after = f"sort_key=display_name&sort_dir=asc&marker={ids['web-1']}"
    assert await names(api, f"status=SHUTOFF&{after}", "member") == ["web-2"]
    assert await names(api, f"status=ACTIVE&{after}", "member") == []
    answer = await api.ask("GET", f"/v2.1/servers?marker={ids['theirs']}", "member")
    assert answer.status == 400


READS = [route for route in ROUTES if route.method == "GET" and route.path.startswith("/v")]


def filled(route: Route) -> str:
    path = route.path
    for name, value in (("host", HOST), ("name", "attach"), ("migration_id", "1")):
        path = path.replace(f"{{{name}}}", value)
    while "{" in path:
        path = path.partition("{")[0] + GONE + path.partition("}")[2]
    return path


async def test_no_list_ignores_a_parameter_that_it_does_not_know(api: Api) -> None:
    """All reads but those of agents: of what is not there the answer may be 404."""
    await api.server()
    lists = 0
    for route in READS:
        if route.name == "version" or route.name in {"host_commands", "host_volume_users"}:
            continue
        answer = await api.ask("GET", f"{filled(route)}?colour=red")
        there = "{" not in route.path
        lists += there
        assert answer.status == 400 or (not there and answer.status == 404), route.path
        if route.nova:
            assert route.parameters is not None, route.path
            assert "'colour' was unexpected" in await answer.text(), route.path
    assert lists > 20


async def test_the_lists_of_a_server_refuse_what_they_do_not_know(api: Api) -> None:
    server = await api.server()
    for path, since in (
        ("os-volume_attachments?offset=0", "2.1"),
        ("os-instance-actions?limit=1", "2.58"),
    ):
        assert (await api.ask("GET", f"/v2.1/servers/{server}/{path}", version=since)).status == 200
        answer = await api.ask("GET", f"/v2.1/servers/{server}/{path}&colour=red", version=since)
        assert answer.status == 400
    assert (
        await api.ask("GET", f"/v2.1/servers/{server}/os-instance-actions?limit=1", version="2.57")
    ).status == 400
    assert (await api.ask("GET", "/v2.1/os-migrations?hidden=1")).status == 400
