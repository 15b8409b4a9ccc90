"""The ledger as an eventsourcing application: load aggregates, save several at once.

A change is load, decide, save.  `save` stores the new events of all aggregates given in
one transaction, and only if none of their streams has moved since it was loaded; so what
was decided on still holds when it is stored.  Who lost the race gets a ConflictError and
starts again from loading, which is what `retrying` does (and ledger.unit.decided, which
first does without loading).

All calls block until the answer is durable; from an event loop use `asyncio.to_thread`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.persistence import InfrastructureFactory, IntegrityError
from eventsourcing.popo import POPOFactory
from eventsourcing.utils import Environment

from aggregates.base import Aggregate, EventContext
from aggregates.errors import DomainError
from ledger.log.cache import Folded
from ledger.log.mapper import LedgerMapper
from ledger.log.recorder import LedgerRecorder

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")

CONFLICT_ATTEMPTS = 8
CONFLICT_PAUSE_MAX_S = 0.05


class ConflictError(DomainError):
    """Something else changed the same thing at the same time; read it again and retry."""

    code = "conflict"
    status = 409


class Ledger(Application[UUID]):
    """The log behind `dsn`, whose schema must be current (ledger.log.schema.check)."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        super().__init__()
        self._remembered = (0, Folded(self._events_after))

    def construct_factory(self, env: Environment) -> InfrastructureFactory:  # noqa: ARG002
        """Nothing is taken from the environment: configuration has one source."""
        return cast("InfrastructureFactory", POPOFactory(Environment(self.name)))

    def construct_mapper(self) -> LedgerMapper:
        return LedgerMapper()

    def construct_recorder(self) -> LedgerRecorder:
        return LedgerRecorder(self._dsn)

    @property
    def log_recorder(self) -> LedgerRecorder:
        """The recorder by its own type."""
        return cast("LedgerRecorder", self.recorder)

    @property
    def _folded(self) -> Folded:
        """What is remembered; nothing, once the writer's connection has broken.

        Who answers then may be a standby that had not heard of all that was acknowledged, or a
        log put back from a backup: what was read before is no longer so.
        """
        lost = self.log_recorder.writer.lost
        if self._remembered[0] != lost:
            self._remembered = (lost, Folded(self._events_after))
        return self._remembered[1]

    def load(self, kind: type[A], id: UUID) -> A:  # noqa: A002 - the library's name for it
        """The aggregate as it is now; at version 0 if nothing ever happened to it."""
        [aggregate] = self._folded.load([(kind, id)])
        return cast("A", aggregate)

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        """Several aggregates, in the order asked for, as of one moment; one query."""
        return self._folded.load(wanted)

    def cached(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        """The aggregate as it was when it was last loaded or saved here; at version 0 if that
        is not known.
        """
        return cast("A", self._folded.cached((kind, id)))

    def _events_after(self, versions: Mapping[UUID, int | None]) -> dict[UUID, Iterator[Any]]:
        streams = self.log_recorder.select_streams(versions)
        return {id_: map(self.mapper.to_domain_event, new) for id_, new in streams.items()}

    def save(  # type: ignore[override]  # a position says all that callers need
        self, *aggregates: Aggregate, context: EventContext | None = None, supposed: bool = False
    ) -> int:
        """Store the new events of all aggregates, or none; 0 if there are none.

        Returns the position of the last event.  Raises ConflictError if one of those with
        new events, or that decisions rely on, was changed since it was loaded; then all of
        them are to be loaded again.  Those that were only supposed to be so (a glimpse) are
        all relied on.  Raises the library's OperationalError if the database
        does not answer (ledger.writer.UnknownOutcomeError if it may have stored them).
        """
        unmoved = {each.id: each.version for each in aggregates if supposed or each.RELIED_ON}
        changed = [each for each in aggregates if each.unsaved]
        events = [event for aggregate in changed for event in aggregate.collect_events()]
        if not events:
            return 0
        events.sort(key=lambda event: event.recording_order)
        stored = [self.mapper.to_stored_event(event) for event in events]
        folded = self._folded
        try:
            positions = self.log_recorder.insert_events(stored, context=context, unmoved=unmoved)
        except IntegrityError as error:
            raise ConflictError from error
        folded.keep(changed)
        return positions[-1]

    def retrying(self, change: Callable[[], T]) -> T:
        """Run a load-decide-save function; again, a bounded number of times, on conflict."""
        for attempt in range(1, CONFLICT_ATTEMPTS):
            try:
                return change()
            except ConflictError:
                share = random.random() * attempt / CONFLICT_ATTEMPTS  # noqa: S311 - jitter
                time.sleep(CONFLICT_PAUSE_MAX_S * share)
        return change()

    def close(self) -> None:
        """Store what is queued and let go of all connections.  Can be called twice."""
        if not self.closing.is_set():
            super().close()
            self.log_recorder.close()
