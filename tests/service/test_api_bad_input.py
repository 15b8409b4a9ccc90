"""Bad input: a clear 4xx in the right shape, and nothing written."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.service.api_world import HOST, Api, guest

SERVER = "{server}"
VOLUMES = "/v2.1/servers/{server}/os-volume_attachments"
UNKNOWN = "00000000-0000-4000-8000-00000000000e"
HUGE = 200_000


def attach(**fields: Any) -> dict[str, Any]:
    return {"volumeAttachment": fields}


def report(**fields: Any) -> dict[str, Any]:
    """Of one result; `fields` are its, or the report's."""
    own = {"operation_id": UNKNOWN, "run": 1, "epoch": 0}
    own |= {name: fields.pop(name) for name in own.keys() & fields}
    result = {"step": "update", "took_ms": 1, "outputs": {}, "error": None, **fields}
    return {**own, "results": [result]}


def registration(*guests: Any, **fields: Any) -> dict[str, Any]:
    return {"service_version": 1, "capabilities": {}, "guests": list(guests), **fields}


AGENT = ("PUT", f"/v1/hosts/{HOST}", "agent-1")
REPORTS = ("POST", f"/v1/hosts/{HOST}/reports", "agent-1")
ACTIONS = ("POST", "/v1/operations/{operation}/actions", "admin")
FENCE = ("POST", f"/v1/hosts/{HOST}/fence", "admin")

