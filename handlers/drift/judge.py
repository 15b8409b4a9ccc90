"""What is made of a row: what drifts, what is believed of it, and when a look is not.

A difference is judged as of a position of the log.  It is explained, and so none, while an
operation has claimed what it concerns, and while something has happened to that since the
position.  It is believed when two looks have seen it, some time apart, in the same life of its
host.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregates.finding import Finding, FindingState, finding_uuid
from handlers.drift import rows
from handlers.drift.classes import CLASSES, DriftClass
from handlers.drift.rows import Party, Row

#: How many findings of one class a look may open and be believed: these, or this share of what it
#: compared, whichever is more.
BRAKE_COUNT, BRAKE_SHARE = 10, 0.01
#: How far apart two looks are, at least, of which the second confirms the first: longer than
#: Cinder's own retries and udev's settling take.
APART_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Under which circumstances a row was seen: by which look, as of when, of which life."""

    look_id: str
    position: int
    apart: bool = True  # from the look that saw it so first: at least apart_s ago
    moved_at: int = 0  # where in the log something happened to the subject last
    unknown_hosts: frozenset[str] = frozenset()
    boot_id: str | None = None
    epoch: int | None = None


def apart_s(drift_class: DriftClass) -> float:
    """How far apart two looks are, at least, of which the second confirms the first."""
    return max(APART_S, drift_class.lasts_s)


def drifting(row: Row) -> list[DriftClass]:
    """The classes of which this row is a case."""
    return [each for each, is_drift in _judged_of(row) if is_drift(row)]


def sound(row: Row) -> list[DriftClass]:
    """The classes of which this row is known to be no case."""
    if getattr(row, "unknown_hosts", ()):
        return []
    return [each for each, is_drift in _judged_of(row) if not is_drift(row)]


def _judged_of(row: Row) -> Sequence[tuple[DriftClass, Callable[[Any], bool]]]:
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
class Case:
    """A row that is a case of a class of drift, as a finding tells it."""

    drift_class: DriftClass
    key: rows.Key
    about: rows.About
    differs: Mapping[str, Any]

    @classmethod
    def of(cls, drift_class: DriftClass, row: Row) -> Case:
        differences = differs(row, drift_class.parties)
        return cls(
            drift_class=drift_class, key=rows.key_of(row), about=row.about, differs=differences
        )


def see(finding: Finding, drift_class: DriftClass, row: Row, sight: Sight) -> None:
    """A look sees the difference, and nothing explains it: what that makes of its finding."""
    see_case(finding, Case.of(drift_class, row), sight)


def see_case(finding: Finding, case: Case, sight: Sight) -> None:
    """The same, of a case that was seen before."""
    now, drift_class = dict(case.differs), case.drift_class
    at = {"look_id": sight.look_id, "at_position": sight.position}
    life = {"boot_id": sight.boot_id, "epoch": sight.epoch}
    if Party.HOST not in drift_class.parties:
        life = dict.fromkeys(life)
    suspected = finding.state is FindingState.SUSPECTED
    like_it = suspected and sight.moved_at > finding.seen_at  # and yet another difference
    other_life = suspected and (*life.values(),) != finding.seen_in  # which confirms nothing
    if finding.state in {None, FindingState.OVER}:
        finding.record(
            Finding.DriftFound,
            drift_class=drift_class.name,
            severity=drift_class.severity.value,
            subject=case.key.subject.value,
            key=case.key.id,
            **vars(case.about),
            differs=now,
            **at,
            **life,
        )
    elif like_it or other_life or now != finding.differs:
        finding.record(Finding.DriftChanged, differs=now, **at, **life)
    elif suspected and sight.apart:
        finding.record(Finding.DriftConfirmed, **at)


def miss(finding: Finding, sight: Sight) -> None:
    """A look of all parties sees it no more; of hosts that had a part in it, too."""
    open_ = finding.state not in {None, FindingState.OVER} and finding.repairing is None
    if open_ and not hosts_of(finding) & sight.unknown_hosts:
        finding.record(Finding.DriftGone, look_id=sight.look_id, at_position=sight.position)


def hosts_of(finding: Finding) -> frozenset[str]:
    """The hosts that had something to say of it; of a server those that show its guest."""
    on_host = finding.differs.get(Party.HOST.value)
    showing = [pair[0] for pair in on_host] if isinstance(on_host, list) else []
    own = finding.found.host if finding.found and Party.HOST.value in finding.differs else None
    return frozenset({*showing, own} - {None})


def braked(
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
