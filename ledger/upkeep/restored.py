"""A database that was restored from an older backup is marked so, before it is believed again.

Theory of operation (decision 0109).  The log ends where the backup did, and nobody knows what was
done afterwards.  So every host is doubted, by an event that voids its fence and begins an epoch
above all that were handed out in what is lost; then what was under way is parked.  Each is an
append of its own.  Whoever is stopped half way does it again: a host is doubted once more, which
changes nothing but its epoch, and what is parked stays so.

Hosts come first: what the service begins beside it is begun under the new epochs, and a run of an
older one that it finds waiting, it parks itself (`handlers.results.handover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple
from uuid import uuid4

import sql
from aggregates.base import Actor, EventContext
from aggregates.host import Host
from aggregates.operation import Operation
from handlers.results import restored
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.log.unit import AggregateStore, Unit, acting, run_optimistically
from projections.catalog import ALL
from projections.running.runner import catch_up, connect

_MINUTE_S = 60


class RestoredLog(NamedTuple):
    """A log that ends at `position`, its hosts, and the operations that run in it."""

    position: int
    hosts: Sequence[str]
    operations: Sequence[str]


def look(dsn: str) -> RestoredLog:
    """What there is to mark, once the projections show all of the log."""
    catch_up(dsn, ALL)
    with connect(dsn) as connection:
        [row] = connection.execute(sql.query("restored", "found")).fetchall()
    return RestoredLog(*row)


def mark(dsn: str, reason: str, actor: str) -> RestoredLog:
    """Mark the database as restored; what was there to be marked."""
    clock, context = DatabaseClock.of(dsn), _context(actor)
    before = look(dsn)
    with closing(Ledger(dsn)) as ledger:
        for name in before.hosts:
            doubt(ledger, name, before.position, reason, clock(), context)
        found = RestoredLog(before.position, before.hosts, look(dsn).operations)
        for operation_id in found.operations:
            park(ledger, operation_id, clock(), context)
    catch_up(dsn, ALL)
    return found


def _context(actor: str) -> EventContext:
    return EventContext(actor=Actor(name=actor), request_id=f"req-{uuid4()}", cause="operator")


def doubt(
    store: AggregateStore,
    name: str,
    position: int,
    reason: str,
    now: float,
    context: EventContext,
) -> None:
    """Believe the log of a host no more, and take nothing that it does by what is lost.

    `now`: by the database's clock.  Its minutes are an epoch above any that was handed out after
    `position`: no host is fenced once a minute.
    """

    def change(unit: Unit) -> int:
        host = unit.get(Host, name)
        if host.origin is None:  # else it was forgotten, and is a Nova's since
            host.restore(int(now // _MINUTE_S), position, reason)
        return unit.save(context)

    run_optimistically(store, change)


def park(store: AggregateStore, operation_id: str, now: float, context: EventContext) -> None:
    """Leave an operation that runs to people."""

    def change(unit: Unit) -> int:
        operation = unit.get(Operation, operation_id)
        restored.park(operation, now, unit)
        return unit.save(acting(context, operation))

    run_optimistically(store, change)
