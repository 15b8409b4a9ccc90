"""The console's search asks other ledgers, each by itself, and names who gives no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ledger.config import CellSettings, Listen, Settings
from ledger.trial.cloud import free_port
from ledger.web import other_cells
from tests.databases import Databases
from tests.service.api_world import SETTINGS, Api, running_api
from tests.service.test_console import Html, shown
from tests.tokens import token_of

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Cells = Callable[..., Awaitable[Api]]


@pytest.fixture
async def exits() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def south(databases: Databases, exits: AsyncExitStack) -> Api:
    name = databases.create_migrated()
    exits.callback(databases.drop, name)
    return await exits.enter_async_context(running_api(databases.url(name)))


@pytest.fixture
def north(database_url: str, exits: AsyncExitStack) -> Cells:
    """A ledger that knows these others, by name."""

    async def run(**urls: str) -> Api:
        cells = tuple(CellSettings(name=name, url=url) for name, url in urls.items())
        settings = replace(SETTINGS, cells=cells)
        return await exits.enter_async_context(running_api(database_url, settings))

    return run


def url_of(api: Api) -> str:
    return str(api.http.make_url("/"))


async def serving(exits: AsyncExitStack, answer: Answer) -> str:
    """Whatever answers a question so, in the place of a ledger."""
    app = web.Application()
    app.router.add_get("/v1/find", answer)
    server = await exits.enter_async_context(TestServer(app))
    return str(server.make_url("/"))


def links(html: Html) -> list[str | None]:
    return [each.get("href") for each in html.all("a")]


async def test_what_another_cell_knows_is_found_and_leads_to_its_console(
    north: Cells, south: Api
) -> None:
    api, url = await north(south=url_of(south)), url_of(south)
    server, volume = await south.attached()
    for text, page in ((server, f"servers/{server}"), (volume[:8], f"volumes/{volume}")):
        html = await shown(api, f"/ui/search?q={text}")
        assert f"{url}ui/{page}" in links(html), text
        assert "south: " in html.text
        assert "no answer" not in html.text
    nothing = await shown(api, f"/ui/search?q={uuid4()}")
    assert "that you may see. Search for" in nothing.text


async def test_it_is_asked_as_who_searches(north: Cells, south: Api) -> None:
    api = await north(south=url_of(south))
    server, _ = await south.attached()
    assert "you may see. Search" in (await shown(api, f"/ui/search?q={server}", "stranger")).text
    assert server in (await shown(api, f"/ui/search?q={server}", "member")).text


async def test_what_is_here_by_its_whole_id_is_not_asked_elsewhere(
    north: Cells, exits: AsyncExitStack
) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.query["text"])
        return web.json_response({"found": []})

    api = await north(south=await serving(exits, note))
    server, _ = await api.attached()
    for text in (server, server[:8]):
        answer = await api.ask("GET", f"/ui/search?q={text}", allow_redirects=False)
        assert answer.headers["Location"] == f"/ui/servers/{server}"
    assert asked == [server[:8]]


async def test_a_cell_that_gives_no_answer_is_named_and_what_others_know_is_shown(
    north: Cells, south: Api, exits: AsyncExitStack
) -> None:
    elsewhere: list[str] = []

    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None:  # a byte at a time is no answer, either
            await response.write(b" ")
            await asyncio.sleep(0.01)
        return response

    async def steal(request: web.Request) -> web.Response:
        elsewhere.append(request.headers.get("X-Auth-Token", ""))
        return web.json_response({"found": []})

    thief = await serving(exits, steal)

    async def send_on(_: web.Request) -> web.Response:
        raise web.HTTPFound(f"{thief}v1/find?text=x")

    def answering(body: Any, status: int = 200) -> Answer:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=body, status=status)

        return answer

    silent = {
        "gone": (f"http://127.0.0.1:{free_port(exits)}", "it cannot be reached"),
        "slow": (await serving(exits, hang), "it has not answered in 3 s"),
        "moved": (await serving(exits, send_on), "it answered 302"),
        "ill": (await serving(exits, answering("", 503)), "it answered 503"),
        "strict": (await serving(exits, answering("", 401)), "it does not let you ask (401)"),
        "other": (await serving(exits, answering("<html>")), "its answer is not understood"),
        "long": (
            await serving(exits, answering(" " * (other_cells.ANSWER_BYTES_MAX + 1))),
            "it cannot be reached",
        ),
    }
    api = await north(south=url_of(south), **{name: url for name, (url, _) in silent.items()})
    server, _ = await south.attached()
    html = await shown(api, f"/ui/search?q={server}")
    assert f"{url_of(south)}ui/servers/{server}" in links(html)
    for name, (_, why) in silent.items():
        assert f"{name}: {why}" in html.text, name
    assert elsewhere == [], "the token goes nowhere else"


async def test_while_a_cell_is_silent_nothing_is_said_to_be_unknown_or_the_only_one(
    north: Cells, exits: AsyncExitStack
) -> None:
    api = await north(gone=f"http://127.0.0.1:{free_port(exits)}")
    unknown = await shown(api, f"/ui/search?q={uuid4()}")
    assert "No ledger that answered" in unknown.text
    own, _ = await api.attached()
    named = await shown(api, f"/ui/search?q={own[:8]}")
    assert f"/ui/servers/{own}" in links(named), "others may know one that is called so, too"


async def test_a_cell_that_lies_leads_to_no_place_but_its_own_console(
    north: Cells, exits: AsyncExitStack
) -> None:
    evil = "../../x?<script>alert(1)</script>"

    async def lie(_: web.Request) -> web.Response:
        return web.json_response({"found": [{"kind": "host", "id": evil, "name": evil}]})

    url = await serving(exits, lie)
    api = await north(south=url)
    html = await shown(api, "/ui/search?q=x")
    [link] = [each for each in links(html) if each and each.startswith(url)]
    assert link == f"{url}ui/hosts/..%2F..%2Fx%3F%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
    assert not html.all("script") or all(each.get("src") for each in html.all("script"))


async def test_a_browsers_session_shows_other_cells_its_token(north: Cells, south: Api) -> None:
    api = await north(south=url_of(south))
    server, _ = await south.attached()
    api.http.session.cookie_jar.clear()
    form = {"token": token_of("admin")}
    answer = await api.ask("POST", "/ui/login", None, data=form, allow_redirects=False)
    assert answer.status == 303
    assert server in (await shown(api, f"/ui/search?q={server}", None)).text


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([("a b", "https://x")], "'name' has"),
        ([("south", "https://x/v1")], "without a path"),
        ([("south", "https://x"), ("south", "https://y")], r"two \[\[cells\]\]"),
        ([("south", "http://192.0.2.7:8790")], "would send tokens unencrypted"),
    ],
)
def test_cells_that_cannot_be_are_refused(cells: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Settings(cells=tuple(CellSettings(name=name, url=url) for name, url in cells))


def test_tokens_may_be_shown_on_a_network_that_is_trusted() -> None:
    cell = CellSettings(name="south", url="http://192.0.2.7:8790/")
    assert Settings(cells=(cell,), listen=Listen(plain_http=True)).cells[0].url[-1] == "0"
