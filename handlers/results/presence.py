"""Who may still have a server's guest or its volumes (design D19, decision 0088).

Rule: *presence beats absence.*  Before a flow starts a guest, or frees, forgets or deletes
something, this module searches everything that the ledger knows for signs that another host has it.
One sign in a place that the flow does not itself clear is a refusal.  A host that could have it and
has not been able to report counts as a sign, unless it is fenced: then an operator has stated, with
a reason and evidence, that nothing runs there.

Signs are: what hosts show in their inventories (`Instance.elsewhere`, `Volume.shown`, which are in
the log); open findings of classes that show something (`DriftClass.shows`); hosts that returned
from a fence and have not shown yet what they hold; and, once a server's own host has lost its
guest, every host that has not shown since that it does not have it.

After a restore from an older backup any host may have anything, until an operator has vouched for
it (`_refuse_unvouched`, decision 0109).

The inventories are checked again before each run that would start or free something.  So a guest
that appears while a flow is in progress stops it there: it is undone, or parks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from aggregates import errors
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.volume import Volume
from handlers.drift.classes import CLASSES
from handlers.drift.rows import Party, ServerRow
from handlers.engine.plan import Ask, Plan, Side
from handlers.engine.verbs import VERBS
from handlers.flows import FLOWS
from handlers.results.meaning import Book
from host_agent.shared.contract.messages import Verb

#: Open findings of these are signs of a server's guest; of a volume.
SHOW_GUESTS = frozenset(each.name for each in CLASSES if each.shows and each.row is ServerRow)
SHOW_VOLUMES = frozenset(each.name for each in CLASSES if each.shows) - SHOW_GUESTS
#: While one of these is open, nobody knows what a disk of the volume is: nothing is repaired.
STOP_REPAIRS = frozenset(each.name for each in CLASSES if each.stops_repairs)
#: Signs that a refusal names; there may be as many as hosts.
SIGNS_NAMED_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Something that shows a guest or a volume: `what`, on which host, and how that is known."""

    what: str
    host: str
    known_by: str

    def __str__(self) -> str:
        return f"{self.what} on host {self.host} ({self.known_by})"


@dataclass(frozen=True, kw_only=True)
class ShowingFinding:
    """An open finding that shows a server's guest (`volume_id` None) or a volume on these hosts."""

    finding_id: str
    drift_class: str
    hosts: tuple[str, ...]
    volume_id: str | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """From the columns of an open finding of such a class."""
        return cls(
            finding_id=str(found["finding_id"]),
            drift_class=found["drift_class"],
            hosts=tuple(_hosts_of(found["host"], found["differs"])),
            volume_id=None if found["drift_class"] in SHOW_GUESTS else str(found["volume_id"]),
        )


def _hosts_of(host: str | None, differs: Mapping[str, Any]) -> list[str]:
    """The hosts that show it; several can show a guest."""
    on_hosts = differs.get(Party.HOST.value)
    if isinstance(on_hosts, list):
        return [name for name, _ in on_hosts]
    return [host] if host else []


@dataclass(frozen=True, kw_only=True)
class OthersShown:
    """What the read side knows of a server's guest and some volumes at one moment.

    `findings`: the open ones that show the guest, or one of the volumes.  `in_doubt`: the hosts
    that nobody has vouched for since a restore (Host.in_doubt).
    """

    findings: Sequence[ShowingFinding] = ()
    in_doubt: Sequence[str] = ()


