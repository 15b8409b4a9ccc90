"""The reads of API and dispatcher, on a log that the real engine wrote."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sql
from aggregates.instance import Instance
from host_agent.shared.contract.messages import SERVICE_VERSION, Guest, PowerState, Registration
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from ledger.nova.migrations import TYPES
from projections.catalog import ALL
from projections.reads.log import PAGE_MAX
from projections.reads.queries import Cursor, Queries, read_pool
from projections.reads.server_lists import ServerFilter, Words
from projections.running.runner import catch_up
from tests.store.histories import Watched, stored_events
from tests.world import CONTEXT, HOST, OTHER, SERVER, World

_COLUMNS = """SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass
AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
OURS = sql.query("observed", "ours_of_host")
WORDS = Words(tasks={"resize": "resizing"}, powers={"running": 1})


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


class Story:
    """One volume attached and detached, the next one attached up to the host's turn."""

    def __init__(self, recorder: LedgerRecorder, database_url: str) -> None:
        self.world = World(volumes=2)
        watched = Watched(self.world)
        self.attach = self.world.attach(self.world.volumes[0])
        self.world.run(self.attach)
        self.detach = self.world.detach(self.world.volumes[0])
        self.world.run(self.detach)
        self.waiting = self.world.attach(self.world.volumes[1])
        while self.world.service.advance(self.waiting) is None:
            pass
        for event, context in stored_events(self.world):
            recorder.insert_events([event], context=context)
        catch_up(database_url, ALL)
        self.rows = watched.folded
        self.head = watched.folded.position


@pytest.fixture
def story(recorder: LedgerRecorder, database_url: str) -> Story:
    return Story(recorder, database_url)


async def test_servers_are_found_by_id_project_and_part_of_the_name(
    queries: Queries, story: Story
) -> None:
    found = await queries.instance(SERVER)
    assert found is not None
    assert (found["server_id"], found["vm_state"], found["devices"]) == (SERVER, "active", [])
    assert await queries.instance(str(uuid4())) is None
    for wanted, found_too in (
        (ServerFilter(project_id="p", name="instance-"), [SERVER]),
        (ServerFilter(project_id="q"), []),
        (ServerFilter(name="^ance"), []),
        (ServerFilter(name="inst[a-c]n"), [SERVER]),
    ):
        rows = await queries.instances(wanted, WORDS)
        assert [row["server_id"] for row in rows] == found_too, wanted


async def test_servers_are_paged_newest_first(
    ledger: Ledger, queries: Queries, database_url: str
) -> None:
    ids = []
    for number in range(5):
        instance = Instance(uuid4())
        instance.observe(
            name=f"vm{number}",
            host="h",
            power_state="running",
            owner=("p", "u"),
        )
        ledger.save(instance)
        ids.append(str(instance.id))
    catch_up(database_url, ALL)

    first = await queries.instances(ServerFilter(), WORDS, limit=2)
    rest = await queries.instances(ServerFilter(), WORDS, limit=10, marker=first[-1]["server_id"])

    assert [row["server_id"] for row in first + rest] == ids[::-1]


async def test_mappings_and_attachments_are_those_of_the_story(
    queries: Queries, story: Story
) -> None:
    volume, other = story.world.volumes
    [mapping] = await queries.mappings(SERVER)
    assert mapping["volume_id"] == other
    assert await queries.mapping(SERVER, volume) is None
    assert await queries.mapping(SERVER, other) == mapping
    assert await queries.mappings(SERVER, offset=1) == []

    [deleted, open_] = await queries.attachments(server_id=SERVER)
    assert (deleted["state"], open_["state"]) == ("deleted", "reserved")
    assert await queries.attachments(open_only=True) == [open_]
    assert await queries.attachments(volume_id=volume) == [deleted]
    assert await queries.attachments(host=HOST) == [deleted]
    after = Cursor(deleted["created_position"])
    assert await queries.attachments(page=after) == [open_]
    assert await queries.attachments(page=Cursor(newest_first=True)) == [open_, deleted]
    before = Cursor(open_["created_position"], newest_first=True)
    assert await queries.attachments(page=before) == [deleted]
    assert open_.pop("open_drift") == 0
    assert await queries.attachment(open_["attachment_id"]) == open_


