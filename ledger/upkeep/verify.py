"""Proves that the log is what was stored, from the table and the files of its archive.

Theory of operation.  The hash chain (`ledger.log.chain`) is followed from a checkpoint to the
end of the log, event by event.  Where months were detached the archive's files have the
whole and take the place of the table; what the table still has of them must be the same.
Nothing is written, so it may be done on a standby, and by a role that can only read.

A checkpoint is worth something to an auditor who keeps it, or a signature of it, where
nobody who can write to the database gets at it.  What the database itself says about its
past proves nothing, so nothing of that is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

import orjson
import psycopg

import sql
from ledger.log.chain import GENESIS, BrokenChainError, ChainCheckpoint, ChainRow, Verifier, decode
from ledger.upkeep.archive import Archive, ArchivedEvent, Month
from ledger.upkeep.check_proof import TreeCheckpoint as Signed
from ledger.upkeep.check_proof import leaf_hash
from ledger.upkeep.tiles import Roots
from projections.running.detached import ENDINGS, DetachedError, detached

PAGE_EVENTS = 5_000


class AuditError(Exception):
    """A checkpoint that cannot be used; the message says why."""


class Statement(NamedTuple):
    """A checkpoint as it leaves the database: of which log, and (if known) from when."""

    checkpoint: ChainCheckpoint
    recorded_at: datetime | None
    log: UUID | None  # None as long as the log is empty

    def as_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "position": self.checkpoint.position,
            "chain": self.checkpoint.chain.hex(),
            "recorded_at": self.recorded_at,
        }

    @classmethod
    def parse(cls, text: bytes) -> Statement:
        """Raises AuditError for what is no checkpoint."""
        try:
            data = orjson.loads(text)
            return cls(
                ChainCheckpoint(int(data["position"]), bytes.fromhex(data["chain"])),
                data["recorded_at"] and datetime.fromisoformat(data["recorded_at"]),
                None if data["log"] is None else UUID(data["log"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise AuditError(f"this is no checkpoint: {error!r}") from None


def head(connection: psycopg.Connection[Any]) -> Statement:
    """Where the log ends now."""
    found = connection.cursor(binary=True).execute(sql.query("reads", "checkpoint"))
    [(position, chain, recorded_at, log)] = found.fetchall()
    return Statement(ChainCheckpoint(position, chain), recorded_at, log)


def verify(
    connection: psycopg.Connection[Any],
    archive: Archive | None = None,
    *,
    since: Statement | None = None,
    held: Sequence[Statement] = (),
    also: Callable[[list[ChainRow]], object] = lambda _: None,
) -> Iterator[tuple[Statement, int]]:
    """Prove the log from the first event, or from `since`, to its present end.

    It has to agree with each of `held` where it passes there.  `also` is given each page of events.
    Yields how far everything is proven, and how far it is to go; at last the end itself.  Raises
    BrokenChainError; AuditError if a checkpoint is not of this log; DetachedError if an archive is
    needed; ArchiveError.
    """
    end = head(connection)
    start = since.checkpoint if since else GENESIS
    for statement in (*held, *((since,) if since else ())):
        _refuse_foreign(statement, end)
    verifier = Verifier(start)
    marks = {each.checkpoint for each in held if each.checkpoint.position > start.position}
    for mark in (*sorted(marks, key=lambda mark: mark.position), end.checkpoint):
        after = verifier.checkpoint.position
        for page in pages(connection, archive, after, mark.position):
            verifier.feed(page)
            also(page)
            yield Statement(verifier.checkpoint, None, end.log), end.checkpoint.position
        if mark not in (verifier.checkpoint, end.checkpoint):
            raise BrokenChainError(
                after + 1,
                mark.position,
                "the chain is consistent, but differs from the checkpoint's: it was "
                "made again, over other events",
            )
    verifier.finish(end.checkpoint)
    for (position,) in rows(connection, "outside"):
        raise BrokenChainError(position, position, "an event that is not part of the log")
    yield end, end.checkpoint.position


class SignedRoots:
    """Holds a log, from its first event on, against what signed checkpoints say of it."""

    def __init__(self, held: Sequence[Signed]) -> None:
        self._held = sorted(held, key=lambda each: each.size)
        self._roots = Roots()

    def feed(self, page: Iterable[ChainRow]) -> None:
        """The next events.  Raises BrokenChainError."""
        for row in page:
            self._roots.add(leaf_hash(row.canonical))
            while self._held and self._held[0].size == self._roots.size:
                self._compare(self._held.pop(0))

    def _compare(self, signed: Signed) -> None:
        if self._roots.root() != signed.root:
            raise BrokenChainError(
                1, signed.size, "the chain is consistent, but these are not the signed events"
            )

    def end(self) -> None:
        """After the last event.  Raises BrokenChainError if a checkpoint is of more."""
        for signed in self._held:
            raise BrokenChainError(
                self._roots.size + 1, signed.size, "the log ends before the signed checkpoint"
            )


def _refuse_foreign(statement: Statement, end: Statement) -> None:
    position = statement.checkpoint.position
    if position and statement.log != end.log:
        raise AuditError(
            f"the checkpoint is of the log {statement.log}, and this is {end.log}: another log, "
            "or one whose first event was replaced"
        )
    if position > end.checkpoint.position:
        raise BrokenChainError(
            end.checkpoint.position + 1, position, "the log ends before the checkpoint"
        )


def pages(
    connection: psycopg.Connection[Any], archive: Archive | None, after: int, until: int
) -> Iterator[list[ChainRow]]:
    """The events between two positions, from wherever they are whole."""
    for first, last, file in detached(connection, after):
        if first > until:
            break
        month = archive.month_of(last) if archive else None
        if archive is None or month is None:
            raise DetachedError(last, [file])
        yield from of_table(connection, after, first - 1)
        yield from _of_archive(connection, archive, month, max(after, first - 1), min(last, until))
        after = last
    yield from of_table(connection, after, until)


def of_table(
    connection: psycopg.Connection[Any], after: int, until: int
) -> Iterator[list[ChainRow]]:
    """What the table has between two positions, page by page."""
    for begin in range(after, until, PAGE_EVENTS):
        yield _page(connection, begin, min(begin + PAGE_EVENTS, until))


def _page(connection: psycopg.Connection[Any], after: int, upto: int) -> list[ChainRow]:
    cursor = connection.cursor(binary=True)
    found = cursor.execute(sql.query("log", "chained"), {"after": after, "upto": upto})
    return [ChainRow(*row) for row in found.fetchall()]


def _of_archive(
    connection: psycopg.Connection[Any], archive: Archive, month: Month, after: int, until: int
) -> Iterator[list[ChainRow]]:
    events = islice(archive.events(month, after), until - after)
    while page := list(islice(events, PAGE_EVENTS)):
        compare(connection, month, page, after)
        yield [event.as_chain_row() for event in page]
        after += len(page)


def compare(
    connection: psycopg.Connection[Any], month: Month, page: list[ArchivedEvent], after: int
) -> None:
    """The table may lack events of the page, if their streams have ended; no more."""
    missing = dict(enumerate(page, after + 1))
    for row in _page(connection, after, after + len(page)):
        position = decode(row.canonical).position
        if missing.pop(position).as_chain_row() != row:
            raise BrokenChainError(position, position, f"the table and {month.file} differ")
    streams = list({event.row.originator_id for event in missing.values()})
    live = {id_ for (id_,) in rows(connection, "going_on", streams=streams, endings=ENDINGS)}
    for position, (event, _) in missing.items():
        if event.originator_id in live or event.originator_version <= 1:
            raise BrokenChainError(
                position, position, f"the table lacks an event that was not detached: {event.topic}"
            )


def rows(
    connection: psycopg.Connection[Any], query: LiteralString, /, **parameters: Any
) -> list[tuple[Any, ...]]:
    """What one of the queries of archives and auditors finds."""
    cursor = connection.cursor(binary=True)
    return cursor.execute(sql.query("archive", query), parameters or None).fetchall()
