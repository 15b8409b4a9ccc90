"""What the console's pages tell of time: lines, and what was as of a moment."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg

from ledger.log.application import Ledger
from tests.service.api_world import HOST, Api
from tests.service.test_api_drift import found
from tests.service.test_console import Html, shown
from tests.store.test_known_at import MINUTE, Watching
from tests.world import CONTEXT


async def test_what_was_learnt_later_is_told_to_who_asks_for_that(
    api: Api, database_url: str
) -> None:
    with Ledger(database_url) as ledger, psycopg.connect(database_url, autocommit=True) as db:
        watching = Watching(ledger, database_url, db)
        at = watching.now() - 5 * MINUTE
        watching.sees(True, at - MINUTE, at + MINUTE)
        known = watching.now()
    moment, later = quote(at.isoformat()), quote(known.isoformat())
    for path in (f"volumes/{watching.volume}", "hosts/hv1"):
        asked = f"/ui/{path}?at={moment}&known_at={later}"
        html = await shown(api, asked)
        assert "as it was known at" in html.text
        assert "Perhaps: Seen at Nova" in html.text, path
        assert "perhaps" in html.text
        links = [str(each.get("href")) for each in html.all("a")]
        [server] = {link for link in links if link.startswith("/ui/servers/")}
        assert server.endswith(f"?at={moment}&known_at={later}")
    path = f"/ui/volumes/{watching.volume}"
    then = await shown(api, f"{path}?at={moment}")
    assert "No events until then" in then.text
    assert any(each.get("name") == "known_at" for each in then.all("input"))
    assert not any(each.get("name") == "known_at" for each in (await shown(api, path)).all("input"))
    await shown(api, f"{path}?at={later}&known_at={moment}", status=400)
    for history in (f"volumes/{watching.volume}", f"servers/{watching.server}", "hosts/hv1"):
        page = f"/v1/{history}/history?at={moment}"
        told = (await api.get(f"{page}&known_at={later}"))["events"]
        assert {each["cause"] for each in told} == {CONTEXT.cause}
        assert all(each["body"]["seen"] for each in told)
        assert (await api.ask("GET", page)).status in {200, 404}
        assert (await api.ask("GET", f"/v1/{history}/history?known_at={later}")).status == 400


async def moved_on(api: Api) -> tuple[str, str, str, str]:
    """A volume that was attached and detached: server, volume, attachment, and a moment between."""
    server, volume = await api.attached()
    [held] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    events = (await api.get(f"/v1/volumes/{volume}/history"))["events"]
    between = events[-1]["recorded_at"]
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    done = await api.played(answer)
    assert done["outcome"] == "completed", done
    return server, volume, held["attachment_id"], between


def of_the_line(html: Html, what: str) -> list[str]:
    """The ids that a page's time line leads to."""
    inside, links = False, []
    for tag, attributes in html.tags:
        inside = (inside or attributes.get("class") == "time") and tag != "h2"
        href = attributes.get("href") or ""
        if inside and href.startswith(f"/ui/{what}/"):
            links.append(href.removeprefix(f"/ui/{what}/").partition("?")[0])
    return links


async def operations_of(api: Api, volume: str) -> list[str]:
    rows = (await api.get(f"/v1/operations?volume={volume}"))["operations"]
    return [each["operation_id"] for each in rows]


async def test_each_page_of_a_thing_has_its_line_its_drift_and_its_past(
    api: Api, database_url: str
) -> None:
    server, volume, attachment, between = await moved_on(api)
    with Ledger(database_url) as ledger:
        finding = str((await found(api, ledger, server)).id)
    operations = set(await operations_of(api, volume))
    for path in (
        *(f"servers/{server}", f"volumes/{volume}"),
        *(f"attachments/{attachment}", f"hosts/{HOST}"),
    ):
        html = await shown(api, f"/ui/{path}")
        assert of_the_line(html, "attachments") == [attachment], path
        assert set(of_the_line(html, "operations")) == operations, path
        assert "History" in html.text
        then = await shown(api, f"/ui/{path}?at={quote(between)}")
        assert "Sent to compute-1: unplug" in html.text, path
        assert "Sent to compute-1: unplug" not in then.text, path
        assert any(each.get("class") == "at" for each in then.all("line")), "where the moment is"
        if "server" in path or "host" in path:
            assert any(finding in (each["href"] or "") for each in html.all("a")), path
            assert not any(finding in (each["href"] or "") for each in then.all("a")), path


