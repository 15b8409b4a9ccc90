"""A unit of work over the log: aggregates looked at once each, saved together.

Theory of operation.  A decision is stored only if every aggregate that it read, changed or
not, is still at the version that it read (`AggregateStore.save`).  So it may be made on the
cache, without a query (`run_optimistically`); an aggregate that is not cached counts as new.  If
such a decision is stored, it was right.  Any other outcome - a refusal, nothing to store, a
stream at another version - may be due to an outdated cache.  Then the decision is made again on
the log: all aggregates that the first attempt read are loaded by one query first.

Also here: the metadata of what is saved for an operation.  The request id stays the one that
the operation began with, whoever writes the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from uuid import UUID

from eventsourcing.persistence import PersistenceError

from aggregates.base import Actor, Aggregate, EventContext
from aggregates.operation import Operation
from host_agent.shared.contract.ports import PortError

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")


class AggregateStore(Protocol):
    """The log, as aggregates see it (ledger.log.application)."""

    def load(self, kind: type[A], id: UUID) -> A: ...  # noqa: A002

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]: ...

    def cached(self, kind: type[A], id: UUID) -> A: ...  # noqa: A002

    def save(self, *aggregates: Aggregate, context: EventContext) -> int: ...

    def retrying(self, change: Callable[[], T]) -> T: ...


class Unit:
    """A unit of work: aggregates looked at once each, saved together (a `meaning.Book`).

    `cached`: they come from this process's cache, possibly outdated or empty; else from the log.
    """

    def __init__(self, store: AggregateStore, *, cached: bool = False) -> None:
        self._store = store
        self._find = store.cached if cached else store.load
        self._read: dict[tuple[type[Aggregate], UUID], Aggregate] = {}
        self._used: dict[tuple[type[Aggregate], UUID], Aggregate] = {}
        self.stored = False  # something was

    @property
    def looked_at(self) -> list[tuple[type[Aggregate], UUID]]:
        return list(self._used)

    def get(self, kind: type[A], id: str | UUID) -> A:  # noqa: A002
        key = _key(kind, id)
        found = self._used.get(key)
        if found is None:
            found = self._read.get(key)
            found = self._used[key] = self._find(*key) if found is None else found
        return found  # type: ignore[return-value]

    def read(self, these: Iterable[tuple[type[Aggregate], str | UUID]]) -> None:
        """Load several by one query.  What is not used afterwards is not relied on."""
        keys = list(dict.fromkeys(_key(kind, id_) for kind, id_ in these))
        self._read.update(zip(keys, self._store.load_many(*keys), strict=True))

    def add(self, aggregate: Aggregate) -> None:
        self._used[type(aggregate), aggregate.id] = aggregate

    def save(self, context: EventContext) -> int:
        """The last position, 0 if nothing is new.  Raises ConflictError if anything that was
        looked at has changed since; whatever `context.in_time` raises.
        """
        if context.in_time is not None:
            context.in_time()
        position = self._store.save(*self._used.values(), context=context)
        self.stored = position > 0
        return position


def run_optimistically(store: AggregateStore, change: Callable[[Unit], T]) -> T:
    """Run a load-decide-save function on the cache, and if it stores nothing, on the log.

    The function may run several times: its effects are what it saves.
    """
    unit = Unit(store, cached=True)
    try:
        answer = change(unit)
        if unit.stored:
            return answer
    except Exception as error:  # if not due to an outdated cache, it is raised again below
        if unit.stored or isinstance(error, PersistenceError | PortError):
            raise  # something is stored, or the error is not the decision's

    def run_on_the_log() -> T:
        fresh = Unit(store)
        fresh.read(unit.looked_at)
        return change(fresh)

    return store.retrying(run_on_the_log)


def _key(kind: type[Aggregate], id: str | UUID) -> tuple[type[Aggregate], UUID]:  # noqa: A002
    return kind, id if isinstance(id, UUID) else kind.id_of(id)


def own_context(operation: Operation) -> EventContext:
    """Metadata of what the ledger does by itself for an operation: its requester's."""
    started = operation.started
    assert started is not None
    return EventContext(
        actor=Actor.of(started.actor),
        request_id=started.request_id,
        cause="dispatcher",
        operation_id=str(operation.id),
    )


def within(context: EventContext, operation: Operation) -> EventContext:
    """A host's metadata, tied to the operation: what it reports is of the operation's request."""
    assert operation.started is not None
    return replace(context, operation_id=str(operation.id), request_id=operation.started.request_id)


def acting(context: EventContext, operation: Operation) -> EventContext:
    """A person's metadata, tied to the operation: an act is found by its own request, too."""
    return replace(context, operation_id=str(operation.id))