#: method, path, who, JSON body, status, name of the error (or code, on /v1)
BODIES: dict[str, tuple[str, str, str, Any, int, str]] = {
    "attach: list": ("POST", VOLUMES, "admin", [], 400, "badRequest"),
    "attach: nothing": ("POST", VOLUMES, "admin", {}, 400, "badRequest"),
    "attach: no volume": ("POST", VOLUMES, "admin", attach(), 400, "badRequest"),
    "attach: number": ("POST", VOLUMES, "admin", attach(volumeId=7), 400, "badRequest"),
    "attach: no uuid": ("POST", VOLUMES, "admin", attach(volumeId="vol"), 400, "badRequest"),
    "attach: unknown volume": (
        "POST",
        VOLUMES,
        "admin",
        attach(volumeId=UNKNOWN),
        404,
        "itemNotFound",
    ),
    "attach: unknown key": (
        "POST",
        VOLUMES,
        "admin",
        attach(volumeId=UNKNOWN, colour="red"),
        400,
        "badRequest",
    ),
    "attach: unknown key outside": (
        "POST",
        VOLUMES,
        "admin",
        {**attach(volumeId=UNKNOWN), "more": 1},
        400,
        "badRequest",
    ),
    "attach: NUL": (
        "POST",
        VOLUMES,
        "admin",
        attach(volumeId=UNKNOWN, device="/dev/\x00"),
        400,
        "badRequest",
    ),
    "attach: huge": (
        "POST",
        VOLUMES,
        "admin",
        attach(volumeId="x" * HUGE),
        413,
        "overLimit",
    ),
    "attach: unknown server": (
        "POST",
        f"/v2.1/servers/{UNKNOWN}/os-volume_attachments",
        "admin",
        attach(volumeId=UNKNOWN),
        404,
        "itemNotFound",
    ),
    "attach: server's name": (
        "POST",
        "/v2.1/servers/vm/os-volume_attachments",
        "admin",
        attach(volumeId=UNKNOWN),
        404,
        "itemNotFound",
    ),
    "update: not attached": (
        "PUT",
        f"{VOLUMES}/{UNKNOWN}",
        "admin",
        attach(volumeId=UNKNOWN),
        404,
        "itemNotFound",
    ),
    "detach: not attached": ("DELETE", f"{VOLUMES}/{UNKNOWN}", "admin", None, 404, "itemNotFound"),
    "detach: no uuid": ("DELETE", f"{VOLUMES}/vol", "admin", None, 404, "itemNotFound"),
    "no such resource": ("GET", "/v2.1/images", "admin", None, 404, "itemNotFound"),
    "no such method": ("DELETE", "/v2.1/servers", "admin", None, 405, "badMethod"),
    "act: none": (*ACTIONS, {}, 400, "invalid"),
    "act: two": (*ACTIONS, {"retry": {"reason": "a"}, "unwind": {"reason": "b"}}, 400, "invalid"),
    "act: null": (*ACTIONS, {"retry": None}, 400, "invalid"),
    "act: unknown": (*ACTIONS, {"explode": {"reason": "a"}}, 400, "invalid"),
    "act: no reason": (*ACTIONS, {"retry": {}}, 400, "invalid"),
    "act: empty reason": (*ACTIONS, {"retry": {"reason": "  "}}, 400, "invalid"),
    "act: long reason": (*ACTIONS, {"retry": {"reason": "x" * 2000}}, 400, "invalid"),
    "act: not parked": (*ACTIONS, {"retry": {"reason": "why not"}}, 409, "operator_act"),
    "act: unknown operation": (
        "POST",
        f"/v1/operations/{UNKNOWN}/actions",
        "admin",
        {"retry": {"reason": "a"}},
        404,
        "operation_not_found",
    ),
    "fence: no evidence": (*FENCE, {"reason": "a"}, 400, "invalid"),
    "fence: unknown host": (
        "POST",
        "/v1/hosts/nowhere/fence",
        "admin",
        {"reason": "a", "evidence": "b"},
        404,
        "host_not_found",
    ),
    "no such method of ours": ("PATCH", "/v1/hosts", "admin", None, 405, "method_not_allowed"),
    "agent: list": (*AGENT, [], 400, "malformed"),
    "agent: nothing": (*AGENT, {}, 400, "malformed"),
    "agent: no uuid": (*AGENT, registration(guest(server_id="vm")), 400, "malformed"),
    "agent: uuid in braces": (
        *AGENT,
        registration(guest(server_id="{" + UNKNOWN + "}")),
        400,
        "malformed",
    ),
    "agent: twice": (
        *AGENT,
        registration(guest(server_id=UNKNOWN), guest(server_id=UNKNOWN)),
        400,
        "malformed",
    ),
    "agent: power": (*AGENT, registration(guest(power_state="on")), 400, "malformed"),
    "agent: devices": (*AGENT, registration(guest(devices="vda")), 400, "malformed"),
    "agent: device": (*AGENT, registration(guest(devices=["../etc"])), 400, "malformed"),
    "agent: name": (*AGENT, registration(guest(name="x" * 300)), 400, "malformed"),
    "agent: NUL": (*AGENT, registration(guest(name="\x00")), 400, "malformed"),
    "build: escape": ("POST", "/v1/servers", "admin", {"name": "\x1b[2J"}, 400, "unshowable"),
    "agent: capabilities": (*AGENT, registration(capabilities={"a": {"b": 1}}), 400, "malformed"),
    "agent: version": (*AGENT, registration(service_version=True), 400, "malformed"),
    "agent: huge version": (*AGENT, registration(service_version=2**70), 400, "malformed"),
    "report: nothing": (*REPORTS, {}, 400, "malformed"),
    "report: no uuid": (*REPORTS, report(operation_id="op"), 400, "malformed"),
    "report: unknown operation": (*REPORTS, report(), 409, "stale_report"),
    "report: epoch": (*REPORTS, report(epoch=5), 409, "stale_epoch"),
    "report: run 0": (*REPORTS, report(run=0), 400, "malformed"),
    "report: negative run": (*REPORTS, report(run=-1), 400, "malformed"),
    "report: huge run": (*REPORTS, report(run=2**40), 400, "malformed"),
    "report: step": (*REPORTS, report(step="a\nb"), 400, "malformed"),
    "report: outputs": (*REPORTS, report(outputs=[1]), 400, "malformed"),
    "report: driver": (*REPORTS, report(outputs={"driver": {"a": 1}}), 400, "malformed"),
    "report: long driver": (*REPORTS, report(outputs={"driver": "x" * 999}), 400, "malformed"),
    "report: kind": (
        *REPORTS,
        report(error={"kind": "bad", "code": "c", "message": "m"}),
        400,
        "malformed",
    ),
    "report: huge": (*REPORTS, report(outputs={"x": "x" * HUGE}), 413, "too_large"),
}


