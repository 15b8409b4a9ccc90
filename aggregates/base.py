"""What all aggregates share: explicit events in, state out.

An event is a frozen dataclass of JSON-native values; exactly the fields of its class are stored.
An aggregate changes only in `apply`, which is called for new events (`record`) and for stored ones
(`evolve`), so that a rebuilt aggregate equals the one that recorded the events.

Stored names (`TOPIC`) never change.  A new meaning is a new class.  A field that is added has a
default, which is used for stored events without it (`complete`).
Any other new form of the same meaning raises `class_version` and adds
`upcast_v1_v2(state)`, as the eventsourcing library defines it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, lru_cache
from itertools import count
from typing import Any, ClassVar, Self, dataclass_transform
from uuid import UUID

from eventsourcing.utils import register_topic

from aggregates.errors import IllegalTransitionError

#: Ids that are remembered as UUIDs: an aggregate is asked for a dozen times.
IDS_MAX = 4_096


@dataclass(frozen=True, kw_only=True)
class About:
    """Whom an event concerns: the typed, indexed columns of the log (not its body)."""

    attachment_id: str | None = None
    volume_id: str | None = None
    server_id: str | None = None
    host: str | None = None

    @classmethod
    def of(cls, event: Any) -> About:
        """From an event body that has all of these; None: the fact does not exist."""
        return cls(**{name: getattr(event, name, None) for name in cls.__dataclass_fields__})


NOBODY = About()

_CONTAINERS = frozenset({dict, list, set})

#: Numbers events as they happen, so that those of one transaction, whatever their
#: aggregates, are stored in the order in which they were decided.
_RECORDED = count(1)


@dataclass(frozen=True, kw_only=True)
class NovaTold:
    """A notification of Nova about the event: its type, its time by Nova's clock (ISO 8601), the
    user, project and id of the request.
    """

    event: str
    at: str
    user_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Marks an event as seen at a Nova (`origin`), not done by the ledger.  It happened not before
    `after` (None: unknown) and not after `before`; ISO 8601.

    `claimed`: its time as Nova reports it; `told`: the rest of that report.  An event stores this
    beside its own fields (`stored`); it is known since the event was recorded.
    """

    origin: str
    after: str | None
    before: str
    claimed: str | None = None
    told: NovaTold | None = None

    def stored(self) -> dict[str, Any]:
        always = {"origin": self.origin, "after": self.after, "before": self.before}
        claimed = {"claimed": self.claimed} if self.claimed else {}
        return {**always, **claimed, **({"told": vars(self.told).copy()} if self.told else {})}


