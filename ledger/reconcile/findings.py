"""What people do about looks and what they find: have a finding ignored, for a while or for good,
and ignore it no longer; have a look rest, and go on.
"""

from __future__ import annotations

from aggregates.base import Event, EventContext
from aggregates.finding import Finding
from aggregates.look import Look
from ledger.log.unit import AggregateStore, Unit, run_optimistically


class Findings:
    """Acts on looks and what they have found; each returns the position of what it stored."""

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

    def unignore(self, finding_id: str, reason: str, context: EventContext) -> int:
        """It is ignored no longer.  Raises IllegalTransitionError if it is not ignored."""

        def change(unit: Unit) -> int:
            unit.get(Finding, finding_id).record(Finding.DriftHeeded, reason=reason)
            return unit.save(context)

        return run_optimistically(self._store, change)

    def stop_look(self, look_id: str, reason: str, context: EventContext) -> int:
        """It is to rest; whoever is at it lets go soon (job.Looking).

        Raises IllegalTransitionError if it is not under way.
        """
        return self._tell(look_id, Look.LookStopped, reason, context)

    def resume_look(self, look_id: str, reason: str, context: EventContext) -> int:
        """It is to go on where it was stopped.  Raises IllegalTransitionError if it was not."""
        return self._tell(look_id, Look.LookResumed, reason, context)

    def _tell(self, look_id: str, what: type[Event], reason: str, context: EventContext) -> int:
        def change(unit: Unit) -> int:
            unit.get(Look, look_id).record(what, reason=reason)
            return unit.save(context)

        return run_optimistically(self._store, change)
