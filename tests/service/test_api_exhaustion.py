"""What many ask at once, or without a token, costs as if one did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientResponse

from ledger.http.probes import health
from ledger.http.probes.health import Remembered
from ledger.native.log import events
from projections.reads.queries import Queries
from tests.service.api_world import SETTINGS, Api, eventually, guest, running_api

READERS = 40
FOR_EVER_S = 1_000.0


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    limits = replace(SETTINGS.limits, streams_max=READERS)
    async with running_api(database_url, replace(SETTINGS, limits=limits)) as running:
        yield running


class Counted:
    """How often a question of `Queries` was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.times = 0
        ask: Callable[..., Awaitable[Any]] = getattr(Queries, name)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.times += 1
            return await ask(*args, **kwargs)

        monkeypatch.setattr(Queries, name, counted)


async def until(stream: ClientResponse, begin: bytes, times: int = 1) -> list[bytes]:
    """The lines of a stream that begin so, when there are so many."""
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < times:
            line = await stream.content.readline()
            assert line, "the stream has ended"
            found += [line] if line.startswith(begin) else []
    return found


async def streams(api: Api) -> list[ClientResponse]:
    opened = [await api.ask("GET", "/v1/events/stream") for _ in range(READERS)]
    await asyncio.gather(*(until(stream, b": from") for stream in opened))
    return opened


async def test_event_streams_that_are_idle_ask_the_database_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    await api.server()
    opened = await streams(api)
    await asyncio.gather(*(until(stream, b": still here") for stream in opened))
    asked = Counted(monkeypatch, "events")
    await asyncio.gather(*(until(stream, b": still here", 3) for stream in opened))
    assert asked.times == 0


async def test_what_happens_is_read_once_for_all_event_streams(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await streams(api)
    asked = Counted(monkeypatch, "events")
    before = await api.head()
    await api.register(guest())
    written = await api.head() - before
    assert written > 1
    told = await asyncio.gather(*(until(stream, b"id: ", written) for stream in opened))
    ids = [b"id: %d\n" % (before + number) for number in range(1, written + 1)]
    assert told == [ids] * READERS
    # A look finds all that is there, so there are at most as many as positions to look after.
    assert 0 < asked.times <= 2 * (written + 1) < READERS


async def test_a_reader_that_is_behind_is_given_all_of_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.native.log.feed.PAGE_EVENTS", 3)
    await api.register(*(guest() for _ in range(5)))
    head = await api.head()
    stream = await api.ask("GET", "/v1/events/stream?after=0")
    told = await until(stream, b"id: ", head)
    assert told == [b"id: %d\n" % number for number in range(1, head + 1)]


async def test_a_stream_whose_reader_has_gone_gives_its_place_back(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", FOR_EVER_S)
    opened = await streams(api)
    assert (await api.ask("GET", "/v1/events/stream")).status == 503
    for stream in opened:
        stream.close()

    async def let_in() -> bool:
        return (await api.ask("GET", "/v1/events/stream")).status == 200

    await eventually(let_in, "there is a place again")


@pytest.mark.parametrize(("path", "query"), [("/metrics", "counts"), ("/readyz", "tracking")])
async def test_many_who_need_no_token_are_one_to_the_database(
    path: str, query: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_AGE_S", FOR_EVER_S)
    asked = Counted(monkeypatch, query)
    answers = await asyncio.gather(*(api.ask("GET", path, None) for _ in range(60)))
    answers.append(await api.ask("GET", path, None))
    assert {answer.status for answer in answers} == {200}
    assert asked.times == 1


async def test_what_is_remembered_grows_old() -> None:
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ValueError("not now")
        return looks

    remembered = Remembered(look)
    health_age = health.ANSWER_AGE_S
    assert health_age > 0
    assert [await remembered.found() for _ in range(3)] == [1, 1, 1]
    remembered._until = 0.0
    for _ in range(2):
        with pytest.raises(ValueError, match="not now"):
            await remembered.found()
    remembered._until = 0.0
    assert await remembered.found() == 3
