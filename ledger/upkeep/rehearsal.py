"""Tries whether this version can go on from a log, before it is installed: it only reads.

The log is read by streams, so that one aggregate is in memory at a time: each is loaded, what
projections show of it is folded, and of an operation that is not at its end the engine says what
is next.  Only the table `events` is needed, as every version has it: no `db upgrade` before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import TopicError

import sql
from aggregates.base import Aggregate, Event
from aggregates.operation import Operation, OperationState
from handlers.engine.engine import decide
from handlers.engine.plan import plan_of
from handlers.engine.rules import KINDS
from handlers.flows import FLOWS
from ledger.log.mapper import JSONBody, LedgerMapper
from projections.catalog import ALL
from projections.running.reader import logged

#: What this version cannot take is kept up to here, and then only counted.
TROUBLES_KEPT_MAX = 100
_ROWS_AT_ONCE = 1000


class RehearsalTrouble(NamedTuple):
    """An event that this version cannot take, or an operation that it cannot go on with."""

    position: int
    id: str
    topic: str
    why: str


class _Row(NamedTuple):
    """As projections.running.reader.logged takes it."""

    position: int
    recorded_at: Any
    topic: str
    originator_id: str
    originator_version: int
    host: str | None
    operation_id: str | None
    body: bytes


class Rehearsal:
    """`events`, `aggregates`, `under_way`: how many were tried; `total`: how many troubles.

    `unfolded`: aggregates whose events are partly in detached months, which no projection can be
    made of.
    """

    def __init__(self) -> None:
        self.events = self.aggregates = self.under_way = self.unfolded = self.total = 0
        self.troubles: list[RehearsalTrouble] = []
        self._mapper = LedgerMapper(JSONBody())

    def follow(self, connection: psycopg.Connection[Any]) -> Iterator[int]:
        """Try all of the log as it is now; yields how many events have been tried."""
        for _, stream in groupby(_by_stream(connection), key=lambda row: row.originator_id):
            self._try(list(stream))
            yield self.events

    def _try(self, stream: Sequence[_Row]) -> None:
        self.events += len(stream)
        self.aggregates += 1
        row = stream[0]
        try:
            aggregate: Aggregate | None = None
            for row in stream:
                event = self._event(row)
                if event is not None:
                    aggregate = (aggregate or _kind_of(event)(event.originator_id)).follow([event])
            if isinstance(aggregate, Operation) and aggregate.state is not OperationState.FINISHED:
                self.under_way += 1
                _go_on(aggregate, row.recorded_at.timestamp())
            self._fold(stream)
        except Exception as error:  # noqa: BLE001 - whatever this version cannot take is the answer
            self.total += 1
            if len(self.troubles) < TROUBLES_KEPT_MAX:
                why = f"{type(error).__name__}: {error}"
                self.troubles.append(
                    RehearsalTrouble(row.position, row.originator_id, row.topic, why)
                )

    def _event(self, row: _Row) -> Event | None:
        """None: another application's."""
        stored: Any = (row.originator_id, row.originator_version, row.topic, row.body)
        event = self._mapper.to_domain_event(StoredEvent(*stored))
        return event if isinstance(event, Event) else None

    def _fold(self, stream: Sequence[_Row]) -> None:
        if [row.originator_version for row in stream] != list(range(1, len(stream) + 1)):
            self.unfolded += 1
            return
        for projection in ALL:
            state: Any = None
            for row in stream:
                if row.topic in projection.topics:
                    [event] = logged([row])
                    state = projection.fold(state, event)
            if state is not None:
                _ = state.row() if projection.stateful else state
                for derived in projection.derived:
                    derived.rows(state)


def _by_stream(connection: psycopg.Connection[Any]) -> Iterator[_Row]:
    """Page by page.  A transaction over all of it would keep VACUUM from the service's tables for
    as long, and a standby cancels it after max_standby_streaming_delay, 30 s.
    """
    last: tuple[str, int] = (str(UUID(int=0)), -1)
    while True:
        with connection.transaction():
            after = {"id": last[0], "version": last[1], "limit": _ROWS_AT_ONCE}
            rows = connection.execute(sql.query("log", "by_stream"), after).fetchall()
        yield from (page := [_Row._make(row) for row in rows])
        if not page:
            return
        last = page[-1].originator_id, page[-1].originator_version


def _kind_of(event: Event) -> type[Aggregate]:
    return KINDS[event.TOPIC.partition(".")[0]]


def _go_on(operation: Operation, now: float) -> None:
    """Ask the engine what is next.  Raises whatever it is that cannot be."""
    assert operation.started is not None
    if operation.started.flow not in FLOWS:
        raise TopicError(f"there is no flow {operation.started.flow!r}")
    decide(plan_of(operation), operation.history, now)
