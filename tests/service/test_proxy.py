"""deploy/haproxy.cfg, before a running service: what it bounds, and what it lets through."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ledger.http.components import HOLDS, Check
from ledger.trial.cloud import free_port
from tests import tools
from tests.authority import Authority
from tests.service.api_world import HOST, Api, eventually
from tests.service.test_api_connections import ended
from tests.tokens import token_of

CONFIGURATION = Path(__file__).parents[2] / "deploy/haproxy.cfg"
#: In place of the file's own.
MOST, WRONG_MOST, LIMIT_S = 4, 3, 0.5
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"

#: Where it is installed, or put by .ci/run.
HAPROXY = tools.found("haproxy")
#: `.ci/run` unpacks it; a machine that only tests the service need not have a proxy.
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Proxy:
    """A service behind HAProxy."""

    api: Api
    port: int
    context: ssl.SSLContext

    @asynccontextmanager
    async def line(self, *, tls: bool = True) -> AsyncIterator[Line]:
        """A connection; without TLS its handshake never begins."""
        secure: Any = {"ssl": self.context, "server_hostname": "localhost"} if tls else {}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **secure)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, path: str, who: str | None = None, **given: Any) -> aiohttp.ClientResponse:
        """Over a connection of its own."""
        headers = {"X-Auth-Token": token_of(who)} if who else {}
        connector = aiohttp.TCPConnector(ssl=self.context, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            method, url = given.pop("method", "GET"), f"https://localhost:{self.port}{path}"
            async with http.request(method, url, headers=headers, **given) as answer:
                await answer.read()
                return answer

    async def lets_in(self) -> bool:
        try:
            return (await self.ask("/healthz")).status == 200
        except aiohttp.ClientError:
            return False


def configuration(home: Path, api: Api, port: int, certificate: Path) -> Path:
    """The file, with what a test cannot wait for or does not have replaced."""
    text = CONFIGURATION.read_text()
    for old, new in (
        (r":::8780 v4v6", f"127.0.0.1:{port}"),
        (r"/etc/attachment-ledger/proxy\.pem", str(certificate)),
        (r"127\.0\.0\.1:8790", f"127.0.0.1:{api.http.port}"),
        (r"inter 2s", f"inter {LIMIT_S * 1000:.0f}ms"),
        (r" user haproxy .*\n +group haproxy", ""),  # a test is whoever runs it
        (r"maxconn 20000", "maxconn 100"),
        (r"sc0_conn_cur gt 512", f"sc0_conn_cur gt {MOST}"),
        (r"sc0_gpc0_rate gt 50", f"sc0_gpc0_rate gt {WRONG_MOST}"),
        (r"timeout http-request 15s", f"timeout http-request {LIMIT_S * 1000:.0f}ms"),
        (r"timeout client 75s", f"timeout client {LIMIT_S * 4000:.0f}ms"),
    ):
        text, count = re.subn(old, new, text)
        assert count == 1, old
    file = home / "haproxy.cfg"
    file.write_text(text)
    return file


@pytest.fixture
async def proxy(api: Api, tmp_path: Path) -> AsyncIterator[Proxy]:
    ours = Authority(tmp_path / "ours")
    pair, both = ours.pair("localhost"), tmp_path / "proxy.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    held = ExitStack()
    port = free_port(held)
    file = configuration(tmp_path, api, port, both)
    context = ssl.create_default_context(cafile=str(ours.certificate))
    running = Proxy(api, port, context)
    assert HAPROXY is not None
    process = await asyncio.create_subprocess_exec(HAPROXY, "-db", "-f", str(file))
    with held:
        try:
            await eventually(running.lets_in, "the proxy is there")
            yield running
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.parametrize("tls", [True, False], ids=["no request", "no handshake"])
async def test_an_address_has_so_many_connections(proxy: Proxy, tls: bool) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MOST):
            await stack.enter_async_context(proxy.line(tls=tls))
        assert not await proxy.lets_in(), "it is one too many"
    await eventually(proxy.lets_in, "those that were closed are not counted any more")


async def test_a_head_that_never_ends_is_not_waited_for(proxy: Proxy) -> None:
    async with proxy.line() as (reader, writer):

        async def trickle() -> None:
            writer.write(HEAD)
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(LIMIT_S / 10)

        sending = asyncio.create_task(trickle())
        told = await ended(reader)
        sending.cancel()
    assert told.split()[1] == b"408"


async def test_a_handshake_that_never_ends_is_not_waited_for(proxy: Proxy) -> None:
    async with proxy.line(tls=False) as (reader, _):
        assert await ended(reader) == b""


@pytest.mark.parametrize("value", [b"s3cret\x01", b"s3cret" * 1365, b"s3cret\r\n("])
async def test_what_is_no_http_to_the_service_does_not_come_to_it(
    proxy: Proxy, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    async with proxy.line() as (reader, writer):
        writer.write(HEAD + b"X-Auth-Token: " + value + b"\r\n\r\n")
        told = await ended(reader)
    assert told.split()[1] == b"400"
    assert b"s3cret" not in told
    assert "no_http" not in caplog.text


async def test_who_shows_wrong_tokens_is_told_to_wait(proxy: Proxy) -> None:
    for _ in range(WRONG_MOST + 1):
        assert (await proxy.ask("/v1/hosts", "nobody")).status == 401
    refused = await proxy.ask("/v1/hosts", "nobody")
    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) > 0


async def test_a_poll_is_held_longer_than_a_head_may_take(proxy: Proxy) -> None:
    await proxy.api.register()
    poll = f"/v1/hosts/{HOST}/commands?after=0&epoch=0&wait_s={2 * LIMIT_S:g}"
    held = await proxy.ask(poll, "agent-1")
    assert held.status == 200


async def test_a_client_that_has_gone_holds_no_poll(proxy: Proxy) -> None:
    await proxy.api.register()
    poll = f"/v1/hosts/{HOST}/commands?after=0&epoch=0&wait_s=60"
    asking = asyncio.create_task(proxy.ask(poll, "agent-1"))
    holds = proxy.api.http.app[HOLDS]

    async def held() -> bool:
        return bool(holds.count == 1)

    async def free() -> bool:
        return bool(holds.count == 0)

    await eventually(held, "the poll is held")
    asking.cancel()
    await eventually(free, "it is not any more")


async def test_a_process_that_cannot_work_is_asked_nothing_until_it_can(proxy: Proxy) -> None:
    """Of neighbours that are away it is asked all the same (decision 0087)."""
    said: dict[str, str] = {"cinder": "it does not answer"}

    def check(name: str) -> Check:
        async def look() -> str | None:
            return said.get(name)

        return look

    async def left_out() -> bool:
        answer = await proxy.ask("/healthz")  # which the process itself answers with 200
        return answer.status == 503

    for name in ("cinder", "dispatcher"):
        proxy.api.components.checks[name] = check(name)  # type: ignore[index]
    said["dispatcher"] = "it has stopped"
    await eventually(left_out, "it is left out")
    del said["dispatcher"]
    await eventually(proxy.lets_in, "it is asked again, without Cinder")
    assert (await proxy.ask("/readyz")).status == 503
