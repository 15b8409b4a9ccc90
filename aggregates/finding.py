"""A finding: one difference between two parties about one subject, from first sight to end.

Its id is derived from the class of drift and the subject, so a difference that returns is the same
finding.  Invariant: only a second look confirms a finding, and only a confirmed one may be
repaired.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

from aggregates.base import About, Aggregate, Event


class FindingState(StrEnum):
    """Where a finding stands."""

    SUSPECTED = "suspected"  # one look has seen it -> confirmed, over
    CONFIRMED = "confirmed"  # a second one, too -> ignored, over
    IGNORED = "ignored"  # somebody said so, perhaps until a moment -> confirmed, over
    OVER = "over"  # gone by itself, or repaired -> suspected


#: Seconds since the epoch: the last second of the year 9999, after which Python has no moments.
UNTIL_MAX_S = 253402300799.0


def finding_uuid(drift_class: str, subject: str, key: str, host: str | None) -> UUID:
    """The aggregate id of a class of drift and its subject (handlers.drift.rows.Key)."""
    return uuid5(NAMESPACE_URL, f"drift/{drift_class}/{subject}/{host or ''}/{key}")


class Finding(Aggregate):
    """`differs`: the statements of each party, by party and name; only what shows the
    difference.
    """

    class DriftFound(Event):
        """A look has found a difference, as of the position `at_position` of the log.

        `subject`, `key`: what differs (handlers.drift.rows.Key).  `seen_on`: the hosts whose
        surveys show it, each with the `boot_id` and `epoch` of its survey and its age (`age_s`);
        only a look with the same boot ids and epochs confirms it.  `boot_id`, `epoch`: of `host`.
        """

        drift_class: str
        severity: str
        subject: str
        key: str
        server_id: str | None
        volume_id: str | None
        attachment_id: str | None
        host: str | None
        differs: dict[str, Any]
        look_id: str
        at_position: int
        boot_id: str | None = None
        epoch: int | None = None
        seen_on: dict[str, Any] = field(default_factory=dict)

    class DriftConfirmed(Event):
        """A second look has found the same difference, without an event of its subject between."""

        look_id: str
        at_position: int

    class DriftChanged(Event):
        """The difference has changed; it has to be confirmed again."""

        differs: dict[str, Any]
        look_id: str
        at_position: int
        boot_id: str | None = None
        epoch: int | None = None
        seen_on: dict[str, Any] = field(default_factory=dict)

    class DriftGone(Event):
        """A look that read every host of `seen_on` no longer finds it; no repair is running."""

        look_id: str
        at_position: int

    class DriftIgnored(Event):
        """An operator ignores the finding, `until` then (seconds since 1970); None: permanently."""

        reason: str
        until: float | None = None

    class DriftHeeded(Event):
        """The finding is no longer ignored: its time is over, or an operator has ended it."""

        reason: str

    class RepairBegun(Event):
        """An operation has started to repair the finding."""

        repair: str
        by_operation: str
        reason: str
        automatic: bool = False

    class DriftRepaired(Event):
        """The operation has repaired the finding."""

        by_operation: str

    class RepairFailed(Event):
        """The operation has ended without a repair (`why`); the finding may no longer hold."""

        by_operation: str
        why: str

    differs: dict[str, Any]  # this, and the following: since it was found
    seen_on: dict[str, Any]  # as DriftFound tells it
    seen_at: int  # the position at which it was judged first, as it is now
    repairing: str | None  # the operation that mends it
    failed: bool  # the last that was to, and nothing has changed since

    S = FindingState
    TRANSITIONS: ClassVar = {
        DriftFound: (frozenset({None, S.OVER}), S.SUSPECTED),
        DriftConfirmed: (frozenset({S.SUSPECTED}), S.CONFIRMED),
        DriftChanged: (frozenset({S.SUSPECTED, S.CONFIRMED, S.IGNORED}), S.SUSPECTED),
        DriftGone: (frozenset({S.SUSPECTED, S.CONFIRMED, S.IGNORED}), S.OVER),
        DriftIgnored: (frozenset({S.CONFIRMED, S.SUSPECTED, S.IGNORED}), S.IGNORED),
        DriftHeeded: (frozenset({S.IGNORED}), S.SUSPECTED),
        RepairBegun: (frozenset({S.CONFIRMED}), S.CONFIRMED),
        DriftRepaired: (frozenset({S.SUSPECTED, S.CONFIRMED, S.IGNORED}), S.OVER),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.found: Finding.DriftFound | None = None
        self.ignored_until: float | None = None

    def about(self) -> About:
        return About.of(self.found)

    def apply(self, event: Any) -> None:
        match event:
            case self.DriftFound():
                self.found, self.repairing = event, None
                self._seen(event)
            case self.DriftChanged():
                self._seen(event)
            case self.DriftIgnored():
                self.ignored_until = event.until
            case self.RepairBegun():
                self.repairing = event.by_operation
            case self.DriftRepaired() | self.RepairFailed():
                self.repairing, self.failed = None, isinstance(event, self.RepairFailed)

    def _seen(self, event: DriftFound | DriftChanged) -> None:
        self.failed = False
        self.differs, self.seen_at = event.differs, event.at_position
        self.seen_on = event.seen_on
