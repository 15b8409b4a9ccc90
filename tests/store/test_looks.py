"""Looks, as they are shown: under way, ended, and how long ago."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from ledger.log.application import Ledger
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.runner import catch_up
from tests.store.drifting import SERVER, begin_look, end_look

Db = psycopg.Connection[Any]


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


@pytest.fixture
def project(database_url: str) -> Callable[[], None]:
    return lambda: catch_up(database_url, ALL)


async def test_a_look_is_shown_under_way_and_with_what_came_of_it(
    ledger: Ledger, queries: Queries, project: Callable[[], None]
) -> None:
    look = begin_look(ledger, host="h1")
    project()
    row = await queries.look(str(look.id))
    assert row is not None
    assert [row[name] for name in ("kind", "scope", "why", "state", "outcome", "ended_at")] == [
        *("host", {"host": "h1"}, "asked", "under_way", None, None)
    ]

    end_look(ledger, look, compared={"disk": 3}, found={"disk_missing": 1}, unknown={"h2": "down"})
    project()
    row = await queries.look(str(look.id))
    assert row is not None
    assert (row["state"], row["outcome"], row["unknown"]) == ("ended", "completed", {"h2": "down"})
    assert (row["compared"], row["found"], row["braked"]) == ({"disk": 3}, {"disk_missing": 1}, {})
    assert row["ended_at"] > row["began_at"]


async def test_the_age_of_the_last_look_is_of_the_last_completed_one_of_its_kind(
    ledger: Ledger, queries: Queries, project: Callable[[], None], db: Db
) -> None:
    for scope, outcome in (({}, "completed"), ({}, "void"), ({"host": "h1"}, "stopped")):
        end_look(ledger, begin_look(ledger, **scope), outcome)
    begin_look(ledger, server=SERVER)
    project()
    db.execute("UPDATE looks SET ended_at = ended_at - interval '1 hour' WHERE outcome <> 'void'")

    ages = await queries.last_looks()

    assert list(ages) == ["all"]
    assert await queries.looks_by_outcome() == {"completed": 1, "void": 1, "stopped": 1}
    assert 3600 <= ages["all"] < 3700
    newest_first = [(row["kind"], row["outcome"]) for row in await queries.looks()]
    assert newest_first[:3] == [("server", None), ("host", "stopped"), ("all", "void")]
    assert newest_first[3:] == [("all", "completed")]
    assert [row["kind"] for row in await queries.looks(state="under_way")] == ["server"]
    [page] = await queries.looks(limit=1)
    assert (await queries.looks(limit=1, after=page["began_position"]))[0]["kind"] == "host"


async def test_a_look_at_everything_is_due_by_when_the_last_one_began(
    ledger: Ledger, queries: Queries, project: Callable[[], None], db: Db
) -> None:
    assert not await queries.look_overdue(0), "there is nothing to look at"
    end_look(ledger, begin_look(ledger))
    begin_look(ledger, host="h1")
    project()
    db.execute("UPDATE looks SET began_at = began_at - interval '1 hour' WHERE kind = 'all'")
    assert await queries.look_overdue(3500)
    assert not await queries.look_overdue(3700)
    db.execute("UPDATE looks SET began_at = began_at + interval '1 day' WHERE kind = 'all'")
    assert await queries.look_overdue(3700), "the clock was set back"