class Sightings(Protocol):
    """What the read side knows (ledger.core.requests.Fleet).

    `unaccounted`: the hosts that have not shown, since the server's own host lost its guest, that
    they do not have it; without fenced hosts.
    """

    @property
    def shown(self) -> Callable[[str, Sequence[str]], OthersShown]: ...
    @property
    def unaccounted(self) -> Callable[[str], Iterable[str]]: ...


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a plan works on: its server and volumes; the hosts where it removes the guest; and the
    hosts that it asks itself.
    """

    plan: Plan
    instance: Instance
    volumes: Sequence[Volume]
    cleared: frozenset[str]
    looked_at: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, server_id: str, book: Book) -> Question:
        ids = set().union(*(lane.volume_ids for lane in plan.lanes)) - {""}
        return cls(
            plan=plan,
            instance=book.get(Instance, server_id),
            volumes=[book.get(Volume, id_) for id_ in sorted(ids)],
            cleared=_hosts_doing(Verb.GUEST_REMOVE, plan),
            looked_at=_hosts_doing(Verb.DRIFT_LOOK, plan),
        )


def _hosts_doing(verb: Verb, plan: Plan) -> frozenset[str]:
    """The hosts on which the plan has such a step."""
    places = {s.place for s in plan.stages if any(step.do is verb for step in s.steps)}
    lanes = range(len(plan.lanes)) if plan.lanes else ()
    hosts = {plan.hosts.get(place) for place in places}
    hosts |= {plan.host_of(lane, place) for place in places for lane in lanes}
    return frozenset(host for host in hosts if host is not None)


def asks_of(plan: Plan) -> Ask:
    """What the plan's flow asks (`Flow.asks`); everything, if the flow no longer exists."""
    flow = FLOWS.get(plan.flow)
    return flow.asks if flow else Ask.VOLUMES


def is_asked(plan: Plan, steps: Iterable[str], *, undo: bool) -> bool:
    """Whether these steps start or free something.

    A move deletes the former attachment when the server has another one: that frees nothing.
    """
    keeps = any(stage.side is Side.NEW for stage in plan.stages)
    kept = Verb.ATTACHMENT_DELETE if keeps else None
    verbs = (plan.step(name).undo if undo else plan.step(name).do for name in steps)
    rows = [VERBS[verb] for verb in verbs if verb not in {None, kept}]
    changes = any(row.starts or row.frees for row in rows)
    return changes and asks_of(plan) is not Ask.NOTHING


def signs(question: Question, book: Book) -> Iterator[Sign]:
    """The signs in the log that another host has what the plan works on."""
    yield from _of_guest(question, book)
    if asks_of(question.plan) is Ask.VOLUMES:
        for volume in question.volumes:
            yield from _of_volume(volume, question, book)


def refuse_in_doubt(plan: Plan, book: Book) -> None:
    """Raises HostUnvouchedError if the plan concerns a host that nobody has vouched for since a
    restore.
    """
    hosts = {*plan.hosts.values(), *(lane.host for lane in plan.lanes)}
    for name in sorted(filter(None, hosts)):
        if _host(name, book).in_doubt:
            raise errors.HostUnvouchedError(host=name)


def refuse(plan: Plan, server_id: str, book: Book, known: Sightings, repaired: str | None) -> None:
    """Raises ShownElsewhereError if another host shows what the plan works on, or may have it;
    HostUnvouchedError if such a host is not vouched for after a restore.

    `repaired`: the finding that the plan repairs; it is no sign against the plan.  RepairError if
    another finding says that a disk of its volume may have other data.
    """
    refuse_in_doubt(plan, book)
    if repaired is None and asks_of(plan) is Ask.NOTHING:
        return
    question = Question.of(plan, server_id, book)
    shown = known.shown(server_id, [str(volume.id) for volume in question.volumes])
    for name in shown.in_doubt:  # it may have what is repaired, started, freed or deleted
        raise errors.HostUnvouchedError(host=name)
    if repaired is not None:
        _refuse_other_data(shown.findings, repaired)
    if asks_of(plan) is Ask.NOTHING:
        return
    found = [*signs(question, book), *_of_findings(question, book, shown.findings, repaired)]
    if not found and question.instance.is_unaccounted:
        found = list(_unaccounted(question, known))
    if found:
        raise refusal(question, found)


