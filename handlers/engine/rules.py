"""What a log alone shows of the ledger's invariants: one sentence each, and how to see it broken.

The explorer of tests/model holds every step of every story against them, the storms hold theirs,
and `event verify --rules` any log.  A rule is asked about what one append stored, between the
aggregates as they were before it and as they are after it.  Two more are asked of a ledger at rest.

What only the world can show (two guests that write to one volume, a volume deleted under a guest)
no log has: those rules are the explorer's own (tests/model/world.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate, Event
from aggregates.catalogue import AGGREGATES
from aggregates.finding import Finding, FindingState
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.look import Look, LookState
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation, OperationState
from aggregates.remnant import Remnant, RemnantState
from aggregates.volume import Volume
from handlers.engine.engine import pivot_passed
from handlers.engine.fences import vouches
from handlers.engine.plan import plan_of, volumes_of

A = TypeVar("A", bound=Aggregate)

_IN_USE = frozenset({AttachmentState.CONNECTED, AttachmentState.ATTACHED})


class AggregateReader(Protocol):
    """Aggregates by id; one that has no events is of version 0."""

    def get(self, kind: type[A], id: str) -> A: ...  # noqa: A002


class StoredAppend(NamedTuple):
    """What was stored at once, and the ledger before and after it."""

    events: Sequence[Any]
    before: AggregateReader
    after: AggregateReader


@dataclass(frozen=True, kw_only=True)
class LogRule:
    """`broken`: whether an event of this kind, in this append, breaks it."""

    name: str
    sentence: str
    kind: type[Event]
    broken: Callable[[Any, StoredAppend], bool]


@dataclass(frozen=True)
class Broken:
    """A rule that an event has broken.  `position`: of the event in the log; `about`: of whom."""

    position: int
    rule: str
    sentence: str
    event: str
    about: str

    def __str__(self) -> str:
        return f"position {self.position}, {self.event} {self.about}: {self.rule}: {self.sentence}"


# --- the rules -----------------------------------------------------------------------------------


def _is_shared(volume_id: str, append: StoredAppend) -> bool:
    """Multi-attach, by the claim of who works on it now, or by a server's mapping."""
    volumes = [book.get(Volume, volume_id) for book in (append.before, append.after)]
    if any(claim.shared for volume in volumes for claim in volume.claims.values()):
        return True
    servers = {server_id for volume in volumes for server_id in volume.holders.values()}
    devices = [append.after.get(Instance, id_).device_of(volume_id) for id_ in servers]
    mappings = (append.after.get(BlockDeviceMapping, each.bdm_id) for each in devices if each)
    return any(mapping.multiattach for mapping in mappings)


def _second_server(event: Volume.Held, append: StoredAppend) -> bool:
    volume = append.after.get(Volume, str(event.originator_id))
    return len(set(volume.holders.values())) > 1 and not _is_shared(str(volume.id), append)


def _second_connection(event: Attachment.ConnectorUpdated, append: StoredAppend) -> bool:
    own = append.after.get(Attachment, str(event.originator_id))
    volume = append.after.get(Volume, own.volume_id or "")
    moves = _is_moving(append.after.get(Instance, own.server_id or ""))
    others = [append.after.get(Attachment, id_) for id_ in volume.holders if id_ != str(own.id)]
    return any(
        not moves if other.server_id == own.server_id else not _is_shared(str(volume.id), append)
        for other in others
        if other.may_be_connected
    )


def _is_moving(instance: Instance) -> bool:
    """Whether an operation takes it from one host, or one attachment, to another."""
    claims = instance.claims.values()
    at_work = any(claim.exclusive or claim.flow == "replace_attachment" for claim in claims)
    return at_work or instance.resize_source is not None


def _unproven(event: Attachment.Disconnected, append: StoredAppend) -> bool:
    """By its host's own result, by a person's word, or by that host's fence."""
    attachment = append.before.get(Attachment, str(event.originator_id))
    if event.converted_to is not None or attachment.state not in _IN_USE:
        return False
    done = [each for each in append.events if isinstance(each, Operation.StepSucceeded)]
    if event.waived is None:
        return not any(each.host == attachment.host for each in done)
    fences = {each.outputs.get("fenced_host") for each in done} & {attachment.host}
    stands = any(append.after.get(Host, str(name)).fenced for name in fences)
    return not stands and not any(isinstance(e, Operation.StepSkipped) for e in append.events)


def _deleted_in_use(event: Volume.VolumeDeleted, append: StoredAppend) -> bool:
    volume = append.after.get(Volume, str(event.originator_id))
    held = (append.after.get(Attachment, id_) for id_ in volume.holders)
    return any(attachment.may_be_connected for attachment in held)


