"""What moves on the console's pages by itself: by one stream, bounded, to whom it may be shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientResponse

from ledger.config import PolicySettings
from ledger.http.components import HOLDS
from ledger.web import live
from ledger.web.browser import SESSIONS
from ledger.web.pages import AT_ONCE, CALMLY, PAGES
from tests.service.api_world import HOST, SETTINGS, TOKENS, Api, eventually, running_api
from tests.service.test_api_exhaustion import Counted
from tests.service.test_api_exhaustion import until as lines_until
from tests.service.test_console import log_in
from tests.tokens import token_of

STREAM = {"Accept": "text/html, text/event-stream"}
OPERATIONS = "/ui/operations"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE_S", 0.01)


async def opened(api: Api, path: str = OPERATIONS, who: str | None = "admin") -> ClientResponse:
    answer = await api.ask("GET", path, who, headers=STREAM, allow_redirects=False)
    assert answer.status == 200, await answer.text()
    assert answer.content_type == "text/event-stream"
    return answer


async def message(stream: ClientResponse) -> str:
    """The next one: a part of a page."""
    lines: list[str] = []
    async with asyncio.timeout(30):
        while True:
            line = (await stream.content.readline()).decode()
            assert line, "the stream has ended"
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
            elif lines:
                return "".join(lines)


async def until(stream: ClientResponse, text: str) -> str:
    while text not in (part := await message(stream)):
        pass
    return part


async def held(api: Api) -> int:
    """How many requests are held; an aiohttp key needs no service to be read."""
    app: Any = api.http.app
    return int(app[HOLDS].count)


async def test_what_happens_is_shown_by_the_stream_of_the_page(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    stream = await opened(api)
    first = await message(stream)
    assert "<html" not in first, "only what moves"
    assert "<form" not in first, "what somebody types into stays"
    assert volume[:8] not in first
    await api.attach(server, volume)
    part = await until(stream, volume)
    assert "/ui/operations/" in part
    stream.close()


async def test_only_what_moves_and_is_not_past_has_a_stream(api: Api) -> None:
    assert {page.name for page in PAGES if not page.moves} == {"flows", "flow", "request"}
    for path in ("/ui/flows", "/ui/hosts?at=2026-01-01T00:00:00Z", "/ui/?at=2026-01-01T00:00:00Z"):
        answer = await api.ask("GET", path, headers=STREAM)
        assert answer.content_type == "text/html"
        assert "hx-sse:connect" not in await answer.text()


async def test_the_page_of_a_thing_shows_what_happens_to_it(api: Api) -> None:
    server, volume = await api.attached()
    [held] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    paths = (f"volumes/{volume}", f"servers/{server}", f"attachments/{held['attachment_id']}")
    streams = [await opened(api, f"/ui/{path}") for path in (*paths, f"hosts/{HOST}")]
    for stream in streams:
        first = await message(stream)
        assert "<form" not in first, "what somebody types into stays"
        assert "Sent to compute-1: unplug" not in first
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    assert answer.status == 202
    for stream in streams:
        await until(stream, "Sent to compute-1: unplug")
        stream.close()


async def test_a_page_that_asks_much_is_made_anew_more_rarely(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    async def wait(*given: Any) -> bool:
        pauses.append(given[-1] / live.PAUSE_S)
        return False

    monkeypatch.setattr(live, "_wait", wait)
    await api.server()
    for path in ("/ui/", f"/ui/hosts/{HOST}"):
        await (await opened(api, path)).read()
    assert pauses == [AT_ONCE, CALMLY]


async def test_a_stream_shows_nobody_more_than_the_page(api: Api) -> None:
    for who, path, status in (
        ("member", OPERATIONS, 403),
        ("agent-1", "/ui/", 403),
        (None, "/ui/", 401),  # no log-in page: a script would put it into the page
    ):
        answer = await api.ask("GET", path, who, headers=STREAM, allow_redirects=False)
        assert (answer.status, await answer.text()) == (status, "")


async def test_streams_are_counted_with_all_that_is_held(api: Api) -> None:
    most = SETTINGS.limits.streams_max
    streams = [await opened(api) for _ in range(most)]
    answer = await api.ask("GET", OPERATIONS, headers=STREAM)
    assert answer.status == 503
    assert (await api.ask("GET", OPERATIONS)).status == 200, "the page is there without one"
    for stream in streams:
        stream.close()

    async def all_gone() -> bool:
        return await held(api) == 0

    await eventually(all_gone, "closed streams hold nothing")


async def test_who_looks_at_the_same_page_is_answered_together() -> None:
    made: list[str] = []

    async def make() -> str:
        made.append("a")
        return "a"

    together = live.Together()
    one, other = together.page("key"), together.page("key")
    found = await asyncio.gather(one.ask(make), other.ask(make), one.ask(make))
    assert (*found, made) == ("a", "a", "a", ["a"])
    await other.ask(make)
    assert made == ["a", "a"], "what comes later is asked anew"
    del one, other
    assert not together._pages, "nobody looks any more"


async def test_a_page_that_is_slow_to_be_made_keeps_no_other_one() -> None:
    together, never = live.Together(), asyncio.Event()

    async def slow() -> str:
        await never.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    slowly = asyncio.create_task(together.page("slow").ask(slow))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await together.page("quick").ask(quick) == "quick"
    assert not slowly.done()
    never.set()
    assert await slowly == "slow"


async def test_an_open_page_asks_nothing_while_nothing_happens(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)
    stream = await opened(api)
    await lines_until(stream, b": still here")
    asked = Counted(monkeypatch, "operations")
    await lines_until(stream, b": still here", 3)
    assert asked.times == 0
    stream.close()


async def test_what_is_old_is_made_anew_though_nothing_has_happened(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that falls silent tells nobody."""
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(live, "AGE_S", 0.1)
    stream = await opened(api)
    for _ in range(3):
        assert "As of" in await message(stream)
    stream.close()


async def test_a_page_that_is_left_open_keeps_no_session_alive(api: Api) -> None:
    await log_in(api, token_of("admin"))
    app: Any = api.http.app
    [session] = app[SESSIONS]._sessions.values()
    session.used = before = session.used - 60
    stream = await opened(api, who=None)
    await message(stream)
    assert session.used == before
    stream.close()


@pytest.mark.parametrize("how", ["token", "session"])
async def test_a_stream_ends_with_its_token_though_nothing_happens(
    how: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)
    await log_in(api, token_of("operator"))
    stream = await opened(api, who=None)
    await message(stream)
    static: Any = api.components.authenticator
    app: Any = api.http.app
    if how == "token":
        static.take([token for token in TOKENS if token.name != "operator"])
    else:
        app[SESSIONS]._sessions.clear()
    async with asyncio.timeout(live.AGE_S / 2):
        assert "data: " not in (await stream.content.read()).decode()


@pytest.mark.parametrize("how", ["logged out", "closed to the role"])
async def test_a_stream_ends_with_the_right_to_it(
    how: str, database_url: str, tmp_path: Any
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("{}")
    settings = replace(SETTINGS, policy=PolicySettings(file=str(policy)))
    async with running_api(database_url, settings) as api:
        await log_in(api, token_of("admin"))
        stream = await opened(api, who=None)
        await message(stream)
        if how == "logged out":
            await api.ask("POST", "/ui/logout", None, allow_redirects=False)
        else:
            policy.write_text('"attachment-ledger:operations:list": "!"')
            api.components.policy.refresh()
            api.components.policy.refresh()
        await api.server()  # something happens
        async with asyncio.timeout(30):
            rest = (await stream.content.read()).decode()
        assert "/ui/servers/" not in rest
