"""Events as CloudEvents, by page and live; the consumer of docs/events.md loses none."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from uuid import UUID

import psycopg
import pytest

from aggregates import catalogue
from aggregates.base import Event
from ledger.native.log.cloud_events import (
    BATCH_MEDIA_TYPE,
    MEDIA_TYPE,
    TYPE_PREFIX,
    cloud_event,
    preferred,
)
from ledger.native.log.schemas_events import EventShown as Shown
from projections.reads.queries import Queries
from tests.service.api_world import Api
from tests.tokens import token_of

PAGE = Path(__file__).parents[2] / "docs/events.md"
#: CloudEvents 1.0.2, 3 (Context Attributes): names of attributes.
ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}\Z")


async def batches(api: Api, limit: int) -> list[list[dict[str, Any]]]:
    """The whole log, by following the links."""
    found, path = [], f"/v1/events?limit={limit}"
    while path:
        answer = await api.ask("GET", path, headers={"Accept": BATCH_MEDIA_TYPE})
        assert (answer.status, answer.content_type) == (200, BATCH_MEDIA_TYPE)
        assert answer.headers["Vary"] == "Accept"
        found.append(json.loads(await answer.read()))
        link = re.fullmatch(r'<(.*)>; rel="next"', answer.headers.get("Link", ""))
        path = link[1] if link else ""
    return found


async def test_a_page_is_a_batch_of_cloud_events_for_who_accepts_one(api: Api) -> None:
    assert await batches(api, 7) == [[]]
    _, volume = await api.attached()
    pages = await batches(api, 7)
    assert [len(page) for page in pages[:-1]] == [7] * (len(pages) - 1)
    events = [event for page in pages for event in page]
    plain = (await api.get("/v1/events?limit=100"))["events"]
    assert [event["data"] for event in events] == plain
    log = (await api.get("/v1/events/checkpoint"))["log"]
    for event in events:
        data = event["data"]
        assert all(map(ATTRIBUTE.match, event))
        assert (event["specversion"], event["datacontenttype"]) == ("1.0", "application/json")
        assert (event["source"], event["id"]) == (f"urn:uuid:{log}", str(data["position"]))
        assert (event["position"], event["time"]) == (event["id"], data["recorded_at"])
        assert event["type"] == TYPE_PREFIX + data["topic"]
    assert f"volumes/{volume}" in {event["subject"] for event in events}


async def test_the_stream_has_cloud_events_for_who_accepts_them_and_others_as_before(
    api: Api,
) -> None:
    await api.server()
    for accept, cloud in ((MEDIA_TYPE, True), ("text/event-stream", False), ("*/*", False)):
        stream = await api.ask("GET", "/v1/events/stream?after=0", headers={"Accept": accept})
        assert stream.content_type == "text/event-stream"
        async with asyncio.timeout(10):
            while not (line := await stream.content.readline()).startswith(b"data: "):
                pass
        told = json.loads(line.removeprefix(b"data: "))
        stream.close()
        assert ("specversion" in told) is cloud
        assert int(told["position"]) == 1


def test_every_event_has_a_subject_below_v1() -> None:
    """Whatever the aggregate: its events are told to consumers from the first one on."""
    some = UUID(int=7)
    for aggregate in catalogue.AGGREGATES:
        for kind in catalogue.events_of(aggregate):
            row = {
                "position": 1,
                "recorded_at": "2026-01-01T00:00:00Z",
                "topic": kind.TOPIC,
                "originator_id": some,
                "version": 1,
                "server_id": some,
                "host": "compute-1",
                "body": {},
            }
            path, _, name = cloud_event(some, Shown.model_validate(row)).subject.rpartition("/")
            assert path
            assert name in {str(some), "compute-1"}
    assert issubclass(kind, Event)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", "a/x"),
        ("*/*", "a/x"),
        ("b/y", "b/y"),
        ("B/Y", "b/y"),
        ("a/x, b/y", "a/x"),
        ("a/x;q=0.5, b/y", "b/y"),
        ("a/x;q=0, */*", "b/y"),
        ("b/*;q=0.9, a/x;q=0.8", "b/y"),
        ("b/y;q=wrong", "a/x"),
        ("c/z", "a/x"),
    ],
)
def test_the_media_type_that_is_wanted_most_is_given(accept: str, wanted: str) -> None:
    assert preferred(accept, ("a/x", "b/y")) == wanted


# --- the consumer of the manual ------------------------------------------------------------------


class StoppedError(Exception):
    """The consumer dies here."""


def consumer() -> Callable[..., None]:
    """`follow` as it stands in the manual; it waits for nothing between two connections."""
    [text] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for line in text.splitlines() if line and not line.startswith("import ")]
    assert 15 <= len(lines) <= 22
    names: dict[str, Any] = {}
    exec(text, names)
    names["time"] = SimpleNamespace(sleep=lambda _: None)
    return names["follow"]  # type: ignore[no-any-return]


async def follow(api: Api, place: Path, handled: list[int], until: int, *, kept: bool) -> None:
    """Let the consumer run up to a position; `kept`: it dies only when that is its place."""

    def handle(event: dict[str, Any]) -> None:
        if kept and handled and handled[-1] == until:
            raise StoppedError
        handled.append(int(event["position"]))
        if not kept and handled[-1] == until:
            raise StoppedError

    url = str(api.http.make_url("")).rstrip("/")
    with pytest.raises(StoppedError):
        await asyncio.to_thread(consumer(), url, token_of("operator"), place, handle)


async def test_the_consumer_of_the_manual_loses_nothing_over_restarts(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own, before and after it has kept its place, and those of the ledger."""
    await api.attached()
    head, place = await api.head(), tmp_path / "place"
    handled: list[int] = []
    await follow(api, place, handled, 3, kept=False)
    assert handled == [1, 2, 3]
    assert place.read_text() == "2", "what was not handled to its end is not behind it"

    again: list[int] = []
    await follow(api, place, again, 5, kept=True)
    assert again == [3, 4, 5]

    real, away = Queries.events, iter([False, True, True, False])

    async def events(self: Queries, *args: Any, **more: Any) -> Any:
        if next(away, False):
            raise psycopg.OperationalError("the database restarts")
        return await real(self, *args, **more)

    monkeypatch.setattr(Queries, "events", events)
    rest: list[int] = []
    await follow(api, place, rest, head, kept=False)
    assert rest == list(range(6, head + 1))
    assert next(away, None) is None, "it was away while the consumer followed"


async def test_the_consumer_of_the_manual_says_so_where_trying_again_is_of_no_use(
    api: Api, tmp_path: Path
) -> None:
    url = str(api.http.make_url("")).rstrip("/")
    with pytest.raises(HTTPError, match="401"):
        await asyncio.to_thread(consumer(), url, "wrong", tmp_path / "place", print)
