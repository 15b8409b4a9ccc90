"""What a projection is: data and a pure fold.

A projection keeps one row per key up to date with the events of its topics.  `fold` takes
the row (None if there is none) and an event, and returns the new row (None: no row).  It
has no effects and never changes the row it is given, so rows are a function of the log
alone: a rebuild gives what following the log gave.

The row of an operation shows less than there is to know.  What is folded there is a state
(`projections.operations.Followed`), an aggregate as the log has it, and the row is a view of it,
computed once for all events of a batch.  A state is nowhere stored but in the log: one that is not
in memory is folded anew from the events of its stream.

Tables that follow from a row or state alone (the mailbox from an operation) are declared as
`Derived`; they are rewritten whenever what they follow from changes.

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
    """An event as the log has it, its body in the newest form its class knows."""

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
        """What each row says about the last event in it."""
        return {"updated_at": self.recorded_at, "position": self.position}


@dataclass(frozen=True)
class Derived:
    """A table whose rows follow from one row (or state) of the projection; it has the same
    key column.
    """

    table: LiteralString
    rows: Callable[[Any], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A table, its key column, the topics it follows, and how.

    `stateful`: `fold` takes and gives a state, which it changes, and keys are those of streams.
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
    """Whose it is that was seen; None: it was done, and not seen."""
    return event.seen["origin"] if event.seen else None


def originator(event: LoggedEvent) -> str:
    """The key of projections with one row per aggregate."""
    return event.originator_id


def upcast(topic: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body in the newest form: by the event class's own `upcast_vN_vM`, and with the defaults
    of the fields that it lacks.

    A topic that this code does not know stays as it is: newer code wrote it.
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
