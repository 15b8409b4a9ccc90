"""The console: what its pages show, to whom, and what a browser may not be made to do."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from ledger.auth.tokens import KeystoneAwayError
from ledger.config import Listen
from ledger.log.application import Ledger
from ledger.web import sessions
from ledger.web.browser import FORM_BYTES_MAX, SESSIONS
from ledger.web.console import HEADERS
from ledger.web.login import LOGINS_MAX, LOGINS_S
from ledger.web.pages import PAGES
from tests.service.api_world import HOST, SETTINGS, Api, running_api
from tests.service.test_api_builds import built
from tests.service.test_api_drift import found
from tests.service.test_api_record import refused
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import begin_look
from tests.tokens import token_of

EVIL = "<script>alert(1)</script>"


class Html(HTMLParser):
    """What a page is made of: its tags with their attributes, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.tags and self.tags[-1][0] == "td":
            self.cells.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


async def shown(api: Api, path: str, who: str | None = "admin", status: int = 200) -> Html:
    answer = await api.ask("GET", path, who, allow_redirects=False)
    text = await answer.text()
    assert answer.status == status, text
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    return Html(text)


@pytest.fixture
async def busy(api: Api, database_url: str) -> dict[str, str]:
    """Something for each page, by the names of their paths."""
    refused_id = await refused(api)
    server, volume, operation = await parked_detach(api)
    with Ledger(database_url) as ledger:
        finding = str((await found(api, ledger, server)).id)
        look = str(begin_look(ledger, host=HOST).id)
        await api.projected()
    [attachment] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    return {
        "server_id": server,
        "volume_id": volume,
        "operation_id": operation["operation_id"],
        "attachment_id": attachment["attachment_id"],
        "finding_id": finding,
        "look_id": look,
        "refused_id": refused_id,
        "host": HOST,
        "name": "detach",
    }


async def test_every_page_is_whole_and_uses_nothing_of_others(
    api: Api, busy: dict[str, str]
) -> None:
    for page in PAGES:
        html = await shown(api, page.path.format(**busy))
        assert len(html.all("h1")) == 1, page.name
        own = {"/ui/files/htmx.min.js", "/ui/files/hx-sse.min.js"}
        assert {each["src"] for each in html.all("script")} == (own if page.moves else set())
        for script in html.all("script"):
            assert not {"defer", "async"} & script.keys(), "htmx would begin without its extension"
        moving = [each for _, each in html.tags if "hx-sse:connect" in each]
        assert [(each["hx-trigger"], each["hx-sync"]) for each in moving] == (
            [("load, every 5s", "drop")] if page.moves else []
        ), "a stream that is refused is asked for again"
        for tag, attributes in html.tags:
            assert "style" not in attributes, "the content policy lets none in"
            assert not any(name.startswith(("on", "hx-on")) for name in attributes)
            for name in ("href", "src", "action"):
                assert (attributes.get(name) or "/ui").startswith(("/ui", "?", "#")), (tag, page)
        assert all("scope" in each for each in html.all("th")), page.name


async def test_text_of_tenants_is_text(api: Api) -> None:
    server = await api.server(name=EVIL)
    for path in ("/ui/servers", f"/ui/servers/{server}"):
        html = await shown(api, path)
        assert EVIL in html.text
        assert all(each.keys() == {"src"} for each in html.all("script")), "only our own"


async def test_nobody_sees_more_than_the_api_shows(api: Api, busy: dict[str, str]) -> None:
    volume, server = busy["volume_id"], busy["server_id"]
    await shown(api, f"/ui/volumes/{volume}", "member", 403)
    for path in (f"/ui/servers/{server}", f"/ui/operations/{busy['operation_id']}"):
        assert HOST not in (await shown(api, path, "member")).text, "no names of hypervisors"
        assert volume not in (await shown(api, path, "stranger", 404)).text
    assert "your servers" in (await shown(api, "/ui/", "member")).text
    assert "your servers" in (await shown(api, "/ui/volumes", "member", 403)).text
    await shown(api, "/ui/hosts", "member", 403)
    await shown(api, "/ui/", "agent-1", 403)


