"""From a row to a finding: which differences are drift, when one is confirmed, when a look counts.

A difference is judged as of a position of the log.  An operation explains it, so that it is no
drift, if the operation has a claim on its subject, or if an event has touched the subject since
the position.  It is confirmed when two looks have seen it, some time apart, with the same boot id
and epoch of its hosts.

A look ends or changes only findings that it could have seen (decision 0092).  A finding stores the
hosts whose reports it rests on.  Only a look that has read all of them ends it.  The report of a
host that a look has not read stays; the reports of the others confirm the finding or change it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aggregates.base import About
from aggregates.finding import Finding, FindingState, finding_uuid
from handlers.drift import rows
from handlers.drift.classes import BY_NAME, CLASSES, DriftClass
from handlers.drift.rows import Party, Row, ServerRow

#: A look may open so many findings of one class, or this share of the rows that it compared,
#: whichever is more.  If it would open more, the class is suppressed.
BRAKE_COUNT, BRAKE_SHARE = 10, 0.01
#: Seconds between two looks, at least, if the second is to confirm what the first found: longer
#: than Cinder's retries and udev take.
APART_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sight:
    """When and how a row was observed.

    `heard`: the hosts that answered this look.  `lives`: of these, and of hosts whose older survey
    counts, by name: its `boot_id`, its `epoch`, and its age (`age_s`; 0: it answered this look).
    """

    look_id: str
    position: int  # of the log, at which the ledger's part was read
    apart: bool = True  # the first look that found it so is at least `apart_s` older
    moved_at: int = 0  # the position of the subject's last event
    heard: frozenset[str] = frozenset()
    lives: Mapping[str, Life] = field(default_factory=dict)


Life = Mapping[str, Any]


def apart_s(drift_class: DriftClass) -> float:
    """Seconds between the look that finds a case and one that may confirm it."""
    return max(APART_S, drift_class.lasts_s)


def drifting(row: Row) -> list[DriftClass]:
    """The classes of which this row is a case."""
    return [each for each, is_drift in _judged_of(row) if is_drift(row)]


def sound(row: Row) -> list[DriftClass]:
    """The classes of which this row is known to be no case; for a server see `miss`."""
    judged = ((each, is_drift(row)) for each, is_drift in _judged_of(row))
    return [each for each, is_so in judged if is_so is not None and not is_so]


def _judged_of(row: Row) -> Sequence[tuple[DriftClass, Callable[[Any], bool | None]]]:
    """The classes of this kind of row whose parties are all known, with their predicates."""
    return _JUDGED[type(row), rows.silent(row)]


#: By kind of row and silent parties; made once, because a look judges all rows of a cloud.
_JUDGED = {
    (kind, silent): [
        (each, each.is_drift)
        for each in CLASSES
        if each.row is kind and silent.isdisjoint(each.parties)
    ]
    for kind in rows.SUBJECTS
    for silent in rows.SILENT
}


def differs(row: Row, parties: Iterable[Party]) -> dict[str, Any]:
    """What each of these parties shows, as a finding stores it.

    The other parties are left out, because not every look reads them.
    """
    return {party.value: _plain(_SAYS[party](row)) for party in parties}


_SAYS: dict[Party, Callable[[Any], Any]] = {
    Party.LEDGER: lambda row: getattr(row, "ledger", None),
    Party.CINDER: lambda row: getattr(row, "cinder", None),
    Party.HOST: lambda row: getattr(row, "shown", None) or getattr(row, "connected", None),
}


def _plain(value: Any) -> Any:
    if value is rows.UNKNOWN:
        return value.value
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_plain(each) for each in value]
    return getattr(value, "value", value)


def id_of(drift_class: DriftClass, row: Row) -> str:
    """The finding's id."""
    return finding_id(drift_class, rows.key_of(row))


