"""A unit of work over the log: aggregates loaded once each, saved together.

And the metadata that goes with what is saved for an operation: whose it is, and that
the request id stays the one it began with, whoever writes the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from uuid import UUID

from aggregates.base import Actor, Aggregate, Context
from aggregates.operation import Operation

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")


class Store(Protocol):
    """The log, as aggregates see it (ledger.application)."""

    def load(self, kind: type[A], id: UUID) -> A: ...  # noqa: A002

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]: ...

    def glimpse(self, kind: type[A], id: UUID) -> A | None: ...  # noqa: A002

    def save(self, *aggregates: Aggregate, context: Context) -> int: ...

    def retrying(self, change: Callable[[], T]) -> T: ...


class Unit:
    """A unit of work: aggregates loaded once each, saved together (a `progress.Book`)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[tuple[type[Aggregate], UUID], Aggregate] = {}
        self._expected: dict[tuple[type[Aggregate], UUID], Aggregate] = {}

    def get(self, kind: type[A], id: str | UUID) -> A:  # noqa: A002
        key = (kind, UUID(str(id)))
        if key not in self._loaded:
            expected = self._expected.pop(key, None)
            self._loaded[key] = self._store.load(*key) if expected is None else expected
        return self._loaded[key]  # type: ignore[return-value]

    def fetch(self, kind: type[Aggregate], ids: Iterable[str]) -> None:
        """Load several at once that will be asked for, with one query."""
        self.expect(*((kind, id_) for id_ in ids))

    def expect(self, *these: tuple[type[Aggregate], str | UUID]) -> None:
        """The same for aggregates of several kinds; what is not asked for is not saved either."""
        keys = dict.fromkeys((kind, UUID(str(id_))) for kind, id_ in these)
        known = self._loaded.keys() | self._expected.keys()
        wanted = [key for key in keys if key not in known]
        if wanted:
            self._expected.update(zip(wanted, self._store.load_many(*wanted), strict=True))

    def suppose(self, kind: type[A], id: str | UUID) -> A | None:  # noqa: A002
        """As it was when it was last read here: to guess what to expect, not to decide on."""
        return self._store.glimpse(kind, UUID(str(id)))

    def add(self, aggregate: Aggregate) -> None:
        self._loaded[type(aggregate), aggregate.id] = aggregate

    def save(self, context: Context) -> int:
        return self._store.save(*self._loaded.values(), context=context)


def own_context(operation: Operation) -> Context:
    """Metadata of what the ledger does by itself for an operation: its requester's."""
    started = operation.started
    assert started is not None
    actor = Actor(**{**started.actor, "roles": tuple(started.actor["roles"])})
    return Context(
        actor=actor,
        request_id=started.request_id,
        cause="dispatcher",
        operation_id=str(operation.id),
    )


def within(context: Context, operation: Operation) -> Context:
    """The caller's metadata, tied to the operation; the request id stays the operation's."""
    assert operation.started is not None
    return replace(context, operation_id=str(operation.id), request_id=operation.started.request_id)
