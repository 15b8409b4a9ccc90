"""What was so at a moment, as it was known at another: an answer once given stays the answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aggregates.base import Seen
from handlers.drift.seen import SeenAttachment, SeenServer
from handlers.results.observed import ServerSeen, record
from ledger.log.application import Ledger
from ledger.log.unit import Unit
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.runner import catch_up
from tests.store.test_auditors import QUESTIONS
from tests.world import CONTEXT

TICK = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
[QUESTION] = [text for asked, text in QUESTIONS.items() if "as it was known later" in asked]


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


class Watching:
    """Looks at a server of somebody else's, that has one volume or has it not."""

    def __init__(self, ledger: Ledger, database_url: str, db: psycopg.Connection[Any]) -> None:
        self._ledger, self._url, self._db = ledger, database_url, db
        self.server, self.volume, self._last = str(uuid4()), str(uuid4()), str(uuid4())

    def now(self) -> datetime:
        [(now,)] = self._db.execute("SELECT clock_timestamp()").fetchall()
        assert isinstance(now, datetime)
        return now

    def sees(self, attached: bool, after: datetime | None, before: datetime) -> None:
        """And tells since when: not before `after`, and not after `before`."""
        since = after.isoformat() if after else None
        seen = Seen(origin="nova", after=since, before=before.isoformat())
        if attached:
            self._last = str(uuid4())
        here = SeenAttachment(
            id=self._last,
            volume_id=self.volume,
            server_id=self.server,
            status="attached",
            host="hv1",
        )
        sight = ServerSeen(
            server_id=self.server,
            server=SeenServer(
                id=self.server, name="db", host="hv1", vm_state="active", power_state=1
            ),
            attachments=[here] if attached else [],
            gone=[] if attached else [self._last],
            seen=seen,
            asked=seen,
        )
        unit = Unit(self._ledger)
        assert record(sight, unit)
        unit.save(CONTEXT)
        catch_up(self._url, ALL)

    async def told(self, queries: Queries, at: datetime, known_at: datetime | None) -> list[Any]:
        """Of the volume and of the host, which say the same; and whether it is certain."""
        of_volume = await queries.attachments_at(at, known_at=known_at, volume_id=self.volume)
        of_host = await queries.attachments_at(at, known_at=known_at, host="hv1")
        assert of_volume == of_host
        if known_at is not None:
            assert self.audited(at, known_at) == [
                (row["host"], str(row["attachment_id"]), row["certain"]) for row in of_volume
            ]
        return of_volume

    def audited(self, at: datetime, known_at: datetime) -> list[tuple[str, str, bool]]:
        """The same, as docs/audit.md asks."""
        statement: Any = re.sub(r":'(\w+)'", r"%(\1)s", QUESTION)
        asked = {"volume": self.volume, "at": at, "known_at": known_at}
        rows = self._db.execute(statement, asked).fetchall()
        return [(host, str(attachment), certain) for host, _, attachment, _, certain in rows]

    async def history(
        self, queries: Queries, at: datetime, known_at: datetime | None, **how: Any
    ) -> list[int]:
        """Positions of what is told of the volume."""
        rows = await queries.events(("volume_id", self.volume), at=at, known_at=known_at, **how)
        return [row["position"] for row in rows]


@pytest.fixture
def watching(ledger: Ledger, database_url: str, db: psycopg.Connection[Any]) -> Watching:
    return Watching(ledger, database_url, db)


async def test_what_is_learnt_later_is_in_no_answer_of_before(
    queries: Queries, watching: Watching
) -> None:
    begun = watching.now() - 5 * MINUTE
    at, not_yet = begun + 2 * MINUTE, watching.now()
    watching.sees(True, begun - TICK, begun)
    known = watching.now()
    assert await watching.told(queries, at, at) == []
    assert await watching.told(queries, at, not_yet) == []
    assert await watching.told(queries, at, None) == [], "as it was known then"
    [span] = await watching.told(queries, at, known)
    assert (span["host"], span["to_at"], span["certain"]) == ("hv1", None, True)
    assert await watching.told(queries, begun - MINUTE, known) == []


async def test_a_moment_within_an_interval_has_no_certain_answer(
    queries: Queries, watching: Watching
) -> None:
    now = watching.now()
    watching.sees(True, None, now - 9 * MINUTE)
    attached = watching.now()
    watching.sees(False, now - 6 * MINUTE, now - 3 * MINUTE)
    known = watching.now()

    async def certain(minutes: int, known: datetime) -> list[bool]:
        told = await watching.told(queries, now - minutes * MINUTE, known)
        return [span["certain"] for span in told]

    assert await certain(10, known) == [False], "since when, nobody knows"
    assert await certain(7, known) == [True]
    assert await certain(5, known) == [False], "perhaps it was detached by then"
    assert await certain(2, known) == []
    assert await certain(5, attached) == await certain(2, attached) == [True]
    [span] = await watching.told(queries, now - 7 * MINUTE, attached)
    assert span["to_at"] is span["to_seen"] is None, "its end was not known then"
    [span] = await watching.told(queries, now - 7 * MINUTE, known)
    assert span["to_at"] > now