def finding_id(drift_class: DriftClass, key: rows.Key) -> str:
    return str(finding_uuid(drift_class.name, key.subject.value, key.id, key.host))


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A row that is a case of a class, as a finding stores it; `hosts`: whose reports show it."""

    drift_class: DriftClass
    key: rows.Key
    about: About
    differs: Mapping[str, Any]
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, drift_class: DriftClass, row: Row) -> Suspicion:
        hosts, told = drift_class.hosts_of(row), row
        if isinstance(row, ServerRow):
            told = replace(row, shown=tuple(pair for pair in row.shown if pair[0] in hosts))
        return cls(
            drift_class=drift_class,
            key=rows.key_of(row),
            about=row.about,
            differs=differs(told, drift_class.parties),
            hosts=hosts,
        )


def see(finding: Finding, drift_class: DriftClass, row: Row, sight: Sight) -> None:
    """Update the finding with a difference that a look has seen and no operation explains."""
    see_case(finding, Suspicion.of(drift_class, row), sight)


def see_case(finding: Finding, case: Suspicion, sight: Sight) -> None:
    """As `see`, with the case that was made of the row."""
    at = {"look_id": sight.look_id, "at_position": sight.position}
    if finding.state in {None, FindingState.OVER}:
        drift_class, subject = case.drift_class, {"subject": case.key.subject.value}
        named = {"drift_class": drift_class.name, "severity": drift_class.severity.value}
        told = _told(case, sight) | subject | named
        finding.record(Finding.DriftFound, key=case.key.id, **vars(case.about), **told, **at)
        return
    state, told = finding.state, _told(case, sight)
    if case.drift_class.row is ServerRow:
        if _is_contradicted_unheard(finding, told, sight.heard):
            return  # decided by the next look that asks that host
        told = _beside(finding, told, sight.heard)
    like_it = sight.moved_at > finding.seen_at  # the same values, but a new difference
    other_life = like_it or not _same_lives(finding, told["seen_on"])  # so it confirms nothing
    same = _same(finding, told) and not (state is FindingState.SUSPECTED and other_life)
    more = told["seen_on"].keys() > finding.seen_on.keys()
    if not same or more:
        finding.record(Finding.DriftChanged, **told, **at)
    again = state is FindingState.CONFIRMED or (state is FindingState.SUSPECTED and sight.apart)
    if same and again and finding.state is FindingState.SUSPECTED:
        finding.record(Finding.DriftConfirmed, **at)


def _told(case: Suspicion, sight: Sight) -> dict[str, Any]:
    """What a finding stores of a case: what differs, and the boot id and epoch of each host."""
    lives = {host: dict(sight.lives.get(host, {})) for host in sorted(case.hosts)}
    own = lives.get(case.about.host or "", {})
    shown = {name: own.get(name) for name in ("boot_id", "epoch")}
    return {"differs": dict(case.differs), "seen_on": lives, **shown}


def _is_contradicted_unheard(
    finding: Finding, told: Mapping[str, Any], heard: frozenset[str]
) -> bool:
    """Whether an older survey, which this look did not ask for, contradicts the finding."""
    then, now = _powers(finding.differs), _powers(told["differs"])
    older = (finding.seen_on.keys() & told["seen_on"].keys()) - heard
    return any(then.get(host) != now.get(host) for host in older)


def _beside(finding: Finding, told: dict[str, Any], heard: frozenset[str]) -> dict[str, Any]:
    """For a server: the reports of now, and the stored ones of hosts that did not answer."""
    kept = finding.seen_on.keys() - heard - told["seen_on"].keys()
    before = _powers(finding.differs)
    powers = {host: power for host, power in before.items() if host in kept}
    return {
        **told,
        "differs": _with_powers(told["differs"], {**powers, **_powers(told["differs"])}),
        "seen_on": {**told["seen_on"], **{host: finding.seen_on[host] for host in kept}},
    }


def _same(finding: Finding, told: Mapping[str, Any]) -> bool:
    """Whether all hosts that the finding rests on report the same; others may have joined."""
    now, then = told["differs"], finding.differs
    if finding.found is not None and BY_NAME[finding.found.drift_class].row is ServerRow:
        powers = {host: power for host, power in _powers(now).items() if host in finding.seen_on}
        now = _with_powers(now, powers)
    alike = all(_unchanged(then.get(party), now.get(party)) for party in then.keys() | now.keys())
    return alike and finding.seen_on.keys() <= told["seen_on"].keys()


#: Facts of a disk that a host cannot report while its guest is busy.
_AT_TIMES = frozenset({"recorded", "size_bytes", "device_bytes"})


def _unchanged(then: Any, now: Any) -> bool:
    """A fact of _AT_TIMES that one of them lacks is not compared."""
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        return bool(then == now)
    return all(
        then.get(name) == now.get(name)
        or (name in _AT_TIMES and None in (then.get(name), now.get(name)))
        for name in then.keys() | now.keys()
    )


def _powers(differs: Mapping[str, Any]) -> dict[str, str]:
    """For a server: the power state of its guest, by host."""
    return dict(differs[Party.HOST.value] or ())


def _with_powers(differs: Mapping[str, Any], powers: Mapping[str, str]) -> dict[str, Any]:
    pairs = [[host, powers[host]] for host in sorted(powers)]
    return {**differs, Party.HOST.value: pairs or None}


def _same_lives(finding: Finding, seen_on: Mapping[str, Life]) -> bool:
    return all(
        (life.get("boot_id"), life.get("epoch")) == (now.get("boot_id"), now.get("epoch"))
        for host, life in finding.seen_on.items()
        if (now := seen_on.get(host)) is not None
    )


def miss(finding: Finding, sight: Sight) -> None:
    """End the finding, if the look has heard all hosts that it rests on."""
    open_ = finding.state not in {None, FindingState.OVER} and finding.repairing is None
    if open_ and finding.seen_on.keys() <= sight.heard:
        finding.record(Finding.DriftGone, look_id=sight.look_id, at_position=sight.position)


def suppressed(
    opened: Mapping[str, int], compared: Mapping[str, int], believe: Container[str] = ()
) -> dict[str, int]:
    """The classes of which a look would open too many findings, and how many.

    `opened`: by class; `compared`: rows, by subject; `believe`: classes without a limit, because an
    operator said so.
    """
    found = {}
    for each in CLASSES:
        if each.row is None or each.name in believe:
            continue
        if opened.get(each.name, 0) > limit(compared.get(rows.SUBJECTS[each.row].value, 0)):
            found[each.name] = opened[each.name]
    return found


def limit(compared: int) -> float:
    """How many findings of a class a look may open, if it compared so many rows."""
    return max(BRAKE_COUNT, BRAKE_SHARE * compared)
