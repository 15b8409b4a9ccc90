"""The erasure of a person.  Names are stored outside the log (projections.reads.persons)."""

from __future__ import annotations

from typing import Any

from aggregates.base import NOBODY, About, Aggregate, Event


class Person(Aggregate):
    """The aggregate's id is random, and does not identify the person."""

    class Erased(Event):
        """The name and id of a person were erased: the log has only these hashes of them."""

        known_as: list[str]
        reason: str

    def about(self) -> About:
        return NOBODY

    def apply(self, event: Any) -> None:
        """There is no state: no decision uses it."""
