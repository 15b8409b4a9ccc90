"""Texts of tenants, agents and strangers: what cannot be shown is refused, or escaped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from yarl import URL

from tests.service.api_world import DEFINITION, HOST, Api, eventually, guest
from tests.tokens import token_of


async def test_a_name_or_reason_that_cannot_be_shown_is_refused(api: Api) -> None:
    await api.server()
    head = await api.head()
    for odd in ("\ufffe", "\x1b[2J", "\x9b", "\u202e"):
        for path, body in (
            ("/v1/servers", {"name": f"web{odd}", "disks": []}),
            (f"/v1/hosts/{HOST}/unfence", {"reason": f"it is back{odd}"}),
        ):
            answer = await api.ask("POST", path, "admin", json=body)
            assert (answer.status, (await answer.json())["code"]) == (400, "unshowable")
            assert odd not in await answer.text()
        assert await api.head() == head


async def test_a_url_that_cannot_be_shown_is_refused(api: Api) -> None:
    """Its answer, and what is kept of a refused request, would repeat it."""
    for odd in ("%00", "%0a", "%1b[2J", "%C2%9B", "%E2%80%AE", "%EF%BF%BE"):
        for path in (f"/v2.1/servers/a{odd}b/metadata/c", f"/v1/operations/a{odd}b/actions"):
            url: Any = URL(path, encoded=True)
            answer = await api.ask("POST", url, json={"metadata": {}})
            assert answer.status == 400, path
            assert "control character" in await answer.text()
            assert all(char == "\n" or char.isprintable() for char in await answer.text())


async def test_a_tag_is_one_line(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume, tag="a\nb", delete_on_termination=False)
    assert answer.status == 400


async def test_a_guests_odd_name_is_escaped_and_its_host_served(api: Api) -> None:
    """Its project's lists, too, and its definition cannot break them."""
    name = "vm\ufffe\x1b[2J"
    bad = DEFINITION.replace("<name>vm", f"<name>{name}")
    server = guest(name=name, definition=bad)
    await api.register(server)
    for path in ("/v2.1/servers/detail?all_tenants=1", f"/v2.1/servers/{server['server_id']}"):
        answer = await api.ask("GET", path, "admin", "2.47")
        assert answer.status == 200
        assert "vm\\\\ufffe\\\\u001b[2J" in await answer.text()


async def test_bytes_of_a_header_that_are_not_ascii_are_a_bad_request(api: Api) -> None:
    for header in ("X-Auth-Token", "X-User-Id", "Idempotency-Key", "X-Other"):
        status = await _raw(api, f"{header}: \xff\xfe\xe4".encode("latin-1"))
        assert status == 400, header
    assert await _raw(api, b"Cookie: attachment-ledger=\xff", b"/ui/") == 400


async def test_an_expectation_that_nobody_knows_is_ignored(api: Api) -> None:
    """Not refused by aiohttp, in plain text."""
    for who, status, kind in (
        ("admin", 200, "application/json"),
        (None, 401, "application/problem+json"),
    ):
        answer = await api.ask("GET", "/v1/hosts", who, headers={"Expect": "x"})
        assert (answer.status, answer.content_type) == (status, kind)


async def _raw(api: Api, header: bytes, path: bytes = b"/v2.1/servers") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path + header)
    writer.write(b"\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_a_client_that_breaks_off_is_no_error_in_the_log(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    await api.server()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.port)
    writer.write(
        b"POST /v1/servers HTTP/1.1\r\nHost: x\r\nX-Auth-Token: %b\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        % token_of("admin").encode()
    )
    assert (await reader.readline()).split()[1] == b"100"  # it reads the body now
    with caplog.at_level(logging.ERROR):
        writer.close()

        async def counted() -> bool:
            page = await (await api.ask("GET", "/metrics", None)).text()
            return 'route="server_build",status="499"' in page

        await eventually(counted, "the request that was broken off is counted")
    assert [record.getMessage() for record in caplog.records] == []
