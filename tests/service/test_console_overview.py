"""What the console says of now, of the last hour, and of the end of the log."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import psycopg
import pytest

from ledger.log.application import Ledger
from ledger.log.chain import GENESIS
from ledger.native.log import activity
from ledger.native.log.schemas_events import Period
from ledger.upkeep.verify import Statement, verify
from tests.service.api_world import Api
from tests.service.test_api_drift import found
from tests.service.test_api_v1 import parked_detach
from tests.service.test_console import shown

ACTIVITY, VERIFICATION = "/v1/events/activity", "/v1/events/verification"


HOUR, _ = activity.PERIODS[Period.HOUR]


async def test_the_last_hour_is_counted_by_minutes(api: Api, database_url: str) -> None:
    await parked_detach(api)
    for column, age in (("started_at", 90), ("finished_at", 30)):
        with psycopg.connect(database_url) as db:  # one that began before it, and ended in it
            db.execute(
                f"UPDATE operations SET {column} = now() - interval '{age} min' + interval '30 s'"
                " WHERE flow = 'attach'"
            )
    told = await api.get(ACTIVITY)
    counted = {what: [*_of(minutes)] for what, minutes in told["minutes"].items()}
    assert all(len(minutes) == HOUR for minutes in told["minutes"].values())
    assert counted["completed"] == [(HOUR - 30, 1)]
    assert [number for _, number in counted["begun"]] == [1], "the detach"
    assert [number for _, number in counted["parked"]] == [1]
    assert told["complete"]
    page = await shown(api, "/ui/")
    assert {each["aria-label"] for each in page.all("svg")} >= {
        "1 in 60 minutes, at most 1 in one",
        "0 in 60 minutes, at most 0 in one",
    }
    for needed in ("Oldest due", "Lag", "The last hour", "Completed", "Parked"):
        assert needed in page.text


@pytest.mark.parametrize(
    ("period", "ago", "at"),
    [("day", "23 hours", 96 - 23 * 4 - 1), ("week", "6 days", 84 - 6 * 12 - 1)],
)
async def test_a_day_and_a_week_are_counted_too(
    api: Api, database_url: str, period: str, ago: str, at: int
) -> None:
    await parked_detach(api)
    with psycopg.connect(database_url) as db:
        db.execute(f"UPDATE operations SET started_at = now() - interval '{ago} 1 min'")
    told = await api.get(f"{ACTIVITY}?period={period}")
    [(nth, number)] = _of(told["minutes"]["begun"])
    assert (told["period"], nth, number) == (period, at, 2)
    page = await shown(api, f"/ui/?period={period}")
    assert f"The last {period}" in page.text
    each = told["each_minutes"]
    length = len(told["minutes"]["begun"]) * each
    assert f"2 in {length} minutes, at most 2 in {each}" in {
        each["aria-label"] for each in page.all("svg")
    }
    assert "?period=hour" in str(page.all("a"))


async def test_how_old_the_oldest_was_is_told_of_each_part_of_an_hour(
    api: Api, database_url: str
) -> None:
    """One operation ran from 50 to 20 minutes ago; another has been parked for 10."""
    await parked_detach(api)
    api.components.runner.stop()
    ran = (
        "started_at = now() - interval '50 min 30 s', finished_at = now() - interval '20 min 30 s'"
    )
    with psycopg.connect(database_url) as db:
        db.execute(f"UPDATE operations SET {ran} WHERE flow = 'attach'".encode())
        db.execute("UPDATE parked SET from_at = now() - interval '10 min 30 s'")
    ages = (await api.get(ACTIVITY))["ages_s"]
    old = [*_of(ages["under_way"])]
    assert [HOUR - 1 - nth for nth, _ in old] == [*range(50, 19, -1)], "before and after: none"
    assert [age // 60 for _, age in old] == [*range(30), 30]
    waits = [age // 60 for _, age in _of(ages["parked"])]
    assert waits == [*range(11)]
    assert not any(ages["drift"])
    page = await shown(api, "/ui/")
    with psycopg.connect(database_url) as db:  # it began before the hour, and is over in it
        ended = "to_at = now() - interval '5 min 30 s', to_position = from_position + 1"
        db.execute(f"UPDATE parked SET from_at = now() - interval '2 hours', {ended}".encode())
    told = await api.get(ACTIVITY)
    assert told["oldest_s"] == {"under_way": 0, "parked": 0, "drift": 0}, "all of it is over"
    waited = [*_of(told["ages_s"]["parked"])]
    assert (waited[0][0], waited[-1][0]) == (0, HOUR - 6)
    assert "oldest 10 min 3" in page.text
    titles = {str(each["aria-label"]) for each in page.all("svg")}
    assert "the oldest was at most 30 min 0 s old in 60 minutes" in titles, titles


async def test_drift_grows_old_until_it_is_over_or_ignored(api: Api, database_url: str) -> None:
    server, _, _ = await parked_detach(api)
    with Ledger(database_url) as ledger:
        await found(api, ledger, server)
    await api.projected()
    api.components.runner.stop()

    async def age(change: str) -> int:
        with psycopg.connect(database_url) as db:
            db.execute(f"UPDATE findings SET {change}".encode())
        return int((await api.get(f"{ACTIVITY}?period=week"))["ages_s"]["drift"][-1])

    assert await age("found_at = now() - interval '9 days'") // 86_400 == 9, "older than a week"
    assert await age("state = 'ignored'") == 0
    assert await age("state = 'over', over_at = now(), over_position = position") // 86_400 == 9
    assert await age("over_at = now() - interval '3 hours'") == 0


async def test_what_needs_somebody_is_counted_once_and_the_worst_first(
    api: Api, database_url: str
) -> None:
    server, _, operation = await parked_detach(api)
    with Ledger(database_url) as ledger:
        for _ in range(3):
            await found(api, ledger, server)
    await api.projected()
    api.components.runner.stop()
    with psycopg.connect(database_url) as db:
        for order, severity, name in (
            ("ASC", "critical", "owner_gone"),
            ("DESC", "info", "volume_stuck"),
        ):
            db.execute(
                "UPDATE findings SET severity = %s, drift_class = %s WHERE finding_id ="
                f" (SELECT finding_id FROM findings ORDER BY position {order} LIMIT 1)".encode(),
                [severity, name],
            )
    page = await shown(api, "/ui/")
    assert ("Parked1" in page.text, "Open drift3" in page.text) == (True, True)
    worst_first = ["owner gone", "reservation unknown", "volume stuck"]
    assert [text for text in page.cells if text in worst_first] == worst_first
    parked = f"/ui/operations/{operation['operation_id']}"
    assert [str(each.get("href")) for each in page.all("a")].count(parked) == 1
    finding = await shown(api, f"/ui/drift/{operation['operation_id']}")
    assert any(each.get("href") == parked for each in finding.all("a"))
    assert "{'" not in finding.text, "what is code's is not shown"


async def test_a_period_that_is_none_is_refused(api: Api) -> None:
    answer = await api.ask("GET", f"{ACTIVITY}?period=year")
    assert answer.status == 400
    assert "week" in await answer.text()


def _of(minutes: list[int]) -> Any:
    return ((nth, number) for nth, number in enumerate(minutes) if number)


async def test_what_is_due_first_and_the_lag_are_said(api: Api, database_url: str) -> None:
    _, _, operation = await parked_detach(api)
    assert (await api.get(ACTIVITY))["oldest_due"] is None
    due = datetime.now(UTC) - timedelta(minutes=5)
    with psycopg.connect(database_url) as db:
        db.execute(
            "UPDATE operations SET due_at = %s WHERE operation_id = %s",
            [due, operation["operation_id"]],
        )
        db.execute("UPDATE tracking SET position = position - 3 WHERE projection = 'looks'")
    api.components.runner.stop()  # before it makes that up
    told = await api.get(ACTIVITY)
    assert told["oldest_due"]["operation_id"] == operation["operation_id"]
    page = await shown(api, "/ui/")
    assert "5 min" in page.text


async def test_who_may_not_read_the_log_sees_no_activity(api: Api) -> None:
    for path in (ACTIVITY, VERIFICATION, "/ui/log/checkpoint"):
        assert (await api.ask("GET", path, "member")).status == 403
    assert "The last hour" not in (await shown(api, "/ui/", "member")).text


async def test_more_than_is_counted_is_said(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await parked_detach(api)
    monkeypatch.setattr(activity, "COUNTED_MAX", 1)
    assert not (await api.get(ACTIVITY))["complete"]
    assert "not counted completely" in (await shown(api, "/ui/")).text


async def test_the_checkpoint_of_the_log_is_a_file_that_a_verification_takes(
    api: Api, database_url: str
) -> None:
    await api.server()
    answer = await api.ask("GET", "/ui/log/checkpoint")
    position = await api.head()
    assert answer.headers["Content-Disposition"] == (
        f'attachment; filename="checkpoint-{position}.json"'
    )
    held = Statement.parse(await answer.read())
    assert held.checkpoint.position == position
    await api.server()

    def verified() -> int:
        with psycopg.connect(database_url, autocommit=True) as connection:
            return [end.checkpoint.position for end, _ in verify(connection, held=[held])][-1]

    assert await asyncio.to_thread(verified) > position


@pytest.mark.parametrize("newest", [activity.VERIFIED_EVENTS, 3])
async def test_the_end_of_the_log_is_verified_whenever_it_is_shown(
    newest: int, api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "VERIFIED_EVENTS", newest)
    await parked_detach(api)
    told = await api.get(VERIFICATION)
    head = await api.head()
    assert (told["consistent"], told["why"], told["position"]) == (True, None, head)
    assert told["after"] == GENESIS.position if newest > head else 0 < told["after"] < head
    assert "are unchanged" in (await shown(api, "/ui/log")).text
    with psycopg.connect(database_url) as db:
        db.execute("UPDATE events SET actor = 'mallory' WHERE position = %s", [head])
    told = await api.get(VERIFICATION)
    assert not told["consistent"]
    assert f"{head}: not the events that were stored here" in told["why"]
    assert told["why"] in (await shown(api, "/ui/log")).text


async def test_an_empty_log_is_verified_too(api: Api) -> None:
    told = await api.get(VERIFICATION)
    assert (told["log"], told["after"], told["position"]) == (None, 0, 0)
    assert told["consistent"]
    assert orjson.loads(await (await api.ask("GET", "/ui/log/checkpoint")).read())["position"] == 0


async def test_links_of_a_time_line_keep_the_moment_and_the_span(
    api: Api, database_url: str
) -> None:
    server, volume = await api.server(), api.volume()
    await api.attach(server, volume)
    with psycopg.connect(database_url) as db:
        db.execute("UPDATE attachments SET created_at = now() - interval '1 hour'")
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    page = await shown(api, f"/ui/volumes/{volume}?at={at}")
    [narrower] = [each["href"] or "" for each in page.all("a") if "from=" in (each["href"] or "")]
    assert "at=" in narrower
    path = narrower.partition("#")[0]
    nearer = await shown(api, f"/ui/volumes/{volume}{path}")
    kept = {each["name"] for each in nearer.all("input") if each.get("type") == "hidden"}
    assert kept == {"from", "to"}, "and the field for another moment keeps the span"
    assert "all of it" in nearer.text
    answer = await api.ask("GET", f"/ui/volumes/{volume}?from=yesterday")
    assert answer.status == 400
