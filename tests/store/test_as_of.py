"""What is told of a moment stays what it was; and the story of a volume is whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from aggregates.base import EventContext
from aggregates.errors import DomainError
from aggregates.operation import OperationState
from handlers.requests.build import BootDisk
from handlers.requests.edits import describe
from host_agent.shared.contract.ports import PortError
from ledger.log.recorder import LedgerRecorder
from ledger.trial.cinder.model.rows import CinderFault
from projections.catalog import ALL
from projections.reads.log import MomentToComeError
from projections.reads.queries import Queries, read_pool
from projections.running.runner import catch_up
from tests.memory import CALL_MODES, SAVE_MODES, Trouble
from tests.store.histories import stored_events
from tests.tiers import DEEP
from tests.world import CONTEXT, HOST, OTHER, World

TICK = timedelta(microseconds=1)
#: Some appends long.
SOME_TIME = timedelta(milliseconds=20)
#: Of so many appends, one is asked after.
EVERY = 2


@pytest.fixture
async def queries(database_url: str) -> AsyncIterator[Queries]:
    async with read_pool(database_url) as pool:
        yield Queries(pool)


class Told:
    """A world's log in the database, put there append by append."""

    def __init__(self, recorder: LedgerRecorder, database_url: str) -> None:
        self._recorder, self._url = recorder, database_url
        self._count = 0
        self._ends: list[int] = []  # of appends

    def watch(self, world: World) -> None:
        """Note from now on which events are stored together."""
        save = world.store.save
        self._ends.append(len(world.store.log))

        def saved(*aggregates: Any, context: EventContext) -> int:
            try:
                return save(*aggregates, context=context)
            finally:
                self._ends.append(len(world.store.log))

        world.store.save = saved  # type: ignore[method-assign]

    def appends(self, world: World) -> Iterator[None]:
        """Put there what is not yet."""
        events = stored_events(world)
        for end in [*self._ends, len(events)]:
            if new := events[self._count : end]:
                stored = [event for event, _ in new]
                self._recorder.insert_events(stored, context=new[0][1])
                self._count = end
                yield
        self._ends.clear()

    def project(self) -> None:
        catch_up(self._url, ALL)

    def whole(self, world: World) -> None:
        """All of a world that was not watched: each event by itself, for its own context."""
        self._ends = list(range(1, len(world.store.log)))
        for _ in self.appends(world):
            pass
        self.project()


def emptied(db: psycopg.Connection[Any]) -> None:
    """The next history begins with nothing."""
    tables = {p.table for p in ALL} | {d.table for p in ALL for d in p.derived}
    db.execute("TRUNCATE events, " + ", ".join(sorted(tables)))
    db.execute("UPDATE log_head SET position = 0, recorded_at = 'epoch'")
    db.execute("UPDATE tracking SET position = 0, rebuilds = rebuilds + 1")


def migrate_in_cinder(world: World) -> str:
    """Cinder copies the first volume to the second, which then has the first one's id."""
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes[:2])
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    try:
        return world.swap(old.id, new.id, by_cinder=True)
    except DomainError:  # Cinder, refused by its compute service, gives its migration up
        old.migration_status, new.migration_status = "error", "error"
        raise


def to_the_other(flow: str) -> Callable[[World], str]:
    def ask(world: World) -> str:
        return world.act(flow, destination=OTHER if world.instance.host == HOST else HOST)

    return ask


def act(flow: str) -> Callable[[World], str]:
    return lambda world: world.act(flow)


def boot(world: World) -> str:
    """With a root volume, and one that is to be made and goes with the server."""
    root = BootDisk(volume_id=world.volumes[2], boot_index=0)
    return world.build(root, BootDisk(create={"size_gb": 1}, delete_on_termination=True))


def rename(world: World) -> str:
    """Each time to another name; and what is asked of the host, and meets trouble, is a restart."""
    instance, trouble = world.instance, world.trouble
    describe(instance, {"name": f"{instance.name}'"}, CONTEXT)
    world.trouble = Trouble()
    world.store.save(instance, context=CONTEXT)
    world.trouble = trouble
    return world.act("reboot")


ASKED: dict[str, Callable[[World], str]] = {
    "attach": lambda world: world.attach(world.volumes[0]),
    "attach the root": lambda world: world.attach(world.volumes[2], is_root=True),
    "detach": lambda world: world.detach(world.volumes[0]),
    "detach the root": lambda world: world.detach(world.volumes[2], root_allowed=True),
    "swap": lambda world: world.swap(world.volumes[0], world.volumes[1]),
    "Cinder's migration": migrate_in_cinder,
    "live migration": to_the_other("live_migrate"),
    "stop": act("stop"),
    "convert": act("convert"),
    "resize": to_the_other("resize"),
    "revert": act("revert_resize"),
    "shelve": act("shelve"),
    "unshelve": to_the_other("unshelve"),
    "boot": boot,
    "rename": rename,
    "delete": lambda world: world.delete(),
}


