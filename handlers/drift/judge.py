"""What is made of a row: what drifts, what is believed of it, and when a look is not.

A difference is judged as of a position of the log.  It is explained, and so none, while an
operation has claimed what it concerns, and while something has happened to that since the
position.  It is believed when two looks have seen it, some time apart, in the same life of its
host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    apart: bool = True  # from the last look that saw it: at least APART_S ago
    unknown_hosts: frozenset[str] = frozenset()
    boot_id: str | None = None
    epoch: int | None = None


def drifting(row: Row) -> Iterator[DriftClass]:
    """The classes of which this row is a case."""
    return (each for each in _of(row) if rows.known(row, each.parties) and each.is_drift(row))


def sound(row: Row) -> Iterator[DriftClass]:
    """The classes of which this row is known to be no case."""
    if getattr(row, "unknown_hosts", ()):
        return iter(())
    return (each for each in _of(row) if rows.known(row, each.parties) and not each.is_drift(row))


def _of(row: Row) -> Iterator[DriftClass]:
    return (each for each in CLASSES if each.row is type(row))


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
    key = rows.key_of(row)
    return str(finding_uuid(drift_class.name, key.subject.value, key.id, key.host))


def see(finding: Finding, drift_class: DriftClass, row: Row, sight: Sight) -> None:
    """A look sees the difference, and nothing explains it: what that makes of its finding."""
    now = differs(row, drift_class.parties)
    at = {"look_id": sight.look_id, "at_position": sight.position}
    life = {"boot_id": sight.boot_id, "epoch": sight.epoch}
    if Party.HOST not in drift_class.parties:
        life = dict.fromkeys(life)
    if finding.state in {None, FindingState.OVER}:
        key = rows.key_of(row)
        finding.record(
            Finding.DriftFound,
            drift_class=drift_class.name,
            severity=drift_class.severity.value,
            subject=key.subject.value,
            key=key.id,
            **vars(row.about),
            differs=now,
            **at,
            **life,
        )
    elif now != finding.differs or (*life.values(),) != finding.seen_in:
        finding.record(Finding.DriftChanged, differs=now, **at, **life)
    elif finding.state is FindingState.SUSPECTED and sight.apart:
        finding.record(Finding.DriftConfirmed, **at)


def miss(finding: Finding, sight: Sight) -> None:
    """A look of all parties sees it no more; of hosts that had a part in it, too."""
    open_ = finding.state not in {None, FindingState.OVER} and finding.repairing is None
    if open_ and not hosts_of(finding) & sight.unknown_hosts:
        finding.record(Finding.DriftGone, look_id=sight.look_id, at_position=sight.position)


def hosts_of(finding: Finding) -> frozenset[str]:
    """The hosts that had something to say of it; of a server those that show its guest."""
    told = finding.differs.get(Party.HOST.value)
    showing = [pair[0] for pair in told] if isinstance(told, list) else []
    own = finding.found.host if finding.found and Party.HOST.value in finding.differs else None
    return frozenset({*showing, own} - {None})


def braked(opened: Mapping[str, int], compared: Mapping[str, int]) -> dict[str, int]:
    """The classes of which a look would open too many findings to be believed, and how many.

    `opened`: by class; `compared`: rows by subject.
    """
    found = {}
    for each in CLASSES:
        if each.row is None:
            continue
        limit = max(BRAKE_COUNT, BRAKE_SHARE * compared.get(rows.SUBJECTS[each.row].value, 0))
        if opened.get(each.name, 0) > limit:
            found[each.name] = opened[each.name]
    return found