@pytest.fixture
async def written(api: Api) -> dict[str, str]:
    """Ids of a server with a volume, and of the operation that attached it."""
    server, volume = await api.attached()
    [operation] = (await api.get(f"/v1/operations?volume={volume}"))["operations"]
    return {"server": server, "volume": volume, "operation": operation["operation_id"]}


async def check(api: Api, answer: Any, path: str, status: int, name: str) -> None:
    text = await answer.text()
    assert answer.status == status, text
    assert answer.headers["X-Openstack-Request-Id"].startswith("req-")
    body = await answer.json(content_type=None)
    if path.startswith("/v2.1"):
        assert list(body) == [name], text
        assert body[name]["code"] == status
        assert body[name]["message"]
    else:
        assert answer.content_type == "application/problem+json"
        assert (body["code"], body["status"]) == (name, status), text
        assert body["detail"]
        assert body["request_id"] == answer.headers["X-Openstack-Request-Id"]


async def test_bad_bodies(api: Api, written: dict[str, str]) -> None:
    head = await api.head()
    for case, (method, path, who, body, status, name) in BODIES.items():
        url = path.replace(SERVER, written["server"]).replace("{operation}", written["operation"])
        answer = await api.ask(method, url, who, "2.89", json=body)
        try:
            await check(api, answer, path, status, name)
        except AssertionError as wrong:
            raise AssertionError(case) from wrong
        assert await api.head() == head, case


NO_JSON: list[tuple[bytes, str, int]] = [
    (b"{", "application/json", 400),
    (b"", "application/json", 400),
    (b"[" * 5000, "application/json", 400),
    (b'{"a": NaN}', "application/json", 400),
    (b'{"a": "\\ud800"}', "application/json", 400),
    (b"\xff\xfe", "application/json", 400),
    (b"{}", "text/plain", 415),  # what a foreign web page could make a browser send
    (b"{}", "application/x-www-form-urlencoded", 415),
    (b"x" * HUGE, "application/json", 413),
]


async def test_bodies_that_are_no_json(api: Api) -> None:
    await api.server()
    head = await api.head()
    for content, media_type, status in NO_JSON:
        for method, path, who in (
            ("POST", f"/v2.1/servers/{UNKNOWN}/os-volume_attachments", "admin"),
            ("POST", f"/v1/hosts/{HOST}/unfence", "admin"),
            ("POST", f"/v1/hosts/{HOST}/reports", "agent-1"),
        ):
            answer = await api.ask(
                method, path, who, data=content, headers={"Content-Type": media_type}
            )
            assert answer.status == status, (path, await answer.text())
            assert "application/" in answer.headers["Content-Type"]
        assert await api.head() == head


