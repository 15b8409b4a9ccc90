"""Keystone's tokens at the API: who is let in, as whom, and for what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ledger.config import AuthMode, PolicySettings
from tests.doubles.simulated_keystone import HOUR, SimulatedKeystone
from tests.service.api_world import PROJECT, Api, running_api
from tests.service.keystone_world import SERVERS, ask, settings, status
from tests.tokens import token_of

ASKS = "2.89"


@pytest.fixture
async def api(keystone: SimulatedKeystone, database_url: str) -> AsyncIterator[Api]:
    async with running_api(database_url, settings(keystone)) as running:
        yield running


# ------------------------------------------------------------------------- who it is


async def test_a_member_of_a_project_has_what_is_the_projects(
    api: Api, keystone: SimulatedKeystone
) -> None:
    mine, others = await api.server(), await api.server(project_id="another-project")
    token = keystone.token("alice", "member", project=PROJECT)
    listed = await (await ask(api, token)).json()
    assert [row["id"] for row in listed["servers"]] == [mine]
    assert await status(api, token, f"{SERVERS}/{others}") == 404
    assert await status(api, token, "/v1/hosts") == 403
    body = {"volumeAttachment": {"volumeId": api.volume()}}
    path = f"{SERVERS}/{mine}/os-volume_attachments"
    answer = await ask(api, token, path, method="POST", json=body)
    assert answer.status == 200, await answer.text()
    operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"])
    assert (operation["actor"], operation["user_id"]) == ("alice", "id-of-alice")
    assert operation["project_id"] == PROJECT


async def test_roles_are_what_the_table_says(
    keystone: SimulatedKeystone, database_url: str
) -> None:
    ways = {
        "reader": (200, 403, 403),
        "member": (200, 404, 403),
        "admin": (200, 404, 200),
        "service": (200, 403, 403),
        "of-another-service": (403, 403, 403),
    }
    missing = f"{SERVERS}/{uuid4()}/os-volume_attachments/{uuid4()}"
    async with running_api(database_url, settings(keystone)) as api:
        for role, expected in ways.items():
            token = keystone.token(role, role, project=PROJECT)
            found = (
                await status(api, token),
                await status(api, token, missing, method="DELETE"),
                await status(api, token, "/v1/hosts"),
            )
            assert found == expected, role


async def test_a_role_of_the_clouds_own_is_what_the_policy_makes_it(
    keystone: SimulatedKeystone, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text('"context_is_admin": "role:storage-crew"\n')
    given = replace(settings(keystone), policy=PolicySettings(file=str(file)))
    async with running_api(database_url, given) as api:
        server = await api.server(project_id="another-project")
        crew = keystone.token("carl", "storage-crew", project=PROJECT)
        admin = keystone.token("root", "admin", project=PROJECT)
        for token, hosts, foreign in ((crew, 200, 200), (admin, 403, 404)):
            assert await status(api, token, "/v1/hosts") == hosts
            assert await status(api, token, f"{SERVERS}/{server}") == foreign
        agent = keystone.token("mallory", "agent", project=PROJECT)
        assert await status(api, agent, "/v1/hosts/compute-1/commands?epoch=0") == 403


SCOPES: list[tuple[str, dict[str, Any], int, int]] = [
    ("admin", {"system": True}, 200, 200),
    ("member", {"system": True}, 403, 403),  # of no project, so there is nothing to act on
    ("admin", {"domain": "default"}, 403, 403),  # of a domain, and not of the cloud
    ("admin", {}, 403, 403),
    ("admin", {"project": PROJECT, "is_admin_project": True}, 200, 200),
    ("admin", {"project": PROJECT, "is_admin_project": False}, 200, 403),
    ("Admin", {"project": PROJECT, "is_admin_project": False}, 403, 403),  # as oslo.policy compares
    ("service", {"project": PROJECT, "is_admin_project": False}, 200, 403),
]


async def test_a_role_counts_where_its_scope_is_for_something_here(
    api: Api, keystone: SimulatedKeystone
) -> None:
    await api.server(project_id="another-project")
    for role, scope, servers, hosts in SCOPES:
        token = keystone.token("somebody", role, **scope)
        found = (await status(api, token), await status(api, token, "/v1/hosts"))
        assert found == (servers, hosts), (role, scope)
    token = keystone.token("root", "admin", project=PROJECT, is_admin_project=False)
    assert (await (await ask(api, token)).json())["servers"] == []


async def test_headers_say_nothing_of_who_somebody_is(
    api: Api, keystone: SimulatedKeystone
) -> None:
    server = await api.server(project_id="another-project")
    claimed = {
        "X-Project-Id": "another-project",
        "X-User-Id": "root",
        "X-Roles": "admin",
        "X-Service-Roles": "service",
        "X-Identity-Status": "Confirmed",
    }
    token = keystone.token("mallory", "member", project=PROJECT)
    assert await status(api, token, f"{SERVERS}/{server}", headers=claimed) == 404
    assert await status(api, "", f"{SERVERS}/{server}", headers=claimed) == 401
    assert await status(api, token, "/v1/hosts", headers=claimed) == 403


# ---------------------------------------------------------------------- service tokens


async def test_a_service_token_is_a_services_or_all_is_refused(
    api: Api, keystone: SimulatedKeystone
) -> None:
    user = keystone.token("alice", "member", project=PROJECT)
    service = keystone.token("cinder", "service", project="service")
    expired = keystone.token("cinder", "service", project="service", valid=-HOUR)
    assert await status(api, user, service=service) == 200
    for bad in (user, expired, "gAAAAABnonsense", "x" * 5000):
        assert await status(api, user, service=bad) == 401
    assert await status(api, user, headers={"X-Service-Token": ""}) == 200
    assert await status(api, None, service=service) == 401


@pytest.mark.parametrize("first", [AuthMode.TOKENS, AuthMode.KEYSTONE])
async def test_a_bad_service_token_refuses_a_static_token_too(
    keystone: SimulatedKeystone, database_url: str, first: AuthMode
) -> None:
    order = (first, *({AuthMode.TOKENS, AuthMode.KEYSTONE} - {first}))
    service = keystone.token("cinder", "service", project="service")
    nobodys = keystone.token("alice", "member", project=PROJECT)
    async with running_api(database_url, settings(keystone, order=order)) as api:
        static = token_of("member")
        assert await status(api, static) == 200
        assert await status(api, static, service=service) == 200
        for bad in (nobodys, "gAAAAABnonsense"):
            assert await status(api, static, service=bad) == 401


async def test_an_expired_token_is_good_with_a_service_token_alone(
    api: Api, keystone: SimulatedKeystone
) -> None:
    user = keystone.token("alice", "member", project=PROJECT, valid=-HOUR)
    service = keystone.token("cinder", "service", project="service")
    assert await status(api, user) == 401
    assert await status(api, user, service=service) == 200
    assert await status(api, user) == 401
    assert keystone.asked["validation"] == 3  # and each answer is remembered
    assert await status(api, user, service=service) == 200
    assert keystone.asked["validation"] == 3
    keystone.revoke(user)
    long_gone = keystone.token("alice", "member", project=PROJECT, valid=timedelta(days=-3))
    assert await status(api, long_gone, service=service) == 401


async def test_what_cinder_asks_is_answered_by_the_attachment_whoever_wants_it_deleted(
    api: Api, keystone: SimulatedKeystone
) -> None:
    """CVE-2023-2088: "not found", or a refusal to look, must not depend on the user's token."""
    server, volume = await api.attached()
    path = f"{SERVERS}/{server}/os-volume_attachments/{volume}"
    service = keystone.token("cinder", "service", project="service")
    shown = None
    for token in (
        keystone.token("alice", "member", project=PROJECT),
        keystone.token("stranger", "member", project="another-project"),
        keystone.token("guest", "a-role-of-cinders", project="another-project"),
        keystone.token("late", "member", project="another-project", valid=-HOUR),
    ):
        answer = await ask(api, token, path, version=ASKS, service=service)
        assert answer.status == 200
        found = (await answer.json())["volumeAttachment"]["attachment_id"]
        assert found == (shown or found)
        shown = found


