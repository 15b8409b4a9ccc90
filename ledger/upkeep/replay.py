"""Holds a log that is verified against `handlers.engine.rules`, as it is read.

An append is one call of `append_events`: rules are asked of all that it stored at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from aggregates.base import Event
from handlers.engine.rules import Broken, Replay
from ledger.log.chain import ChainRow, decode
from ledger.log.mapper import JSONBody, LedgerMapper

#: What breaks a rule is kept up to here, and then only counted.
BROKEN_KEPT_MAX = 100


class LogReplay:
    """`broken`: the first that break a rule; `total`: how many do."""

    def __init__(self) -> None:
        self._mapper, self._replay = LedgerMapper(JSONBody()), Replay()
        self._append: list[tuple[int, Any]] = []
        self._append_id: UUID | None = None
        self.broken: list[Broken] = []
        self.total = 0

    def feed(self, rows: Iterable[ChainRow]) -> None:
        """Go on with the next events, from the first of the log on."""
        for row in rows:
            stored = decode(row.canonical)
            if stored.append_id != self._append_id:
                self._end_append()
                self._append_id = stored.append_id
            id_, version = stored.originator_id, stored.originator_version
            event = self._mapper.to_domain_event(
                StoredEvent(id_, version, stored.topic, stored.body)
            )
            if isinstance(event, Event):
                self._append.append((stored.position, event))

    def end(self) -> None:
        """After the last event: what is not as it is to be if nothing is under way."""
        self._end_append()
        self._note(self._replay.rest())

    def _end_append(self) -> None:
        self._note(self._replay.follow(self._append))
        self._append = []

    def _note(self, broken: Iterable[Broken]) -> None:
        for each in broken:
            self.total += 1
            if len(self.broken) < BROKEN_KEPT_MAX:
                self.broken.append(each)
