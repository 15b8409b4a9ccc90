"""Connections and requests are bounded, and none is held for ever."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.compression_utils import ZLibDecompressor

from ledger.http import body
from ledger.http.limits import connections
from ledger.http.limits.connections import end_unread
from tests.service.api_world import HOST, SETTINGS, Api, eventually, running_api
from tests.tokens import token_of

MOST = 3
SOON_S = 30.0
[AGENT] = [token.token_sha256 for token in SETTINGS.tokens if token.host == HOST]
#: What trickles: a byte each so many seconds, which is far less than the limits of the tests.
BYTE_EVERY_S, LIMIT_S = 0.05, 0.5


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    limits = replace(SETTINGS.limits, requests_per_token_max=MOST)
    async with running_api(database_url, replace(SETTINGS, limits=limits)) as running:
        yield running


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def line(api: Api) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What was told until the other side closed the connection."""
    async with asyncio.timeout(SOON_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def trickle(writer: asyncio.StreamWriter, begin: bytes) -> None:
    writer.write(begin)
    while not writer.is_closing():
        await asyncio.sleep(BYTE_EVERY_S)
        writer.write(b"x")


@pytest.mark.parametrize(
    "begin", [b"", b"GET /healthz HTTP/1.1\r\nHost: "], ids=["nothing", "half a head"]
)
async def test_a_request_that_never_begins_is_not_waited_for(
    begin: bytes, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_CONNECTION_S", LIMIT_S)
    async with running_api(database_url) as api, line(api) as (reader, writer):
        sending = asyncio.create_task(trickle(writer, begin)) if begin else None
        assert await ended(reader) == b""
        if sending is not None:
            sending.cancel()


async def test_a_body_that_trickles_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_S_MAX", LIMIT_S)
    head = (
        f"POST /v1/hosts/{HOST}/reports HTTP/1.1\r\nHost: x\r\n"
        f"X-Auth-Token: {token_of('agent-1')}\r\n"
        "Content-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
    )
    async with line(api) as (reader, writer):
        sending = asyncio.create_task(trickle(writer, head.encode()))
        async with asyncio.timeout(SOON_S):
            told = await reader.readuntil(b"\r\n")
        assert told.split()[1] == b"408"
        sending.cancel()


@pytest.mark.parametrize("how", ["gzip", "deflate", "br"])
async def test_a_compressed_body_is_not_unpacked(api: Api, how: str) -> None:
    ways: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
    packed = ways.get(how, bytes)
    answer = await api.ask(
        "POST",
        "/v1/servers",
        data=packed(b'{"name": "web", "disks": []}'),
        headers={"Content-Type": "application/json", "Content-Encoding": how},
    )
    assert answer.status == 415
    assert "Content-Encoding" in (await answer.json())["hint"]


async def test_what_is_refused_is_not_unpacked_either(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp reads on what nobody has read of a body, before the next request."""
    unpacked: list[object] = []
    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", lambda *a, **_: unpacked.append(a))
    answer = await api.ask(
        "POST", "/v1/servers", None, data=b"x" * 1000, headers={"Content-Encoding": "gzip"}
    )
    assert answer.status == 401
    assert unpacked == []


async def test_a_token_has_so_many_requests_under_way(api: Api) -> None:
    await api.register()
    polls: list[asyncio.Task[Any]] = [
        asyncio.create_task(api.commands(wait_s=SOON_S)) for _ in range(MOST)
    ]

    async def held() -> bool:
        return bool(api.http.app[connections.CONNECTIONS]._by_token == {AGENT: MOST})

    await eventually(held, "the polls are held")
    refused = await api.ask("GET", f"/v1/hosts/{HOST}/commands?after=0&epoch=0", "agent-1")
    assert (refused.status, (await refused.json())["code"]) == (429, "too_many_requests")
    assert int(refused.headers["Retry-After"]) > 0
    assert (await api.ask("GET", "/v1/hosts", "admin")).status == 200, "others are let in"
    for poll in polls:
        poll.cancel()

    async def free() -> bool:
        return (await api.ask("GET", f"/v1/hosts/{HOST}/commands?epoch=0", "agent-1")).status == 200

    await eventually(free, "what has ended is not counted any more")


def test_what_is_not_read_is_taken_back_by_the_kernel() -> None:
    """Of a connection that was accepted: it has it from the socket that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        end_unread(listener)
        with socket.create_connection(listener.getsockname()) as _, listener.accept()[0] as mine:
            kept_ms = mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert kept_ms == connections.UNREAD_S * 1000
