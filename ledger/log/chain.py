"""The hash chain over the log: proves that what is in it is what was stored, in that order.

Theory of operation.  Each call of `append_events` extends the chain by one link:

    chain = sha256(chain before || canonical form of each event of the call, by position)

The link stands in the column `chain` of the call's last event (the other events have NULL),
and the newest one also in `log_head`.  So the links of a few thousand events a second cost
one hash each, and an event cannot be changed, removed, added or moved without changing
every link after it.  Somebody who can write to the database can make a new, consistent chain;
but it ends in another value than the one that an auditor has kept.  Such a pair of
position and link is a `ChainCheckpoint`; there is one after the last event of every call.

The canonical form is PostgreSQL's own binary form of a row (`record_send`, made by the SQL
function `event_bytes`): how many columns, then for each its type, its length and its value.
It says where each value ends, so two different events never have the same form, and it is
also a good form to keep events in outside of the database: `decode` and `encode` are all
that is needed.  Its columns, `StoredRow`, are those that the log had when the chain began,
and stay these: a column that is added later is not covered, unless by a chain of its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.types.composite import CompositeInfo, RecordBinaryLoader, register_composite

HASH_BYTES = 32


@dataclass(frozen=True)
class ChainCheckpoint:
    """What an auditor keeps elsewhere: the chain's value after the event at `position`."""

    position: int
    chain: bytes


#: Before the first event.
GENESIS = ChainCheckpoint(0, bytes(HASH_BYTES))


class BrokenChainError(Exception):
    """The log is not what it was when it was stored.

    Somewhere from `first` to `last` an event was changed, removed, added or moved; the two
    are the same if it is known exactly where.  What is proven is the verifier's `checkpoint`.
    """

    def __init__(self, first: int, last: int, why: str) -> None:
        where = f"position {first}" if first == last else f"positions {first} to {last}"
        super().__init__(f"{where}: {why}")
        self.first, self.last, self.why = first, last, why


class ChainRow(NamedTuple):
    """An event as the chain sees it: its canonical form and, if it has one, its link."""

    canonical: bytes
    chain: bytes | None


class Verifier:
    """Verifies the log from a checkpoint on; `checkpoint` is how far everything is proven."""

    def __init__(self, start: ChainCheckpoint = GENESIS) -> None:
        self.checkpoint = start
        self._position = start.position
        self._open: list[bytes] = []  # events after the last link

    def feed(self, rows: Iterable[ChainRow]) -> None:
        """Go on with the next events, in the order of the log; any number at a time.

        Raises BrokenChainError; the verifier must not be used after that.
        """
        for canonical, chain in rows:
            self._position += 1
            found = _position_of(canonical)
            if found != self._position:
                at = min(found, self._position)
                why = f"the event after {self._position - 1} has position {found}"
                raise BrokenChainError(at, at, why)
            self._open.append(canonical)
            if chain is not None:
                self._close(chain)

    def finish(self, head: ChainCheckpoint) -> None:
        """To be called after the last event; `head` is the end of the log by `log_head`.

        Raises BrokenChainError if events are missing at the end, or are not covered.
        """
        if self._open or self.checkpoint != head:
            first = self.checkpoint.position + 1
            last = max(first, self._position, head.position)
            raise BrokenChainError(
                first, last, f"the chain ends at position {first - 1}, the log at {head.position}"
            )

    def _close(self, chain: bytes) -> None:
        if link(self.checkpoint.chain, self._open) != chain:
            first = self.checkpoint.position + 1
            raise BrokenChainError(first, self._position, "not the events that were stored here")
        self.checkpoint = ChainCheckpoint(self._position, chain)
        self._open.clear()


def link(before: bytes, events: Iterable[bytes]) -> bytes:
    """The chain's value after a call that stored `events`, given in canonical form."""
    return hashlib.sha256(before + b"".join(events)).digest()


class StoredRow(NamedTuple):
    """An event with the columns that the chain covers, in the order of the table."""

    position: int
    originator_id: UUID
    originator_version: int
    topic: str
    body: bytes
    recorded_at: datetime
    attachment_id: UUID | None
    volume_id: UUID | None
    server_id: UUID | None
    host: str | None
    operation_id: UUID | None
    request_id: str | None
    cause: str | None
    actor: str | None
    user_id: str | None
    project_id: str | None
    roles: list[str] | None
    append_id: UUID


_POSITION = struct.Struct("!q")
_POSITION_AT = 12  # after the number of fields, its type and its length


def _position_of(canonical: bytes) -> int:
    position: int = _POSITION.unpack_from(canonical, _POSITION_AT)[0]
    return position


#: The types of the columns, whose numbers are the same in every PostgreSQL.
_TYPES = (
    *("int8", "uuid", "int8", "text", "bytea", "timestamptz", "uuid", "uuid", "uuid", "text"),
    *("uuid", "text", "text", "text", "text", "text", "text[]", "uuid"),
)


@cache
def _adapted() -> AdaptersMap:
    """Knows the canonical form, without a database."""
    context = AdaptersMap(psycopg.adapters)
    types = [context.types.get_oid(name) for name in _TYPES]
    info = CompositeInfo("event", 0, 0, field_names=StoredRow._fields, field_types=types)
    register_composite(info, context, factory=StoredRow)
    return context


def encode(row: StoredRow) -> bytes:
    """The canonical form of an event; equal to what the database's `event_bytes` gives.

    Raises psycopg.DataError for what no row can hold (a NUL in text).
    """
    [canonical] = Transformer(_adapted()).dump_sequence([row], [PyFormat.BINARY])
    return bytes(canonical or b"")


def decode(canonical: bytes) -> StoredRow:
    """The event back from its canonical form; ValueError if that is not one."""
    try:
        row = StoredRow(*RecordBinaryLoader(0, _adapted()).load(canonical))
        if encode(row) == canonical:
            return row
    except (struct.error, TypeError, ValueError, AttributeError, psycopg.Error) as error:
        raise ValueError(f"not the row of an event: {canonical[:100]!r}") from error
    raise ValueError(f"not the row of an event: {canonical[:100]!r}")
