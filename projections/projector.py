"""Brings projections up to date, a batch of events and one transaction at a time.

Theory of operation.  `tracking` says how far each projection is.  A step takes the rows of
the projections that stand at the same position, reads the next events once for all of
them, loads the rows these events concern, folds in memory, and writes rows and positions
in one transaction.  The lock on the tracking row is the right to do so: any number of
processes may try, and each event is folded into each projection exactly once.

Projections that stand elsewhere (new, rebuilt, or held back) are groups of their own, and
stop at the position of the next group so as to become one with it.

An event that a fold cannot take holds back its projection, and no other: it is logged,
and tried again with growing pauses, for as long as it takes (a fold can be mended by a
deployment; an event that was skipped would be wrong for ever).  Appends are never affected.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import orjson
import psycopg
from psycopg import sql as compose
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

import sql
from projections.base import Derived, LoggedEvent, Projection, Row, upcast

log = logging.getLogger(__name__)

BATCH_EVENTS_MAX = 5_000
HOLD_FIRST_S = 1.0
HOLD_MAX_S = 60.0
Rows = dict[str, Row | None]  # by key
_NUL, _REPLACEMENT = b"\\u0000", b"\\ufffd"  # PostgreSQL's text has no NUL


class ProjectionError(Exception):
    """An event could not be folded, or its row not be written."""

    def __init__(self, projection: str, position: int, topic: str | None) -> None:
        what = topic or "the batch that begins there"
        super().__init__(f"projection {projection} fails at position {position} ({what})")
        self.projection = projection
        self.position = position


@dataclass
class Hold:
    """A projection that may not pass `before` until `until` (monotonic seconds)."""

    before: int
    until: float
    pause_s: float


def prepare(connection: psycopg.BaseConnection[Any]) -> None:
    """Make a connection's rows what folds expect: ids as strings, JSON parsed."""
    connection.adapters.register_loader("uuid", TextLoader)
    set_json_loads(orjson.loads, connection)


