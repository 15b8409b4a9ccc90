"""The policy at the API: that every request asks it, and what happens when its file changes."""

from __future__ import annotations

import html
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ledger.auth.rules import NAMES
from ledger.config import PolicySettings
from ledger.http.probes import health
from ledger.http.routes import ROUTES
from ledger.nova.servers.actions import ACTIONS
from ledger.web import console
from tests.service.api_world import HOST, OTHER, SETTINGS, Api, guest, running_api

ANYTHING = {
    name: str(uuid4())
    for name in ("server_id", "volume_id", "operation_id", "attachment_id", "remnant_id")
} | {"host": HOST, "name": "attach", "flavor_id": "c1.m1", "migration_id": "1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("{}")
    return path


@pytest.fixture
async def api(database_url: str, file: Path) -> AsyncIterator[Api]:
    settings = replace(SETTINGS, policy=PolicySettings(file=str(file)))
    async with running_api(database_url, settings) as running:
        yield running


def rules(api: Api, file: Path, **changed: str) -> None:
    """These rules are in force from now on, and the others by default."""
    given(api, file, json.dumps(changed))


def given(api: Api, file: Path, text: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)
    for _ in range(2):  # a change counts when it was seen twice
        api.components.policy.refresh()


async def test_every_route_is_refused_by_its_own_rule_and_by_no_other(api: Api, file: Path) -> None:
    """All are let in by the others' rules; who asks is an administrator, or the host's agent."""
    for route in (*ROUTES, *console.ROUTES):
        if not route.rules:
            continue
        others = dict.fromkeys(NAMES - set(route.rules), "@")
        rules(api, file, **others, **dict.fromkeys(route.rules, "!"))
        assert api.components.policy.trouble is None
        path = route.path
        for name in (part[1:-1] for part in path.split("/") if part.startswith("{")):
            path = path.replace(f"{{{name}}}", ANYTHING.get(name, str(uuid4())))
        who = "agent-1" if route.path.startswith("/v1/hosts/{host}/") else "admin"
        sent: Any = {} if route.method == "GET" else {"json": {}}
        answer = await api.ask(route.method, path, who, **sent)
        text = html.unescape(await answer.text())
        assert answer.status == 403, (route.name, answer.status, text)
        assert f"Policy doesn't allow {route.rules[0]} to be performed." in text, route.name


async def test_every_action_is_refused_by_its_own_rule(api: Api, file: Path) -> None:
    server = await api.server()
    for name, action in ACTIONS.items():
        rules(api, file, **{action.rule: "!"})
        answer = await api.act(server, name, {})
        assert answer.status == 403, name
        assert action.rule in await answer.text()


async def test_who_names_a_host_needs_a_rule_of_its_own(api: Api, file: Path) -> None:
    moving = guest()
    await api.two_hosts(moving)
    server = moving["server_id"]
    live = "os_compute_api:os-migrate-server:migrate_live"
    rules(api, file, **{live: "rule:project_member_or_admin", f"{live}:host": "role:admin"})
    named = {"host": OTHER, "block_migration": False}
    answer = await api.act(server, "os-migrateLive", named, "member")
    assert answer.status == 403
    assert f"{live}:host" in await answer.text()
    assert (await api.act(server, "os-migrateLive", named, "stranger")).status == 404
    chosen = await api.act(server, "os-migrateLive", {**named, "host": None}, "member")
    assert chosen.status == 202, await chosen.text()


async def test_swapping_and_updating_are_under_rules_apart(api: Api, file: Path) -> None:
    server, volume = await api.attached()
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    update = {"volumeAttachment": {"volumeId": volume, "delete_on_termination": True}}
    swap = {"volumeAttachment": {"volumeId": api.volume()}}
    prefix = "os_compute_api:os-volumes-attachments"
    for refused, body, version in (
        ("update", update, "2.85"),
        ("swap", swap, "2.85"),
        ("swap", swap, "2.84"),
        ("swap", {"volumeAttachment": {"volumeId": volume}}, "2.84"),
    ):
        rules(api, file, **{f"{prefix}:{refused}": "!"})
        answer = await api.ask("PUT", path, "admin", version, json=body)
        assert answer.status == 403, (refused, version)
        assert f"{prefix}:{refused}" in await answer.text()
    rules(api, file, **{f"{prefix}:swap": "!"})
    assert (await api.ask("PUT", path, "member", "2.85", json=update)).status == 202


async def test_a_rule_may_be_for_whose_the_server_is(api: Api, file: Path) -> None:
    """A server exists for its project, so it is 403 there and 404 for others."""
    mine, colleagues = guest(user_id="user-member"), guest()
    await api.register(mine, colleagues)
    rules(api, file, **{"os_compute_api:servers:stop": "user_id:%(user_id)s or role:admin"})
    refused = await api.act(colleagues["server_id"], "os-stop", who="member")
    assert refused.status == 403
    assert "os_compute_api:servers:stop" in await refused.text()
    assert (await api.act(mine["server_id"], "os-stop", who="stranger")).status == 404
    assert (await api.act(mine["server_id"], "os-stop", who="member")).status == 202


async def test_migrations_are_shown_without_hosts_and_to_their_project(
    api: Api, file: Path
) -> None:
    """Nova 2025.2: managers see their project's; hosts and other projects are rules apart."""
    moving = guest()
    await api.two_hosts(moving)
    body = {"host": OTHER, "block_migration": False}
    assert (await api.act(moving["server_id"], "os-migrateLive", body)).status == 202
    index, live = "os_compute_api:os-migrations:index", "os_compute_api:servers:migrations:index"
    open_ = {index: "@", live: "@"}
    closed = {f"{index}:host": "role:admin", f"{live}:host": "role:admin"}
    rules(api, file, **open_, **closed, **{f"{index}:all_projects": "role:admin"})
    lists = ("/v2.1/os-migrations", f"/v2.1/servers/{moving['server_id']}/migrations")
    for path in lists:
        for who, shown in (("admin", HOST), ("member", None)):
            [row] = (await api.get(path, who, version="2.80"))["migrations"]
            assert (row["source_compute"], row["source_node"]) == (shown, shown), (path, who)
            assert (row["dest_node"] is None) is (shown is None)
            assert (row["dest_host"] is None) is (shown is None)
    [row] = (await api.get(lists[0], "admin", version="2.80"))["migrations"]
    assert (await api.get(lists[0], "stranger", version="2.80"))["migrations"] == []
    marker = f"{lists[0]}?marker={row['uuid']}"
    assert (await api.ask("GET", marker, "stranger", version="2.80")).status == 400
    assert (await api.ask("GET", marker, "member", version="2.80")).status == 200
    assert (await api.ask("GET", lists[1], "stranger", version="2.80")).status == 404
    for by in ("host", "source_compute"):
        answer = await api.ask("GET", f"{lists[0]}?{by}={HOST}", "member", version="2.80")
        assert answer.status == 403, by
    rules(api, file, **open_)  # as an older file has it: the older name stands for the newer ones
    [row] = (await api.get(lists[0], "stranger", version="2.80"))["migrations"]
    assert row["source_compute"] == HOST


async def test_names_of_hosts_are_for_whom_novas_rules_say(api: Api, file: Path) -> None:
    answer = await api.act(await api.server(), "os-stop")
    request_id = answer.headers["X-Openstack-Request-Id"]
    operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"])
    server = operation["server_id"]
    await api.do_next_command()
    attributes = "os_compute_api:os-extended-server-attributes"
    events = "os_compute_api:os-instance-actions:events"
    one = f"/v2.1/servers/{server}/os-instance-actions/{request_id}"
    for allowed in (False, True):
        opened = dict.fromkeys((attributes, events, f"{events}:details"), "@")
        rules(api, file, **(opened if allowed else {}))
        shown = (await api.get(f"/v2.1/servers/{server}", "member"))["server"]
        assert ("OS-EXT-SRV-ATTR:host" in shown) is allowed
        action = (await api.get(one, "member", version="2.84"))["instanceAction"]
        for name in ("host", "traceback", "details"):
            assert (name in action["events"][-1]) is allowed, name


async def test_all_tenants_is_under_novas_rules(api: Api, file: Path) -> None:
    await api.server(project_id="another-project")
    rules(api, file, **{"os_compute_api:servers:index:get_all_tenants": "role:reader"})
    assert len((await api.get("/v2.1/servers?all_tenants=1", "member"))["servers"]) == 1
    answer = await api.ask("GET", "/v2.1/servers/detail?all_tenants=1", "member")
    assert answer.status == 403
    assert "os_compute_api:servers:detail:get_all_tenants" in await answer.text()


async def test_who_may_not_find_is_told_so_by_a_filter_and_searches_on(
    api: Api, file: Path
) -> None:
    server = await api.server()
    rules(api, file, **{"attachment-ledger:find": "!"})
    answer = await api.ask("GET", f"/ui/attachments?server={server[:8]}", "operator")
    assert (answer.status, "attachment-ledger:find" in await answer.text()) == (403, True)
    assert (await api.ask("GET", f"/ui/search?q={server[:8]}", "operator")).status == 200


async def test_an_agents_rule_opens_no_other_host(api: Api, file: Path) -> None:
    rules(api, file, **{"attachment-ledger:hosts:agent": "@"})
    await api.register()
    path = f"/v1/hosts/{HOST}/commands?epoch=0"
    for who, wanted in (("agent-2", 403), ("member", 403), ("operator", 403), ("agent-1", 200)):
        assert (await api.ask("GET", path, who)).status == wanted, who


async def test_a_stream_ends_when_its_rule_is_taken_back(api: Api, file: Path) -> None:
    stream = await api.ask("GET", "/v1/events/stream?after=0", "operator")
    assert stream.status == 200
    await api.server()
    while b"event" not in await stream.content.readany():
        pass
    rules(api, file, **{"attachment-ledger:events:stream": "role:auditor"})
    await api.server()  # an event wakes it
    await stream.read()
    assert stream.content.at_eof()
    assert (await api.ask("GET", "/v1/events/stream", "operator")).status == 403


async def test_a_broken_file_changes_nothing_and_is_told(
    api: Api, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_AGE_S", 0.0)
    rules(api, file, **{"attachment-ledger:hosts:list": "role:reader"})
    for text, broken in (
        ('"attachment-ledger:hosts:list": "role:member and"', True),
        ('"attachment-ledger:hosts:list": "role:admin"', False),
    ):
        given(api, file, text)
        for who in ("reader", "member"):
            status = (await api.ask("GET", "/v1/hosts", who)).status
            assert status == (200 if broken else 403), (who, text)
        warnings = (await (await api.ask("GET", "/readyz", None)).json())["warnings"]
        told = [warning for warning in warnings if warning.startswith("policy: ")]
        assert len(told) == broken
        assert all("attachment-ledger:hosts:list" in warning for warning in told)
        page = await (await api.ask("GET", "/metrics", None)).text()
        assert f"\nledger_policy_stale {float(broken)}\n" in page