async def test_a_page_is_as_of_a_moment_and_its_links_keep_it(
    api: Api, busy: dict[str, str]
) -> None:
    events = (await api.get(f"/v1/volumes/{busy['volume_id']}/history"))["events"]
    connected = next(each for each in events if each["topic"] == "Attachment.Completed")
    path = f"/ui/volumes/{busy['volume_id']}"
    now = await shown(api, path)
    assert "parked" in now.text
    then = await shown(api, f"{path}?at={connected['recorded_at'].replace('+', '%2B')}")
    assert "As of 20" in then.text
    [held] = [each for each in then.all("a") if "/ui/attachments/" in (each["href"] or "")][:1]
    assert "?at=20" in str(held["href"])
    assert len(then.all("tr")) < len(now.all("tr")), "what came later is not there"
    before = await shown(api, f"{path}?at=2020-01-01T00:00:00Z")
    assert "No events until then" in before.text
    await shown(api, f"{path}?at=yesterday", status=400)
    for page in ("/ui/hosts/" + HOST, path):
        for edge in ("0001-01-01T00:00:00Z", "0001-01-01T00:00%2B05:00", "9999-12-31T23:59-05:00"):
            await shown(api, f"{page}?at={edge}", status=400)
    await shown(api, f"{path}?when=now", status=400)


async def test_a_history_goes_on_with_what_was_earlier(api: Api, busy: dict[str, str]) -> None:
    asked = {"limit": "100", "order": "desc"}
    for path, route in (
        (f"/ui/operations/{busy['operation_id']}", "operation_history"),
        ("/ui/log", "events"),
    ):
        [read] = [
            read
            for page in PAGES
            for read in page.reads.values()
            if read.route == route and "order" in read.query
        ]
        assert (dict(read.query), "after" in read.given) == (asked, True)
        last = (await api.head()) - 3
        html = await shown(api, f"{path}?after={last}")
        positions = [int(text) for text in html.cells if text.isdecimal() and int(text) > 4]
        assert positions, path
        assert max(positions) < last, "after, in the order that is shown"


async def test_a_page_that_has_not_room_for_all_says_so_and_leads_to_them(
    api: Api, busy: dict[str, str]
) -> None:
    pages = {
        f"/ui/servers/{busy['server_id']}": f"server={busy['server_id']}",
        f"/ui/volumes/{busy['volume_id']}": f"volume={busy['volume_id']}",
        f"/ui/hosts/{HOST}": f"host={HOST}",
    }
    for path in pages:
        assert "These are not all" not in (await shown(api, path)).text, path
    async with api.connection() as connection:
        for thing, order in (("attachment", "created_position"), ("operation", "started_position")):
            again = f"""INSERT INTO {thing}s SELECT (jsonb_populate_record(a, jsonb_build_object(
                            '{thing}_id', gen_random_uuid(), '{order}', 1000000 + n))).*
                        FROM {thing}s AS a CROSS JOIN generate_series(1, 100) AS n"""
            await connection.execute(again.encode())
    for path, of in pages.items():
        page = await shown(api, path)
        assert page.text.count("These are not all") == 2, path
        ever = "" if of.startswith("host") else "open=false&"
        for where in (f"/ui/attachments?{ever}{of}", f"/ui/operations?{of}"):
            assert {"href": where} in page.all("a"), path
            assert (await shown(api, where)).all("table"), path


async def test_a_search_goes_to_what_it_names(api: Api, busy: dict[str, str]) -> None:
    for what, where in (
        ("server_id", "servers"),
        ("volume_id", "volumes"),
        ("operation_id", "operations"),
        ("attachment_id", "attachments"),
        ("finding_id", "drift"),
        ("look_id", "looks"),
        ("host", "hosts"),
    ):
        answer = await api.ask("GET", f"/ui/search?q={busy[what]}", allow_redirects=False)
        assert answer.headers.get("Location") == f"/ui/{where}/{busy[what]}", what
        if what != "host":
            begun = f"/ui/search?q={busy[what][:8]}"
            answer = await api.ask("GET", begun, allow_redirects=False)
            assert answer.headers.get("Location") == f"/ui/{where}/{busy[what]}", "by its beginning"
    for nothing in (str(uuid4()), "no such name"):
        assert "you may see. Search" in (await shown(api, f"/ui/search?q={nothing}")).text
    server = busy["server_id"]
    for text in (server, server[:8]):
        assert "you may see. Search" in (await shown(api, f"/ui/search?q={text}", "stranger")).text


# --- logging in -------------------------------------------------------------------------------


async def log_in(api: Api, token: str, to: str = "", **headers: str) -> Any:
    form = {"token": token, "to": to}
    return await api.ask(
        "POST", "/ui/login", None, data=form, headers=headers, allow_redirects=False
    )