def _refuse_other_data(findings: Iterable[ShowingFinding], repaired: str) -> None:
    for each in findings:
        if each.drift_class in STOP_REPAIRS and each.finding_id != repaired:
            why = (
                f"finding {each.finding_id} ({each.drift_class}) says that a disk of volume "
                f"{each.volume_id} may be other data: see to that first."
            )
            raise errors.RepairError(finding_id=repaired, why=why)


def refusal(question: Question, found: Sequence[Sign]) -> errors.ShownElsewhereError:
    """The error with these signs."""
    named = "; ".join(map(str, found[:SIGNS_NAMED_MAX]))
    more = len(found) - SIGNS_NAMED_MAX
    return errors.ShownElsewhereError(
        flow=question.plan.flow,
        server_id=str(question.instance.id),
        signs=f"{named}; and {more} more" if more > 0 else named,
    )


def elsewhere(instance: Instance, book: Book) -> Iterator[Sign]:
    """The hosts, other than the server's own, whose inventories show its guest."""
    for host, seen in sorted(instance.elsewhere.items()):
        if host not in instance.places and not _fenced_since(host, seen.epoch, book):
            yield Sign(what=f"its guest ({seen.power_state})", host=host, known_by=_BY_AGENT)


def _of_guest(question: Question, book: Book) -> Iterator[Sign]:
    instance = question.instance
    for each in elsewhere(instance, book):
        if each.host not in question.cleared:
            yield each
    for name in sorted(instance.left_on - question.cleared):
        back = _host(name, book)
        if back.suspect and not back.fenced:
            yield Sign(what="perhaps its guest", host=name, known_by=_SUSPECT)


def _of_volume(volume: Volume, question: Question, book: Book) -> Iterator[Sign]:
    for (host, server_id), epoch in sorted(volume.shown.items()):
        own = server_id == str(question.instance.id)
        if own and host in question.cleared:
            continue
        if is_mapped(book.get(Instance, server_id), host, str(volume.id)):
            continue
        if not _fenced_since(host, epoch, book):
            what = f"volume {volume.id} in the guest of server {server_id}"
            yield Sign(what=what, host=host, known_by=_BY_AGENT)


def is_mapped(instance: Instance, host: str, serial: str) -> bool:
    """Whether the server's guest on this host must have a disk with this serial.

    After a swap a disk keeps the serial with which it was plugged.
    """
    return host in instance.places and any(
        serial in {device.serial, device.volume_id} for device in instance.devices.values()
    )


def _of_findings(
    question: Question, book: Book, findings: Iterable[ShowingFinding], repaired: str | None
) -> Iterator[Sign]:
    instance = question.instance
    classes = SHOW_GUESTS
    if asks_of(question.plan) is Ask.VOLUMES:
        classes = classes | SHOW_VOLUMES
    for each in findings:
        is_sign = each.drift_class in classes
        if each.finding_id == repaired or not is_sign:
            continue
        of = "its guest" if each.volume_id is None else f"volume {each.volume_id}"
        own = instance.places if each.volume_id is None else frozenset()
        for host in each.hosts:
            # No fenced host is asked for a survey, so its word is older than its fence.
            if host not in own | question.cleared and not _host(host, book).fenced:
                by = f"finding {each.finding_id}, {each.drift_class}"
                yield Sign(what=of, host=host, known_by=by)


def _unaccounted(question: Question, known: Sightings) -> Iterator[Sign]:
    silent = set(known.unaccounted(str(question.instance.id))) - question.cleared
    for host in sorted(silent - question.instance.places - question.looked_at):
        yield Sign(what="perhaps its guest", host=host, known_by=_UNSEEN)


_BY_AGENT = "its agent shows it"
_SUSPECT = "it was unfenced, and has not shown yet what it holds"
_UNSEEN = "it has not said since the guest was lost that it does not have it; it has been asked"


def _fenced_since(name: str, epoch: int, book: Book) -> bool:
    """Whether a fence of the host is newer than what it showed."""
    host = _host(name, book)
    return host.fenced and epoch < host.epoch


def _host(name: str, book: Book) -> Host:
    return book.get(Host, name)
