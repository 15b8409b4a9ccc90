"""TLS: who is taken by what certificate, what is renewed while the service runs, what is not."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from host_agent.shared.platform.tls import Watched
from ledger.auth.renewal import Renewal
from ledger.auth.tls import ServiceTls
from ledger.config import Limits, Listen
from ledger.http.limits.connections import CONNECTIONS
from ledger.http.probes import health
from ledger.http.routes import ROUTES
from ledger.web.console import HTTPS_ALONE_S
from tests.authority import Authority, Pair
from tests.authority import replace as put
from tests.service.api_world import HOST, OTHER, SETTINGS, Api, eventually, running_api
from tests.service.test_metrics import shown
from tests.tokens import token_of

DAY_S = 86_400.0
POLL = f"/v1/hosts/{HOST}/commands?after=0&epoch=0"
BODY = {"service_version": 3, "capabilities": {}, "guests": []}


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_AGE_S", 0.0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@dataclass
class Secure:
    """A service with TLS, and those who come to it."""

    api: Api
    renewal: Renewal
    pair: Pair
    authorities: Path
    ahead_s: list[float]

    async def look(self) -> None:
        """As it is done every few seconds; twice, for what changes is left alone until it rests."""
        for _ in range(2):
            await self.renewal.look(self.api.http.app[CONNECTIONS].end)

    async def ready(self) -> Any:
        return await (await self.api.ask("GET", "/readyz", None)).json()


def client(ours: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """What an agent shows, as any client of TLS does."""
    context = ssl.create_default_context(cafile=str(ours.certificate))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


@asynccontextmanager
async def _secure(
    database_url: str, home: Path, ours: Authority, **limits: int
) -> AsyncIterator[Secure]:
    first, authorities = ours.pair("localhost", "IP:127.0.0.1"), home / "authorities.pem"
    pair = Pair(home / "service.pem", home / "service.key")
    pair.put(first)
    put(authorities, ours.certificate.read_bytes())
    listen = Listen(client_ca_file=str(authorities), **pair.files)
    settings = replace(SETTINGS, listen=listen, limits=Limits(**limits))
    ahead_s, files = [0.0], Watched(pair.certificate, pair.key, authorities, every_s=0.0)

    def clock() -> float:
        return time.time() + ahead_s[0]

    renewal = Renewal(settings, clock)
    renewal.tls = ServiceTls(listen, clock, files)
    async with running_api(database_url, settings, renewal.tls) as api:
        yield Secure(api, renewal, pair, authorities, ahead_s)


@pytest.fixture
async def secure(database_url: str, tmp_path: Path, ours: Authority) -> AsyncIterator[Secure]:
    async with _secure(database_url, tmp_path, ours) as running:
        yield running


@asynccontextmanager
async def session(secure: Secure, context: ssl.SSLContext) -> AsyncIterator[aiohttp.ClientSession]:
    """One client, with connections of its own."""
    connector = aiohttp.TCPConnector(ssl=context)
    base = secure.api.http.make_url("/")
    async with aiohttp.ClientSession(base_url=base, connector=connector) as made:
        yield made


async def asked(secure: Secure, context: ssl.SSLContext, path: str = POLL, **given: Any) -> Any:
    """Status of an answer, or the class of what TLS says instead."""
    async with session(secure, context) as http:
        method = given.pop("method", "GET")
        try:
            async with http.request(method, path, **given) as answer:
                return answer.status
        except (ssl.SSLError, aiohttp.ClientError) as error:
            return type(error)


@pytest.mark.parametrize("kind", ["token", "certificate"])
async def test_a_stolen_credential_of_a_host_opens_that_host_and_nothing_else(
    secure: Secure, ours: Authority, kind: str
) -> None:
    headers = {"X-Auth-Token": token_of("agent-1")} if kind == "token" else {}
    pair = None if kind == "token" else ours.pair(HOST)
    async with session(secure, client(ours, pair)) as http:
        async with http.put(f"/v1/hosts/{HOST}", json=BODY, headers=headers) as answer:
            assert answer.status == 200
        opened = set()
        for route in ROUTES:
            path = re.sub(r"{host[^}]*}", OTHER, route.path)
            path = re.sub(r"{[^}]*}", str(uuid4()), path)
            body: Any = None if route.method in {"GET", "DELETE"} else {}
            async with http.request(route.method, path, headers=headers, json=body) as answer:
                if answer.status != 403:
                    opened.add(route.name)
        assert opened == {"request", *(route.name for route in ROUTES if not route.rules)}
        for path in (f"{POLL}&wait_s=0", f"/v1/hosts/{HOST}/volumes/{uuid4()}/users"):
            async with http.get(path, headers=headers) as answer:
                assert answer.status != 403, "its own"


async def test_a_certificate_that_is_not_one_hosts_is_nobodys(
    secure: Secure, ours: Authority
) -> None:
    odd = ((HOST, OTHER), (), ("*.example.org",), (f"URI:spiffe://x/{HOST}",), ("IP:192.0.2.1",))
    for names in odd:
        assert await asked(secure, client(ours, ours.pair(*names, common=HOST))) == 401, names


async def test_a_certificate_opens_nothing_that_a_token_is_shown_for(
    secure: Secure, ours: Authority
) -> None:
    context = client(ours, ours.pair(HOST))
    answer = await asked(secure, context, headers={"X-Auth-Token": "wrong" * 8})
    assert answer == 401
    assert await asked(secure, client(ours)) == 401, "and nothing shown is nobody"


async def test_certificates_that_are_not_to_be_taken_end_the_connection(
    secure: Secure, ours: Authority, theirs: Authority
) -> None:
    for pair in (theirs.pair(HOST), ours.pair(HOST, days=-1, since=-3)):
        met = await asked(secure, client(ours, pair))
        assert issubclass(met, (ssl.SSLError, aiohttp.ClientError))


async def test_a_certificate_that_ends_on_an_open_connection_is_good_no_more(
    secure: Secure, ours: Authority
) -> None:
    async with session(secure, client(ours, ours.pair(HOST, days=2.0))) as http:
        async with http.put(f"/v1/hosts/{HOST}", json=BODY) as answer:
            assert answer.status == 200
        secure.ahead_s[0] = 3 * DAY_S
        async with http.get(POLL) as answer:
            assert answer.status == 401
            assert "has ended" in (await answer.json())["detail"]


async def test_a_revoked_certificate_is_refused_and_its_open_connections_end(
    secure: Secure, ours: Authority
) -> None:
    stolen, other = ours.pair(HOST), ours.pair(OTHER)
    async with session(secure, client(ours, stolen)) as http:
        async with http.put(f"/v1/hosts/{HOST}", json=BODY) as answer:
            assert answer.status == 200
        held = asyncio.create_task(http.get(f"{POLL}&wait_s=30"))

        async def polls() -> bool:
            return (await shown(secure.api))["ledger_agents_connected"] == 1

        await eventually(polls, "the poll is held")
        put(secure.authorities, ours.revoked(stolen))
        await secure.look()
        with pytest.raises(aiohttp.ClientError):
            await held
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await http.get(POLL)
    assert await asked(secure, client(ours, other), f"/v1/hosts/{OTHER}", method="PUT", json=BODY)


@asynccontextmanager
async def line(
    secure: Secure, ours: Authority
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = secure.api.http.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(ours))
    yield reader, writer
    writer.close()


async def test_new_connections_are_shown_the_new_certificate_and_open_ones_go_on(
    secure: Secure, ours: Authority
) -> None:
    async with line(secure, ours) as before:
        secure.pair.put(ours.pair("localhost", "IP:127.0.0.1", days=60))
        await secure.look()
        async with line(secure, ours) as after:
            for reader, writer in (before, after):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            one, two = (writer.get_extra_info("peercert") for _, writer in (before, after))
            assert one["serialNumber"] != two["serialNumber"]


async def test_a_broken_pair_replaces_nothing_and_is_told(secure: Secure, ours: Authority) -> None:
    assert (await secure.ready())["warnings"] == []
    put(secure.pair.key, ours.pair("localhost").key.read_bytes())
    await secure.look()
    assert await asked(secure, client(ours), "/healthz") == 200
    [warning] = (await secure.ready())["warnings"]
    assert warning.startswith("tls: changed files are not taken")
    assert "is not the key of" in warning
    page = await shown(secure.api)
    assert page["ledger_certificate_load_failed"] == 1
    assert page["ledger_certificate_expiry_seconds"] == pytest.approx(30 * DAY_S, abs=60)
    secure.pair.put(ours.pair("localhost", "IP:127.0.0.1"))
    await secure.look()
    assert (await secure.ready())["warnings"] == []
    assert (await shown(secure.api))["ledger_certificate_load_failed"] == 0
    assert (await shown(secure.api))["ledger_certificate_ending"] == 0
    secure.pair.put(ours.pair("localhost", "IP:127.0.0.1", days=1, since=-29))
    await secure.look()
    assert (await shown(secure.api))["ledger_certificate_ending"] == 1, "a week before"


async def test_the_console_is_for_tls_alone_where_there_is_tls(
    secure: Secure, ours: Authority
) -> None:
    async with session(secure, client(ours)) as http:
        form = {"token": token_of("member")}
        async with http.post("/ui/login", data=form, allow_redirects=False) as answer:
            assert answer.headers["Strict-Transport-Security"] == f"max-age={HTTPS_ALONE_S}"
            assert "Secure" in answer.headers["Set-Cookie"]
            assert answer.headers["Set-Cookie"].startswith("__Host-")
        async with http.get("/healthz") as answer:
            assert "Strict-Transport-Security" not in answer.headers


async def test_links_are_those_of_the_public_url_and_no_header_of_a_proxy_is_believed(
    database_url: str,
) -> None:
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "Forwarded": "host=evil"}
    for public, wanted in (("https://a.example/x/", "https://a.example/x/v2.1/"), ("", "http://")):
        settings = replace(SETTINGS, listen=Listen(public_url=public))
        async with running_api(database_url, settings) as api:
            answer = await (await api.ask("GET", "/", None, headers=said)).json()
            [link] = next(each["links"] for each in answer["versions"] if each["id"] == "v2.1")
            assert link["href"].startswith(wanted)
            assert "evil" not in link["href"]
