"""What differs, as it is shown: now, as of a moment, and beside what needs no look."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from aggregates.finding import Finding
from aggregates.operation import OperationState
from handlers.drift.classes import BY_NAME
from handlers.requests.build import BootDisk
from handlers.results import progress
from host_agent.shared.contract.messages import ErrorKind
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from projections.base import Row
from projections.catalog import ALL
from projections.reads.drift import DriftFilter
from projections.reads.queries import Queries, read_pool
from projections.running.runner import catch_up
from tests.store.drifting import OTHER_SERVER, VOLUME, Seen
from tests.store.histories import stored_events
from tests.world import CONTEXT, HOST, Broken, World
from tests.world import SERVER as WORLDS_SERVER

Db = psycopg.Connection[Any]
TICK = timedelta(microseconds=1)
PARKED = DriftFilter(drift_class="operation_parked")
FACTS = ("remnant", "operation_parked")


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


@pytest.fixture
def project(database_url: str) -> Callable[[], None]:
    return lambda: catch_up(database_url, ALL)


@pytest.fixture
def moment(db: Db) -> Callable[[int], datetime]:
    """When something was recorded."""

    def of(position: int) -> datetime:
        found = db.execute("SELECT recorded_at FROM events WHERE position = %s", (position,))
        [(at,)] = found.fetchall()
        assert isinstance(at, datetime)
        return at

    return of


# --- how a finding stands ---------------------------------------------------------------------


async def test_a_finding_is_shown_as_its_aggregate_stands(
    ledger: Ledger, queries: Queries, project: Callable[[], None]
) -> None:
    seen = Seen(ledger)
    until = datetime(2030, 1, 2, tzinfo=UTC)

    async def row() -> Row:
        project()
        row = await queries.drift_one(str(seen.id))
        assert row is not None
        assert row["state"] == ledger.load(Finding, seen.id).state
        return row

    first = seen.look()
    found = await row()
    assert (found["drift_class"], found["subject"]) == ("reservation_unknown", "attachment")
    assert (found["key"], found["host"]) == (seen.attachment_id, "h1")
    assert found["differs"] == {"ledger": None, "cinder": _cinder("reserved")}
    assert (found["times"], found["first_position"], found["confirmed_at"]) == (1, first, None)

    seen.look()
    assert (await row())["confirmed_at"] is not None

    seen.record(Finding.DriftIgnored, reason="known", until=until.timestamp())
    assert [(await row())[name] for name in ("ignored_until", "ignored_reason")] == [until, "known"]

    seen.status = "error_attaching"
    changed = seen.look()
    again = await row()
    assert again["differs"]["cinder"]["status"] == "error_attaching"
    assert (again["seen_position"], again["found_position"]) == (changed, first)
    assert [again[name] for name in ("confirmed_at", "ignored_until", "ignored_reason")] == [
        None
    ] * 3

    over = seen.miss()
    gone = await row()
    assert (gone["over_how"], gone["over_position"], gone["repairing"]) == ("gone", over, None)

    back = seen.look()
    found = await row()
    assert (found["times"], found["first_position"], found["found_position"]) == (2, first, back)
    assert [found[name] for name in ("over_at", "over_how", "over_position")] == [None] * 3


async def test_a_repair_is_shown_from_its_beginning_to_its_end(
    ledger: Ledger, queries: Queries, project: Callable[[], None]
) -> None:
    seen, first, second = Seen(ledger), str(uuid4()), str(uuid4())
    seen.look(), seen.look()
    begun = {"repair": "drop_attachment", "reason": "night shift"}

    shown = []
    for kind, fields in (
        (Finding.RepairBegun, {**begun, "by_operation": first}),
        (Finding.RepairFailed, {"by_operation": first, "why": "in use"}),
        (Finding.RepairBegun, {**begun, "by_operation": second}),
        (Finding.DriftRepaired, {"by_operation": second}),
    ):
        seen.record(kind, **fields)
        project()
        row = await queries.drift_one(str(seen.id))
        assert row is not None
        shown.append([row[name] for name in ("state", "repairing", "repaired_by", "over_how")])

    assert shown == [
        ["confirmed", first, None, None],
        ["confirmed", None, None, None],
        ["confirmed", second, None, None],
        ["over", None, second, "repaired"],
    ]


def _cinder(status: str) -> Row:
    told = dict.fromkeys(("host", "mode", "mountpoint"))
    return {"status": status, **told}


# --- lists ------------------------------------------------------------------------------------


async def test_the_list_is_what_asks_for_somebody_newest_first_in_pages(
    ledger: Ledger, queries: Queries, project: Callable[[], None]
) -> None:
    suspected, confirmed, ignored, over = (Seen(ledger) for _ in range(4))
    for each in (suspected, confirmed, ignored, over):
        each.look()
    confirmed.look()
    ignored.record(Finding.DriftIgnored, reason="known", until=None)
    over.miss()
    project()

    async def ids(**filters: Any) -> list[str]:
        return [row["finding_id"] for row in await queries.drift(**filters)]

    open_ = [str(confirmed.id), str(suspected.id)]
    assert await ids() == open_
    [first] = await queries.drift(limit=1)
    assert await ids(limit=1, after=first["found_position"]) == open_[1:]
    assert await ids(state="ignored") == [str(ignored.id)]
    assert await ids(state="over") == [str(over.id)]
    assert set(await ids(state="all")) == {str(each.id) for each in (suspected, ignored, over)} | {
        str(confirmed.id)
    }


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        pytest.param({"host": "h1"}, {0}, id="this host"),
        pytest.param({"host": "h2"}, {1}, id="another host"),
        pytest.param({"server_id": OTHER_SERVER}, {1}, id="server"),
        pytest.param({"volume_id": VOLUME}, {0, 1}, id="volume"),
        pytest.param({"drift_class": "reservation_unknown"}, {0, 1}, id="class"),
        pytest.param({"drift_class": "volume_gone"}, set(), id="another class"),
        pytest.param({"severity": "warning"}, {0, 1}, id="severity"),
        pytest.param({"severity": "critical"}, set(), id="another severity"),
    ],
)
async def test_filters_are_the_same_now_and_as_of_a_moment(
    filters: dict[str, str],
    found: set[int],
    ledger: Ledger,
    queries: Queries,
    project: Callable[[], None],
    moment: Callable[[int], datetime],
) -> None:
    seen = [Seen(ledger), Seen(ledger, host="h2", server=OTHER_SERVER)]
    last = [each.look() for each in seen][-1]
    Seen(ledger).look()  # the log goes on
    project()
    wanted = {str(seen[nth].id) for nth in found}

    now = {row["finding_id"] for row in await queries.drift(DriftFilter(**filters))}
    then = {
        row["finding_id"] for row in await queries.drift_at(moment(last), DriftFilter(**filters))
    }

    assert now & {str(each.id) for each in seen} == wanted
    assert then == wanted


async def test_counts_are_of_what_is_not_over_by_class_and_state(
    ledger: Ledger, queries: Queries, project: Callable[[], None]
) -> None:
    first, second, over = (Seen(ledger) for _ in range(3))
    for each in (first, first, second, over):
        each.look()
    over.miss()
    project()

    counts = {(row["drift_class"], row["state"]): row for row in await queries.drift_counts()}

    assert {key: row["count"] for key, row in counts.items()} == {
        ("reservation_unknown", "confirmed"): 1,
        ("reservation_unknown", "suspected"): 1,
    }
    oldest = [row["oldest_s"] for row in counts.values()]
    assert all(age >= 0 for age in oldest)
    assert counts["reservation_unknown", "confirmed"]["oldest_s"] == max(oldest)


# --- as of a moment ---------------------------------------------------------------------------


async def test_what_differed_on_a_host_at_a_moment_stays_the_answer(
    ledger: Ledger,
    queries: Queries,
    project: Callable[[], None],
    moment: Callable[[int], datetime],
) -> None:
    """However it has changed, gone and come again since, on another host."""
    seen = Seen(ledger)
    before = Seen(ledger, host="h9").look()
    found = seen.look()
    confirmed = seen.look()
    seen.status = "error_attaching"
    changed = seen.look()
    gone = seen.miss()
    seen.host = "h2"
    back = seen.look()
    Seen(ledger, host="h9").look()
    project()

    async def on(host: str, position: int) -> list[tuple[Any, ...]]:
        rows = await queries.drift_at(moment(position), DriftFilter(host=host))
        return [
            (row["state"], row["differs"]["cinder"]["status"], row["found_position"])
            for row in rows
        ]

    answers = {
        ("h1", before): [],
        ("h1", found): [("suspected", "reserved", found)],
        ("h1", confirmed): [("confirmed", "reserved", found)],
        ("h1", changed): [("suspected", "error_attaching", found)],
        ("h1", gone): [],
        ("h1", back): [],
        ("h2", changed): [],
        ("h2", back): [("suspected", "error_attaching", back)],
    }
    assert {key: await on(*key) for key in answers} == answers

    seen.miss()
    Seen(ledger, host="h9").look()
    project()
    assert {key: await on(*key) for key in answers} == answers


async def test_a_page_as_of_a_moment_goes_on_where_the_last_ended(
    ledger: Ledger,
    queries: Queries,
    project: Callable[[], None],
    moment: Callable[[int], datetime],
) -> None:
    seen = [Seen(ledger) for _ in range(5)]
    at = [each.look() for each in seen][-1]
    seen[2].miss()
    project()

    told: list[str] = []
    after = None
    while page := await queries.drift_at(moment(at), limit=2, after=after):
        told += [row["finding_id"] for row in page]
        after = page[-1]["found_position"]

    assert told == [str(each.id) for each in reversed(seen)]


# --- what needs no look -----------------------------------------------------------------------


def parked_world() -> tuple[World, str]:
    """A detach whose host cannot disconnect, parked."""
    world = World()
    world.done(world.attach())
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = world.detach()
    assert world.run(operation).state is OperationState.PARKED
    return world, operation


def stored(recorder: LedgerRecorder, world: World, count: int = 0) -> int:
    events = stored_events(world)
    for event, context in events[count:]:
        recorder.insert_events([event], context=context)
    return len(events)


async def test_a_parked_operation_and_a_remnant_are_drift_as_long_as_they_last(
    recorder: LedgerRecorder,
    queries: Queries,
    project: Callable[[], None],
    moment: Callable[[int], datetime],
) -> None:
    world, operation = parked_world()
    parked = stored(recorder, world)
    world.service.act(operation, "give_up", "the host is gone", CONTEXT)
    given_up = stored(recorder, world, parked)
    project()

    remnants = DriftFilter(drift_class="remnant", server_id=WORLDS_SERVER)
    *_, remnant = left = await queries.drift(remnants)
    assert {row["state"] for row in left} == {"confirmed"}
    assert {row["host"] for row in left} == {HOST, None}
    assert await queries.drift(PARKED) == []
    [over] = await queries.drift(PARKED, state="over")
    assert (over["finding_id"], over["over_how"]) == (operation, "settled")
    assert over["over_position"] > over["found_position"]

    [then] = await queries.drift_at(moment(parked), DriftFilter(host=HOST))
    assert (then["drift_class"], then["finding_id"]) == ("operation_parked", operation)
    assert (then["state"], then["over_at"]) == ("confirmed", None)
    assert then["position"] == over["found_position"]
    assert then["differs"]["ledger"]["left"][0]["step"] == "disconnect"

    for row in left:
        world.service.acknowledge(row["finding_id"], "unplugged by hand", CONTEXT)
    acknowledged = stored(recorder, world, given_up)
    project()
    assert await queries.drift() == []
    [then] = await queries.drift_at(moment(acknowledged) - TICK)
    assert (then["finding_id"], then["state"]) == (remnant["finding_id"], "confirmed")
    assert then["over_how"] is None
    assert await queries.drift_at(moment(acknowledged)) == []


async def test_each_time_that_an_operation_was_parked_is_kept(
    recorder: LedgerRecorder, queries: Queries, project: Callable[[], None], db: Db
) -> None:
    world, operation = parked_world()
    world.service.act(operation, "retry", "again", CONTEXT)
    assert world.run(operation).state is OperationState.PARKED
    stored(recorder, world)
    project()

    times = await queries.drift(PARKED, state="all")
    assert [(row["times"], row["state"]) for row in times] == [(2, "confirmed"), (1, "over")]
    row = await queries.drift_one(operation)
    assert row is not None
    assert (row["times"], row["state"]) == (2, "confirmed")

    left = db.execute("SELECT count(*) FROM parked WHERE to_position IS NULL").fetchone()
    assert left == (1,)


@pytest.mark.parametrize("written", [None, ""], ids=["now", "before"])
async def test_one_that_waits_before_its_volume_exists_is_about_none(
    written: str | None,
    recorder: LedgerRecorder,
    queries: Queries,
    project: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The "" of events that were written before stopped the projection."""
    if written is not None:
        told, before = progress.Execution._left_row, {"volume_id": written}
        monkeypatch.setattr(progress.Execution, "_left_row", lambda *of: {**told(*of), **before})
    world = World(None)
    Broken(world, "cinder.volume_create")
    Broken(world, "cinder.volumes_made", ErrorKind.FINAL)
    operation = world.run(world.build(BootDisk(create={"size_gb": 1})))
    assert operation.state is OperationState.PARKED
    assert {left["volume_id"] for left in operation.left} == {written}
    stored(recorder, world)
    project()

    [row] = await queries.drift(PARKED)
    assert (row["finding_id"], row["volume_id"]) == (str(operation.id), None)


async def test_a_look_is_not_given_what_needs_no_look(
    recorder: LedgerRecorder, queries: Queries, project: Callable[[], None], db: Db
) -> None:
    """It ends the findings of the table that it does not see, and never sees these."""
    world, _ = parked_world()
    stored(recorder, world)
    project()
    assert await queries.drift() != []
    assert db.execute("SELECT * FROM findings").fetchall() == []


async def test_facts_of_the_log_are_as_severe_as_their_classes_say(
    recorder: LedgerRecorder, queries: Queries, project: Callable[[], None]
) -> None:
    world, operation = parked_world()
    count = stored(recorder, world)
    project()
    rows = await queries.drift()
    world.service.act(operation, "skip", "seen to", CONTEXT, step="disconnect")
    stored(recorder, world, count)
    project()
    rows += await queries.drift(DriftFilter(drift_class="remnant"))

    severities = {row["drift_class"]: row["severity"] for row in rows}
    assert severities == {name: BY_NAME[name].severity.value for name in FACTS}