async def test_operations_are_found_by_each_filter_newest_first(
    queries: Queries, story: Story
) -> None:
    def ids(rows: list[dict[str, Any]]) -> list[str]:
        return [row["operation_id"] for row in rows]

    everything = [story.waiting, story.detach, story.attach]
    assert ids(await queries.operations()) == everything
    assert ids(await queries.operations(flow="attach")) == [story.waiting, story.attach]
    assert ids(await queries.operations(state="running")) == [story.waiting]
    assert ids(await queries.operations(volume_id=story.world.volumes[0])) == everything[1:]
    assert ids(await queries.operations(server_id=SERVER, host=HOST)) == everything
    page = await queries.operations(limit=1)
    assert ids(await queries.operations(after=page[0]["started_position"])) == everything[1:]
    one = await queries.operation(story.attach)
    assert one is not None
    assert (one["outcome"], one["bound"], one["pivot_passed"]) == ("completed", True, False)
    assert {step["status"] for step in one["steps"]} == {"done"}


#: Which of many rows are to be found: of which table, with other values in which columns, by which
#: query and index.
FOUND: dict[str, tuple[str, dict[str, str], str, dict[str, Any], str]] = {
    "moves": (
        "operations",
        {"operation_id": "gen_random_uuid()", "started_position": "n"},
        "moves",
        {"flows": list(TYPES), "server_id": None, "project_id": None, "after": None, "limit": 9},
        "operations_moving",
    ),
    "a server by its name": (
        "instances",
        {"server_id": "gen_random_uuid()", "name": "'deleted-' || n", "deleted": "true"},
        "named",
        {"text": "instance", "low": None, "high": None, "project_id": None},
        "instances_by_name",
    ),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_few_are_found_without_reading_all(
    case: tuple[str, dict[str, str], str, dict[str, Any], str],
    db: psycopg.Connection[Any],
    story: Story,
) -> None:
    """With half a million operations that took a second, and with each more of it."""
    table, other, query, wanted, index = case
    columns = [name for (name,) in db.execute(_COLUMNS, (table,)).fetchall()]
    of = ", ".join(other.get(name, name) for name in columns)
    many = f"INSERT INTO {table} SELECT {of} FROM {table}, generate_series(100, 3000) AS n"
    db.execute(many.encode())
    db.execute(f"ANALYZE {table}".encode())
    plan = db.execute(b"EXPLAIN " + sql.query("reads", query), wanted).fetchall()
    assert index in str(plan), plan


async def test_a_host_gets_its_commands_once_it_moves_its_cursor(
    queries: Queries, story: Story
) -> None:
    [mailbox] = await queries.mailboxes([(HOST, 0)])
    [command] = mailbox["commands"]
    assert (mailbox["epoch"], mailbox["shut"], mailbox["awaited"]) == (0, False, False)
    assert command["operation_id"] == story.waiting
    assert next(step["name"] for step in command["steps"]) == "update"
    wanted = [("another", 0), (HOST, command["position"]), (HOST, 0), (OTHER, 0)]
    rows = await queries.mailboxes(wanted)
    assert [row["epoch"] for row in rows] == [None, 0, 0, 0]
    assert [row["commands"] for row in rows] == [[], [], [command], []]


async def test_what_each_attach_and_detach_asks_is_planned_once(
    database_url: str, story: Story
) -> None:
    """Planning it anew each time costs ten times as much as running it."""
    async with read_pool(database_url) as pool:
        await pool.wait()  # who cannot wait for the first connection makes another
        queries = Queries(pool)
        for _ in range(20):  # psycopg prepares the sixth time, PostgreSQL decides five later
            await queries.mailboxes([(HOST, 0)], 100)
            await queries.operation(story.attach)
            await queries.instance(SERVER)
            await queries.due(1, "holder", 10.0)
            await queries.release("holder", [story.attach])
            await queries.older_agents(1)
        async with pool.connection() as connection:
            asked = "SELECT statement, generic_plans FROM pg_prepared_statements"
            plans = await (await connection.execute(asked)).fetchall()
    assert len(plans) == 6
    assert [statement for statement, generic_plans in plans if not generic_plans] == []


async def test_hosts_show_contact_and_what_is_open(queries: Queries, story: Story) -> None:
    before = await queries.host(HOST)
    assert await queries.seen_at(HOST) is None
    await queries.touch_hosts({HOST: (0.0, 14.5)})
    await queries.touch_hosts({HOST: (3_600.0, None)})  # what is known already is newer
    after = await queries.host(HOST)
    assert before is not None
    assert after is not None
    assert (before["seen_at"], after["open_commands"], after["open_attachments"]) == (None, 1, 0)
    assert abs(after["seen_at"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert await queries.seen_at(HOST) == after["seen_at"]
    assert after["clock_ahead_s"] == 14.5, "as it was told last"
    await queries.touch_hosts({OTHER: (3_600.0, None), "unknown": (0.0, None)})
    silent = await queries.seen_at(OTHER)
    assert silent is not None
    assert abs(silent - datetime.now(UTC) + timedelta(hours=1)) < timedelta(minutes=1)
    assert [row["host"] for row in await queries.hosts()] == [HOST, OTHER]
    assert (await queries.hosts())[0] == after
    assert await queries.host("another") is None


async def test_history_is_what_concerns_the_thing_in_order(queries: Queries, story: Story) -> None:
    volume = story.world.volumes[0]
    history = await queries.events(("volume_id", volume))
    positions = [event["position"] for event in history]
    assert positions == sorted(positions)
    assert {event["volume_id"] for event in history} == {volume, None}
    operations = {event["operation_id"] for event in history} - {None}
    assert operations == {story.attach, story.detach}
    topics = [event["topic"] for event in history]
    assert topics.index("Attachment.Completed") < topics.index("Attachment.Deleted")

    backwards = await queries.events(("volume_id", volume), newest_first=True)
    assert backwards == history[::-1]
    middle = await queries.events(
        ("volume_id", volume), after=positions[1], before=positions[-1], limit=2
    )
    assert middle == history[2:4]
    assert len(await queries.events(("server_id", SERVER))) > len(history)
    assert {e["operation_id"] for e in await queries.events(("operation_id", story.attach))} == {
        story.attach
    }
    assert await queries.events(("host", "another")) == []


async def test_every_event_is_in_the_feed(queries: Queries, story: Story) -> None:
    feed = await queries.events()
    assert [event["position"] for event in feed] == list(range(1, story.head + 1))
    assert feed[0]["actor"] == "alice"
    assert feed[0]["roles"] == ["member"]
    assert feed[0]["body"]
    assert await queries.events(newest_first=True, limit=1) == feed[-1:]


async def test_as_of_reads_stop_at_the_moment(
    queries: Queries, recorder: LedgerRecorder, db: psycopg.Connection[Any]
) -> None:
    for _ in range(7):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T", b"{}")])
    times = [at for (at,) in db.execute("SELECT recorded_at FROM events ORDER BY position")]
    tick = timedelta(microseconds=1)

    assert [await queries.position_at(at) for at in times] == list(range(1, 8))
    assert await queries.position_at(times[0] - tick) == 0
    assert await queries.position_at(times[-1] + timedelta(days=1)) == 7
    assert [e["position"] for e in await queries.events(at=times[3])] == [1, 2, 3, 4]
    assert await queries.events(at=times[0] - tick) == []


async def test_the_position_at_a_moment_of_an_empty_log_is_zero(queries: Queries) -> None:
    assert await queries.position_at(datetime.now(UTC)) == 0
    assert (await queries.head())["position"] == 0


async def test_spans_say_who_held_what_at_a_moment(queries: Queries, story: Story) -> None:
    volume = story.world.volumes[0]
    [connector] = [
        e
        for e in await queries.events(("volume_id", volume))
        if e["topic"] == "Attachment.ConnectorUpdated"
    ]
    [disconnected] = [
        e
        for e in await queries.events(("volume_id", volume))
        if e["topic"] == "Attachment.Disconnected"
    ]
    began, ended, tick = connector["recorded_at"], disconnected["recorded_at"], timedelta(0, 0, 1)

    for filters in ({"volume_id": volume}, {"host": HOST}):
        assert await queries.attachments_at(began - tick, **filters) == []  # type: ignore[arg-type]
        [span] = await queries.attachments_at(began, **filters)  # type: ignore[arg-type]
        assert (span["host"], span["volume_id"], span["to_at"]) == (HOST, volume, None)
        assert await queries.attachments_at(ended - tick, **filters) == [span]  # type: ignore[arg-type]
        assert await queries.attachments_at(ended, **filters) == []  # type: ignore[arg-type]


@given(
    lengths_h=st.lists(st.one_of(st.none(), st.floats(0, 4**8)), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_was_open_on_a_host_is_found_whatever_its_length(
    queries: Queries, db: psycopg.Connection[Any], lengths_h: list[float | None], seed: int
) -> None:
    """Just before and after each boundary of a length, the query agrees with the definition."""
    chance, now = random.Random(seed), datetime(2026, 3, 29, 1, tzinfo=UTC)
    db.execute("TRUNCATE spans, attachments")
    lengths = [*lengths_h, *(4.0**n for n in range(8))]
    moments = [now]
    for number, hours in enumerate(lengths):
        began = now - timedelta(hours=chance.uniform(0, 2 * (hours or 4.0)))
        ended = None if hours is None else began + timedelta(hours=hours)
        moments += [at for at in (began, ended) if at is not None]
        ids = {name: uuid4() for name in ("attachment", "volume", "server")}
        db.execute(
            "INSERT INTO attachments (attachment_id, volume_id, server_id, state, adopted,"
            " created_at, spans, created_position, updated_at, position) VALUES (%(attachment)s,"
            " %(volume)s, %(server)s, 'attached', false, now(), '[]', 0, now(), 0)",
            ids,
        )
        host = chance.choice(["h", "h", "g"])
        db.execute(
            "INSERT INTO spans VALUES (%s, %s, %s, NULL, %s, %s, %s, %s)",
            (ids["attachment"], host, number, began, ended, ids["volume"], ids["server"]),
        )
    tick = timedelta(microseconds=1)
    for at in chance.sample(moments, min(len(moments), 8)):
        for moment in (at - tick, at, at + tick):
            wanted = db.execute(
                "SELECT from_position FROM spans WHERE host = 'h' AND from_at <= %(at)s"
                " AND (to_at IS NULL OR to_at > %(at)s) ORDER BY from_position",
                {"at": moment},
            ).fetchall()
            found = await queries.attachments_at(moment, host="h")
            assert [(span["from_position"],) for span in found] == wanted


async def test_tracking_says_how_far_behind_each_projection_is(
    queries: Queries, story: Story, recorder: LedgerRecorder
) -> None:
    assert {row["lag_events"] for row in await queries.tracking()} == {0}
    recorder.insert_events([StoredEvent(uuid4(), version, "T", b"{}") for version in (0,)])
    rows = await queries.tracking()
    assert {row["projection"] for row in rows} == {projection.name for projection in ALL}
    assert {row["lag_events"] for row in rows} == {1}
    assert all(0 < row["lag_s"] < 60 for row in rows)


async def test_an_agent_heard_of_in_the_future_is_not_in_contact(
    queries: Queries, story: Story, db: psycopg.Connection[Any]
) -> None:
    """The clock was set back since; for a moment in the future it counts all the same."""
    del story
    for ahead, found in (("0 s", True), ("50 s", True), ("2 hours", False)):
        await queries.touch_hosts({HOST: (0.0, None)})
        db.execute("UPDATE host_contact SET seen_at = clock_timestamp() + %s::interval", [ahead])
        assert (await queries.hosts_by_state(60.0))["alive"] == found


# --------------------------------------------------------------------- leases


@pytest.fixture
def due_operations(db: psycopg.Connection[Any], story: Story) -> list[str]:
    db.execute("UPDATE operations SET due_at = started_at")
    return [story.attach, story.detach, story.waiting]


async def taken(queries: Queries, *wanted: Any) -> list[str]:
    return [operation_id for operation_id, *_ in await queries.due(*wanted)]


async def test_what_is_due_is_taken_once_the_longest_due_first(
    queries: Queries, due_operations: list[str]
) -> None:
    assert await taken(queries, 1, "a", 60) == due_operations[:1]
    assert sorted(await taken(queries, 10, "b", 60)) == sorted(due_operations[1:])
    assert await taken(queries, 10, "a", 60) == []


async def test_takers_at_the_same_time_share_what_is_due(
    queries: Queries, due_operations: list[str]
) -> None:
    takers = [taken(queries, 10, f"holder{n}", 60) for n in range(8)]
    everything = [id_ for ids in await asyncio.gather(*takers) for id_ in ids]
    assert sorted(everything) == sorted(due_operations)


async def test_who_comes_second_to_a_lease_gets_nothing(
    queries: Queries, due_operations: list[str], db: psycopg.Connection[Any], database_url: str
) -> None:
    """Both saw the operation free; the second waits for the first one's commit."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with psycopg.connect(database_url) as first:
        first.execute(
            "INSERT INTO leases SELECT operation_id, 'first', now() + interval '1 minute'"
            " FROM operations ORDER BY operation_id"
        )
        second = asyncio.create_task(queries.due(10, "second", 60))
        async with asyncio.timeout(10):
            while db.execute(waiting).fetchone() == (0,):  # noqa: ASYNC110 - the server is asked
                await asyncio.sleep(0.01)
    assert await second == []


async def test_a_lease_ends_by_time_or_release_and_is_kept_by_renewal(
    queries: Queries, due_operations: list[str]
) -> None:
    await taken(queries, 10, "dead", -1)
    assert sorted(await taken(queries, 10, "a", 60)) == sorted(due_operations)
    assert await queries.renew("dead", due_operations, 60) == []
    assert sorted(await queries.renew("a", due_operations, 60)) == sorted(due_operations)

    await queries.release("b", [due_operations[0]])  # not its own
    assert await taken(queries, 10, "b", 60) == []
    await queries.release("a", [due_operations[0]])
    assert await taken(queries, 10, "b", 60) == due_operations[:1]


async def test_what_some_projects_asked_for_is_passed_over(
    queries: Queries, due_operations: list[str], db: psycopg.Connection[Any]
) -> None:
    full, nobodys, others = due_operations
    asked = "UPDATE operations SET project_id = %s WHERE operation_id = %s"
    for project, operation_id in (("full", full), (None, nobodys), ("another", others)):
        db.execute(asked, [project, operation_id])
    assert await queries.due(1, "me", 60, ["full", ""]) == [(others, "another", False)]
    db.execute("UPDATE operations SET due_at = now() + interval '1 day'")  # the clock was set back
    assert await queries.due(1, "me", 60, ["full"]) == [(nobodys, "", False)]
    assert await queries.due(1, "me", 60, ["another"]) == [(full, "full", False)]


async def test_what_a_dead_holder_left_is_free_and_known_as_taken_over(
    queries: Queries, due_operations: list[str], db: psycopg.Connection[Any]
) -> None:
    [first, *others] = due_operations
    project = str(db.execute("SELECT project_id FROM operations").fetchone()[0])  # type: ignore[index]
    assert await queries.due(1, "here/1", 60) == [(first, project, False)]
    assert sorted(await taken(queries, 10, "here, too/1", 60)) == sorted(others)
    await queries.expire_previous_leases("here", "here/2")
    assert await queries.due(10, "here/2", 60) == [(first, project, True)]
    await queries.expire_previous_leases("here", "here/2")
    assert await queries.due(10, "here/3", 60) == [], "its own it keeps"
    await queries.release("here/2", [first])
    assert await queries.due(10, "here, too/1", 60) == [(first, project, False)]


async def test_each_life_of_a_process_has_its_own_leases(
    queries: Queries, due_operations: list[str]
) -> None:
    """One that was paused, and goes on beside its successor, neither renews nor ends its work."""
    assert sorted(await taken(queries, 10, "here/1", 60)) == sorted(due_operations)
    await queries.expire_previous_leases("here", "here/2")
    assert sorted(await taken(queries, 10, "here/2", 60)) == sorted(due_operations)
    assert await queries.renew("here/1", due_operations, 60) == []
    await queries.release("here/1", due_operations)
    assert await taken(queries, 10, "here/3", 60) == []


async def test_lists_are_bounded_whatever_is_asked_for(
    queries: Queries, recorder: LedgerRecorder
) -> None:
    stream = uuid4()
    recorder.insert_events(
        [StoredEvent(stream, version, "T", b"{}") for version in range(PAGE_MAX + 5)]
    )
    assert len(await queries.events(limit=10**9)) == PAGE_MAX
    assert await queries.events(limit=-1) == []


def _resized(world: World) -> None:
    world.run(world.act("resize", destination=OTHER))


def _arriving(world: World) -> None:
    """On its way to OTHER, whose agent is silent."""
    world.dead.add(OTHER)
    world.run(world.act("live_migrate", destination=OTHER))


def _elsewhere(world: World) -> None:
    """OTHER shows its guest, too."""
    guest = Guest(server_id=SERVER, name="copy", power_state=PowerState.RUNNING)
    said = Registration(service_version=SERVICE_VERSION, capabilities={}, guests=(guest,))
    world.service.register(OTHER, said, CONTEXT)


@pytest.mark.parametrize(
    ("begin", "volumes", "others"),
    [
        (lambda _: None, 1, []),
        (_resized, 0, [SERVER]),
        (_resized, 1, [SERVER]),
        (_arriving, 1, [SERVER]),
        (_elsewhere, 0, [SERVER]),
    ],
    ids=["there", "resized", "attached", "arriving", "elsewhere"],
)
def test_a_host_is_handed_back_when_nothing_is_there_any_more_or_on_its_way(
    recorder: LedgerRecorder,
    database_url: str,
    begin: Callable[[World], None],
    volumes: int,
    others: list[str],
) -> None:
    """Its agent is gone for good then, and it cannot be fenced: who waits for it waits for ever."""
    world = World(volumes=volumes)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    begin(world)
    for event, context in stored_events(world):
        recorder.insert_events([event], context=context)
    catch_up(database_url, ALL)
    with psycopg.connect(database_url) as connection:
        found = {
            host: [id_ for (id_,) in connection.execute(OURS, {"host": host}).fetchall()]
            for host in (HOST, OTHER)
        }
    assert found == {HOST: [SERVER], OTHER: others}
