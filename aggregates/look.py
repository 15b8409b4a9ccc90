"""A look: one comparison of ledger, Cinder and hosts, full or partial."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from aggregates.base import About, Aggregate, Event


class LookState(StrEnum):
    """Where a look stands."""

    UNDER_WAY = "under_way"  # -> stopped, ended
    STOPPED = "stopped"  # -> under_way, ended
    ENDED = "ended"


class Look(Aggregate):
    """The aggregate's id is its own."""

    class LookBegun(Event):
        """`scope`: {"host": ..}, {"server": ..}, {"volume": ..}, or {}: everything.

        `why`: "schedule", "asked", "agent_back", "skip", "give_up", "repair".  `believe`: classes
        of drift of which any number of new findings is accepted, and the `reason`.
        """

        scope: dict[str, str]
        why: str
        believe: list[str] = field(default_factory=list)
        reason: str | None = None

    class LookStopped(Event):
        """An operator has stopped the look."""

        reason: str

    class LookResumed(Event):
        """The look continues where it was stopped."""

        reason: str

    class LookEnded(Event):
        """`outcome`: completed, stopped (and another one began before it was resumed), void
        (Cinder's lists were wrong); `trouble` says more about the last two.

        `compared`: rows by subject; `found`: findings by class that this look opened; `unknown`:
        the hosts of which nothing is known, and the volumes ("volume ID") for which Cinder did not
        answer completely, and why; `braked`: the suppressed classes, with too many findings;
        `examples`: the keys of some of these, by class.  `in_flight`: differences that an
        operation, or a later event, explains.
        """

        outcome: str
        compared: dict[str, int] = field(default_factory=dict)
        found: dict[str, int] = field(default_factory=dict)
        unknown: dict[str, str] = field(default_factory=dict)
        braked: dict[str, int] = field(default_factory=dict)
        trouble: str | None = None
        in_flight: int = 0
        examples: dict[str, Any] = field(default_factory=dict)

    S = LookState
    TRANSITIONS: ClassVar = {
        LookBegun: (frozenset({None}), S.UNDER_WAY),
        LookStopped: (frozenset({S.UNDER_WAY}), S.STOPPED),
        LookResumed: (frozenset({S.STOPPED}), S.UNDER_WAY),
        LookEnded: (frozenset({S.UNDER_WAY, S.STOPPED}), S.ENDED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.scope: dict[str, str] = {}

    @property
    def is_over(self) -> bool:
        return self.state is LookState.ENDED

    def about(self) -> About:
        """A look at a part belongs to the history of that part."""
        return About(
            server_id=self.scope.get("server"),
            volume_id=self.scope.get("volume"),
            host=self.scope.get("host"),
        )

    def apply(self, event: Any) -> None:
        if isinstance(event, self.LookBegun):
            self.scope = event.scope
