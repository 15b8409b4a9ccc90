"""A unit of work over the log: aggregates loaded once each, saved together.

Theory of operation.  What is decided counts only once it is stored, and an append is stored
only if its streams are as they were decided on.  So a decision is first taken on aggregates
as this process knows them, without asking the log (`decided`); what it knows nothing of is
new to it.  The decision holds if it is stored, with every aggregate it looked at still at
the version that was supposed.  Whatever else comes of it - a refusal, nothing to store, a
stream that has moved - may come of knowing too little: then it is taken again, on what the
log says now.

And the metadata that goes with what is saved for an operation: whose it is, and that
the request id stays the one it began with, whoever writes the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar
from uuid import UUID

from eventsourcing.persistence import PersistenceError

from aggregates.base import Actor, Aggregate, EventContext
from aggregates.operation import Operation
from host_agent.shared.ports import PortError

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")

#: Whose form as a UUID is remembered: an aggregate is asked for a dozen times.
IDS_MAX = 4_096


class AggregateStore(Protocol):
    """The log, as aggregates see it (ledger.log.application)."""

    def load(self, kind: type[A], id: UUID) -> A: ...  # noqa: A002

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]: ...

    def cached(self, kind: type[A], id: UUID) -> A: ...  # noqa: A002

    def save(
        self, *aggregates: Aggregate, context: EventContext, supposed: bool = False
    ) -> int: ...

    def retrying(self, change: Callable[[], T]) -> T: ...


class Unit:
    """A unit of work: aggregates loaded once each, saved together (a `progress.Book`).

    `supposed`: they are what this process knows of them, be it nothing; the log is not read.
    """

    def __init__(self, store: AggregateStore, *, supposed: bool = False) -> None:
        self._store = store
        self._supposed = supposed
        self.stored = False  # something was
        self._loaded: dict[tuple[type[Aggregate], UUID], Aggregate] = {}
        self._expected: dict[tuple[type[Aggregate], UUID], Aggregate] = {}

    def get(self, kind: type[A], id: str | UUID) -> A:  # noqa: A002
        key = (kind, _uuid(id))
        if key not in self._loaded:
            expected = self._expected.pop(key, None)
            found = self._store.cached if self._supposed else self._store.load
            self._loaded[key] = found(*key) if expected is None else expected
        return self._loaded[key]  # type: ignore[return-value]

    def fetch(self, kind: type[Aggregate], ids: Iterable[str]) -> None:
        """Load several at once that will be asked for, with one query."""
        self.expect((kind, id_) for id_ in ids)

    def expect(self, these: Iterable[tuple[type[Aggregate], str | UUID]]) -> None:
        """The same for aggregates of several kinds; what is not asked for is not saved either.

        Where nothing is read `these` are not even looked at.
        """
        if self._supposed:
            return
        keys = dict.fromkeys((kind, _uuid(id_)) for kind, id_ in these)
        known = self._loaded.keys() | self._expected.keys()
        wanted = [key for key in keys if key not in known]
        if wanted:
            self._expected.update(zip(wanted, self._store.load_many(*wanted), strict=True))

    def suppose(self, kind: type[A], id: str | UUID) -> A:  # noqa: A002
        """As it was when it was last read here: to guess what to expect, not to decide on."""
        return self._store.cached(kind, _uuid(id))

    def add(self, aggregate: Aggregate) -> None:
        self._loaded[type(aggregate), aggregate.id] = aggregate

    def save(self, context: EventContext) -> int:
        known = self._loaded.values()
        position = self._store.save(*known, context=context, supposed=self._supposed)
        self.stored = position > 0
        return position


def decided(store: AggregateStore, change: Callable[[Unit], T]) -> T:
    """Run a load-decide-save function: on what is known here, else on what the log says."""
    unit = Unit(store, supposed=True)
    try:
        answer = change(unit)
        if unit.stored:
            return answer
    except Exception as error:  # if it was not for want of knowledge, it comes again
        if unit.stored or isinstance(error, PersistenceError | PortError):
            raise  # it is done; or the world outside is as it is
    return store.retrying(lambda: change(Unit(store)))


def _uuid(id: str | UUID) -> UUID:  # noqa: A002
    return id if isinstance(id, UUID) else _parsed(id)


@lru_cache(IDS_MAX)
def _parsed(text: str) -> UUID:
    return UUID(text)


def own_context(operation: Operation) -> EventContext:
    """Metadata of what the ledger does by itself for an operation: its requester's."""
    started = operation.started
    assert started is not None
    actor = Actor(**{**started.actor, "roles": tuple(started.actor["roles"])})
    return EventContext(
        actor=actor,
        request_id=started.request_id,
        cause="dispatcher",
        operation_id=str(operation.id),
    )


def within(context: EventContext, operation: Operation) -> EventContext:
    """The caller's metadata, tied to the operation; the request id stays the operation's."""
    assert operation.started is not None
    return replace(context, operation_id=str(operation.id), request_id=operation.started.request_id)
