"""That somebody was erased.  Who people are is beside the log (projections.reads.persons)."""

from __future__ import annotations

from typing import Any

from aggregates.base import NOBODY, About, Aggregate, Event


class Person(Aggregate):
    """The aggregate's id is random, and says nothing of who it was."""

    class Erased(Event):
        """Whom the log knows by these hashes nobody can tell any more."""

        known_as: list[str]
        reason: str

    def about(self) -> About:
        return NOBODY

    def apply(self, event: Any) -> None:
        """There is no state: nothing is decided on it."""
