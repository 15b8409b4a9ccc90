"""Brings projections up to date, a batch of events at a time.

Theory of operation.  `tracking` says how far each projection is.  A step reads the next
events once for all projections that stand at the same position, folds them in memory, and
writes rows and positions in one statement, which does so only for those that are still
where they were folded from.  So any number of processes may try, and each event is folded
into each projection exactly once.  One event or many thousands, it is the same step: reads,
one for a few events, and a write; and a read for each projection of which rows are needed.

Projections that stand elsewhere (new, or held back) are groups of their own, and stop at
the position of the next group so as to become one with it.

An event that a fold cannot take holds back its projection, and no other: it is logged,
and tried again with growing pauses, for as long as it takes (a fold can be mended by a
deployment; an event that was skipped would be wrong for ever).  Appends are never affected.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

import sql
from projections import news
from projections.base import Projection
from projections.detached import refuse_detached
from projections.reader import Reader
from projections.tables import Change, ProjectionError, Tables, prepare
from projections.writes import Mark, advance

log = structlog.get_logger(__name__)

READ_POSITIONS = 5_000  # at a time
STEP_POSITIONS = 200_000  # written at a time, at most
STEP_ROWS = 3_000  # the same, about; a row that changes often meanwhile is written once
HOLD_FIRST_S = 1.0
HOLD_MAX_S = 60.0
_END = 2**63 - 1
_REFUSED = (psycopg.DataError, psycopg.IntegrityError)


@dataclass
class Hold:
    """A projection that may not pass its error's event until `until` (monotonic seconds)."""

    error: ProjectionError
    until: float
    pause_s: float


class Projector:
    """Advances projections over one connection, which must be in autocommit mode."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        projections: Sequence[Projection],
        reader: Reader | None = None,
    ) -> None:
        self._connection = connection
        self._cursor = psycopg.RawCursor(connection)
        self._projections = {projection.name: projection for projection in projections}
        self._tables = {each.name: Tables(connection, each) for each in projections}
        self._names = sorted(self._projections)
        self._reader = reader or Reader(connection, projections)
        self._seen = reader is None  # what a rebuild writes, nobody sees yet
        self.holds: dict[str, Hold] = {}  # the projections that an event of theirs holds back
        self.beaten = False  # in the last step, another process was faster
        prepare(connection)
        self._run("session")
        self._run("register", names=self._names)
        self.look()
        refuse_detached(connection, min(self.positions.values(), default=self.head))

    def look(self) -> None:
        """Learn where the log and the projections are, whoever has brought them there."""
        rows = self._run("positions", names=self._names)
        self.head: int = rows[0][0]
        self._marks = {name: Mark(*mark) for _, name, *mark in rows}

    @property
    def positions(self) -> dict[str, int]:
        """How far each projection was when last looked at."""
        return {name: mark.position for name, mark in self._marks.items()}

    @property
    def projected(self) -> int:
        """How far all projections are that nothing holds back; the head if all are held."""
        free = [at for name, at in self.positions.items() if name not in self.holds]
        return min(free, default=self.head)

    @property
    def apart(self) -> bool:
        """Whether some projections are behind others, and nothing holds them back."""
        return len({at for name, at in self.positions.items() if name not in self.holds}) > 1

    def step(self) -> bool:
        """Advance every group of projections by one batch; False if none moved."""
        moved, self.beaten = False, False
        at, now = self.positions, time.monotonic()
        for after, until in itertools.pairwise([*sorted(set(at.values())), _END]):
            group = [name for name in self._names if at[name] == after]
            held = [name for name in group if name in self.holds and now < self.holds[name].until]
            free = [name for name in group if name not in held]
            moved |= bool(free) and self._attempt(free, after, until)
            for name in held:
                before = self.holds[name].error.position - 1
                moved |= after < before and self._attempt([name], after, min(until, before))
        return moved

    def catch_up(self) -> None:
        """Step until all that is in the log now is projected, but for what an event holds
        back or another process is at.
        """
        self.look()
        head = self.head
        while self.projected < head and self.step():
            pass

    def _attempt(self, names: list[str], after: int, until: int) -> bool:
        """One batch, which may fail; a group whose rows are refused falls apart."""
        try:
            moved = self._advance(names, after, until)
        except ProjectionError as error:
            self._hold(error)
            return True  # the others can go on at once
        except _REFUSED as error:
            if len(names) > 1:
                moves = [self._attempt([name], after, until) for name in names]
                return any(moves)
            refused = ProjectionError(names[0], after + 1, None)
            refused.__cause__ = error
            self._hold(refused)
            return True
        for name in names:
            if name in self.holds and self._marks[name].position >= self.holds[name].error.position:
                log.warning("projection goes on", projection=name)
                del self.holds[name]
        return moved

    def _hold(self, error: ProjectionError) -> None:
        last = self.holds.get(error.projection)
        pause_s = min(last.pause_s * 2, HOLD_MAX_S) if last else HOLD_FIRST_S
        self.holds[error.projection] = Hold(error, time.monotonic() + pause_s, pause_s)
        log.error("projection stays there", why=str(error), wait_s=pause_s, exc_info=error)

    def _advance(self, names: list[str], after: int, until: int) -> bool:
        """Read, fold and write one batch; False if none moved."""
        marks = {name: self._marks[name] for name in names}
        changes = {name: Change({}, {}) for name in names}
        to = self._fold(marks, changes, after, min(until, after + STEP_POSITIONS))
        if to <= after:
            return False
        new = [one for name in names for one in self._tables[name].replacements(changes[name])]
        told = news.text_of(names, after, to, new) if self._seen else ""
        ours = advance(self._cursor, marks, to, new, told)
        for name in ours:
            self._marks[name] = Mark(to, marks[name].rebuilds)
            self._tables[name].keep(changes[name], self._marks[name])
        if len(ours) < len(names):
            self.beaten |= not ours  # if each got a part, nobody is to leave it to the other
            self.look()
        return any(self._marks[name] != marks[name] for name in names)

    def _fold(
        self, marks: dict[str, Mark], changes: dict[str, Change], after: int, until: int
    ) -> int:
        """Add the next events to `changes`, until there are enough rows; how far it came."""
        to, rows = after, 0
        while to < until and rows < STEP_ROWS:
            end = min(until, to + READ_POSITIONS)
            self.head, events = self._reader.read(to, end)
            for name, mark in marks.items():
                topics = self._projections[name].topics
                mine = [event for event in events if event.topic in topics]
                self._tables[name].fold(mark, mine, changes[name])
            if self.head < end:
                return max(to, self.head)
            to, rows = end, sum(len(change.new) for change in changes.values())
        return to

    def _run(self, query: str, /, **parameters: Any) -> list[Any]:
        cursor = self._connection.execute(sql.query("projections", query), parameters or None)
        return cursor.fetchall() if cursor.description else []


def lags(
    connection: psycopg.Connection[Any], projections: Sequence[Projection]
) -> list[tuple[str, int, int, float]]:
    """Of each projection its name and position, and how far behind it is in events and seconds."""
    names = [each.name for each in projections]
    return connection.execute(sql.query("projections", "lags"), {"names": names}).fetchall()
