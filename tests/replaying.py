"""Logs of tests, held against the ledger's rules (handlers.engine.rules)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import psycopg

from aggregates.base import EventContext
from handlers.engine.rules import Broken, Replay
from ledger.upkeep.replay import LogReplay
from ledger.upkeep.verify import verify

Stored = list[tuple[Any, EventContext]]


def broken_rules(database_url: str) -> list[str]:
    """What the log in this database breaks; not asked is whether it is at rest."""
    replay = LogReplay()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for _ in verify(connection, also=replay.feed):
            pass
    return [str(broken) for broken in replay.broken]


def appends(log: Stored) -> Iterator[list[tuple[int, Any]]]:
    """A log in memory, as it was saved: what was saved together has the same context."""
    numbered = enumerate(log, 1)
    for _, group in groupby(numbered, key=lambda each: id(each[1][1])):
        yield [(position, event) for position, (event, _) in group]


def broken_in(log: Stored) -> list[Broken]:
    """What a log in memory breaks, which ends at rest."""
    replay = Replay()
    found = [broken for append in appends(log) for broken in replay.follow(append)]
    return [*found, *replay.rest()]
