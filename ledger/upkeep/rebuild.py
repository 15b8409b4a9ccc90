"""Makes projections anew beside those that are read, and puts them in their place.

Theory of operation.  A rebuild is an ordinary projector whose connection looks first into
the schema `rebuild`: there are tables like those that are read, and a `tracking` of their
own.  So it is exactly once, may be stopped at any moment, and goes on where it was; the
projections that are read go on as well.  When it has caught up it locks their tracking
rows, takes the last events, and one short transaction drops the old tables and moves the
new ones, which have the same names of indexes and constraints from the beginning, to the
old ones' schema.  Statements that were prepared before find them by name.

That transaction waits for no reader longer than a third of a second: it would make all
later ones wait as well.  It is tried again until there is a gap between the long ones.

What other code or another schema has begun is thrown away: half of its rows would be
folded otherwise.  One rebuild runs at a time, of one projection or several: the log is
read once for all of them.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import structlog
from psycopg import sql as compose

import aggregates
import handlers
import projections
import sql
from host_agent import shared
from ledger.upkeep.long_work import Checkmark, Work
from projections.base import Projection
from projections.database_connections import LONG_ANSWER_S, DbConnection
from projections.running.projector import Projector
from projections.running.reader import Reader, reading_ahead
from projections.running.runner import connect

log = structlog.get_logger(__name__)

SWAP_PAUSE_S = 1.0
INDEX_S = 6 * 3600.0  # of ten million operations or more; one that is given up has to begin anew


class RebuildError(Exception):
    """A rebuild cannot go on; the message says why."""


def rebuild(dsn: str, chosen: Sequence[Projection]) -> Work:
    """The long work of making these projections anew.

    It raises projections.running.tables.ProjectionError for an event that cannot be folded, and
    RebuildError if other objects depend on the tables, or a migration changed them.
    """

    def work(begun: Checkmark) -> Generator[Checkmark]:
        with (
            connect(dsn) as connection,
            connect(dsn) as second,
            reading_ahead(second, chosen) as reader,
            _uncollected(),
        ):
            connection.answer_s = second.answer_s = LONG_ANSWER_S  # a swap waits for all readers
            yield from _Rebuild(connection, chosen, reader).steps(begun)

    return work


class _Rebuild:
    def __init__(
        self, connection: DbConnection, chosen: Sequence[Projection], reader: Reader
    ) -> None:
        self._connection = connection
        self._projections = chosen
        self._reader = reader
        self._names = [each.name for each in chosen]
        self._tables = [
            table for each in chosen for table in (each.table, *(d.table for d in each.derived))
        ]
        [(self._live,)] = self._run("live")
        self._run("search")

    def steps(self, begun: Checkmark) -> Generator[Checkmark]:
        kept = {"projections": self._names, "code": _code()}
        if begun.kept != kept or self._different():
            self._begin()
        projector = Projector(self._connection, self._projections, self._reader)
        for _ in self._follow(projector):
            yield Checkmark(projector.projected, projector.head, kept)
        self._connection.answer_s = INDEX_S
        self._do("indexes")
        self._connection.answer_s = LONG_ANSWER_S
        self._do("statistics")
        while True:
            for _ in self._follow(projector):
                yield Checkmark(projector.projected, projector.head, kept)
            if self._swap(projector):
                break
            log.warning("swap_waits", why="a transaction reads the old tables")
            time.sleep(SWAP_PAUSE_S)
        yield Checkmark(projector.head, projector.head, kept)

    def _begin(self) -> None:
        with self._connection.transaction():
            self._do("empty")
            self._run("forget")
            self._do("tables")

    def _follow(self, projector: Projector) -> Iterator[None]:
        """Project until the head of the log; stops after each batch."""
        projector.look()
        while True:
            yield
            if projector.projected >= projector.head:
                return
            projector.step()

    def _swap(self, projector: Projector) -> bool:
        """Put the new tables in the place of the old ones; False if readers were in the way."""
        try:
            with self._connection.transaction():
                self._run("patience")
                self._run("lock_live", names=self._names)
                for _ in self._follow(projector):
                    pass
                if changed := self._different():
                    raise RebuildError(
                        f"a migration has changed {', '.join(changed)} meanwhile; "
                        "the same command begins anew"
                    )
                self._turn_views()
                self._do("swap")
                self._run("swapped", names=self._names)
        except psycopg.errors.LockNotAvailable:
            return False
        except psycopg.errors.DependentObjectsStillExist as error:
            raise RebuildError(
                f"other objects depend on the old tables ({error.diag.message_detail}); drop them, "
                "then the same command goes on"
            ) from error
        return True

    def _turn_views(self) -> None:
        """Let views of the old tables read the new ones: the same text, with the new names."""
        self._run("as_read", live=self._live)
        views = self._run("views", tables=self._tables, live=self._live)
        self._run("as_rebuilt", live=self._live)
        for (statement,) in views:
            self._connection.execute(statement)

    def _different(self) -> list[str]:
        return [name for (name,) in self._run("different", tables=self._tables, live=self._live)]

    def _do(self, query: str) -> None:
        """Run the DDL that a query gives."""
        for (statement,) in self._run(query, tables=self._tables, live=self._live):
            self._connection.execute(statement)

    def _run(self, query: str, /, **parameters: Any) -> list[Any]:
        text: Any = sql.query("rebuild", query).decode()
        if "{live}" in text:
            text = compose.SQL(text).format(live=compose.Identifier(self._live))
        cursor = self._connection.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description else []


def _code() -> str:
    """What rows depend on besides the log, as a hash: the text of folds, events and flows'
    engine, and of what they share with agents.
    """
    digest = hashlib.sha256()
    for package in (projections, aggregates, handlers, shared):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Rows and events have no cycles; looking for some in them takes as long as folding."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
