"""The ledger as an eventsourcing application: load aggregates, save several at once.

A change is load, decide, save.  `save` stores the new events of all given aggregates in one
transaction, and only if none of them, changed or not, has moved since it was loaded; so the
state that was decided on is still the current one.  Otherwise a ConflictError is raised, and the
caller starts again from loading: `retrying`, and ledger.log.unit.run_optimistically.

All calls block until the answer is durable; from an event loop use `asyncio.to_thread`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.persistence import IntegrityError
from eventsourcing.utils import Environment, EnvType, get_topic

from aggregates.base import Aggregate, EventContext
from aggregates.errors import DomainError
from ledger.log import persistence
from ledger.log.cache import AggregateCache
from ledger.log.mapper import JSONBody
from ledger.log.recorder import LedgerRecorder
from ledger.telemetry import StepNumbers

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")

CONFLICT_ATTEMPTS = 8
CONFLICT_PAUSE_MAX_S = 0.05


class ConflictError(DomainError, code="conflict"):
    """Something else changed the same thing at the same time; read it again and retry."""


class Ledger(Application[UUID]):
    """The log behind `dsn`, whose schema must be current (ledger.log.schema.check)."""

    def __init__(self, dsn: str) -> None:
        super().__init__(
            {
                persistence.Factory.PERSISTENCE_MODULE: persistence.__name__,
                persistence.Factory.TRANSCODER_TOPIC: get_topic(JSONBody),
                persistence.DATABASE_URL: dsn,
            }
        )
        self._cache_of = (0, AggregateCache(self._events_after))
        self.steps = StepNumbers()
        #: Told of every append of this process, in the thread that made it.
        self.listeners = [self.steps.take]

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:
        """Nothing from the process's environment: the configuration has one source (ledger.config),
        and a cipher or compressor there must not change the stored form.
        """
        return Environment(name, env)

    @property
    def log_recorder(self) -> LedgerRecorder:
        """The recorder by its own type."""
        return cast("LedgerRecorder", self.recorder)

    @property
    def _cache(self) -> AggregateCache:
        """Empty again once the writer's connection has broken.

        The server that answers after that may be a standby missing acknowledged commits, or a log
        restored from a backup: the cached versions may not exist there.
        """
        lost = self.log_recorder.writer.lost
        if self._cache_of[0] != lost:
            self._cache_of = (lost, AggregateCache(self._events_after))
        return self._cache_of[1]

    def load(self, kind: type[A], id: UUID) -> A:  # noqa: A002 - the library's name for it
        """The aggregate as it is now; at version 0 if it has no events."""
        [aggregate] = self._cache.load([(kind, id)])
        return cast("A", aggregate)

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        """Several aggregates, in the order asked for, as of one moment; one query."""
        return self._cache.load(wanted)

    def cached(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        """The aggregate as this process last loaded or saved it; at version 0 if the cache
        does not have it.  No query; possibly old.
        """
        return cast("A", self._cache.cached((kind, id)))

    def _events_after(self, versions: Mapping[UUID, int | None]) -> dict[UUID, Iterator[Any]]:
        streams = self.log_recorder.select_streams(versions)
        return {id_: map(self.mapper.to_domain_event, new) for id_, new in streams.items()}

    def save(  # type: ignore[override]  # a position says all that callers need
        self, *aggregates: Aggregate, context: EventContext | None = None
    ) -> int:
        """Store the new events of all aggregates, or none; 0 if there are none.

        Returns the position of the last event.  Raises ConflictError if any of them, with new
        events or without, was changed since it was loaded; then all of them are to be loaded
        again.  Raises the library's OperationalError if the database does not answer
        (ledger.log.writer.UnknownOutcomeError if it may have stored them).
        """
        changed = [each for each in aggregates if each.unsaved]
        if not changed:
            return 0
        relied_on = {each.id: each.version for each in aggregates if not each.unsaved}
        events = [event for aggregate in changed for event in aggregate.collect_events()]
        events.sort(key=lambda event: event.recording_order)
        if context is not None and (sender := context.stored_sender) is not None:
            events = [replace(event, sender=sender) for event in events]
        cache = self._cache
        try:
            recordings = self.events.put(events, context=context, relied_on=relied_on)
        except IntegrityError as error:
            raise ConflictError from error
        cache.keep(changed)
        for listener in self.listeners:
            listener(changed, events)
        return recordings[-1].notification.id

    def retrying(self, change: Callable[[], T]) -> T:
        """Run a load-decide-save function; again, a bounded number of times, on conflict."""
        for attempt in range(1, CONFLICT_ATTEMPTS):
            try:
                return change()
            except ConflictError:
                share = random.random() * attempt / CONFLICT_ATTEMPTS  # noqa: S311 - jitter
                time.sleep(CONFLICT_PAUSE_MAX_S * share)
        return change()
