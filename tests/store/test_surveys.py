"""Surveys of hosts: who is asked, whose answer is taken, and of whom nothing is known."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import orjson
import psycopg
import pytest

from aggregates.host import Host, host_uuid
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import CAPABILITY, DiskShown, GuestShown, Survey
from ledger.core.wakeups import Wakeups, host_key
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from projections.catalog import ALL
from projections.reads import surveys as surveys_module
from projections.reads.queries import Queries, read_pool
from projections.reads.surveys import BlockingSurveyReads, Standing
from projections.running import news
from projections.running.runner import catch_up
from projections.running.tables import prepare
from tests.surveys import survey as a_survey

SILENT_S = 30.0
SOON_S = 10.0
SURVEY = a_survey(
    boot_id="b",
    epoch=0,
    guests=(
        GuestShown(
            server_id=str(uuid4()),
            power_state=PowerState.RUNNING,
            disks=(
                DiskShown(serial=str(uuid4()), live="vdb", persistent=None, differs=("presence",)),
            ),
        ),
    ),
    blind=("secrets",),
    why_blind=("no answer",),
)


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


@pytest.fixture
def surveys(database_url: str) -> Iterator[BlockingSurveyReads]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        prepare(connection)
        yield BlockingSurveyReads(connection)


class Hosts:
    """Hosts whose agents have registered, and were in contact just now."""

    def __init__(self, ledger: Ledger, database_url: str, queries: Queries) -> None:
        self._ledger, self._url, self._queries = ledger, database_url, queries

    async def add(self, *names: str, age_s: float = 0.0, **capabilities: Any) -> None:
        for name in names:
            host = self._ledger.load(Host, host_uuid(name))
            host.register(name, 2, capabilities or {CAPABILITY: True})
            self._ledger.save(host)
        self.projected()
        await self._queries.touch_hosts(dict.fromkeys(names, (age_s, None)))

    def fence(self, name: str) -> None:
        host = self._ledger.load(Host, host_uuid(name))
        host.fence("dead", "power is off")
        self._ledger.save(host)
        self.projected()

    def unfence(self, name: str) -> None:
        host = self._ledger.load(Host, host_uuid(name))
        host.unfence("repaired")
        self._ledger.save(host)
        self.projected()

    def projected(self) -> None:
        catch_up(self._url, ALL)


@pytest.fixture
def hosts(ledger: Ledger, database_url: str, queries: Queries) -> Hosts:
    return Hosts(ledger, database_url, queries)


def answer(survey: Survey, token: str, **changed: Any) -> dict[str, Any]:
    told = {
        "token": token,
        "epoch": survey.epoch,
        "boot_id": survey.boot_id,
        "digest": survey.digest(),
        "document": orjson.dumps(survey).decode(),
    }
    return {**told, **changed}


def unchanged(survey: Survey, token: str) -> dict[str, Any]:
    return answer(survey, token, boot_id=None, document=None)


def standing_of(surveys: BlockingSurveyReads, host: str, **asked: Any) -> Standing:
    [found] = surveys.standings([host], silent_after_s=SILENT_S, **asked)
    return found


async def test_what_a_host_showed_is_read_as_it_was_shown(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts
) -> None:
    await hosts.add("a")
    asked_at = (await queries.head())["position"]
    [token] = (await queries.want_surveys(["a"], silent_after_s=SILENT_S)).values()
    await hosts.add("later")
    assert await queries.note_survey("a", **answer(SURVEY, token))
    found = standing_of(surveys, "a")
    assert (found.why_unknown, found.token, found.wanted) == (None, token, None)
    assert (found.boot_id, found.epoch, found.digest) == ("b", 0, SURVEY.digest())
    assert (found.asked_position, found.arrived_position) == (asked_at, asked_at + 1)
    assert surveys.survey("a", token) == SURVEY
    assert surveys.survey("a", str(uuid4())) is None
    same = await queries.survey_standing("a", silent_after_s=SILENT_S)
    assert (same.taken_at, same.why_unknown) == (found.taken_at, None)


async def test_only_hosts_that_can_answer_are_asked(queries: Queries, hosts: Hosts) -> None:
    await hosts.add("able", "other")
    await hosts.add("older", multiattach=True)
    await hosts.add("silent", age_s=SILENT_S + 1)
    await hosts.add("fenced", "unfenced")
    hosts.fence("fenced")
    hosts.fence("unfenced")
    hosts.unfence("unfenced")
    assert set(await queries.want_surveys(None, silent_after_s=SILENT_S)) == {"able", "other"}
    named = ["able", "older", "silent", "fenced", "unknown"]
    assert set(await queries.want_surveys(named, silent_after_s=SILENT_S)) == {"able"}
    assert await queries.want_surveys([], silent_after_s=SILENT_S) == {}


async def test_of_whom_nothing_is_known_it_is_said_why(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts
) -> None:
    await hosts.add("new", "asked", "fenced", "unfenced", "answered")
    await hosts.add("older", multiattach=True)
    await hosts.add("silent", age_s=SILENT_S + 1)
    hosts.fence("fenced")
    hosts.fence("unfenced")
    hosts.unfence("unfenced")
    tokens = await queries.want_surveys(["asked", "answered"], silent_after_s=SILENT_S)
    await queries.note_survey("answered", **answer(SURVEY, tokens["answered"]))
    found = surveys.standings(None, silent_after_s=SILENT_S)
    assert {each.host: untimed(each.why_unknown) for each in found} == {
        "answered": "",
        "asked": "the host was asked N s ago and has not answered yet",
        "fenced": "the host is fenced",
        "new": "the host has not been asked yet",
        "older": "the host's agent is of a version that shows no surveys",
        "silent": "the host's agent has been silent for N s",
        "unfenced": "the host was unfenced, and has not shown yet what it holds",
    }
    assert standing_of(surveys, "answered", age_max_s=60.0).why_unknown is None
    old = standing_of(surveys, "answered", age_max_s=-1.0).why_unknown
    assert untimed(old) == "its last survey is N s old"


def untimed(words: str | None) -> str:
    """Time goes on while a test runs."""
    return re.sub(r"\d+ s\b", "N s", words or "")


async def test_a_survey_is_of_the_epoch_in_which_it_was_made(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts, ledger: Ledger
) -> None:
    await hosts.add("a")
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    await queries.note_survey("a", **answer(SURVEY, tokens["a"]))
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    hosts.fence("a")
    assert not await queries.note_survey("a", **answer(SURVEY, tokens["a"]))
    hosts.unfence("a")
    assert not await queries.note_survey("a", **answer(SURVEY, tokens["a"], epoch=1))
    host = ledger.load(Host, host_uuid("a"))
    host.report_leftovers([], [], all_decided=True)
    ledger.save(host)
    hosts.projected()
    assert not await queries.note_survey("a", **answer(SURVEY, tokens["a"]))
    assert not await queries.note_survey("a", **unchanged(SURVEY, tokens["a"]) | {"epoch": 1})
    found = standing_of(surveys, "a")
    assert found.why_unknown == "its last survey is older than a fence of the host"
    assert await queries.note_survey("a", **answer(SURVEY, tokens["a"], epoch=1))
    assert standing_of(surveys, "a").why_unknown is None


async def test_unchanged_is_believed_only_of_what_is_here(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts
) -> None:
    await hosts.add("a")
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    assert not await queries.note_survey("a", **unchanged(SURVEY, tokens["a"]))
    assert await queries.note_survey("a", **answer(SURVEY, tokens["a"]))
    first = standing_of(surveys, "a")
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    other = unchanged(SURVEY, tokens["a"]) | {"digest": "0" * 64}
    assert not await queries.note_survey("a", **other)
    assert await queries.note_survey("a", **unchanged(SURVEY, tokens["a"]))
    second = standing_of(surveys, "a")
    assert (second.token, second.boot_id) == (tokens["a"], "b")
    assert first.taken_at is not None
    assert second.taken_at is not None
    assert second.taken_at > first.taken_at
    assert surveys.survey("a", tokens["a"]) == SURVEY


async def test_an_answer_to_another_question_is_not_taken(queries: Queries, hosts: Hosts) -> None:
    await hosts.add("a")
    assert not await queries.note_survey("a", **answer(SURVEY, str(uuid4())))
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    assert not await queries.note_survey("a", **answer(SURVEY, str(uuid4())))
    assert await queries.note_survey("a", **answer(SURVEY, tokens["a"]))
    assert not await queries.note_survey("a", **answer(SURVEY, tokens["a"])), "it is answered"


async def test_a_question_stands_for_a_while_whoever_asks_again(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hosts.add("a")
    first = await queries.want_surveys(None, silent_after_s=SILENT_S)
    await hosts.add("b")
    again = await queries.want_surveys(None, silent_after_s=SILENT_S)
    assert again["a"] == first["a"]
    assert await queries.note_survey("a", **answer(SURVEY, first["a"]))
    at = standing_of(surveys, "a").asked_position
    assert at == (await queries.head())["position"] - 1, "of the first who asked"
    monkeypatch.setattr(surveys_module, "ASK_AGAIN_S", 0.0)
    second = await queries.want_surveys(["a"], silent_after_s=SILENT_S)
    third = await queries.want_surveys(["a"], silent_after_s=SILENT_S)
    assert second != third


async def test_what_is_stored_in_a_form_of_another_version_is_not_known(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts
) -> None:
    await hosts.add("a")
    tokens = await queries.want_surveys(None, silent_after_s=SILENT_S)
    await queries.note_survey("a", **answer(SURVEY, tokens["a"], document='{"guests": 1}'))
    assert surveys.survey("a", tokens["a"]) is None


async def test_who_is_asked_is_woken_and_nobody_else(
    queries: Queries, surveys: BlockingSurveyReads, hosts: Hosts, database_url: str
) -> None:
    names = [f"h{number:02}-" + "x" * 251 for number in range(60)]
    await hosts.add(*names, "other")
    async with Wakeups(database_url, DatabaseClock.of(database_url)) as wakeups:
        first, last, other = (wakeups.watch(host_key(n)) for n in (names[0], names[-1], "other"))
        with first as one, last as two, other as three:
            assert await one.wait(SOON_S), "it listens, and all are woken once"
            for watch in (one, two, three):
                watch.event.clear()
            asked = await asyncio.to_thread(surveys.want, names, silent_after_s=SILENT_S)
            assert set(asked) == set(names)
            assert await one.wait(SOON_S)
            assert await two.wait(SOON_S)
            assert not three.event.is_set()


async def test_news_of_questions_fit_into_notifications(
    surveys: BlockingSurveyReads, hosts: Hosts, database_url: str
) -> None:
    """Too long a payload would be refused, and nobody be asked; an empty one wakes nobody."""
    names = [f"h{number:02}-" + "x" * 251 for number in range(26)]
    await hosts.add(*names)
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute("LISTEN ledger_projected")
        surveys.want(None, silent_after_s=SILENT_S)
        told = [each.payload for each in listening.notifies(timeout=SOON_S, stop_after=2)]
    assert all(len(text) <= news.TEXT_BYTES_MAX for text in told)
    moved = [each for text in told for each in news.News.read(text).moved]
    assert [(each[0], each[1]) for each in moved] == [("host", name) for name in names]