async def test_who_held_a_volume_then_stands_on_the_pages_of_that_moment(api: Api) -> None:
    _, volume, attachment, between = await moved_on(api)
    for path in (f"volumes/{volume}", f"attachments/{attachment}", f"hosts/{HOST}"):
        html = await shown(api, f"/ui/{path}?at={quote(between)}")
        assert HOST in html.text, path
        assert "attached" in html.text, path


async def test_what_began_later_is_not_among_what_was(api: Api) -> None:
    _, volume, _, between = await moved_on(api)
    newest, first = await operations_of(api, volume)
    asked = f"/v1/operations?volume={volume}&at={quote(between)}"
    rows = (await api.get(asked))["operations"]
    assert [each["operation_id"] for each in rows] == [first]
    html = await shown(api, f"/ui/volumes/{volume}?at={quote(between)}")
    assert "that had begun then, as they are now" in html.text
    links = [str(each["href"]).partition("?")[0] for each in html.all("a")]
    of_tables = [link for link in links if link.startswith("/ui/operations/")]
    for id_, times in ((newest, 1), (first, 2 + 1)):
        assert of_tables.count(f"/ui/operations/{id_}") == times, "the line, list and history"


async def test_a_page_without_a_past_says_so(api: Api) -> None:
    moment = "2026-01-01T00:00:00Z"
    for path, past in (("/ui/", False), ("/ui/hosts", False), ("/ui/drift", True)):
        html = await shown(api, f"{path}?at={moment}")
        assert ("This page has only the present" in html.text) is not past, path


async def test_a_page_of_a_moment_to_come_is_refused(api: Api) -> None:
    for page in ("", "servers", "hosts", "drift", "volumes"):
        html = await shown(api, f"/ui/{page}?at=2999-01-01T00:00:00Z", status=400)
        assert "is in the future" in html.text, page


async def test_spans_of_a_host_or_a_volume_are_those_between_two_moments(api: Api) -> None:
    server, volume, attachment, between = await moved_on(api)
    second = api.volume()
    await api.played(await api.attach(server, second))
    first = {"attachment_id": attachment, "volume_id": volume, "host": HOST}

    async def spans(**asked: str) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={quote(text)}" for name, text in asked.items())
        return list((await api.get(f"/v1/attachments?{query}"))["attachments"])

    newest, oldest = await spans(host=HOST, since=between)
    assert (newest["volume_id"], newest["to_at"]) == (second, None)
    assert oldest.items() >= first.items()
    assert oldest["to_at"] is not None
    over = oldest["to_at"]
    assert [each["volume_id"] for each in await spans(host=HOST, since=over)] == [second]
    assert [each["volume_id"] for each in await spans(volume=volume, since=between)] == [volume]
    [then] = await spans(host=HOST, since=between, at=between)
    assert then["to_at"] is None, "that it ended was not known"
    answer = await api.ask("GET", f"/v1/attachments?since={quote(between)}")
    assert answer.status == 400, "all hosts at once are not read"
    member = await api.ask(
        "GET", f"/v1/attachments?volume={volume}&since={quote(between)}", "member"
    )
    assert member.status == 403


async def test_of_many_attachments_the_newest_are_shown(api: Api) -> None:
    server, volume, attachment, _ = await moved_on(api)
    await api.played(await api.attach(server, volume))
    asked = f"/v1/attachments?volume={volume}&open=false&order=desc&limit=1"
    page = await api.get(asked)
    [newest] = page["attachments"]
    assert newest["attachment_id"] != attachment
    [older] = (await api.get(f"{asked}&after={page['next']}"))["attachments"]
    assert older["attachment_id"] == attachment