def _out_of_epoch(event: Operation.StepSucceeded, append: StoredAppend) -> bool:
    if event.host is None:
        return False
    operation = append.before.get(Operation, str(event.originator_id))
    run = operation.history.active.get(event.lane)
    host = append.before.get(Host, event.host)
    return run is not None and run.number == event.run and run.epoch != host.epoch


def _untrusted(event: Operation.RunStarted, append: StoredAppend) -> bool:
    """What is refused is recorded, too: such a run has failed in the same append."""
    failed = (each for each in append.events if isinstance(each, Operation.StepFailed))
    if event.undo or event.host is None or any(each.run == event.run for each in failed):
        return False
    operation = append.after.get(Operation, str(event.originator_id))
    plan = plan_of(operation)
    trusted = plan.hosts.get(plan.trusts) if plan.trusts else None
    if trusted is None or pivot_passed(plan, operation.history) or operation.started is None:
        return False
    host = append.after.get(Host, trusted)
    return not vouches(host, append.after.get(Instance, operation.started.server_id))


def _claims_left(event: Operation.OperationFinished, append: StoredAppend) -> bool:
    return _has_claim(append.after.get(Operation, str(event.originator_id)), append.after)


def _has_claim(operation: Operation, book: AggregateReader) -> bool:
    """Whether it holds its server, or a volume."""
    assert operation.started is not None, "an operation is never without its first event"
    volumes = (book.get(Volume, id_) for id_ in volumes_of(operation))
    id_ = str(operation.id)
    server = book.get(Instance, operation.started.server_id)
    return id_ in server.claims or any(id_ in volume.claims for volume in volumes)


RULES = (
    LogRule(
        name="one_server",
        sentence="A volume that is not multi-attach is held by one server.",
        kind=Volume.Held,
        broken=_second_server,
    ),
    LogRule(
        name="one_connection",
        sentence="A volume that is not multi-attach is connected once, but while its server moves.",
        kind=Attachment.ConnectorUpdated,
        broken=_second_connection,
    ),
    LogRule(
        name="proven_disconnect",
        sentence="A connection is over by its host's own word, by its fence, or a person's word.",
        kind=Attachment.Disconnected,
        broken=_unproven,
    ),
    LogRule(
        name="nothing_deleted_in_use",
        sentence="No volume is deleted while a host may have it connected.",
        kind=Volume.VolumeDeleted,
        broken=_deleted_in_use,
    ),
    LogRule(
        name="own_epoch",
        sentence="A host's result counts only in the epoch in which the host was asked.",
        kind=Operation.StepSucceeded,
        broken=_out_of_epoch,
    ),
    LogRule(
        name="standing_fence",
        sentence="What rests on a fence is begun only while the fence stands, and is newer than "
        "the guest's arrival.",
        kind=Operation.RunStarted,
        broken=_untrusted,
    ),
    LogRule(
        name="claims_released",
        sentence="An operation that has ended claims nothing.",
        kind=Operation.OperationFinished,
        broken=_claims_left,
    ),
)
#: Of what a log shows by itself, whichever kind the event is of.
IN_ORDER = ("in_order", "An event follows the one before it, in a state that allows it.")
#: Of a ledger at rest: nothing is under way that would change it.
OWNED = (
    "owned",
    "Every reservation and every connection has a mapping, an operation, a finding or a remnant.",
)
CLAIMED = ("claimed", "Every operation that has not ended claims what it works on.")

_BY_KIND: dict[type[Event], list[LogRule]] = {
    kind: [rule for rule in RULES if rule.kind is kind] for kind in {rule.kind for rule in RULES}
}


def broken_by(append: StoredAppend) -> Iterator[tuple[LogRule, Any]]:
    """Every rule that an event of this append breaks, with that event; not of what others did."""
    for event in append.events:
        if event.seen is not None:
            continue
        for rule in _BY_KIND.get(type(event), ()):
            if rule.broken(event, append):
                yield rule, event


_OVER = {None, AttachmentState.DELETED, AttachmentState.RENAMED}


def ownerless(all_of: Iterable[Aggregate], book: AggregateReader) -> Iterator[Attachment]:
    """The open attachments among these aggregates that nobody of them answers for."""
    known = list(all_of)
    told = {id_ for each in known if (id_ := _tells_of(each)) is not None}
    for each in known:
        if not isinstance(each, Attachment) or each.state in _OVER:
            continue
        if each.origin is not None:
            continue  # whose it is answers for it
        if str(each.id) not in told and not _is_owned(each, book):
            yield each


