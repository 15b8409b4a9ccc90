"""Who may do what, and what of others exists for whom."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from ledger.auth.tokens import AuthError, NoAuth, RequestSender
from ledger.config import AuthMode, Listen, Settings
from tests.service.api_world import HOST, PROJECT, Api, guest, running_api


async def test_without_a_token_and_with_a_wrong_one(api: Api) -> None:
    head = await api.head()
    for who in (None, "wrong", "x" * 5000):
        answer = await api.ask("GET", "/v2.1/servers", who)
        assert answer.status == 401
        assert list(await answer.json()) == ["unauthorized"]
        answer = await api.ask("POST", f"/v1/hosts/{HOST}/fence", who, json={})
        assert (answer.status, (await answer.json())["code"]) == (401, "unauthorized")
    assert await api.head() == head


ROLES: list[tuple[str, str, str, bool]] = [
    ("reader", "GET", "/v2.1/servers", True),
    ("reader", "POST", "/v2.1/servers/{server}/os-volume_attachments", False),
    ("reader", "DELETE", "/v2.1/servers/{server}/os-volume_attachments/{volume}", False),
    ("member", "GET", "/v1/hosts", False),
    ("member", "GET", "/v1/events", False),
    ("member", "GET", "/v1/events/stream", False),
    ("member", "POST", "/v1/hosts/compute-1/fence", False),
    ("member", "POST", "/v1/operations/{volume}/actions", False),
    ("member", "GET", "/v1/operations", False),
    ("member", "GET", "/v1/operations?server={server}", True),
    ("member", "GET", "/v1/attachments?server={server}", True),
    ("member", "GET", "/v1/servers/{server}/history", True),
    ("cinder", "GET", "/v2.1/servers/{server}/os-volume_attachments", True),
    ("cinder", "GET", "/v1/hosts", False),
    ("cinder", "POST", "/v2.1/servers/{server}/os-volume_attachments", False),
    ("operator", "GET", "/v1/hosts", True),
    ("operator", "GET", "/v2.1/servers/{server}", True),
    ("operator", "GET", "/v1/hosts/compute-1/commands?epoch=0", False),
    ("admin", "GET", "/v1/hosts/compute-1/commands?epoch=0", False),
    ("agent-1", "GET", "/v1/hosts/compute-1/commands?epoch=0", True),
    ("agent-1", "GET", "/v1/hosts/compute-2/commands?epoch=0", False),
    ("agent-2", "GET", "/v1/hosts/compute-1/commands?epoch=0", False),
    ("agent-2", "PUT", "/v1/hosts/compute-1", False),
    ("agent-2", "POST", "/v1/hosts/compute-1/reports", False),
    ("agent-1", "GET", "/v1/hosts/compute-1", False),
    ("agent-1", "GET", "/v2.1/servers", False),
]


async def test_roles(api: Api) -> None:
    server = await api.server()
    head = await api.head()
    for who, method, path, allowed in ROLES:
        url = path.format(server=server, volume=uuid4())
        answer = await api.ask(method, url, who, json={} if method != "GET" else None)
        assert answer.status == (200 if allowed else 403), (who, method, path)
    assert await api.head() == head


async def test_what_belongs_to_another_project_does_not_exist(api: Api) -> None:
    """LP 2138566."""
    server, volume = await api.attached()
    [row] = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    head = await api.head()
    for method, path in (
        ("GET", f"/v2.1/servers/{server}"),
        ("GET", f"/v2.1/servers/{server}/os-volume_attachments"),
        ("GET", f"/v2.1/servers/{server}/os-volume_attachments/{volume}"),
        ("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}"),
        ("GET", f"/v1/servers/{server}/history"),
        ("GET", f"/v1/operations/{row['operation_id']}"),
        ("GET", f"/v1/operations?server={server}"),
        ("GET", f"/v1/attachments/{row['attachment_id']}"),
        ("GET", f"/v1/attachments?server={server}"),
    ):
        assert (await api.ask(method, path, "stranger")).status == 404, path
    assert (await api.get("/v2.1/servers", "stranger"))["servers"] == []
    assert (await api.attach(server, volume, who="stranger")).status == 404
    assert await api.head() == head


async def test_an_operation_is_seen_by_the_project_of_its_server_whoever_began_it(
    api: Api,
) -> None:
    answer = await api.act(await api.server(), "os-stop", who="operator")
    path = answer.headers["X-Attachment-Ledger-Operation"]
    assert (await api.get(path, "member"))["project_id"] == "operators"
    answer = await api.act(await api.server(project_id="operators"), "os-stop")
    path = answer.headers["X-Attachment-Ledger-Operation"]
    assert (await api.get(path))["project_id"] == PROJECT
    for hidden in (path, f"{path}?wait_s=1", f"{path}/history"):
        assert (await api.ask("GET", hidden, "member")).status == 404


async def test_a_server_without_a_project_is_the_operators_alone(api: Api) -> None:
    server = await api.server(project_id=None)
    assert (await api.ask("GET", f"/v2.1/servers/{server}", "member")).status == 404
    assert (await api.ask("GET", f"/v2.1/servers/{server}", "operator")).status == 200


async def test_a_volume_of_another_project_cannot_be_attached(api: Api) -> None:
    server, volume = await api.server(), api.volume(project_id="another-project")
    head = await api.head()
    answer = await api.attach(server, volume, who="member")
    assert answer.status == 404
    text = (await answer.json())["itemNotFound"]["message"]
    assert text == f"Volume {volume} could not be found."
    assert await api.head() == head
    assert (await api.attach(server, api.volume(), who="member")).status == 200


async def test_all_tenants_is_for_those_who_see_them(api: Api) -> None:
    await api.server()
    assert (await api.ask("GET", "/v2.1/servers?all_tenants=1", "member")).status == 403
    assert len((await api.get("/v2.1/servers?all_tenants=1", "operator"))["servers"]) == 1
    assert len((await api.get("/v2.1/servers?all_tenants=0", "member"))["servers"]) == 1


async def test_a_log_line_names_its_request_and_nothing_of_the_connections_last_one(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    of_a_flow = {"X-OpenStack-Global-Request-Id": f"req-{uuid4()}"}
    caplog.set_level(logging.DEBUG, "ledger.http.app")
    with capture_logs([merge_contextvars]) as lines:
        first = await api.ask("GET", "/v2.1/servers", "member", headers=of_a_flow)
        second = await api.ask("GET", "/v2.1/servers", "wrong")
    assert (first.status, second.status) == (200, 401)
    known, unknown = [line for line in lines if line["event"] == "request"]
    assert known["request_id"] == first.headers["X-Openstack-Request-Id"]
    assert known["global_request_id"] == of_a_flow["X-OpenStack-Global-Request-Id"]
    assert known["actor"] == "member"
    assert unknown["request_id"] == second.headers["X-Openstack-Request-Id"]
    assert not {"actor", "global_request_id"} & unknown.keys()


async def test_noauth_takes_the_actor_from_headers(database_url: str) -> None:
    async with running_api(database_url, Settings(auth=AuthMode.NOAUTH)) as api:
        server = guest()
        said = {"service_version": 1, "capabilities": {}, "guests": [server]}
        who = {"X-User-Id": "alice", "X-Project-Id": "p1"}
        answer = await api.ask("PUT", f"/v1/hosts/{HOST}", None, json=said)
        assert answer.status == 200
        path = f"/v2.1/servers/{server['server_id']}/os-volume_attachments"
        body = {"volumeAttachment": {"volumeId": api.volume()}}
        answer = await api.ask("POST", path, None, json=body, headers=who)
        assert answer.status == 200, await answer.text()
        operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"], None)
        assert (operation["user_id"], operation["project_id"]) == ("alice", "p1")


async def test_noauth_refuses_names_that_are_none() -> None:
    identity = await NoAuth().authenticate(RequestSender(headers={"Host": "localhost:8790"}))
    assert identity.may_speak_for("any-host")
    with pytest.raises(AuthError):
        await NoAuth().authenticate(
            RequestSender(headers={"Host": "localhost:8790", "X-User-Id": "a b\nc"})
        )


WEBSITES: list[dict[str, str]] = [
    {"Host": "rebound.example.org:{port}"},  # a name that was made to mean 127.0.0.1
    {"Host": "127.0.0.1.example.org"},
    {"Host": "[fe80::1]:{port}"},
    {"Host": ""},
    {"Origin": "http://example.org"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://127.0.0.1:1"},  # another program's page on this machine
    {"Origin": "null"},  # a page in a sandbox, or in a file
    {"Sec-Fetch-Site": "cross-site"},  # a link or an image, without Origin
    {"Sec-Fetch-Site": "same-site"},
]


async def test_noauth_takes_nothing_from_web_pages(database_url: str) -> None:
    """A POST without a body needs no leave of the browser's (CORS): a page could fence a host."""
    async with running_api(database_url, Settings(auth=AuthMode.NOAUTH)) as api:
        port = str(api.http.make_url("/").port)
        path = "/v1/refresh"
        for website in WEBSITES:
            sent = {name: value.format(port=port) for name, value in website.items()}
            for method in ("GET", "POST"):
                answer = await api.ask(method, path, None, headers=sent)
                assert answer.status == 403, (method, sent)
                assert (await answer.json())["code"] == "website"
        own = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
        for headers in ({}, own, {"Host": f"localhost:{port}"}, {"Host": f"[::1]:{port}"}):
            answer = await api.ask("GET", "/v1/operations", None, headers=headers)
            assert answer.status == 200, headers


def test_noauth_is_refused_off_loopback(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="noauth"):
        Settings(auth=AuthMode.NOAUTH, listen=Listen(host="0.0.0.0"))
