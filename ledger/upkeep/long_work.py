"""Work of minutes or hours: it shows its progress, can be stopped, and resumes.

Such work is a generator that yields a `Checkmark` whenever what it did so far is durable.  `run`
takes the right to do it, drives it, and notes how far it is in a table where any process
can look (`under_way`).  Stopping it is an exception, a signal or kill -9: the next run is
given the last step that was noted, which may be a second older than the last one done, so
that work does harmlessly again what it has done already.

The right to do it belongs to a database connection: it ends with that, however it ends.  Of a host
that vanishes the server finds that out as we do of it (`projections.database_connections.LIMITS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import psycopg

import sql
from projections.database_connections import LIMITS, LONG_ANSWER_S, DbConnection

NOTE_INTERVAL_S = 1.0
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3600, 60


class Checkmark(NamedTuple):
    """Things done, of how many, and what the work needs besides to go on there (JSON)."""

    done: int = 0
    total: int = 0
    kept: dict[str, Any] | None = None


Work = Callable[[Checkmark], Generator[Checkmark]]


class BusyError(Exception):
    """Another process does this work now."""


@dataclass(frozen=True)
class WorkProgress:
    """How far some work is; `done_here` things of it in the `seconds` of its present run."""

    name: str
    done: int
    total: int
    done_here: int
    seconds: float
    running: bool = True

    @property
    def rate(self) -> float | None:
        """Things per second; None as long as nothing can be said."""
        return self.done_here / self.seconds if self.done_here > 0 < self.seconds else None

    @property
    def left_s(self) -> float | None:
        return (self.total - self.done) / self.rate if self.rate else None

    @property
    def things(self) -> str:
        """What is counted: looks compare rows, all else goes over the log."""
        return "rows" if self.name.startswith("look") else "events"

    def __str__(self) -> str:
        share = 100 * self.done // self.total if self.total else 0
        parts = [f"{self.name}: {self.done:,} of {self.total:,} {self.things} ({share} %)"]
        if not self.running:
            return f"{parts[0]}, stopped"
        if self.rate and self.left_s is not None:
            parts += [f"{self.rate:,.0f}/s", f"{duration(self.left_s)} left"]
        return ", ".join(parts)


def run(dsn: str, name: str, work: Work, watch: Callable[[WorkProgress], None]) -> Checkmark:
    """Do the work, from where it was, to its end; `watch` is called with every step.

    Raises BusyError if another process is at it, and whatever the work raises: what was
    done until then is noted.
    """
    with DbConnection.connect(
        dsn, autocommit=True, application_name=f"attachment-ledger {name}"[:63]
    ) as connection:
        connection.answer_s = LONG_ANSWER_S
        _run(connection, "session", **LIMITS)
        step = begun = noted = _take(connection, name)
        began_at, noted_at = time.monotonic(), float("-inf")
        try:
            with closing(work(begun)) as steps:
                for step in steps:
                    now = time.monotonic()
                    watch(WorkProgress(name, *step[:2], step.done - begun.done, now - began_at))
                    if step != noted and now - noted_at >= NOTE_INTERVAL_S:
                        _note(connection, name, step)
                        noted, noted_at = step, now
        except BaseException:
            with suppress(psycopg.Error):  # this connection may be what failed
                _note(connection, name, step)
                _run(connection, "release", name=name)
            raise
        _run(connection, "finish", name=name)
        return step


def under_way(connection: psycopg.Connection[Any]) -> list[WorkProgress]:
    """All long work that runs, in whichever process, or was stopped before its end."""
    return [WorkProgress(*row) for row in _run(connection, "list")]


def duration(seconds: float) -> str:
    """For people: "40 s", "3 min 20 s", "2 h 5 min"; from 48 h on "2 d 0 h"."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < 2 * _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def _take(connection: psycopg.Connection[Any], name: str) -> Checkmark:
    with connection.transaction():
        _run(connection, "claim", name=name)
        # Only now, with the row locked, is it looked who is connected.
        for row in _run(connection, "take", name=name):
            return Checkmark(*row)
    raise BusyError(f"another process does this now: {name}")


def _note(connection: psycopg.Connection[Any], name: str, step: Checkmark) -> None:
    kept = None if step.kept is None else orjson.dumps(step.kept).decode()
    _run(connection, "note", name=name, done=step.done, total=step.total, kept=kept)


def _run(connection: psycopg.Connection[Any], query: str, /, **parameters: Any) -> list[Any]:
    cursor = connection.execute(sql.query("long_work", query), parameters or None)
    return cursor.fetchall() if cursor.description else []