class Projector:
    """Advances projections over one connection, which must be in autocommit mode."""

    def __init__(
        self, connection: psycopg.Connection[Any], projections: Sequence[Projection]
    ) -> None:
        self._connection = connection
        self._projections = {projection.name: projection for projection in projections}
        self._names = sorted(self._projections)
        self._holds: dict[str, Hold] = {}
        prepare(connection)
        self._run("session")
        self._run("register", names=self._names)

    def positions(self) -> tuple[int, dict[str, int]]:
        """The head of the log, and the position of each projection."""
        rows = self._run("positions", names=self._names)
        return rows[0][0], {name: position for _, name, position in rows if name is not None}

    @property
    def held(self) -> frozenset[str]:
        """The projections that an event of theirs holds back."""
        return frozenset(self._holds)

    def step(self) -> bool:
        """Advance every group of projections by one batch; False if none moved."""
        head, positions = self.positions()
        marks = sorted({head, *positions.values()})
        moved = False
        for after, until in itertools.pairwise(marks):
            names = [name for name, position in positions.items() if position == after]
            moved |= self._advance_group(names, after, until)
        return moved

    def catch_up(self, until: int | None = None) -> None:
        """Step until everything that can be projected is (up to `until`, at least)."""
        while self.step():
            head, positions = self.positions()
            wanted = head if until is None else min(until, head)
            free = [position for name, position in positions.items() if name not in self._holds]
            if min(free, default=head) >= wanted:
                return

    def rebuild(self, name: str) -> int:
        """Make one projection anew, from the first event; returns its position.

        One transaction: readers see the old rows until it ends, and it has caught up then.
        """
        projection = self._projections[name]
        with self._connection.transaction():
            self._run("lock_for_rebuild", name=name)
            for table in (projection.table, *(derived.table for derived in projection.derived)):
                self._run_on("delete_all", projection, table)
            position = 0
            while events := self._read(position, self.positions()[0]):
                self._fold([projection], events)
                position = events[-1][0]
            self._run("advance", names=[name], position=position)
        self._holds.pop(name, None)
        return position

    def _advance_group(self, names: list[str], after: int, until: int) -> bool:
        """One batch for projections that stand at `after`; held ones only up to their event."""
        now = time.monotonic()
        free = [name for name in names if name not in self._holds or now >= self._holds[name].until]
        moved = bool(free) and self._attempt(free, after, until)
        for name in sorted(set(names) - set(free)):
            limit = self._holds[name].before - 1
            moved |= after < limit and self._attempt([name], after, min(until, limit))
        return moved

    def _attempt(self, names: list[str], after: int, until: int) -> bool:
        try:
            position = self._advance(names, after, until)
        except ProjectionError as error:
            self._hold(error)
            return True  # the others can go on at once
        for name in names:
            if name in self._holds and position >= self._holds[name].before:
                log.warning("projection %s goes on", name)
                del self._holds[name]
        return position > 0

    def _hold(self, error: ProjectionError) -> None:
        last = self._holds.get(error.projection)
        pause_s = min(last.pause_s * 2, HOLD_MAX_S) if last else HOLD_FIRST_S
        until = time.monotonic() + pause_s
        self._holds[error.projection] = Hold(error.position, until, pause_s)
        log.error("%s; it stays there, next try in %.0f s", error, pause_s, exc_info=error)

    def _advance(self, names: list[str], after: int, until: int) -> int:
        """One transaction; returns the new position, 0 if there was nothing to do."""
        with self._connection.transaction():
            mine = [name for (name,) in self._run("lock", names=names, position=after)]
            events = self._read(after, until) if mine else []
            if not events:
                return 0
            self._fold([self._projections[name] for name in mine], events)
            position: int = events[-1][0]
            self._run("advance", names=mine, position=position)
            return position

    def _read(self, after: int, until: int) -> list[tuple[Any, ...]]:
        return self._run("events", after=after, until=until, limit=BATCH_EVENTS_MAX)

    def _fold(self, projections: list[Projection], raw: list[tuple[Any, ...]]) -> None:
        wanted = frozenset[str]().union(*(projection.topics for projection in projections))
        events = [_decoded(row) for row in raw if row[2] in wanted]
        for projection in projections:
            mine = [event for event in events if event.topic in projection.topics]
            if mine:
                with _blaming(projection, mine[0].position):
                    self._write(projection, *self._folded(projection, mine))

    def _folded(self, projection: Projection, events: list[LoggedEvent]) -> tuple[Rows, Rows]:
        """The rows these events concern, as they are and as they will be."""
        keys = [_blamed(projection, event, projection.key_of, event) for event in events]
        old = self._load(projection, set(keys))
        new = dict(old)
        for key, event in zip(keys, events, strict=True):
            new[key] = _blamed(projection, event, projection.fold, new.get(key), event)
        return old, new

    def _load(self, projection: Projection, keys: set[str]) -> Rows:
        text = _filled("load", projection, projection.table)
        with self._connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(text, {"keys": list(keys)}).fetchall()
        return {row[projection.key]: row for row in rows}

    def _write(self, projection: Projection, old: Rows, new: Rows) -> None:
        rows = [row for row in new.values() if row is not None]
        self._replace(projection, projection.table, list(new), rows)
        for derived in projection.derived:
            before, after = _derive(derived, old), _derive(derived, new)
            keys = [key for key in after if after[key] != before.get(key, [])]
            rows = [row for key in keys for row in after[key]]
            self._replace(projection, derived.table, keys, rows)

    def _replace(
        self, projection: Projection, table: LiteralString, keys: list[str], rows: list[Row]
    ) -> None:
        if keys:
            self._run_on("delete", projection, table, keys=keys)
        if rows:
            document = orjson.dumps(rows).replace(_NUL, _REPLACEMENT).decode()
            self._run_on("insert", projection, table, rows=document)

    def _run(self, query: str, /, **parameters: Any) -> list[Any]:
        cursor = self._connection.execute(sql.query("projections", query), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def _run_on(
        self, query: str, projection: Projection, table: LiteralString, **parameters: Any
    ) -> None:
        self._connection.execute(_filled(query, projection, table), parameters or None)


def _filled(query: str, projection: Projection, table: LiteralString) -> compose.Composed:
    text: Any = sql.query("projections", query).decode()
    return compose.SQL(text).format(
        table=compose.Identifier(table),
        key=compose.Identifier(projection.key),
        type=compose.SQL(projection.key_type),
    )


def _decoded(row: tuple[Any, ...]) -> LoggedEvent:
    return LoggedEvent._make((*row[:-1], upcast(row[2], orjson.loads(row[-1]))))


def _derive(derived: Derived, rows: Rows) -> dict[str, list[Row]]:
    return {key: derived.rows(row) if row is not None else [] for key, row in rows.items()}


def _blamed(projection: Projection, event: LoggedEvent, function: Any, *args: Any) -> Any:
    """Call a function of the projection; say which event it could not take."""
    try:
        return function(*args)
    except Exception as error:
        raise ProjectionError(projection.name, event.position, event.topic) from error


@contextmanager
def _blaming(projection: Projection, position: int) -> Iterator[None]:
    """Rows that the table does not take are the projection's fault, not the connection's."""
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError, TypeError) as error:
        raise ProjectionError(projection.name, position, None) from error
