"""What a projection is: data and a pure fold.

A projection keeps one row per key current with the events of its topics.  `fold` takes the row
(None if there is none) and an event, and returns the new row (None: no row).  It has no effects and
never changes the row that it is given.  So rows are a function of the log alone, and a rebuild
gives the same rows.

The row of an operation does not have all that its fold needs.  There `fold` works on a state
(`projections.operations.Followed`, around the aggregate), and the row is a view of the state,
computed once for all events of a batch.  A state is only in memory: if it is missing, it is folded
again from the events of its stream.

Tables that follow from one row or state (the mailbox from an operation) are declared as `Derived`,
and written when that changes.

Rows and bodies hold JSON's values, ids as strings, and aware datetimes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, LiteralString, NamedTuple

from eventsourcing.utils import TopicError, resolve_topic

from aggregates.base import Event, complete

Row = dict[str, Any]


class LoggedEvent(NamedTuple):
    """An event of the log, its body in the newest form that its class has."""

    position: int
    recorded_at: datetime
    topic: str
    originator_id: str
    originator_version: int
    host: str | None
    operation_id: str | None
    body: dict[str, Any]  # without `seen`
    seen: dict[str, Any] | None = None  # aggregates.base.Seen

    @property
    def stamp(self) -> Row:
        """The columns that each row has about its last event."""
        return {"updated_at": self.recorded_at, "position": self.position}


@dataclass(frozen=True)
class Derived:
    """A table whose rows follow from one row or state; it has the projection's key column."""

    table: LiteralString
    rows: Callable[[Any], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A table, its key column, the topics that it follows, and its fold.

    `stateful`: `fold` takes a state, changes it and returns it; the key is the stream's id.
    """

    table: LiteralString
    key: LiteralString
    key_type: LiteralString = "uuid"
    topics: frozenset[str]
    key_of: Callable[[LoggedEvent], str]
    fold: Callable[[Any, LoggedEvent], Any]
    derived: tuple[Derived, ...] = ()
    stateful: bool = False

    @property
    def name(self) -> str:
        return self.table


def origin_of(event: LoggedEvent) -> str | None:
    """The owner of an observed object; None: the event is of the ledger's own."""
    return event.seen["origin"] if event.seen else None


def originator(event: LoggedEvent) -> str:
    """The key of projections with one row per aggregate."""
    return event.originator_id


def upcast(topic: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body in the newest form: upcast by the event class's `upcast_vN_vM`, and with defaults
    for missing fields.

    The body of an unknown topic, which newer code wrote, stays as it is.
    """
    version = body.pop("class_version", 1)
    kind = _class_of(topic)
    if kind is not None:
        for old in range(version, kind.class_version):
            getattr(kind, f"upcast_v{old}_v{old + 1}")(body)
        complete(kind, body)
    return body


@cache
def _class_of(topic: str) -> type[Event] | None:
    try:
        kind = resolve_topic(topic)
    except TopicError:
        return None
    return kind if issubclass(kind, Event) else None
