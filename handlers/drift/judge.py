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

#: How many findings of one class a look may open and be believed: these, or this share of what it
#: compared, whichever is more.
BRAKE_COUNT, BRAKE_SHARE = 10, 0.01
#: How far apart two looks are, at least, of which the second confirms the first: longer than
#: Cinder's own retries and udev's settling take.
APART_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Under which circumstances a row was seen: by which look, as of when, of which lives.

    `heard`: the hosts that this look has asked, and that have answered.  `lives`: of these, and of
    hosts whose older survey counts: its `boot_id`, its `epoch`, and its age (`age_s`; 0: asked).
    """

    look_id: str
    position: int
    apart: bool = True  # from the look that saw it so first: at least apart_s ago
    moved_at: int = 0  # where in the log something happened to the subject last
    heard: frozenset[str] = frozenset()
    lives: Mapping[str, Life] = field(default_factory=dict)


Life = Mapping[str, Any]


def apart_s(drift_class: DriftClass) -> float:
    """How far apart two looks are, at least, of which the second confirms the first."""
    return max(APART_S, drift_class.lasts_s)


def drifting(row: Row) -> list[DriftClass]:
    """The classes of which this row is a case."""
    return [each for each, is_drift in _judged_of(row) if is_drift(row)]


def sound(row: Row) -> list[DriftClass]:
    """The classes of which this row is known to be no case (of a server: `miss`)."""
    judged = ((each, is_drift(row)) for each, is_drift in _judged_of(row))
    return [each for each, is_so in judged if is_so is not None and not is_so]


def _judged_of(row: Row) -> Sequence[tuple[DriftClass, Callable[[Any], bool | None]]]:
    """The classes of such rows of which all parties have said what they have to say."""
    return _JUDGED[type(row), rows.silent(row)]


#: A look judges all rows of a cloud: by row, and by who is silent.
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
    """What each of these parties says of the row, as a finding keeps it.

    Not what the others say: of one row they are asked at one time, and not at another.
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
    """A row that is a case of a class of drift, as a finding tells it; `hosts`: by whose word."""

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
    """A look sees the difference, and nothing explains it: what that makes of its finding."""
    see_case(finding, Suspicion.of(drift_class, row), sight)


def see_case(finding: Finding, case: Suspicion, sight: Sight) -> None:
    """The same, of a case that was seen before."""
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
            return  # the look that asks that host again will say
        told = _beside(finding, told, sight.heard)
    like_it = sight.moved_at > finding.seen_at  # and yet another difference
    other_life = like_it or not _same_lives(finding, told["seen_on"])  # which confirms nothing
    same = _same(finding, told) and not (state is FindingState.SUSPECTED and other_life)
    more = told["seen_on"].keys() > finding.seen_on.keys()
    if not same or more:
        finding.record(Finding.DriftChanged, **told, **at)
    again = state is FindingState.CONFIRMED or (state is FindingState.SUSPECTED and sight.apart)
    if same and again and finding.state is FindingState.SUSPECTED:
        finding.record(Finding.DriftConfirmed, **at)


def _told(case: Suspicion, sight: Sight) -> dict[str, Any]:
    """What a finding keeps of a case: what differs, and in which lives of which hosts."""
    lives = {host: dict(sight.lives.get(host, {})) for host in sorted(case.hosts)}
    own = lives.get(case.about.host or "", {})
    shown = {name: own.get(name) for name in ("boot_id", "epoch")}
    return {"differs": dict(case.differs), "seen_on": lives, **shown}


def _is_contradicted_unheard(
    finding: Finding, told: Mapping[str, Any], heard: frozenset[str]
) -> bool:
    """Whether a host tells otherwise than before by a survey that this look has not asked for."""
    then, now = _powers(finding.differs), _powers(told["differs"])
    older = (finding.seen_on.keys() & told["seen_on"].keys()) - heard
    return any(then.get(host) != now.get(host) for host in older)


def _beside(finding: Finding, told: dict[str, Any], heard: frozenset[str]) -> dict[str, Any]:
    """Of a server: what is told now, and what hosts told before that this look has not heard."""
    kept = finding.seen_on.keys() - heard - told["seen_on"].keys()
    before = _powers(finding.differs)
    powers = {host: power for host, power in before.items() if host in kept}
    return {
        **told,
        "differs": _with_powers(told["differs"], {**powers, **_powers(told["differs"])}),
        "seen_on": {**told["seen_on"], **{host: finding.seen_on[host] for host in kept}},
    }


def _same(finding: Finding, told: Mapping[str, Any]) -> bool:
    """Whether all by whose word it was found say the same as then; others may say it, too."""
    now, then = told["differs"], finding.differs
    if finding.found is not None and BY_NAME[finding.found.drift_class].row is ServerRow:
        powers = {host: power for host, power in _powers(now).items() if host in finding.seen_on}
        now = _with_powers(now, powers)
    alike = all(_alike(then.get(party), now.get(party)) for party in then.keys() | now.keys())
    return alike and finding.seen_on.keys() <= told["seen_on"].keys()


#: What a host tells of a disk at times only: not while its guest is busy.
_AT_TIMES = frozenset({"recorded", "size_bytes", "device_bytes"})


def _alike(then: Any, now: Any) -> bool:
    """Who does not tell has changed nothing."""
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        return bool(then == now)
    return all(
        then.get(name) == now.get(name)
        or (name in _AT_TIMES and None in (then.get(name), now.get(name)))
        for name in then.keys() | now.keys()
    )


def _powers(differs: Mapping[str, Any]) -> dict[str, str]:
    """Of a server: its guest's power state by the hosts that show it."""
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
    """A look sees it no more that has heard all hosts by whose word it was found."""
    open_ = finding.state not in {None, FindingState.OVER} and finding.repairing is None
    if open_ and finding.seen_on.keys() <= sight.heard:
        finding.record(Finding.DriftGone, look_id=sight.look_id, at_position=sight.position)


def suppressed(
    opened: Mapping[str, int], compared: Mapping[str, int], believe: Container[str] = ()
) -> dict[str, int]:
    """The classes of which a look would open too many findings to be believed, and how many.

    `opened`: by class; `compared`: rows by subject; `believe`: classes of which somebody has said
    that so many are to be believed.
    """
    found = {}
    for each in CLASSES:
        if each.row is None or each.name in believe:
            continue
        if opened.get(each.name, 0) > limit(compared.get(rows.SUBJECTS[each.row].value, 0)):
            found[each.name] = opened[each.name]
    return found


def limit(compared: int) -> float:
    """How many new findings of a class are believed of a look that compared so many rows."""
    return max(BRAKE_COUNT, BRAKE_SHARE * compared)