@dataclass(frozen=True, kw_only=True)
class Actor:
    """The user of a request.  `name` is for people; the ids are Keystone's, or a static token's.

    `known_as`: stored instead of a person's name and id (projections.reads.persons).
    """

    name: str
    user_id: str | None = None
    project_id: str | None = None
    roles: tuple[str, ...] = ()
    known_as: str | None = None  # not stored

    @property
    def noted(self) -> Actor:
        """As it is stored: without a person's name and id, so that these can be erased."""
        if self.known_as is None:
            return self
        return replace(self, name=self.known_as, user_id=None, known_as=None)

    def stored(self) -> dict[str, Any]:
        """The form in which events store it."""
        kept = {name: value for name, value in vars(self.noted).items() if name != "known_as"}
        return {**kept, "roles": list(self.roles)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """The actor in this stored form."""
        return cls(**{**stored, "roles": tuple(stored["roles"])})


@dataclass(frozen=True, kw_only=True)
class EventContext:
    """Why events are recorded: stored as metadata beside each of them.

    `cause`: what led to the change: as "api", "report", "dispatcher", "registration", "operator",
    "observation", "fence" or "automatic".

    `sender`: the client of the request, {"address", "agent"}; None: the ledger itself, or a host.
    `persons`: the rows of persons without an event yet; stored with their first, outside the log.
    `in_time`: of a request that shows guests: raises once its agent has stopped waiting, because a
    newer list may have been taken since.
    """

    actor: Actor
    request_id: str
    cause: str = "api"
    operation_id: str | None = None
    global_request_id: str | None = None  # of the service that passed the request on
    traceparent: str | None = None  # the caller's span (W3C Trace Context)
    passes_locks: bool = False  # of servers; this one is not stored
    sender: dict[str, Any] | None = None
    persons: tuple[dict[str, Any], ...] = ()  # this one is not stored in events
    in_time: Callable[[], None] | None = None  # nor is this one

    @property
    def stored_sender(self) -> dict[str, Any] | None:
        """The sender, for each event of a request that begins no operation.  Otherwise the
        operation's start has it; an operator's act on an operation has its own sender.
        """
        return self.sender if self.operation_id is None or self.cause == "operator" else None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """A change that happened.  Subclasses are frozen dataclasses, inside their aggregate."""

    originator_id: UUID
    originator_version: int
    about: About = NOBODY
    seen: dict[str, Any] | None = None  # only where it is seen, and not done; see `Seen`
    sender: dict[str, Any] | None = None  # only where one is known; see EventContext
    recording_order: int = field(default=0, compare=False)  # in this process; not stored

    TOPIC: ClassVar[str]
    class_version: ClassVar[int] = 1

    @property
    def origin(self) -> str | None:
        """For a seen event: the Nova where it was seen; None: the ledger did it."""
        return self.seen["origin"] if self.seen else None

    def __init_subclass__(cls) -> None:
        """Make it a dataclass, and set its stored name, `Aggregate.EventName`."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        cls.TOPIC = cls.__qualname__
        register_topic(cls.TOPIC, cls)


def complete(kind: Any, body: dict[str, Any]) -> None:
    """Add to a stored event the fields that its class has gained since, with their defaults."""
    for each in _with_default(kind):
        if each.name not in body:
            make = each.default_factory
            body[each.name] = each.default if make is MISSING else make()


@cache
def _with_default(kind: type[Any]) -> list[Field[Any]]:
    own = fields(kind)[len(fields(Event)) :]
    return [each for each in own if (each.default, each.default_factory) != (MISSING, MISSING)]


@lru_cache(IDS_MAX)
def _parsed(text: str) -> UUID:
    return UUID(text)


class Aggregate(ABC):
    """An identity, a version, and events that have not been saved yet."""

    #: For each event that has a place in a state machine: the states it may happen
    #: in, and the state after it.  Events that are not listed may happen in any.
    TRANSITIONS: ClassVar[dict[type[Event], tuple[frozenset[Any], Any]]] = {}
    state: Any = None

    def __init__(self, id: UUID) -> None:  # noqa: A002 - the library's name for it
        self.id = id
        self.version = 0
        self._pending: list[Event] = []

    @staticmethod
    def id_of(key: str) -> UUID:
        """The aggregate id for the name that others use: the text of its id, or a host's name."""
        return _parsed(key)

    @abstractmethod
    def about(self) -> About:
        """Whom this aggregate's events concern."""

    @abstractmethod
    def apply(self, event: Any) -> None:
        """Change state by one event; never refuses and has no other effect."""

    def record(self, kind: type[Event], **fields: Any) -> None:
        """Record an event and apply it.

        Raises IllegalTransitionError if the state machine does not allow it now.
        """
        if kind in self.TRANSITIONS and self.state not in self.TRANSITIONS[kind][0]:
            raise IllegalTransitionError(event=kind.TOPIC, id=str(self.id), state=self.state)
        event = kind(originator_id=self.id, originator_version=self.version + 1, **fields)
        self._advance(event)
        # A copy, for what is applied may be kept; `replace` would take ten times as long.
        noted = object.__new__(kind)
        noted.__dict__.update(event.__dict__, about=self.about(), recording_order=next(_RECORDED))
        self._pending.append(noted)

    def _advance(self, event: Event) -> None:
        self.apply(event)
        if type(event) in self.TRANSITIONS:
            self.state = self.TRANSITIONS[type(event)][1]
        self.version = event.originator_version

    @property
    def unsaved(self) -> bool:
        """Whether there are events that are not saved yet."""
        return bool(self._pending)

    def collect_events(self) -> list[Event]:
        """Return the unsaved events and forget them (the eventsourcing library calls
        this on save).
        """
        collected, self._pending = self._pending, []
        return collected

    @classmethod
    def evolve(cls, id: UUID, events: Iterable[Any]) -> Self:  # noqa: A002
        """The aggregate after these events; version 0 if there are none."""
        return cls(id).follow(events)

    def follow(self, events: Iterable[Any]) -> Self:
        """Apply events that are already stored; returns itself."""
        for event in events:
            self._advance(event)
        return self

    def fork(self) -> Self:
        """An equal, independent aggregate: events recorded on one do not appear on the other.

        Containers are copied, their elements are shared.  A subclass whose `apply` changes an
        element in place, instead of replacing it, copies the element here as well.
        """
        fork = object.__new__(type(self))
        state = fork.__dict__
        for name, value in self.__dict__.items():
            state[name] = value.copy() if type(value) in _CONTAINERS else value
        return fork