async def test_a_service_token_opens_nothing_else_to_the_user_it_comes_with(
    api: Api, keystone: SimulatedKeystone
) -> None:
    server, volume = await api.attached()
    stranger = keystone.token("stranger", "member", project="another-project")
    service = keystone.token("cinder", "service", project="service")
    path = f"{SERVERS}/{server}/os-volume_attachments"
    one = f"{path}/{volume}"
    for method, url, version in (
        ("GET", f"{SERVERS}/{server}", None),
        ("GET", path, ASKS),
        ("DELETE", one, ASKS),
        ("GET", f"/v1/servers/{server}/history", None),
    ):
        found = await status(api, stranger, url, method=method, version=version, service=service)
        assert found == 404, url
    assert (await (await ask(api, stranger, service=service)).json())["servers"] == []
    body = {"volumeAttachment": {"volumeId": api.volume()}}
    assert await status(api, stranger, one, method="PUT", json=body, service=service) == 404
    assert await status(api, stranger, one, version=ASKS) == 409
    assert await status(api, stranger, one, version="2.88") == 404
    unknown = f"{SERVERS}/{uuid4()}/os-volume_attachments/{volume}"
    assert await status(api, stranger, unknown, version=ASKS, service=service) == 409


# ------------------------------------------------------------------------- access rules