async def test_a_history_tells_what_was_learnt_later_of_what_had_been_so(
    queries: Queries, watching: Watching
) -> None:
    begun = watching.now() - 5 * MINUTE
    watching.sees(True, begun - TICK, begun)
    attached = watching.now()
    watching.sees(False, begun + MINUTE, begun + 3 * MINUTE)
    known = watching.now()
    whole = await watching.history(queries, known, None)
    seen = await watching.history(queries, attached, None)
    assert await watching.history(queries, begun, None) == []
    assert await watching.history(queries, begun - TICK * 2, known) == []
    assert await watching.history(queries, begun, attached) == seen
    assert await watching.history(queries, begun, known) == seen, "not yet over then"
    assert await watching.history(queries, begun + MINUTE, attached) == seen
    assert await watching.history(queries, begun + MINUTE, known) == whole, "perhaps over"
    assert await watching.history(queries, attached, known) == whole
    backwards = await watching.history(queries, begun + MINUTE, known, newest_first=True)
    assert backwards == whole[::-1]
    for newest_first, end in ((False, "after"), (True, "before")):
        pages: list[int] = []
        cursor: dict[str, int] = {}
        while page := await watching.history(
            queries, begun + MINUTE, known, newest_first=newest_first, limit=2, **cursor
        ):
            pages += page
            cursor = {end: page[-1]}
        assert pages == (whole[::-1] if newest_first else whole), "by pages"
    others = (("server_id", watching.server), ("host", "hv1"))
    for about in others:
        told = await queries.events(about, at=begun + MINUTE, known_at=known)  # type: ignore[arg-type]
        assert told == await queries.events(about, at=known)  # type: ignore[arg-type]
        assert await queries.events(about, at=begun - MINUTE, known_at=known) == []  # type: ignore[arg-type]


Given = tuple[datetime, datetime | None, datetime]  # recorded, after, before


def held(spans: list[list[Given]], at: datetime, known: datetime) -> list[bool]:
    """By the definition: of each span that was open then, perhaps, whether that is certain."""
    found = []
    for begin, *end in spans:
        ended = [each for each in end if each[0] <= known]
        begun = begin[1] is None or begin[1] <= at
        if begin[0] <= known and begun and not any(each[2] <= at for each in ended):
            over = any(each[1] is None or each[1] <= at for each in ended)
            found.append(begin[2] <= at and not over)
    return found


LOOKS = st.lists(
    st.tuples(st.integers(0, 300), st.one_of(st.none(), st.integers(0, 120))),
    min_size=2,
    max_size=5,
)


@given(looks=LOOKS)
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_an_answer_as_it_was_known_then_stays_the_answer(
    queries: Queries,
    ledger: Ledger,
    database_url: str,
    db: psycopg.Connection[Any],
    looks: list[tuple[int, int | None]],
) -> None:
    """Asked after each look, of moments about each border, and again at the end."""
    watching = Watching(ledger, database_url, db)
    spans: list[list[Given]] = []
    asked: list[tuple[datetime, datetime, list[Any], list[int]]] = []
    borders: set[datetime] = set()
    for number, (ago_s, width_s) in enumerate(looks):
        before = watching.now() - timedelta(seconds=ago_s)
        after = None if width_s is None else before - timedelta(seconds=width_s)
        watching.sees(number % 2 == 0, after, before)
        recorded = (await queries.head())["recorded_at"]
        if number % 2 == 0:
            spans.append([])
        spans[-1].append((recorded, after, before))
        borders |= {each for each in (recorded, after, before) if each is not None}
        around = {each + tick for each in borders for tick in (-TICK, 0 * TICK, TICK)}
        for at, known in product(sorted(around), sorted(borders)):
            if at <= known <= recorded:
                told = await queries.attachments_at(at, known_at=known, volume_id=watching.volume)
                assert [span["certain"] for span in told] == held(spans, at, known)
                assert watching.audited(at, known) == [
                    (span["host"], str(span["attachment_id"]), span["certain"]) for span in told
                ]
                asked.append((at, known, told, await watching.history(queries, at, known)))
    for at, known, told, history in asked:
        again = await queries.attachments_at(at, known_at=known, volume_id=watching.volume)
        assert again == told
        assert await watching.history(queries, at, known) == history