async def test_a_browser_logs_in_with_a_token_and_never_has_it(api: Api) -> None:
    answer = await api.ask("GET", "/ui/servers?at=2026-01-01", None, allow_redirects=False)
    assert answer.status == 303
    assert answer.headers["Location"] == "/ui/login?to=%2Fui%2Fservers%3Fat%3D2026-01-01"
    assert "Log in" in (await shown(api, "/ui/login?to=/ui/servers", None)).text

    answer = await log_in(api, token_of("member"), "/ui/servers")
    assert (answer.status, answer.headers["Location"]) == (303, "/ui/servers")
    cookie = answer.headers["Set-Cookie"]
    assert token_of("member") not in cookie
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="))
    html = await shown(api, "/ui/servers", None)
    assert "member" in html.text

    await api.ask("POST", "/ui/logout", None, allow_redirects=False)
    answer = await api.ask("GET", "/ui/servers", None, allow_redirects=False)
    assert answer.status == 303


OTHER_SITES: list[str] = [
    *("//evil.example", "https://evil.example/ui/", "/ui/\\evil", ""),
    *("/ui/\r\nX-Evil: 1", "/ui/\nX-Evil: 1", "/ui/\r", "/ui/\0", "/ui/\u2028", "/ui/\xe9"),
]


async def test_logging_in_leads_to_no_other_site_and_puts_nothing_into_a_header(api: Api) -> None:
    for to in OTHER_SITES:
        answer = await log_in(api, token_of("member"), to)
        assert (answer.status, answer.headers["Location"]) == (303, "/ui/")
        assert "X-Evil" not in answer.headers


async def test_a_user_who_logs_in_too_often_has_to_wait_and_nobody_else_has_to(api: Api) -> None:
    await log_in(api, token_of("operator"))
    operators = api.http.session.cookie_jar.filter_cookies(api.http.make_url("/ui/"))
    for _ in range(LOGINS_MAX):
        api.http.session.cookie_jar.clear()  # another browser each time
        assert (await log_in(api, token_of("member"))).status == 303
    refused = await log_in(api, token_of("member"))
    assert (refused.status, "Set-Cookie" in refused.headers) == (429, False)
    assert 0 < int(refused.headers["Retry-After"]) <= LOGINS_S
    assert f"logged in {LOGINS_MAX} times in {LOGINS_S:g} s" in await refused.text()
    assert (await log_in(api, token_of("admin"))).status == 303
    api.http.session.cookie_jar.clear()
    api.http.session.cookie_jar.update_cookies(operators)
    assert "operator" in (await shown(api, "/ui/", None)).text


async def test_pages_that_show_otherwise_who_asks_take_sessions_of_their_own_user_alone(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_OF_USER_MAX", 2)
    await api.register()
    page = f"/ui/hosts/{HOST}/fence"
    assert (await log_in(api, token_of("operator"))).status == 303
    for who in ("operator", *["admin"] * 4):
        api.http.session.cookie_jar.clear()
        await shown(api, page, who)
    app: Any = api.http.app
    assert len(app[SESSIONS]._sessions) == 2 + 2


@pytest.mark.parametrize(
    "public_url", ["https://ledger.example.org", ""], ids=["proxy", "no proxy"]
)
async def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_and_this_host_alone(
    public_url: str, database_url: str
) -> None:
    settings = replace(SETTINGS, listen=Listen(public_url=public_url))
    async with running_api(database_url, settings) as api:
        answer = await log_in(api, token_of("member"))
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-") == bool(public_url)
        assert ("Secure" in cookie) == bool(public_url)
        assert ("Strict-Transport-Security" in answer.headers) == bool(public_url)
        # The proxy speaks without TLS to us: the browser's cookie comes all the same.
        said = {"Cookie": cookie.partition(";")[0]}
        page = await api.ask("GET", "/ui/servers", None, headers=said, allow_redirects=False)
        assert page.status == 200


async def test_a_wrong_token_opens_nothing(api: Api) -> None:
    answer = await log_in(api, "w" * 64)
    assert answer.status == 401
    assert "w" * 64 not in await answer.text()
    assert "Set-Cookie" not in answer.headers


ELSEWHERE = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
)


async def test_another_sites_page_can_send_no_form(api: Api) -> None:
    given: dict[str, Any] = {"data": {"token": token_of("member")}, "allow_redirects": False}
    for path, headers in product(("/ui/login", "/ui/logout"), ELSEWHERE):
        answer = await api.ask("POST", path, None, headers=headers, **given)
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False), (path, headers)


