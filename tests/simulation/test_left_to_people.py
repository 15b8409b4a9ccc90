"""What a storm leaves to people is drift at once: parked operations, and what a skip leaves behind.

These two classes are facts of the log, which no look finds (decision 0058).  So nobody plants them
past the ledger: a storm parks operations, and in the midst of it an operator skips a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from aggregates import errors
from aggregates.operation import Operation
from handlers.requests import operator
from ledger.log.application import Ledger
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from tests.simulation.storm import Storm
from tests.simulation.test_looks import TOGETHER
from tests.simulation.test_simulation import FEWER_SEEDS, FIRST
from tests.stack import eventually
from tests.world import CONTEXT

#: A storm that parks an operation of which a step leaves something.
TELLING = 7
#: Class and key of each.
Shown = set[tuple[str, str]]
_SHOWN = """
SELECT drift_class, key FROM drift
 WHERE drift_class IN ('operation_parked', 'remnant') AND state <> 'over'
"""
_PROJECTED = "SELECT min(t.position) >= min(l.position) AS so FROM tracking AS t, log_head AS l"


class OverError(Exception):
    """An operator has skipped a step, and vouched for what is not so: the rest would be broken."""


class SkippingStorm(Storm):
    """It ends when somebody has skipped a step of which something stays; `left`: what was there to
    see, whenever it changed, by how much of the log there was.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.left: dict[int, Shown] = {0: set()}
        self._within = 0

    def blow(self) -> None:
        with self.cloud.chance.ids():
            try:
                self._blow()
            except OverError:
                self.cloud.chance.calm = True

    def _tick(self) -> None:
        self._within += 1
        super()._tick()
        self._within -= 1
        if self._within:
            return  # somebody else is in the midst of something
        parked = self.cloud.operations("parked")
        self._note({("operation_parked", str(each.id)) for each in parked})
        for operation in parked:
            self._skip(operation)

    def _skip(self, operation: Operation) -> None:
        step = operator.left(operation)[0]
        told: dict[str, Any] = {"lane": step.lane, "step": step.step}
        calm, self.cloud.chance.calm = self.cloud.chance.calm, True
        try:
            would = self._act_on(operation, dry_run=True, **told)
            if would:
                left = {("remnant", id_) for id_ in self._act_on(operation, **told)}
                others = {str(each.id) for each in self.cloud.operations("parked")}
                self._note(left | {("operation_parked", id_) for id_ in others})
                raise OverError
        finally:
            self.cloud.chance.calm = calm

    def _act_on(self, operation: Operation, **told: Any) -> list[str]:
        """What of it would stay; nothing, if that cannot be done now."""
        try:
            acted = self.cloud.service.act(str(operation.id), "skip", "see below", CONTEXT, **told)
        except errors.DomainError:
            return []
        return [str(each.id) for each in acted.remnants]

    def _note(self, there: Shown) -> None:
        if there != list(self.left.values())[-1]:
            self.left[len(self.cloud.store.log)] = there


@contextmanager
def told(dsn: str) -> Iterator[tuple[Ledger, psycopg.Connection[Any]]]:
    runner = ProjectionRunner(dsn, ALL)
    runner.start()
    try:
        with (
            Ledger(dsn) as ledger,
            psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as db,
        ):
            yield ledger, db
    finally:
        runner.stop()


def shown(db: psycopg.Connection[Any]) -> Shown:
    """What the list of drift has of both classes; nobody has looked."""
    eventually(lambda: db.execute(_PROJECTED).fetchall()[0]["so"], "the projections follow")
    return {(row["drift_class"], row["key"]) for row in db.execute(_SHOWN).fetchall()}


def in_storm(seed: int, dsn: str) -> set[str]:
    """The classes that there were of it, at any moment."""
    storm = SkippingStorm(seed)
    storm.blow()
    events = [event for event, _ in storm.cloud.store.log]
    with told(dsn) as (ledger, db):
        stored = 0
        for until, there in storm.left.items():
            for at in range(stored, until, TOGETHER):
                ledger.events.put(events[at : min(at + TOGETHER, until)], context=CONTEXT)
            stored = until
            assert shown(db) == there, f"seed {seed}: after {until} events"
    return {name for there in storm.left.values() for name, _ in there}


def test_what_a_storm_leaves_to_people_is_shown_without_a_look(database_url: str) -> None:
    assert in_storm(TELLING, database_url) == {"operation_parked", "remnant"}


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + FEWER_SEEDS))
def test_so_it_is_in_many_storms(seed: int, database_url: str) -> None:
    in_storm(seed, database_url)
