"""Closed months go to files, out of the table and back, and nothing is lost on the way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate
from aggregates.errors import StaleReportError
from aggregates.host import Host
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation, OperationState
from aggregates.person import Person
from handlers.results import leftovers
from host_agent.shared.contract.messages import Registration
from ledger.log.application import Ledger
from ledger.log.chain import BrokenChainError
from ledger.log.recorder import LedgerRecorder
from ledger.log.unit import Unit
from ledger.upkeep.archive import Archive, ArchiveError
from ledger.upkeep.long_work import run
from ledger.upkeep.rebuild import rebuild
from ledger.upkeep.retention import RetentionError, archive, detach, restore
from ledger.upkeep.verify import head, verify
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.detached import ENDINGS, DetachedError, refuse_detached
from projections.running.runner import catch_up
from tests.flows.adopted import adopted
from tests.flows.scenarios import SCENARIOS
from tests.store.histories import stored_events
from tests.store.months import Past, backdate, day, proven, rechain, table
from tests.world import CONTEXT, HOST, OTHER

Db = psycopg.Connection[Any]
APRIL, JUNE = day(4), day(6)
OVER = {AttachmentState.DELETED, MappingState.ENDED, OperationState.FINISHED}


@pytest.fixture
def detached(archived: Archive, db: Db) -> Archive:
    list(detach(db, archived, JUNE))
    return archived


# --------------------------------------------------------------------------- detach


def test_what_goes_is_the_middle_of_what_is_over(
    past: Past, archived: Archive, db: Db, ledger: Ledger
) -> None:
    before = {id_: ledger.load(kind, id_) for id_, kind in past.streams.items()}
    whole = table(db)
    list(detach(db, archived, JUNE))

    left = table(db)
    gone = [row for row in whole if row not in left]
    assert len(gone) == len(whole) - len(left)
    over = {id_ for id_, aggregate in before.items() if aggregate.state in OVER}
    assert {UUID(past.attach), UUID(past.detach)} < over
    assert {row[1] for row in gone} == over
    for id_ in over:
        assert [row[2] for row in left if row[1] == id_] == [1, before[id_].version]
    for id_, kind in past.streams.items():
        now = ledger.load(kind, id_)
        assert (now.state, now.version) == (before[id_].state, before[id_].version)
        assert id_ in over or vars(now) == vars(before[id_])


def test_a_host_that_returns_releases_what_was_novas_also_after_its_month_is_archived(
    recorder: LedgerRecorder, ledger: Ledger, db: Db, database_url: str, files: Archive
) -> None:
    """Of the stream of what is over, its adoption is not left: its server tells whose it is."""
    refresh = next(each for each in SCENARIOS if each.name == "refresh-running")
    world = adopted(refresh.begin())
    world.done(refresh.ask(world))
    attachment = UUID(world.mappings()[0].attachment_id)
    assert str(attachment) in world.records[HOST]
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))
    assert world.store.load(Attachment, attachment).state is AttachmentState.DELETED
    world.service.change_host(HOST, lambda host: host.unfence("repaired"), CONTEXT)
    for event, context in stored_events(world):
        recorder.insert_events([event], context=context)
    april = len(world.store.log)
    later = Person(uuid4())
    later.record(Person.Erased, known_as=["a"], reason="b")
    ledger.save(later, context=CONTEXT)
    backdate(db, (april, day(4, 20)), (april + 1, day(6, 20)))
    catch_up(database_url, ALL)
    list(archive(db, files, JUNE))
    list(detach(db, files, JUNE))
    assert ledger.load(Attachment, attachment).origin == "nova", "as it was created"

    unit = Unit(ledger)
    host = unit.get(Host, HOST)
    said = Registration(
        service_version=1, capabilities={}, guests=(), connections=(str(attachment),)
    )
    assert leftovers.take(host, said, (), unit)
    assert host.leftovers == ((), said.connections)


@pytest.mark.parametrize("kind", [Operation, Attachment, BlockDeviceMapping])
def test_nothing_happens_to_a_stream_after_its_ending(kind: type[Aggregate]) -> None:
    endings = [event for event in kind.TRANSITIONS if event.TOPIC in ENDINGS]
    [over] = {kind.TRANSITIONS[ending][1] for ending in endings}
    assert over in OVER
    assert not any(over in before for before, _ in kind.TRANSITIONS.values())


def test_what_ends_after_the_months_given_stays_whole(
    past: Past, archived: Archive, db: Db
) -> None:
    """The attachment of March is deleted in April only."""
    list(detach(db, archived, APRIL))
    gone = db.execute(
        "SELECT n FROM generate_series(1, (SELECT position FROM log_head)) AS n"
        " WHERE NOT EXISTS (SELECT FROM events WHERE position = n)"
    ).fetchall()
    topics = {
        row.topic.partition(".")[0]
        for month in archived.months()
        for row, _ in archived.events(month)
        if (row.position,) in gone
    }
    assert topics == {"Operation"}
    assert max(gone) <= (past.march,)


def test_streams_that_are_over_keep_their_place(
    past: Past, detached: Archive, db: Db, ledger: Ledger
) -> None:
    operation = ledger.load(Operation, UUID(past.attach))
    with pytest.raises(StaleReportError):
        operation.active_run(2, HOST, "plug")
    assert operation.started is not None
    assert operation.started.fingerprint
    for version in (1, 3, operation.version):
        with pytest.raises(IntegrityError):
            ledger.log_recorder.insert_events(
                [StoredEvent(operation.id, version, "T.Happened", b"{}")]
            )


def test_nothing_is_of_before_the_year_1000(archived: Archive, db: Db) -> None:
    """Who types 0026 for 2026 detaches nothing, and not all."""
    before = table(db)
    assert list(detach(db, archived, day(6).replace(year=26))) == []
    assert table(db) == before


def test_detaching_again_finds_nothing_and_more_may_come(
    past: Past, detached: Archive, db: Db
) -> None:
    left = table(db)
    list(detach(db, detached, JUNE))
    assert table(db) == left
    assert proven(db, archive=detached) == head(db)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_detaching_can_be_stopped_and_gone_on_with(
    past: Past, archived: Archive, db: Db, steps: int
) -> None:
    work = detach(db, archived, JUNE)
    for _ in range(steps):
        next(work)
    work.close()
    assert proven(db, archive=archived) == head(db)
    list(detach(db, archived, JUNE))
    assert proven(db, archive=archived) == head(db)


def test_the_log_goes_on_while_months_go_and_come_back(
    past: Past, archived: Archive, db: Db, ledger: Ledger
) -> None:
    for work in (detach(db, archived, JUNE), restore(db, archived)):
        before = head(db).checkpoint.position
        for _ in work:
            ledger.log_recorder.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b"{}")])
        assert head(db).checkpoint.position == before + 3
        assert proven(db, archive=archived) == head(db)


def test_nothing_is_detached_that_its_file_does_not_have(
    past: Past, archived: Archive, db: Db
) -> None:
    whole = len(table(db))
    db.execute("UPDATE events SET actor = 'nobody' WHERE position = %s", (past.march - 1,))
    with pytest.raises(BrokenChainError) as found:
        list(detach(db, archived, JUNE))
    assert found.value.first == past.march - 1
    (archived.directory / "events-2026-03.jsonl.gz").unlink()
    with pytest.raises(ArchiveError, match="events-2026-03"):
        list(detach(db, archived, JUNE))
    assert len(table(db)) == whole


def test_nothing_is_detached_that_a_projection_needs(past: Past, archived: Archive, db: Db) -> None:
    whole = table(db)
    db.execute("UPDATE tracking SET position = 3 WHERE projection = 'attachments'")
    with pytest.raises(RetentionError, match="attachments"):
        list(detach(db, archived, JUNE))
    march, *_, last = archived.months()
    db.execute("UPDATE tracking SET position = %s WHERE projection = 'attachments'", (march.last,))
    with pytest.raises(RetentionError, match=f"end of {last.month}"):
        list(detach(db, archived, JUNE))  # of streams that end in a later month, it needs March
    db.execute("UPDATE tracking SET position = (SELECT position FROM log_head)")
    db.execute("INSERT INTO long_work (name) VALUES ('rebuild')")
    with pytest.raises(RetentionError, match="are being rebuilt: rebuild"):
        list(detach(db, archived, JUNE))
    assert table(db) == whole


def test_a_rebuild_is_refused_until_all_is_restored(
    past: Past, detached: Archive, db: Db, database_url: str
) -> None:
    """So is a projection that is new; those that are up to date go on."""
    attachments = db.execute("SELECT * FROM attachments ORDER BY 1").fetchall()
    catch_up(database_url, ALL)
    db.execute("UPDATE tracking SET position = 0 WHERE projection = 'attachments'")
    with pytest.raises(DetachedError, match=r"events-2026-03\.jsonl\.gz") as refused:
        catch_up(database_url, ALL)
    assert refused.value.last_position == past.may
    with pytest.raises(DetachedError):
        run(database_url, "rebuild", rebuild(database_url, ALL), lambda _: None)

    list(restore(db, detached))
    run(database_url, "rebuild", rebuild(database_url, ALL), lambda _: None)
    assert db.execute("SELECT * FROM attachments ORDER BY 1").fetchall() == attachments


# --------------------------------------------------------------------------- verify


def test_the_log_is_proven_across_files_and_table(past: Past, detached: Archive, db: Db) -> None:
    assert proven(db, archive=detached) == head(db)
    with pytest.raises(DetachedError):
        proven(db)
    kept = next(s for s, _ in verify(db, detached) if s.checkpoint.position >= past.may)
    assert proven(db, since=kept) == head(db)  # what is detached is before it


def line_of(position: int, change: Callable[[dict[str, Any]], object]) -> Callable[..., None]:
    """Change a line of the file that has a position."""

    def do(archive: Archive, db: Db) -> None:
        month = archive.month_of(position)
        assert month is not None
        path = archive.directory / month.file
        with gzip.open(path, "rt") as file:
            lines = [json.loads(line) for line in file]
        change(lines[position - month.first])
        with gzip.open(path, "wt") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)

    return do


def test_a_file_that_was_changed_is_found(past: Past, detached: Archive, db: Db) -> None:
    line_of(past.march + 4, lambda line: line.update(body="{}"))(detached, db)
    with pytest.raises(BrokenChainError) as found:
        proven(db, archive=detached)
    assert (found.value.first, found.value.last) == (past.march + 4, past.march + 4)


def test_a_file_that_cannot_be_read_is_named_with_the_position(
    past: Past, detached: Archive, db: Db
) -> None:
    line_of(past.march + 4, lambda line: line.pop("topic"))(detached, db)
    with pytest.raises(ArchiveError, match=rf"events-2026-04.*position {past.march + 4}"):
        proven(db, archive=detached)
    path = detached.directory / "events-2026-03.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArchiveError, match="events-2026-03"):
        proven(db, archive=detached)


def test_what_the_table_still_has_of_a_detached_month_is_compared(
    past: Past, detached: Archive, db: Db
) -> None:
    [(kept,)] = db.execute(
        "SELECT max(position) FROM events WHERE topic = 'Volume.Held' AND position <= %s",
        (past.march,),
    ).fetchall()
    with db.transaction(force_rollback=True):
        db.execute("UPDATE events SET body = '{}' WHERE position = %s", (kept,))
        with pytest.raises(BrokenChainError, match="differ") as found:
            proven(db, archive=detached)
        assert found.value.first == kept


@pytest.mark.parametrize(
    "topic", ["Volume.Held", "Operation.OperationStarted", "Attachment.Deleted"]
)
def test_what_should_not_have_been_detached_is_missed(
    past: Past, detached: Archive, db: Db, topic: str
) -> None:
    [(kept,)] = db.execute(
        "DELETE FROM events WHERE position = (SELECT min(position) FROM events"
        " WHERE topic = %s AND position <= %s) RETURNING position",
        (topic, past.april),
    ).fetchall()
    with pytest.raises(BrokenChainError, match="lacks") as found:
        proven(db, archive=detached)
    assert found.value.first <= kept


def test_a_month_that_is_missing_from_the_archive_is_named(
    past: Past, detached: Archive, db: Db
) -> None:
    (detached.directory / "events-2026-04.json").unlink()
    with pytest.raises(ArchiveError, match=r"events-2026-05\.json.*one is missing"):
        proven(db, archive=detached)


# -------------------------------------------------------------------------- restore


def test_everything_comes_back(past: Past, archived: Archive, db: Db, database_url: str) -> None:
    whole = table(db)
    list(detach(db, archived, JUNE))
    assert table(db) != whole
    list(restore(db, archived))
    assert table(db) == whole
    assert proven(db) == head(db)
    refuse_detached(db, 0)
    assert list(restore(db, archived)) == []


def test_restoring_can_be_stopped_and_gone_on_with(past: Past, archived: Archive, db: Db) -> None:
    whole = table(db)
    list(detach(db, archived, JUNE))
    work = restore(db, archived)
    next(work)
    work.close()
    with pytest.raises(DetachedError):
        refuse_detached(db, 0)
    list(restore(db, archived))
    assert table(db) == whole


# ---------------------------------------------------------------------------- reads


async def test_readers_are_told_where_the_rest_is(
    past: Past, detached: Archive, db: Db, database_url: str
) -> None:
    async with read_pool(database_url) as pool:
        queries = Queries(pool)
        assert await queries.detached_to() == past.may
        with pytest.raises(DetachedError) as found:
            await queries.events()
        assert found.value.last_position == past.may
        assert [e["position"] for e in await queries.events(limit=3)] == [1, 2, 3]
        feed = await queries.events(after=past.may)
        assert [e["position"] for e in feed] == list(range(past.may + 1, past.june + 1))
        assert await queries.events(newest_first=True, limit=len(feed)) == feed[::-1]
        with pytest.raises(DetachedError):
            await queries.events(newest_first=True)
        volume = past.world.volumes[0]
        history = await queries.events(("volume_id", volume))
        assert "Attachment.Deleted" in [event["topic"] for event in history]


async def test_moments_are_found_over_the_holes(
    past: Past, archived: Archive, db: Db, database_url: str
) -> None:
    times = dict(db.execute("SELECT position, recorded_at FROM events").fetchall())
    list(detach(db, archived, JUNE))
    left = {position for (position,) in db.execute("SELECT position FROM events")}
    async with read_pool(database_url) as pool:
        queries = Queries(pool)
        for position, at in times.items():
            found = await queries.position_at(at)
            there = max(p for p in left if times[p] <= at)
            assert there <= found <= max(p for p in times if times[p] <= at), position
        assert await queries.detached_to() == past.may


def test_a_chain_made_anew_after_the_archive_is_not_the_archive_s(
    past: Past, archived: Archive, db: Db
) -> None:
    db.execute("UPDATE events SET actor = 'nobody' WHERE position = 3")
    rechain(db)
    proven(db)
    with pytest.raises(BrokenChainError):
        list(detach(db, archived, JUNE))