def carry_out(world: World, name: str, trouble_at: int | None, mode: Any) -> None:
    world.trouble = Trouble({trouble_at: mode} if trouble_at is not None else {})
    with contextlib.suppress(DomainError, CinderFault, PortError):  # refused, or a volume is gone
        operation = world.run(ASKED[name](world))
        world.trouble = Trouble()
        if operation.state is OperationState.PARKED:
            world.service.act(str(operation.id), "give_up", "why", CONTEXT)


async def answers(queries: Queries, server_id: str, volumes: list[str], at: datetime) -> list[Any]:
    """All that the API says of a moment, and of the time up to it."""
    told: list[Any] = [await queries.attachments_at(at, legacy=True), await queries.drift_at(at)]
    wheres: list[dict[str, Any]] = [{"host": host} for host in (HOST, OTHER)]
    wheres += [{"volume_id": volume_id} for volume_id in volumes]
    for where in wheres:
        told += [
            await queries.attachments_at(at, since=since, **where)
            for since in (None, at - SOME_TIME)
        ]
    for about in [*wheres, {"server_id": server_id}]:
        [subject] = about.items()
        for newest_first in (False, True):
            thing: Any = subject
            told.append(await queries.events(thing, at=at, newest_first=newest_first))
    for operation in await queries.operations(server_id=server_id):
        if operation["started_at"] <= at:
            told.append(await queries.operation_at(str(operation["operation_id"]), at))
    return told


STEPS = st.tuples(
    st.sampled_from(sorted(ASKED)),
    st.one_of(st.none(), st.integers(0, 30)),
    st.sampled_from([*CALL_MODES, *SAVE_MODES]),
)


