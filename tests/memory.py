"""What the in-memory worlds of the generic tests are made of: points, trouble, a store, time.

Every boundary a crash or a failure can happen at is a *point*: before and after
each call of a port, before and after each save.  Points are numbered as they are
met; a `Trouble` says what happens at one number.  So a test can walk through all
of them, and through all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from aggregates.base import Aggregate, EventContext
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.log.application import ConflictError
from ledger.log.cache import AggregateCache
from ledger.log.mapper import JSONBody, LedgerMapper

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")


class Crash(BaseException):
    """The process is gone.  No `except Exception` of the code under test catches it."""


@dataclass
class Trouble:
    """What happens at which point: {number: mode}.  Numbers count as the points are met."""

    plan: dict[int, str] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        """Meet the next point; what is planned for it, if it is one of `modes`."""
        self.met.append(point)
        mode = self.plan.get(len(self.met) - 1)
        return mode if mode in modes else None


#: What can happen around a call of a port, and around a save.
CALL_MODES = (
    "retryable",
    "final",
    "unknown",  # it did not happen, but nobody knows
    "unknown_after",  # it did happen, but nobody knows
    "final_after",  # it did happen, at least half, and says that it did not
    "crash",
    "crash_after",
)
SAVE_MODES = ("crash", "crash_after", "conflict")


class Tripwire:
    """A port whose every call is a point."""

    def __init__(self, name: str, port: Any, trouble: Callable[[], Trouble]) -> None:
        self._name = name
        self._port = port
        self._trouble = trouble

    def __getattr__(self, call: str) -> Callable[..., Any]:
        method = getattr(self._port, call)

        def tripped(*args: Any, **kwargs: Any) -> Any:
            mode = self._trouble().at(f"{self._name}.{call}", CALL_MODES)
            if mode == "crash":
                raise Crash
            if mode in {"retryable", "final", "unknown"}:
                raise PortError(ErrorKind(mode), "injected", f"injected at {call}")
            answer = method(*args, **kwargs)
            if mode == "crash_after":
                raise Crash
            if mode in {"unknown_after", "final_after"}:
                kind = ErrorKind(mode.removesuffix("_after"))
                raise PortError(kind, "injected", f"injected after {call}")
            return answer

        return tripped


class MemoryStore:
    """The log as a dictionary: same rules, no database (ledger.core.service.Store)."""

    def __init__(self, trouble: Callable[[], Trouble]) -> None:
        self.streams: dict[UUID, list[Any]] = {}
        self.log: list[tuple[Any, EventContext]] = []
        self._mapper = LedgerMapper(JSONBody())
        self._read: dict[UUID, list[Any]] = {}
        #: By aggregate and version.
        self._folds: dict[tuple[type[Aggregate], UUID], dict[int, Aggregate]] = {}
        self._cache = AggregateCache(self._events_after)
        self._trouble = trouble
        #: Called once, between a decision and its save: somebody else was faster.
        self.before_save: Callable[[], object] | None = None

    def copy(self, trouble: Callable[[], Trouble]) -> MemoryStore:
        """Another log that begins as this one is; a process has read and kept as much of it."""
        other = MemoryStore(trouble)
        other.streams, other.log = dict(self.streams), list(self.log)
        other._read = {id_: list(events) for id_, events in self._read.items()}
        other._folds = {key: dict(folds) for key, folds in self._folds.items()}
        other._cache.keep(self._cache._kept.values())
        return other

    def load(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        [aggregate] = self.load_many((kind, id))
        return aggregate  # type: ignore[no-any-return]

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        loaded = self._cache.load(wanted)
        for (kind, id_), aggregate in zip(wanted, loaded, strict=True):
            anew = self._fold(kind, id_, len(self.streams.get(id_, ())))
            assert vars(aggregate) == vars(anew), "what is kept is what the log says"
        return loaded

    def cached(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        aggregate = self._cache.cached((kind, id))
        then = self._fold(kind, id, aggregate.version)
        assert vars(aggregate) == vars(then), "it was so in the log"
        return aggregate  # type: ignore[return-value]

    def _events_after(self, versions: Mapping[UUID, int | None]) -> dict[UUID, list[Any]]:
        return {id_: self._events(id_)[version or 0 :] for id_, version in versions.items()}

    def _events(self, id_: UUID) -> list[Any]:
        """All of the stream, each decoded once."""
        read, stored = self._read.setdefault(id_, []), self.streams.get(id_, ())
        if len(read) < len(stored):
            read += map(self._mapper.to_domain_event, stored[len(read) :])
        return read

    def _fold(self, kind: type[A], id_: UUID, version: int) -> A:
        """What the log alone says: folded once for each version asked for, from one before it."""
        folds = self._folds.setdefault((kind, id_), {})
        found = folds.get(version)
        if found is None:
            before = max((each for each in folds if each < version), default=0)
            start = folds[before].fork() if before else kind(id_)
            found = folds[version] = start.follow(self._events(id_)[before:version])
        return found  # type: ignore[return-value]

    def save(self, *aggregates: Aggregate, context: EventContext) -> int:
        changed = [each for each in aggregates if each.unsaved]
        relied_on = [each for each in aggregates if not each.unsaved]
        events = [event for aggregate in changed for event in aggregate.collect_events()]
        events.sort(key=lambda event: event.recording_order)
        if not events:
            return 0
        if (faster := self.before_save) is not None:
            self.before_save = None
            faster()
        mode = self._trouble().at("save", SAVE_MODES)
        if mode == "crash":
            raise Crash
        if mode == "conflict":
            raise ConflictError
        if any(len(self.streams.get(each.id, ())) != each.version for each in relied_on):
            raise ConflictError
        draft: dict[UUID, list[Any]] = {}
        for event in events:
            id_ = event.originator_id
            stream = draft.setdefault(id_, list(self.streams.get(id_, ())))
            if event.originator_version != len(stream) + 1:
                raise ConflictError
            stream.append(self._mapper.to_stored_event(event))
        self.streams.update(draft)
        self.log += [(event, context) for event in events]
        if mode == "crash_after":
            raise Crash
        self.keep(changed)
        return len(self.log)

    def keep(self, stored: list[Aggregate]) -> None:
        """Remember them (a process that has stored nothing of late knows less)."""
        self._cache.keep(stored)

    def retrying(self, change: Callable[[], T]) -> T:
        for _ in range(5):
            try:
                return change()
            except ConflictError:
                continue
        return change()


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds

    now = __call__

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
