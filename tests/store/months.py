"""A log of some months: times are moved, and the chain made anew as if it had been so."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from aggregates.attachment import Attachment
from aggregates.base import Aggregate
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from ledger.log.chain import GENESIS, link
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.verify import Statement, verify
from projections.catalog import ALL
from projections.running.runner import catch_up
from tests.store.histories import Watched, stored_events
from tests.world import World

Db = psycopg.Connection[Any]
KINDS: dict[str, type[Aggregate]] = {
    kind.__name__: kind
    for kind in (Attachment, BlockDeviceMapping, Host, Instance, Operation, Volume)
}
PAGE = "SELECT position, event_bytes(e), chain FROM events AS e ORDER BY position"


def backdate(db: Db, *ends: tuple[int, datetime]) -> None:
    """Events up to each position get times up to each moment, a second apart."""
    first = 1
    for last, at in ends:
        db.execute(
            "UPDATE events SET recorded_at = %(at)s - make_interval(secs => %(last)s - position)"
            " WHERE position BETWEEN %(first)s AND %(last)s",
            {"at": at, "last": last, "first": first},
        )
        first = last + 1
    db.execute("UPDATE log_head SET recorded_at = (SELECT max(recorded_at) FROM events)")
    rechain(db)


def rechain(db: Db) -> None:
    """What somebody does who may write to the database and wants nothing to be seen."""
    before, events = GENESIS.chain, []
    for position, canonical, chain in db.cursor(binary=True).execute(PAGE).fetchall():
        events.append(canonical)
        if chain is not None:
            before = link(before, events)
            db.execute("UPDATE events SET chain = %s WHERE position = %s", (before, position))
            events.clear()
    db.execute("UPDATE log_head SET chain = %s", (before,))


def table(db: Db) -> list[Any]:
    return db.execute("SELECT * FROM events ORDER BY position").fetchall()


def proven(db: Db, **more: Any) -> Statement:
    """The end of the log, if all of it is as it was stored."""
    *_, (statement, _) = verify(db, **more)
    return statement


def day(month: int, number: int = 1) -> datetime:
    """A day of 2026, in UTC."""
    return datetime.fromisoformat(f"2026-{month:02}-{number:02}T00:00:00+00:00")


class Past:
    """In March a volume is attached, in April detached, in May another one attached and, in
    June, an attach begins that waits for the host.
    """

    def __init__(self, recorder: LedgerRecorder, database_url: str, db: Db) -> None:
        world = World(volumes=3)
        Watched(world)
        ends = []
        self.attach = world.attach(world.volumes[0])
        world.run(self.attach)
        ends.append((len(world.store.log), day(3, 20)))
        self.detach = world.detach(world.volumes[0])
        world.run(self.detach)
        ends.append((len(world.store.log), day(4, 20)))
        world.run(world.attach(world.volumes[1]))
        ends.append((len(world.store.log), day(5, 20)))
        waiting = world.attach(world.volumes[2])
        while world.service.advance(waiting) is None:
            pass
        ends.append((len(world.store.log), day(6, 20)))
        for event, context in stored_events(world):
            recorder.insert_events([event], context=context)
        backdate(db, *ends)
        catch_up(database_url, ALL)
        self.world = world
        self.march, self.april, self.may, self.june = (last for last, _ in ends)

    @property
    def streams(self) -> dict[UUID, type[Aggregate]]:
        stored = (event for event, _ in stored_events(self.world))
        return {UUID(str(e.originator_id)): KINDS[e.topic.partition(".")[0]] for e in stored}