@pytest.mark.deep
@given(steps=st.lists(STEPS, min_size=2, max_size=6))
@example([("attach", None, None), ("rename", 0, "crash_after")])
@settings(
    max_examples=8 if DEEP else 4,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller example takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_what_is_told_of_a_moment_stays_what_it_was(
    queries: Queries,
    recorder: LedgerRecorder,
    db: psycopg.Connection[Any],
    database_url: str,
    steps: list[tuple[str, int | None, Any]],
) -> None:
    """Of each moment it is asked when it has just passed, and again at the end."""
    emptied(db)
    world, told = World(volumes=3), Told(recorder, database_url)
    told.watch(world)
    asked: list[tuple[datetime, list[str], list[Any]]] = []
    server_id = world.server_id
    for name, trouble_at, mode in [("attach", None, None), *steps]:
        carry_out(world, name, trouble_at, mode)
        volumes = sorted(world.cinder.volumes)  # those that are only made now, too
        for number, _ in enumerate(told.appends(world)):
            if number % EVERY == 0:
                told.project()
                at = (await queries.head())["recorded_at"]
                before = await answers(queries, server_id, volumes, at)
                asked.append((at, volumes, before))
    told.project()
    for at, volumes, before in asked:
        after = await answers(queries, server_id, volumes, at)
        for was, is_now in zip(before, after, strict=True):
            assert is_now == was


# ------------------------------------------------------------------------ the whole story


def topics(events: list[dict[str, Any]]) -> list[str]:
    return [event["topic"] for event in events]


async def test_a_volume_tells_of_operations_on_its_whole_server(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    """Why it moved, who wanted that undone, and how it ended; each event once."""
    world = World(volumes=2)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    moved = world.act("live_migrate", destination=OTHER)
    world.service.advance(moved)
    world.service.act(moved, "unwind", "changed my mind", CONTEXT)
    world.run(moved)
    Told(recorder, database_url).whole(world)

    for volume_id in world.volumes:
        history = await queries.events(("volume_id", volume_id))
        of_move = topics([e for e in history if e["operation_id"] == moved])
        for topic in ("OperationStarted", "UnwindRequested", "OperationFinished"):
            assert of_move.count(f"Operation.{topic}") == 1, topic
        positions = [event["position"] for event in history]
        assert positions == sorted(set(positions))
        others = set(world.volumes) - {volume_id}
        lanes = [e for e in history if e["operation_id"] == moved and e["volume_id"] in others]
        assert lanes == [], "steps of another volume are another story"


async def test_the_new_volume_of_a_swap_tells_who_asked_for_it(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World(volumes=2, encrypted=True)
    world.done(world.attach(world.volumes[0]))
    swapped = world.swap(*world.volumes)
    world.done(swapped)
    Told(recorder, database_url).whole(world)
    told = topics(await queries.events(("volume_id", world.volumes[1])))
    assert {"Operation.OperationStarted", "Operation.OperationFinished"} <= set(told)


async def test_pages_of_a_volumes_story_are_the_whole_of_it(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World(None, volumes=3)
    for name in ("boot", "attach", "live migration", "swap", "delete"):
        carry_out(world, name, None, None)
    Told(recorder, database_url).whole(world)
    at = (await queries.head())["recorded_at"]
    volumes = sorted(world.cinder.volumes)
    for volume_id, limit, newest_first in product(volumes, (1, 2, 7), (False, True)):
        about: Any = ("volume_id", volume_id)
        whole = await queries.events(about, newest_first=newest_first)
        paged: list[dict[str, Any]] = []
        cursor: dict[str, Any] = {}
        while page := await queries.events(
            about,
            at=at,
            limit=limit,
            newest_first=newest_first,
            **cursor,
        ):
            paged += page
            cursor = {"before" if newest_first else "after": page[-1]["position"]}
        assert paged == whole
        assert whole


async def test_a_detached_root_names_its_volume(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World(None, volumes=1)
    world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0)))
    world.done(world.act("stop"))
    attachment_id = world.mappings()[0].attachment_id
    world.done(world.detach(world.volumes[0], root_allowed=True))
    Told(recorder, database_url).whole(world)
    for about in (("volume_id", world.volumes[0]), ("attachment_id", attachment_id)):
        history = await queries.events(about)  # type: ignore[arg-type]
        [detached] = [e for e in history if e["topic"] == "BlockDeviceMapping.RootDetached"]
        assert detached["volume_id"] == detached["body"]["volume_id"] == world.volumes[0]


async def test_a_volume_that_is_made_and_deleted_tells_so_to_both_histories(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    """Also where it goes with its server; and who asked for that."""
    world = World(None, volumes=3)
    world.done(boot(world))
    [made] = set(world.cinder.volumes) - set(world.volumes)
    world.done(world.delete())
    Told(recorder, database_url).whole(world)
    subjects: list[Any] = [("volume_id", made), ("server_id", world.server_id)]
    for about in subjects:
        found = {event["topic"]: event for event in await queries.events(about)}
        for topic in ("Volume.VolumeMade", "Volume.VolumeDeleted"):
            event = found[topic]
            assert (event["volume_id"], event["server_id"]) == (made, world.server_id)
            assert event["asked_by"]["name"] == event["actor"] == "alice"
        assert found["Volume.VolumeDeleted"]["body"]["why"] == "it goes with its server"


async def test_what_is_converted_is_not_waived(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World(legacy=True)
    world.done(world.attach())
    former = world.mappings()[0].attachment_id
    world.legacy = False
    world.done(world.act("convert"))
    now = world.mappings()[0].attachment_id
    Told(recorder, database_url).whole(world)
    about: Any = ("attachment_id", former)
    ends = {"Attachment.Disconnected", "Attachment.Deleted"}
    found = [event for event in await queries.events(about) if event["topic"] in ends]
    assert len(found) == len(ends)
    for event in found:
        assert (event["body"]["waived"], event["body"]["converted_to"]) == (None, now)


async def test_a_volume_that_cinder_renames_is_named_by_both_ids(
    queries: Queries, recorder: LedgerRecorder, database_url: str
) -> None:
    """What was held under the id that is gone stays so, and its story says where it went."""
    world, told = World(volumes=2, encrypted=True), Told(recorder, database_url)
    kept, temporary = world.volumes
    world.done(world.attach(kept))
    world.done(migrate_in_cinder(world))
    told.whole(world)

    [renamed] = [
        event
        for event in await queries.events(("volume_id", kept))
        if event["topic"] == "Attachment.VolumeRenamed"
    ]
    assert renamed["body"] == {"volume_id": kept, "former_volume_id": temporary}
    gone = await queries.events(("volume_id", temporary))
    assert kept in [event["body"].get("renamed_to") for event in gone]
    at = renamed["recorded_at"]
    [before] = await queries.attachments_at(at - TICK, volume_id=temporary)
    [after] = await queries.attachments_at(at, volume_id=kept)
    assert before["attachment_id"] == after["attachment_id"] == renamed["attachment_id"]
    assert await queries.attachments_at(at, volume_id=temporary) == []
    [on_host] = await queries.attachments_at(at, host=HOST)
    assert on_host == after


# ------------------------------------------------------------------------------- moments


async def test_a_moment_that_is_to_come_has_no_answer(
    queries: Queries, db: psycopg.Connection[Any]
) -> None:
    [(now,)] = db.execute("SELECT clock_timestamp()").fetchall()
    assert await queries.settled_at(now) == 0
    with pytest.raises(MomentToComeError):
        await queries.settled_at(now + timedelta(minutes=1))


async def test_an_answer_waits_for_the_append_that_may_belong_to_its_moment(
    queries: Queries, database_url: str, db: psycopg.Connection[Any]
) -> None:
    """An append that has taken its time and is not committed is of the past already."""
    with psycopg.connect(database_url) as writing:
        writing.execute("SELECT FROM log_head FOR UPDATE")
        [(now,)] = db.execute("SELECT clock_timestamp()").fetchall()
        asking = asyncio.create_task(queries.settled_at(now))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            while db.execute(waiting).fetchone() == (0,):  # noqa: ASYNC110 - of the database
                await asyncio.sleep(0.01)
        assert not asking.done()
        writing.commit()
    assert await asking == 0