async def test_a_session_is_for_pages_alone(api: Api) -> None:
    """So nothing that changes anything can be sent in a browser's name."""
    await log_in(api, token_of("admin"))
    await shown(api, "/ui/", None)
    assert (await api.ask("GET", "/v1/hosts", None)).status == 401
    assert (await api.ask("POST", "/v1/drift/runs", None, json={})).status == 401


async def test_a_form_is_bounded(api: Api) -> None:
    answer = await log_in(api, "x" * FORM_BYTES_MAX)
    assert answer.status == 413
    answer = await api.ask("POST", "/ui/login", None, json={"token": token_of("admin")})
    assert answer.status == 415


async def test_bytes_that_are_no_text_are_refused(api: Api) -> None:
    for charset, body in (("utf-8", b"token=\xff"), ("none", b"token=x"), ("base64", b"token=x")):
        form = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
        answer = await api.ask("POST", "/ui/login", None, data=body, headers=form)
        assert answer.status == 400, (charset, body)


async def test_that_keystone_is_away_says_nothing_of_the_token(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Any) -> Any:
        raise KeystoneAwayError("Keystone does not answer.")

    monkeypatch.setattr(api.components.authenticator, "authenticate", away)
    answer = await log_in(api, token_of("member"))
    assert (answer.status, "Set-Cookie" in answer.headers) == (503, False)
    assert "Keystone does not answer." in await answer.text()


async def test_volumes_are_listed_with_who_has_them_and_what_differs(
    api: Api, busy: dict[str, str]
) -> None:
    volume = busy["volume_id"]
    html = await shown(api, "/ui/volumes")
    links = [str(each.get("href")) for each in html.all("a")]
    for link in (f"/ui/volumes/{volume}", f"/ui/servers/{busy['server_id']}", f"/ui/hosts/{HOST}"):
        assert links.count(link) == 1, link
    assert f"/ui/drift?volume={volume}" in links, "a detach of it is parked"
    assert "1 open" in html.text
    for id_, is_new in ((volume, False), (uuid4(), True)):
        assert ("never seen" in (await shown(api, f"/ui/volumes/{id_}")).text) == is_new
    assert "attached" in html.text
    assert "done" in html.cells
    assert volume not in str((await shown(api, "/ui/volumes?flow=old")).tags)
    [row] = (await api.get("/v1/attachments"))["attachments"]
    assert row["open_drift"] == 1
    asked = f"/v1/attachments?server={busy['server_id']}"
    [row] = (await api.get(asked, who="member"))["attachments"]
    assert row["open_drift"] is None, "others may have it, too"


async def test_a_volume_of_several_is_one_row_of_its_list(api: Api) -> None:
    volume = api.volume(multiattach=True)
    for _ in range(2):
        done = await api.played(await built(api, {"volume_id": volume}))
        assert done["outcome"] == "completed", done
    html = await shown(api, "/ui/volumes")
    assert [str(each.get("href")) for each in html.all("a")].count(f"/ui/volumes/{volume}") == 1
    assert [each["rowspan"] for each in html.all("td") if "rowspan" in each] == ["2", "2"]


@pytest.mark.parametrize(
    ("path", "name"), [("operations?flow", "live_migrate"), ("drift?class", "owner_gone")]
)
async def test_a_filter_shows_words_and_takes_what_the_api_takes(
    api: Api, path: str, name: str
) -> None:
    html = await shown(api, f"/ui/{path}={name}")
    assert name.replace("_", " ") in html.text
    chosen = [each["value"] for each in html.all("option") if "selected" in each]
    assert chosen == [name]


async def test_attachments_are_listed_and_filtered(api: Api, busy: dict[str, str]) -> None:
    link = f"/ui/attachments/{busy['attachment_id']}"

    async def listed(query: str) -> bool:
        html = await shown(api, f"/ui/attachments?{query}")
        return any(each.get("href") == link for each in html.all("a"))

    assert await listed("open=&flow=&host=&server=&volume=")
    assert await listed(f"host={HOST}&flow=new&volume={busy['volume_id']}&open=false")
    await api.server(name="db-1")
    assert await listed(f"server={busy['server_id'][:8]}&volume={busy['volume_id'][:8]}")
    assert not await listed("server=db-1"), "it has none"
    for wrong, why in (("volume=db-1", "is no volume"), ("server=vm", "may be server vm")):
        assert why in (await shown(api, f"/ui/attachments?{wrong}", status=404)).text
    assert not await listed("flow=old")
    assert not await listed(f"server={uuid4()}")
    await shown(api, "/ui/attachments?host=compute-1", "member", 403)