async def test_an_application_credential_may_do_what_its_rules_have(
    api: Api, keystone: SimulatedKeystone
) -> None:
    server, volume = await api.attached()
    listed = {
        "service": "compute",
        "method": "GET",
        "path": "/v2.1/servers/*/os-volume_attachments",
    }
    own = {"service": "attachment-ledger", "method": "GET", "path": "/v1/flows"}
    robot = keystone.token("robot", "member", project=PROJECT, rules=[listed, own])
    path = f"{SERVERS}/{server}/os-volume_attachments"
    assert await status(api, robot, path) == 200
    assert await status(api, robot, "/v1/flows") == 200
    for method, url in (
        ("GET", f"{path}/{volume}"),
        ("POST", path),
        ("GET", SERVERS),
        ("GET", "/v1/flows/attach"),
        ("GET", "/v1/operations"),
    ):
        answer = await ask(api, robot, url, method=method)
        assert answer.status == 403, url
        assert "access rules" in await answer.text()
    service = keystone.token("cinder", "service", project="service")
    assert await status(api, robot, f"{path}/{volume}", service=service) == 200
    assert await status(api, keystone.token("idle", "member", project=PROJECT, rules=[])) == 403


async def test_a_service_token_has_its_rules_too(api: Api, keystone: SimulatedKeystone) -> None:
    user = keystone.token("alice", "member", project=PROJECT)
    service = keystone.token("cinder", "service", project="service", rules=[])
    assert await status(api, user, service=service) == 403


# ---------------------------------------------------------------------------- 401 and ids


async def test_who_has_no_good_token_is_told_where_to_get_one(
    api: Api, keystone: SimulatedKeystone
) -> None:
    for token in (None, "gAAAAABnonsense", "x" * 5000):
        answer = await ask(api, token)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == f'Keystone uri="{keystone.url}/v3"'
    for path in ("/", "/v2.1", "/healthz"):
        assert await status(api, None, path) == 200
    assert keystone.asked["validation"] == 1


async def test_a_token_of_8_kib_costs_nothing_and_is_not_logged(
    api: Api, keystone: SimulatedKeystone, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    long = "gAAAAAB" + "s3cret" * 1365
    for token in (long[:8000], long[:8192]):
        answer = await ask(api, token)
        assert answer.status in {400, 401}
    assert b" 400 " in await no_http(api, b"X-Auth-Token: s3cret\x01")
    assert "s3cret" not in caplog.text
    assert keystone.asked["validation"] == 0


async def no_http(api: Api, header: bytes) -> bytes:
    """What is answered to a request with this header."""
    url = api.http.make_url("/")
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET /v2.1/servers HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


async def test_the_request_id_of_a_service_is_the_global_one(
    api: Api, keystone: SimulatedKeystone
) -> None:
    """As OpenStack's services send it; the longer name goes before."""
    token = keystone.token("alice", "member", project=PROJECT)
    passed_on, other = f"req-{uuid4()}", f"req-{uuid4()}"
    for sent, expected in (
        ({"X-OpenStack-Request-ID": passed_on}, passed_on),
        ({"X-OpenStack-Request-ID": passed_on, "X-OpenStack-Global-Request-Id": other}, other),
        ({"X-OpenStack-Request-ID": passed_on, "X-OpenStack-Global-Request-Id": "x"}, passed_on),
        ({"X-OpenStack-Request-ID": "req-1'; DROP"}, None),
    ):
        answer = await ask(api, token, headers=sent)
        assert answer.headers.get("X-OpenStack-Global-Request-Id") == expected
        assert answer.headers["X-Openstack-Request-Id"] not in {passed_on, other}
