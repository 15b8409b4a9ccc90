"""A state of the model: the world, the ledger's aggregates, who stands still, what may yet come.

The ledger in it is the real one: `Service` and `Requests` over these aggregates.  `key` is equal
for states that are equal but for their ids and their past.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Actor, Aggregate, EventContext
from aggregates.finding import Finding, FindingState
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation, OperationState
from handlers.engine import rules
from handlers.engine.verbs import RetryPolicy
from handlers.requests.guards import Contact
from handlers.results.presence import SHOW_GUESTS, SHOW_VOLUMES, OthersShown, ShowingFinding
from ledger.core.requests import Fleet, Requests
from ledger.core.service import Service
from ledger.log.application import ConflictError
from tests.model.world import SERVER, Cinder, Clock, Wire, World

A = TypeVar("A", bound=Aggregate)
T = TypeVar("T")
Known = dict[UUID, Aggregate]

CONTEXT = EventContext(
    actor=Actor(name="alice", user_id="u", project_id="p", roles=("member",)),
    request_id="req",
    passes_locks=True,
)
#: Longer than any step is put off: whatever waits is due when a dispatcher looks again.
LATER_S = 100.0
#: So often as this a step is tried before it fails, or for ever: that makes no difference any more.
TRIED = RetryPolicy().attempts + 1


class Left(NamedTuple):
    """What may yet come: faults, requests of users, acts of operators."""

    faults: int
    requests: int
    acts: int


class Pause(NamedTuple):
    """A dispatcher that stands still: the ledger as it was then, and what it has been answered."""

    operation_id: str
    run: int
    known: Known
    answers: tuple[Any, ...]
    now: float


@dataclass
class State:
    """`taken`: operations with dispatchers that have never given their leases back."""

    world: World
    left: Left
    known: Known
    now: float = 0.0
    paused: tuple[Pause, ...] = ()
    taken: frozenset[str] = frozenset()

    def copy(self) -> State:
        return self._with(world=self.world.copy())

    def before(self, known: Known) -> State:
        """The same ledger, as it was."""
        return self._with(known=known)

    def _with(self, **changes: Any) -> State:
        copy = object.__new__(State)  # `replace` would take five times as long
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def get(self, kind: type[A], id: str) -> A:  # noqa: A002
        """As handlers.engine.rules reads it: nobody changes what this returns."""
        id_ = kind.id_of(id) if id else UUID(int=0)
        return self.known.get(id_) or kind(id_)  # type: ignore[return-value]

    def all(self, kind: type[A]) -> Iterator[A]:
        return (each for each in self.known.values() if isinstance(each, kind))

    def operations(self, *states: str) -> list[Operation]:
        return [each for each in self.all(Operation) if each.state in states]

    @property
    def instance(self) -> Instance:
        return self.get(Instance, SERVER)

    def host(self, name: str) -> Host:
        return self.get(Host, name)


class Store:
    """The log as aggregates (ledger.log.unit.AggregateStore), over a state."""

    def __init__(self, state: State, known: Known | None = None) -> None:
        self._state = state
        self._then = known  # what a paused process had read

    def live(self) -> None:
        """From now on it reads what is there now."""
        self._then = None

    def load(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        known = (self._state.known if self._then is None else self._then).get(id)
        return kind(id) if known is None else known.fork()  # type: ignore[return-value]

    cached = load

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        return [self.load(*each) for each in wanted]

    def save(self, *aggregates: Aggregate, context: EventContext) -> int:
        before, state = self._state.known, self._state
        changed = {each.id: each for each in aggregates if each.unsaved}
        events = [event for each in changed.values() for event in each.collect_events()]
        if not events:
            return 0
        first = {event.originator_id: event.originator_version for event in reversed(events)}
        for each in aggregates:
            stored = before[each.id].version if each.id in before else 0
            if stored != first.get(each.id, each.version + 1) - 1:
                raise ConflictError
        events.sort(key=lambda event: event.recording_order)
        state.known = {**before, **changed}
        append = rules.StoredAppend(events, state.before(before), state)
        for rule, event in rules.broken_by(append):
            state.world.broken += (f"{rule.sentence}  ({rule.name}: {type(event).TOPIC})",)
        return 1

    def retrying(self, change: Callable[[], T]) -> T:
        return change()


class Ledger:
    """The real service and requests for one move."""

    def __init__(self, state: State, wire: Wire, pause: Pause | None = None) -> None:
        self.store = Store(state, pause and pause.known)
        clock = Clock(state.world, pause.now if pause else state.now)
        cinder: Any = Cinder(state.world, wire)
        self.clock = clock
        self.service = Service(self.store, cinder, clock, clock.wait)
        self.requests = Requests(self.store, cinder, clock)
        self.fleet = Fleet(
            contact=lambda name: Contact(alive=state.world.hosts[name].on, since="now"),
            had=lambda _: {a.host for a in state.all(Attachment) if a.host},
            shown=lambda *_: OthersShown(findings=[*_shown(state)]),
            unaccounted=lambda _: [name for name in _unfenced(state) if _may_have(state, name)],
            unfenced=lambda: _unfenced(state),
        )


def _shown(state: State) -> Iterator[ShowingFinding]:
    """The open findings that show the guest or a volume."""
    for finding in state.all(Finding):
        found = finding.found
        if found is None or finding.state is FindingState.OVER:
            continue
        if found.drift_class in SHOW_GUESTS | SHOW_VOLUMES:
            facts = {**vars(found), "finding_id": finding.id, "differs": finding.differs}
            yield ShowingFinding.of(facts)


def _unfenced(state: State) -> list[str]:
    return [name for name in state.world.hosts if not state.host(name).fenced]


def _may_have(state: State, name: str) -> bool:
    """A survey, which each host that is up makes at once, does not say that it has no guest."""
    host = state.world.hosts[name]
    return not host.on or SERVER in host.guests


# --- equal states ----------------------------------------------------------------------------

UUIDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Of an aggregate, what says only how it came to be so.
_PAST = frozenset(
    {
        "id",
        "version",
        "_pending",
        "_last",
        "plan",
        "definition",
        "source_definition",
        "capabilities",
    }
    | {"seen_at", "why", "name", "had", "last_server", "_left", "first_error", "left", "fenced_by"}
)
_OVER = {
    Attachment: AttachmentState.DELETED,
    BlockDeviceMapping: MappingState.ENDED,
    Finding: FindingState.OVER,
    Operation: OperationState.FINISHED,
}


def key(state: State) -> bytes:
    """Ids are named in the order in which they come, so that which is which makes no difference."""
    world, numbers = state.world, {run: number for number, run in enumerate(_runs(state))}
    parts = [_said(each) for each in state.known.values() if not _is_over(each, world)]
    parts += [repr(tuple(row)) for row in world.rows.values()]
    parts += [f"{name} {_host(host, numbers)}" for name, host in world.hosts.items()]
    parts += [_paused(pause, numbers) for pause in state.paused]
    parts.append(repr((world.late, sorted(state.taken), state.left, world.by_hand, world.broken)))
    parts.append(repr(world.volumes))
    ids: dict[str, str] = {}
    text = UUIDS.sub(lambda it: ids.setdefault(it[0], f"#{len(ids)}"), "\n".join(parts))
    return blake2b(text.encode(), digest_size=12).digest()


def _runs(state: State) -> Iterable[tuple[str, int]]:
    for operation in state.operations("running"):
        for run in operation.history.active.values():
            yield str(operation.id), run.number


def _is_over(aggregate: Aggregate, world: World) -> bool:
    if isinstance(aggregate, Attachment) and aggregate.state is AttachmentState.DELETED:
        id_ = str(aggregate.id)
        return id_ not in world.rows and not any(id_ in h.records for h in world.hosts.values())
    return aggregate.state is _OVER.get(type(aggregate), aggregate)


def _host(host: Any, numbers: dict[Any, int]) -> str:
    resumed = sorted(numbers[run] for run in host.resumed if run in numbers)
    records = [(id_, len(record.infos)) for id_, record in host.records.items()]
    here = (host.on, host.guests, sorted(host.connected), records, sorted(host.sent))
    return repr((*here, host.told, resumed))


def _paused(pause: Pause, numbers: dict[Any, int]) -> str:
    waits = numbers.get((pause.operation_id, pause.run))
    return repr((pause.operation_id, waits, pause.answers))


#: What is said of an aggregate does not change: it is replaced when something happens to it.
_SAID: dict[int, tuple[Aggregate, str]] = {}
SAID_MAX = 200_000


def _said(aggregate: Aggregate) -> str:
    kept = _SAID.get(id(aggregate))
    if kept is not None and kept[0] is aggregate:
        return kept[1]
    if len(_SAID) >= SAID_MAX:
        _SAID.clear()
    facts = {name: value for name, value in vars(aggregate).items() if name not in _PAST}
    if isinstance(aggregate, Operation):
        facts |= {"started": _started(aggregate), "history": _history(aggregate)}
    if isinstance(aggregate, Finding):
        facts["found"] = aggregate.found and (aggregate.found.drift_class, aggregate.found.key)
    text = f"{type(aggregate).__name__} {aggregate.id} {facts}"
    _SAID[id(aggregate)] = (aggregate, text)
    return text


def _started(operation: Operation) -> tuple[Any, ...]:
    started = operation.started
    assert started is not None, "it is one of the log's"
    return started.flow, started.plan["hosts"], started.finding and started.finding["id"]


def _history(operation: Operation) -> tuple[Any, ...]:
    history = operation.history
    records = [
        (*at, record.status.value, min(record.attempts, TRIED), record.asked, sorted(record.errors))
        for at, record in history.records.items()
    ]
    active = [(run[1:], run.number == history.runs) for run in history.active.values()]
    flags = (
        history.unwinding,
        history.already_happened,
        history.overtaken_by_fence,
        sorted(history.begun),
    )
    return records, active, flags
