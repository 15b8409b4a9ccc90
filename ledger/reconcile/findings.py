"""What people do about findings: have one ignored, for a while or for good, and heed it again."""

from __future__ import annotations

from aggregates.base import EventContext
from aggregates.finding import Finding
from ledger.log.unit import AggregateStore, Unit, run_optimistically


class Findings:
    """Acts on what looks have found; each returns the position of what it stored."""

    def __init__(self, store: AggregateStore) -> None:
        self._store = store

    def ignore(
        self, finding_id: str, reason: str, until: float | None, context: EventContext
    ) -> int:
        """It is to stay, until a moment (seconds since the epoch; None: for good).

        Raises IllegalTransitionError if it is over.
        """

        def change(unit: Unit) -> int:
            finding = unit.get(Finding, finding_id)
            finding.record(Finding.DriftIgnored, reason=reason, until=until)
            return unit.save(context)

        return run_optimistically(self._store, change)

    def heed(self, finding_id: str, reason: str, context: EventContext) -> int:
        """It is ignored no longer.  Raises IllegalTransitionError if it is not ignored."""

        def change(unit: Unit) -> int:
            unit.get(Finding, finding_id).record(Finding.DriftHeeded, reason=reason)
            return unit.save(context)

        return run_optimistically(self._store, change)
