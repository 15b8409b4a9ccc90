"""Brings projections up to date, a batch of events at a time.

Theory of operation.  The table `tracking` has each projection's position.  A step reads the next
events once for all projections at the same position, folds them in memory, and writes rows and
positions in one statement, but only for projections that are still at the position that was folded
from (compare and set).  So any number of processes may try, and each event is folded into each
projection exactly once.

The invariant: the mark of a table only grows, and no row of the table is beyond it.  It holds
because the write compares with the marks that the batch was folded from (`_attempt` gets them,
whatever `look` reads meanwhile).  Rows are read without a lock, so another process may have written
them already; an error of a fold counts only if no other process has moved the marks (`_moved`).

Projections at another position (new, or held back) are groups of their own, and stop at the
position of the next group, to join it.

An event that a fold cannot process holds back its projection, and no other.  It is logged, stored
in `tracking`, and tried again with growing pauses without end: a new version may fix the fold,
while a skipped event would stay wrong for ever.  Appends are never affected.
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
from projections.base import Projection
from projections.running import news
from projections.running.detached import refuse_detached
from projections.running.reader import Reader
from projections.running.tables import Change, ProjectionError, Tables, prepare
from projections.running.writes import Mark, Marks, advance, position_of

log = structlog.get_logger(__name__)

READ_POSITIONS = 5_000  # in one read
STEP_POSITIONS = 200_000  # in one write, at most
STEP_ROWS = 3_000  # the same, roughly; a row that changes often is written once
HOLD_FIRST_S = 1.0
HOLD_MAX_S = 60.0
#: What an operator does about a projection that is held back.
REMEDY = "To make it anew from the log, type: attachment-ledger projection rebuild {}"
_END = 2**63 - 1
_REFUSED = (psycopg.DataError, psycopg.IntegrityError)


@dataclass
class Hold:
    """A projection that is not tried again beyond its error's event before `until` (monotonic)."""

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
        self._seen = reader is None  # nobody reads what a rebuild writes
        self.holds: dict[str, Hold] = {}  # by projection
        self.overtaken = False  # in the last step another process was faster
        prepare(connection)
        self._run("session")
        self._run("register", names=self._names)
        self.look()
        refuse_detached(connection, min(self.positions.values(), default=self.head))

    def look(self) -> None:
        """Read the positions of the log and of the projections."""
        rows = self._run("positions", names=self._names)
        self.head: int = rows[0][0]
        self._marks = {name: Mark(*mark) for _, name, *mark in rows}

    @property
    def positions(self) -> dict[str, int]:
        """The position of each projection, as read last."""
        return {name: mark.position for name, mark in self._marks.items()}

    @property
    def projected(self) -> int:
        """The position that all projections have reached that are not held; the head if all are."""
        free = [at for name, at in self.positions.items() if name not in self.holds]
        return min(free, default=self.head)

    @property
    def apart(self) -> bool:
        """Whether projections that are not held have different positions."""
        return len({at for name, at in self.positions.items() if name not in self.holds}) > 1

    def step(self) -> bool:
        """Advance every group of projections by one batch; False if none moved."""
        moved, self.overtaken = False, False
        marks, now = dict(self._marks), time.monotonic()
        stands = sorted({mark.position for mark in marks.values()})
        for after, until in itertools.pairwise([*stands, _END]):
            group = {name: marks[name] for name in self._names if marks[name].position == after}
            held = [name for name in group if name in self.holds and now < self.holds[name].until]
            free = {name: mark for name, mark in group.items() if name not in held}
            moved |= bool(free) and self._attempt(free, until)
            for name in held:
                before = self.holds[name].error.position - 1
                moved |= after < before and self._attempt({name: group[name]}, min(until, before))
        return moved

    def catch_up(self) -> None:
        """Step until all events of now are projected, except what is held or what another process
        is writing.
        """
        self.look()
        head = self.head
        while self.projected < head and self.step():
            pass

    def _attempt(self, marks: Marks, until: int) -> bool:
        """One batch of a group, which may fail."""
        try:
            moved = self._advance(marks, until)
        except Exception as error:
            if isinstance(error, psycopg.Error) and not isinstance(error, _REFUSED):
                raise  # an error of the connection, not of the data
            self._failed(error, marks, until)
            return True  # another process has moved the marks, or the rest can continue at once
        for name in marks:
            if name in self.holds and self._marks[name].position >= self.holds[name].error.position:
                log.warning("projection_released", projection=name)
                del self.holds[name]
        return moved

    def _failed(self, error: Exception, marks: Marks, until: int) -> None:
        """Hold back the projection that failed; to find it, try each one of the group alone."""
        self.look()
        if self._moved(marks):
            self.overtaken = True
        elif isinstance(error, ProjectionError):
            self._hold(error, marks)
        elif len(marks) > 1:
            for name, mark in marks.items():
                self._attempt({name: mark}, until)
        else:
            [(name, mark)] = marks.items()
            refused = ProjectionError(name, mark.position + 1, None)
            refused.__cause__ = error
            self._hold(refused, marks)

    def _moved(self, marks: Marks) -> bool:
        """Whether some projections had moved, by the last `look`."""
        return any(self._marks[name] != mark for name, mark in marks.items())

    def _hold(self, error: ProjectionError, marks: Marks) -> None:
        if not self._seen:
            raise error
        name = error.projection
        last = self.holds.get(name)
        pause_s = min(last.pause_s * 2, HOLD_MAX_S) if last else HOLD_FIRST_S
        self.holds[name] = Hold(error, time.monotonic() + pause_s, pause_s)
        remedy = REMEDY.format(name)
        log.error("projection_held", why=str(error), wait_s=pause_s, hint=remedy, exc_info=error)
        self._run("hold", name=name, why=error.why, **marks[name]._asdict())

    def _advance(self, marks: Marks, until: int) -> bool:
        """Read, fold and write one batch of a group; False if none moved."""
        after = position_of(marks)
        changes = {name: Change({}, {}) for name in marks}
        to = self._fold(marks, changes, min(until, after + STEP_POSITIONS))
        if to <= after:
            return False
        new = [one for name in marks for one in self._tables[name].replacements(changes[name])]
        notice = news.text_of(list(marks), after, to, new) if self._seen else ""
        ours = advance(self._cursor, marks, to, new, notice)
        for name in ours:
            self._marks[name] = Mark(to, marks[name].rebuilds)
            self._tables[name].keep(changes[name], self._marks[name])
        if len(ours) < len(marks):
            self.overtaken |= not ours  # if both processes got a part, neither may stand by
            self.look()
        return self._moved(marks)

    def _fold(self, marks: Marks, changes: dict[str, Change], until: int) -> int:
        """Add the next events to `changes`, until there are enough rows; the position reached."""
        to, rows = position_of(marks), 0
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
) -> list[tuple[str, int, int, float, str | None]]:
    """For each projection: name, position, lag in events and seconds, what holds it back."""
    names = [each.name for each in projections]
    return connection.execute(sql.query("projections", "lags"), {"names": names}).fetchall()