def _tells_of(aggregate: Aggregate) -> str | None:
    """The attachment that an open finding, or a remnant nobody has seen to, is about."""
    is_open = (
        isinstance(aggregate, Finding) and aggregate.state not in {None, FindingState.OVER}
    ) or (isinstance(aggregate, Remnant) and aggregate.state is RemnantState.OPEN)
    return aggregate.about().attachment_id if is_open else None


def _is_owned(attachment: Attachment, book: AggregateReader) -> bool:
    instance = book.get(Instance, attachment.server_id or "")
    if instance.claims or book.get(Volume, attachment.volume_id or "").claims:
        return True
    mappings = (book.get(BlockDeviceMapping, bdm_id) for bdm_id in instance.devices)
    return any(str(attachment.id) in {m.attachment_id, m.kept} for m in mappings if m.live)


def claimless(all_of: Iterable[Aggregate], book: AggregateReader) -> Iterator[Operation]:
    """The operations that have not ended, and claim nothing."""
    for each in all_of:
        if not isinstance(each, Operation) or each.state in {None, OperationState.FINISHED}:
            continue
        if not _has_claim(each, book):
            yield each


# --- a log ---------------------------------------------------------------------------------------

_NOBODY = UUID(int=0)
KINDS: dict[str, type[Aggregate]] = {kind.__name__: kind for kind in AGGREGATES}
_ENDED = {
    Attachment: AttachmentState.DELETED,
    BlockDeviceMapping: MappingState.ENDED,
    Look: LookState.ENDED,
    Operation: OperationState.FINISHED,
    Remnant: RemnantState.ACKNOWLEDGED,
}


class Replay:
    """A log read from its first event, append by append.

    What has come to its end is forgotten, so it keeps of a log about what is there now.
    """

    def __init__(self) -> None:
        self._known: dict[UUID, Aggregate] = {}
        self._at: dict[UUID, int] = {}  # the position of each one's last event

    def follow(self, events: Sequence[tuple[int, Any]]) -> Iterator[Broken]:
        """The rules that the next append breaks; it has these events, with their positions."""
        before: dict[UUID, Aggregate] = {}
        positions = {id(event): position for position, event in events}
        for position, event in events:
            if self._follow(event, before):
                yield _broken(position, *IN_ORDER, event)
            self._at[event.originator_id] = position
        only = [event for _, event in events]
        for rule, event in broken_by(
            StoredAppend(only, _Book(self._known, before), _Book(self._known))
        ):
            yield _broken(positions[id(event)], rule.name, rule.sentence, event)
        for id_ in before:
            known = self._known[id_]
            if known.state is _ENDED.get(type(known), known):
                del self._known[id_], self._at[id_]

    def rest(self) -> Iterator[Broken]:
        """What is broken now, if the log ends here and nothing is under way."""
        book, known = _Book(self._known), list(self._known.values())
        for attachment in ownerless(known, book):
            yield _broken(self._at[attachment.id], *OWNED, attachment)
        for operation in claimless(known, book):
            yield _broken(self._at[operation.id], *CLAIMED, operation)

    def _follow(self, event: Event, before: dict[UUID, Aggregate]) -> bool:
        """Apply it; whether it was not in its place."""
        id_, kind = event.originator_id, KINDS[type(event).__qualname__.partition(".")[0]]
        known = self._known.get(id_) or kind(id_)
        if id_ not in before:
            before[id_] = known
            known = self._known[id_] = known.fork()
        allowed = known.TRANSITIONS.get(type(event), (None,))[0]
        misplaced = allowed is not None and known.state not in allowed
        missing = event.originator_version != known.version + 1
        known.follow([event])
        return misplaced or missing


class _Book:
    """These aggregates; of `first` in their place, where it has them."""

    def __init__(
        self, known: Mapping[UUID, Aggregate], first: Mapping[UUID, Aggregate] | None = None
    ) -> None:
        self._known, self._first = known, first or {}

    def get(self, kind: type[A], id: str) -> A:  # noqa: A002
        id_ = kind.id_of(id) if id else _NOBODY
        found = self._first.get(id_) or self._known.get(id_)
        return found if isinstance(found, kind) else kind(id_)


def _broken(position: int, rule: str, sentence: str, what: Event | Aggregate) -> Broken:
    if isinstance(what, Event):
        return Broken(position, rule, sentence, type(what).TOPIC, str(what.originator_id))
    return Broken(position, rule, sentence, type(what).__name__, str(what.id))
