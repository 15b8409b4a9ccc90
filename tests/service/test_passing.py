"""What is passed on to Nova, and its answers, are byte for byte what they were."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from yarl import URL

from ledger.config import Observe
from ledger.http import body
from ledger.nova_beside import passing
from tests.doubles.recording_nova import Asked, RecordingNova, kept, said
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import Api, eventually, running_api
from tests.service.keystone_world import settings
from tests.service.passing_world import Both, both_worlds

SOON_S = 20.0
SHORT_S = 0.3
#: More than the kernel takes for a reader that does not read.
READ_BY_NOBODY = 32 * 1024 * 1024
SERVER = "0d3b7a52-1b0e-4f0a-9c64-3a54f7f1f0aa"
#: What no route of ours is at.
PATHS = [
    "/v2.1/os-keypairs",
    "/v2.1/images/a%2Fb%20c?x=%C3%A9+%2B&x=2&flag&empty=",
    "/v2.1/os-server-groups/..;a=b,c/%7Etilde/'(!)*",
    "/v2.1//os-quota-sets//x/",
    f"/v2.1/9d1f5b0c6a7e4d8f/servers/{SERVER}/os-interface",
    "/v2/os-networks",
]
HEADERS = [
    ("Host", "compute.example.org:8774"),
    ("User-Agent", "python-novaclient"),
    ("Accept", "application/json"),
    ("Accept-Encoding", "gzip, deflate"),
    ("X-Auth-Token", "gAAAA-of-somebody"),
    ("X-Service-Token", "gAAAA-of-cinder"),
    ("OpenStack-API-Version", "compute 2.999"),
    ("X-OpenStack-Nova-API-Version", "2.999"),
    ("X-OpenStack-Request-ID", f"req-{SERVER}"),
    ("X-Twice", "one"),
    ("X-Twice", "two"),
    ("x-Odd-CASE", "a, b;  c"),
    ("Cookie", "session=a%20b; other=c"),
    ("X-Forwarded-For", "192.0.2.7"),
    ("Content-Type", "application/json"),
]


@asynccontextmanager
async def line(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.port)
    try:
        async with asyncio.timeout(SOON_S):
            yield reader, writer
    finally:
        writer.close()


def head(method: str, path: str, *headers: tuple[str, str]) -> bytes:
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def exchange(api: Api, request: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """The status line, headers and body of the answer to these bytes."""
    async with line(api) as (reader, writer):
        writer.write(request)
        whole = await reader.read()
    told, _, rest = whole.partition(b"\r\n\r\n")
    first, *lines = told.decode().split("\r\n")
    headers = [(name, text) for name, _, text in (each.partition(": ") for each in lines)]
    return first, headers, rest


ENDS = ("Connection", "close")


SENT = {
    "GET": b"",
    "POST": b'{"a":  "\xc3\xa9\\u0000"}',
    "PUT": b"no json",
    "PATCH": b"\x00\xff",
    "DELETE": b"",
}


async def test_a_request_reaches_nova_as_it_was_sent(both: Both) -> None:
    for (method, sent), path in itertools.product(SENT.items(), PATHS):
        length = [("Content-Length", str(len(sent)))] if sent else []
        await exchange(both.api, head(method, path, *HEADERS, *length, ENDS) + sent)
        asked = both.nova.asked.pop()
        assert asked.line == f"{method} {path} HTTP/1.1"
        assert asked.body == sent
        added = [("Via", "1.1 attachment-ledger"), *([] if method == "GET" else [ENDS])]
        if method == "DELETE":
            added.append(("Content-Length", "0"))  # what was not said before
        assert sorted(asked.headers) == sorted([*HEADERS, *length, *added])
        assert [each for each in asked.headers if each in HEADERS] == HEADERS
    assert both.nova.asked == []


async def test_what_came_in_chunks_goes_on_with_its_length(both: Both) -> None:
    chunked = (*HEADERS, ("Transfer-Encoding", "chunked"), ENDS)
    request = head("POST", PATHS[0], *chunked) + b"3\r\n{}\n\r\n2\r\n{}\r\n0\r\n\r\n"
    await exchange(both.api, request)
    [asked] = both.nova.asked
    assert asked.body == b"{}\n{}"
    assert asked.named("content-length") == ["5"]
    assert asked.named("transfer-encoding") == []


async def test_what_belongs_to_one_connection_stays_there(both: Both) -> None:
    own = [
        ("Connection", "close, X-Mine"),
        ("Connection", "x-also"),
        ("X-Mine", "1"),
        ("X-Also", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Expect", "100-continue"),
    ]
    await exchange(both.api, head("GET", PATHS[0], *HEADERS, *own))
    [asked] = both.nova.asked
    assert {name.lower() for name, _ in asked.headers} & {n.lower() for n, _ in own} == set()


NOVAS = [
    ("Date", "Fri, 27 Nov 2026 12:00:00 GMT"),
    ("Content-Type", "application/json"),
    ("OpenStack-API-Version", "compute 2.96"),
    ("X-OpenStack-Nova-API-Version", "2.96"),
    ("Vary", "OpenStack-API-Version"),
    ("Vary", "X-OpenStack-Nova-API-Version"),
    ("x-openstack-request-id", "req-novas"),
    ("x-compute-request-id", "req-novas"),
]


async def test_an_answer_comes_as_nova_gave_it(both: Both) -> None:
    told = b'{"odd":   1}'
    for status in (200, 202, 404, 409, 500):
        both.nova.answers["/"] = said(status, told, *NOVAS)
        first, headers, got = await exchange(both.api, head("GET", PATHS[0], *HEADERS, ENDS))
        assert first == f"HTTP/1.1 {status} As Nova says"
        assert got == told
        own = [("Content-Length", str(len(told))), ENDS]
        assert sorted(headers) == sorted([*NOVAS, *own])


async def test_an_answer_without_a_body_is_given_no_type(both: Both) -> None:
    both.nova.answers["/"] = said(202, b"", NOVAS[0])
    _, headers, got = await exchange(both.api, head("POST", PATHS[0], *HEADERS, ENDS))
    assert (got, set(dict(headers))) == (b"", {"Date", "Content-Length", "Connection"})


async def test_a_packed_answer_and_one_without_a_length_are_not_touched(both: Both) -> None:
    packed = gzip.compress(b"x" * 100_000)
    both.nova.answers["/"] = said(200, packed, ("Content-Encoding", "gzip"))
    _, _, got = await exchange(both.api, head("GET", PATHS[0], *HEADERS, ENDS))
    assert got == packed
    both.nova.answers["/"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + packed
    answer = await both.ask("GET", PATHS[0])
    assert await answer.read() == packed


async def test_a_head_is_answered_by_the_head_of_novas_answer(both: Both) -> None:
    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> None:
        assert asked.line.startswith("HEAD ")
        writer.write(said(200, b"12345").removesuffix(b"12345"))

    both.nova.answering = answering
    first, headers, got = await exchange(both.api, head("HEAD", PATHS[0], *HEADERS, ENDS))
    assert (first[:12], dict(headers)["Content-Length"], got) == ("HTTP/1.1 200", "5", b"")


# ------------------------------------------------------------------------ by which connection


async def test_what_is_safe_shares_a_connection_and_nothing_else_does(both: Both) -> None:
    both.nova.keeps = True
    for method in ("GET", "GET", "POST", "PUT", "DELETE", "PATCH", "GET"):
        assert (await both.ask(method, PATHS[0])).status == 200
    assert len(both.nova.lines) == 1 + 4
    assert (await both.ask("GET", PATHS[0], data=b"{}")).status == 200
    assert len(both.nova.lines) == 1 + 4 + 1, "with a body it is not known to be safe"


async def test_what_is_safe_is_asked_again_where_a_kept_connection_ends(both: Both) -> None:
    for method, ends in (("GET", "close"), ("HEAD", "close"), ("GET", "abort")):
        lines = len(both.nova.lines)

        async def answering(
            _: Asked, writer: asyncio.StreamWriter, lines: int = lines, ends: str = ends
        ) -> None:
            if both.nova.lines.index(writer) == lines and len(both.nova.asked) > 1:
                getattr(writer.transport, ends)()  # just as it is used again
            else:
                writer.write(kept(said(200)))

        both.nova.answering, both.nova.keeps = answering, True
        answers = [(await both.ask(method, PATHS[0])).status for _ in range(2)]
        assert (answers, both.said_by_nova()) == ([200, 200], 3)
        assert len(both.nova.lines) == lines + 2
        for writer in both.nova.lines:
            writer.close()
        await eventually(
            lambda: nobody_is_kept(both), "all kept connections are known to have ended"
        )


async def nobody_is_kept(both: Both) -> bool:
    return not any(each.is_connected() for each in kept_by(both))


def kept_by(both: Both) -> list[Any]:
    assert both.api.components.nova is not None
    connector = both.api.components.nova._kept.connector
    assert connector is not None
    return [each for line in connector._conns.values() for each, _ in line]


async def test_a_nova_that_only_breaks_off_is_asked_twice_what_is_safe_and_no_more(
    both: Both,
) -> None:
    async def answering(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    both.nova.answering = answering
    for method, times in {
        "GET": 2,
        "HEAD": 2,
        "POST": 1,
        "PUT": 1,
        "DELETE": 1,
        "PATCH": 1,
    }.items():
        assert (await both.ask(method, PATHS[0])).status == 502
        assert both.said_by_nova() == times


async def test_both_times_have_one_deadline(impatient: Both) -> None:
    """The first of two takes most of it: the second has the rest."""
    let_go = asyncio.Event()

    async def answering(_: Asked, writer: asyncio.StreamWriter) -> None:
        if len(impatient.nova.asked) == 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(let_go.wait(), 2 * SHORT_S)
            writer.close()
        else:
            await let_go.wait()

    impatient.nova.answering = answering
    began = time.monotonic()
    answer = await impatient.ask("GET", PATHS[0])
    assert (answer.status, impatient.said_by_nova()) == (504, 2)
    assert time.monotonic() - began < 2 * SHORT_S + passing.ANSWER_S
    let_go.set()


async def test_what_comes_on_a_kept_connection_unasked_is_nobodys_answer(both: Both) -> None:
    both.nova.keeps = True
    both.nova.answers["/"] = said(200, {"of": "one"})
    assert (await both.ask("GET", PATHS[0])).status == 200
    [line] = both.nova.lines
    line.write(kept(said(200, {"of": "another"})))

    async def come() -> bool:
        return any(each.should_close for each in kept_by(both))

    await eventually(come, "it has come")
    answer = await both.ask("GET", PATHS[0])
    assert await answer.json() == {"of": "one"}
    assert len(both.nova.lines) == 2


async def test_no_cookie_of_one_caller_goes_with_another(both: Both) -> None:
    both.nova.keeps = True
    both.nova.answers["/"] = said(200, b"", ("Set-Cookie", "session=mine; Path=/"))
    for method in ("GET", "POST", "GET", "POST"):
        first, headers, _ = await exchange(both.api, head(method, PATHS[0], *HEADERS[:5], ENDS))
        assert ("Set-Cookie", "session=mine; Path=/") in headers, first
    assert [asked.named("cookie") for asked in both.nova.asked] == [[], [], [], []]


# ------------------------------------------------------------------------ when it does not


async def test_a_nova_that_is_away_is_no_404(
    database_url: str, keystone: SimulatedKeystone, nova: RecordingNova
) -> None:
    nova.url = "http://127.0.0.1:9"  # discard: nobody listens
    async with both_worlds(database_url, keystone, nova) as both:
        answer = await both.ask("GET", PATHS[0])
        told = (await answer.json())["serviceUnavailable"]
        assert (answer.status, told["code"]) == (503, 503)
        assert "Nova is away" in told["message"]
        assert answer.headers["Retry-After"]
        assert "127.0.0.1" not in told["message"], "where Nova is, is not the caller's"


@pytest.fixture
async def impatient(
    database_url: str,
    keystone: SimulatedKeystone,
    nova: RecordingNova,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Both]:
    """Both worlds, where Nova has to answer soon."""
    monkeypatch.setattr(passing, "ANSWER_S", 3 * SHORT_S)
    async with both_worlds(database_url, keystone, nova) as both:
        yield both


async def test_a_nova_that_hangs_is_waited_for_so_long(impatient: Both) -> None:
    let_go = asyncio.Event()

    async def answering(_: Asked, __: asyncio.StreamWriter) -> None:
        await let_go.wait()

    impatient.nova.answering = answering
    answer = await impatient.ask("POST", PATHS[0])
    assert answer.status == 504
    assert "may do what was asked" in await answer.text()
    assert len(impatient.nova.asked) == 1, "it is not sent again"
    let_go.set()


async def test_a_nova_that_closes_without_a_word_is_not_asked_again(both: Both) -> None:
    async def answering(_: Asked, __: asyncio.StreamWriter) -> None:
        return

    both.nova.answering = answering
    answer = await both.ask("DELETE", PATHS[0])
    assert answer.status == 502
    assert "may have done" in await answer.text()
    assert len(both.nova.asked) == 1


async def test_half_an_answer_is_not_made_a_whole_one(both: Both) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    for half in (said(200, b"x" * 1000)[:-500], chunked):

        async def answering(_: Asked, writer: asyncio.StreamWriter, half: bytes = half) -> None:
            writer.write(half)

        both.nova.answering = answering
        answer = await both.ask("GET", PATHS[0])
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_an_answer_that_does_not_end_is_broken_off(impatient: Both) -> None:
    let_go = asyncio.Event()

    async def answering(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(said(200, b"x" * 1000)[:-500])
        await let_go.wait()

    impatient.nova.answering = answering
    answer = await impatient.ask("GET", PATHS[0])
    assert answer.status == 200
    with pytest.raises(aiohttp.ClientError):
        await answer.read()
    let_go.set()


async def test_a_slow_reader_holds_its_place_no_longer_than_an_answer_takes(
    impatient: Both,
) -> None:
    nova = impatient.api.components.nova
    assert nova is not None
    impatient.nova.answers["/"] = said(200, b"x" * READ_BY_NOBODY)

    async def held() -> bool:
        return nova._under_way.total() == 1

    async def over() -> bool:
        return not await held()

    async with line(impatient.api) as (_, writer):
        writer.write(head("GET", PATHS[0], *HEADERS))
        await eventually(held, "it is passed on")
        await eventually(over, "others have the place")


async def test_a_slow_sender_holds_nobody_at_nova(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_S_MAX", SHORT_S)
    slow = head("POST", PATHS[0], *HEADERS, ("Content-Length", "100")) + b"{"
    first, _, _ = await exchange(both.api, slow)
    assert first.split()[1] == "408"
    assert both.nova.asked == []


async def test_a_large_body_is_refused_before_nova_is_asked(both: Both) -> None:
    limit = both.api.components.settings.limits.request_body_bytes_max
    assert (await both.ask("POST", PATHS[0], data=b"x" * (limit + 1))).status == 413
    assert (await both.ask("POST", PATHS[0], data=b"x" * limit)).status == 200
    assert both.said_by_nova() == 1


async def test_so_many_are_passed_on_at_once_and_of_one_token(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = asyncio.Event()

    async def answering(_: Asked, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.write(said(200))

    both.nova.answering = answering
    monkeypatch.setattr(passing, "PASSED_MAX", 3)
    monkeypatch.setattr(passing, "PASSED_OF_TOKEN_MAX", 2)
    held = [asyncio.create_task(both.ask("GET", PATHS[0])) for _ in range(2)]

    async def waiting() -> bool:
        return len(both.nova.asked) == len(held)

    await eventually(waiting, "they wait")
    mine = await both.ask("GET", PATHS[0])
    assert (mine.status, mine.headers.get("Retry-After")) == (503, "2")
    assert "asks no more at once" in await mine.text()
    others = {"X-Auth-Token": "gAAAA-another"}
    held.append(asyncio.create_task(both.ask("GET", PATHS[0], headers=others)))
    await eventually(waiting, "another token has its own")
    assert (await both.ask("GET", PATHS[0], headers={"X-Auth-Token": "third"})).status == 503
    let_go.set()
    assert [(await each).status for each in held] == [200] * 3
    assert (await both.ask("GET", PATHS[0])).status == 200


async def test_who_is_told_to_pass_on_to_itself_says_so(
    database_url: str, keystone: SimulatedKeystone, nova: RecordingNova
) -> None:
    async with both_worlds(database_url, keystone, nova) as both:
        own = URL(f"http://127.0.0.1:{both.api.http.port}")
        assert both.api.components.nova is not None
        both.api.components.nova._url = own
        answer = await both.ask("GET", PATHS[0])
        assert answer.status == 508
        assert "pass_on_to leads back" in await answer.text()


async def test_a_token_of_ours_is_not_shown_to_nova_and_nobody_is_passed_on(both: Both) -> None:
    for path in (PATHS[0], f"/v2.1/servers/{SERVER}", "/v2.1/servers"):
        assert (await both.api.ask("GET", path, "admin")).status in {200, 404}
        answer = await both.api.ask("GET", path, None)
        assert answer.status == 401
        assert "Keystone" in answer.headers["WWW-Authenticate"]
    assert both.nova.asked == []


async def test_no_path_leads_elsewhere_than_to_nova(both: Both) -> None:
    for path in ("http://example.org/v2.1/images", "/v2.1/../../x@example.org/"):
        await exchange(both.api, head("GET", path, *HEADERS, ENDS))
    first, _, _ = await exchange(both.api, head("GET", "@example.org/v2.1/", *HEADERS, ENDS))
    assert first.split()[1] in {"400", "404"}
    paths = [asked.path for asked in both.nova.asked]
    assert paths == ["/v2.1/images", "/v2.1/../../x@example.org/"]


async def test_no_odd_path_leads_a_request_for_what_was_handed_over_to_nova(both: Both) -> None:
    """Apache and nginx take empty segments and dots out of a path before Nova reads it."""
    ours, theirs = await both.adopted(), await both.watched()
    for odd in (
        f"/v2.1/servers//{ours}/action",
        f"/v2.1/servers/./{ours}/action",
        f"/v2.1/servers/{theirs}/../{ours}/action",
        f"/v2.1/servers/{theirs}/%2e%2e/{ours.upper()}/action",
        f"/v2.1/flavors/..//servers/x/../{ours}/action",
        f"/v2.1/./servers/{theirs}/../../servers//{ours}",
    ):
        first, _, _ = await exchange(both.api, head("POST", odd, *HEADERS, ENDS))
        assert (first.split()[1], both.said_by_nova()) == ("401", 0), odd
    for odd in (f"/v2.1/servers//{theirs}", f"/v2.1/servers/x/../{theirs}"):
        await exchange(both.api, head("GET", odd, *HEADERS, ENDS))
        assert both.nova.asked.pop().path == odd


async def test_without_a_nova_what_is_its_is_refused(
    database_url: str, keystone: SimulatedKeystone
) -> None:
    given = replace(settings(keystone), observe=Observe())
    async with running_api(database_url, given) as api:
        token = keystone.token("root", "admin", project="own")
        answer = await api.ask("GET", PATHS[0], None, headers={"X-Auth-Token": token})
        assert answer.status == 404


async def test_what_is_not_of_novas_form_stays_here(both: Both) -> None:
    for path in ("/v1/hosts", "/v1/none", "/healthz", "/openapi.json", "/ui/", "/v3/x", "/metrics"):
        await both.ask("GET", path)
    assert both.nova.asked == []