async def test_a_body_of_untold_length_is_cut_off(api: Api) -> None:
    async def chunks() -> Any:
        for _ in range(50):
            yield b" " * 10_000

    answer = await api.ask(
        "POST",
        f"/v2.1/servers/{UNKNOWN}/os-volume_attachments",
        data=chunks(),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status == 413


URLS: list[tuple[str, int]] = [
    ("/v2.1/servers?limit=-1", 400),
    ("/v2.1/servers?limit=many", 400),
    ("/v2.1/servers?marker=vm", 400),
    (f"/v2.1/servers?marker={UNKNOWN}", 400),
    ("/v2.1/servers?name=%00", 400),
    (VOLUMES + "?limit=-1", 400),
    (VOLUMES + "?offset=x", 400),
    ("/v1/operations?limit=0", 400),
    ("/v1/operations?limit=100000", 400),
    ("/v1/operations?limit=1_0", 400),
    ("/v1/operations?limit=1&limit=2", 400),
    ("/v1/operations?state=sleeping", 400),
    ("/v1/operations?server=vm", 400),
    ("/v1/operations?colour=red", 400),
    ("/v1/operations?after=99999999999999999999", 400),
    (f"/v1/operations/{UNKNOWN}", 404),
    ("/v1/operations/latest", 404),
    ("/v1/operations/{operation}?wait_s=3600", 400),
    ("/v1/operations/{operation}?wait_s=nan", 400),
    ("/v1/operations/{operation}?wait_s=-1", 400),
    ("/v1/operations/{operation}/history?at=yesterday", 400),
    ("/v1/operations/{operation}/history?at=2026-01-01T00:00:00", 400),
    ("/v1/operations/{operation}/history?order=random", 400),
    ("/v1/operations/{operation}/history?after=-1", 400),
    ("/v1/attachments?at=2026-01-01T00:00:00Z", 400),
    (f"/v1/attachments/{UNKNOWN}", 404),
    ("/v1/hosts/nowhere", 404),
    ("/v1/hosts/%2e%2e%2fetc", 404),
    ("/v1/hosts/nowhere/history", 404),
    ("/v1/flows/teleport", 404),
    ("/v1/events?after=x", 400),
    ("/v1/events/stream?after=x", 400),
    ("/v1/nothing", 404),
    ("/nothing", 404),
    (f"/v1/hosts/{HOST}/commands", 400),
    (f"/v1/hosts/{HOST}/commands?epoch=7", 409),
    (f"/v1/hosts/{HOST}/commands?epoch=0&wait_s=9999", 400),
]


async def test_bad_urls(api: Api, written: dict[str, str]) -> None:
    head = await api.head()
    for path, status in URLS:
        url = path.replace(SERVER, written["server"]).replace("{operation}", written["operation"])
        who = "agent-1" if "/commands" in path else "admin"
        answer = await api.ask("GET", url, who)
        assert answer.status == status, (path, await answer.text())
        body = await answer.json(content_type=None)
        assert ("code" in body) != path.startswith("/v2.1"), path
    assert await api.head() == head


async def test_what_is_wrong_is_told_by_what_would_be_right(api: Api) -> None:
    server = f"/v2.1/servers/{await api.server()}"
    rows: list[tuple[str, str, Any, int, str]] = [
        ("GET", "/v1/operations?after=-1", None, 400, "a whole number of 0 or more is wanted"),
        ("POST", f"{server}/action", {"reboot": {"type": "x"}}, 400, "'SOFT' or 'HARD'"),
        ("POST", f"{server}/action", {"reboot": {"type": 5}}, 400, "'SOFT' or 'HARD'"),
        ("PUT", f"{server}/tags/a,b", None, 400, "Invalid input. Value: a,b."),
        ("POST", "/v1/convert", {"host": "nowhere"}, 404, "No agent has registered for host"),
        ("GET", "/v1/drift?class=nope", None, 400, "drift classes"),
    ]
    head = await api.head()
    for method, path, body, status, told in rows:
        given = {} if body is None else {"json": body}
        answer = await api.ask(method, path, "admin", "2.95", **given)
        assert (answer.status, told in await answer.text()) == (status, True), (path, body)
    assert await api.head() == head


@pytest.mark.parametrize(
    ("header", "value"), [("Idempotency-Key", "x" * 300), ("Idempotency-Key", "a b")]
)
async def test_bad_headers(api: Api, header: str, value: str) -> None:
    server, volume = await api.server(), api.volume()
    head = await api.head()
    assert (await api.attach(server, volume, headers={header: value})).status == 400
    assert await api.head() == head


async def test_a_global_request_id_is_repeated_if_it_is_one(api: Api) -> None:
    name = "X-OpenStack-Global-Request-Id"
    given = f"req-{uuid4()}"
    answer = await api.ask("GET", "/v2.1/servers", headers={name: given})
    assert answer.headers[name] == given
    assert answer.headers["X-Openstack-Request-Id"] != given
    answer = await api.ask("GET", "/v2.1/servers", headers={name: "req-<script>"})
    assert name not in answer.headers


async def test_what_nobody_foresaw_is_a_500_that_tells_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(api.components.queries, "instance", broken)
    answer = await api.ask("GET", f"/v2.1/servers/{UNKNOWN}")
    assert answer.status == 500
    text = await answer.text()
    assert "hunter2" not in text
    assert answer.headers["X-Openstack-Request-Id"] in text
