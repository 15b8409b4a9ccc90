"""Closed months of the log in files that any tool can read and `event verify` can prove.

A month is two files.  `events-2026-05.jsonl.gz` has one event per line, in the order of the
log, with every column by its name; `body` is the stored text itself, for its bytes are what
the hash chain covers.  `events-2026-05.json`, the manifest, says which log and positions it
is, the chain before and after it, and the SHA-256 of the other.  The manifest comes last,
so a month with a manifest is whole; every file gets its name when it is on the disk.

A directory holds the months of one log from its first event on, one after the other.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import UUID

import orjson

from ledger.log.chain import GENESIS, ChainCheckpoint, ChainRow, StoredRow, Verifier, decode, encode

FORMAT = 1
_COMPRESSION = 6
_MANIFEST = re.compile(r"events-(\d{4}-\d{2})\.json")
_UUIDS = ("originator_id", "attachment_id", "volume_id", "server_id", "operation_id", "append_id")


class ArchiveError(Exception):
    """A file of an archive is missing, unreadable or wrong; the message names it and says why."""


@dataclass(frozen=True, kw_only=True)
class Month:
    """A month in an archive: what its manifest says."""

    month: str  # "2026-05", in UTC
    log: UUID
    before: ChainCheckpoint
    after: ChainCheckpoint
    sha256: str

    @property
    def file(self) -> str:
        return f"events-{self.month}.jsonl.gz"

    @property
    def first(self) -> int:
        return self.before.position + 1

    @property
    def last(self) -> int:
        return self.after.position

    def begins_before(self, moment: datetime) -> bool:
        """Not by strftime: its %Y has no leading zeros in the C library of Linux."""
        return self.month < moment.isoformat()[:7]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "month": self.month,
            "log": self.log,
            "file": self.file,
            "sha256": self.sha256,
            "first_position": self.first,
            "last_position": self.last,
            "events": self.last - self.before.position,
            "chain_before": self.before.chain.hex(),
            "chain_after": self.after.chain.hex(),
        }

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> Month:
        """Raises ValueError or KeyError for what is no manifest of this format."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r} is not known here")
        return cls(
            month=str(data["month"]),
            log=UUID(data["log"]),
            before=ChainCheckpoint(data["first_position"] - 1, bytes.fromhex(data["chain_before"])),
            after=ChainCheckpoint(data["last_position"], bytes.fromhex(data["chain_after"])),
            sha256=str(data["sha256"]),
        )


class ArchivedEvent(NamedTuple):
    """An event with its columns, and its link of the chain if it has one."""

    row: StoredRow
    chain: bytes | None

    def as_chain_row(self) -> ChainRow:
        return ChainRow(encode(self.row), self.chain)


class Archive:
    """The months in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def months(self) -> list[Month]:
        """All that are whole, in order.  Raises ArchiveError if one is missing or is no month."""
        found: list[Month] = []
        for path in sorted(self.directory.glob("events-*.json")):
            if not _MANIFEST.fullmatch(path.name):
                continue
            try:
                month = Month.of_json(orjson.loads(path.read_bytes()))
            except (ValueError, KeyError, TypeError) as error:
                raise ArchiveError(f"{path} is no manifest of an archived month: {error}") from None
            before = found[-1].after if found else GENESIS
            if month.before != before or (found and month.log != found[0].log):
                raise ArchiveError(
                    f"{path} begins at position {month.first}, and does not go on where the month "
                    f"before it ends ({before.position}): one is missing here, or is of another log"
                )
            found.append(month)
        return found

    def month_of(self, position: int) -> Month | None:
        """The month that has this position."""
        return next((m for m in self.months() if m.first <= position <= m.last), None)

    def events(self, month: Month, after: int = 0) -> Iterator[ArchivedEvent]:
        """The events of a month behind a position, as the file has them.

        Raises ArchiveError, with the position, where the file cannot be read.
        """
        position = month.before.position
        path = self.directory / month.file
        try:
            with gzip.open(path) as lines:
                for line in lines:
                    position += 1
                    if position > after:
                        yield _event(orjson.loads(line))
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path}, event at position {position}: {error}") from None

    def check(self, month: Month) -> None:
        """Read a month back: it is what its manifest, and the chain, say.

        Raises ArchiveError or BrokenChainError.
        """
        path = self.directory / month.file
        try:
            found = _sha256(path)
        except OSError as error:
            raise ArchiveError(f"{path} cannot be read: {error.strerror}") from None
        if found != month.sha256:
            raise ArchiveError(f"{path} has SHA-256 {found}, and its manifest says {month.sha256}")
        verifier = Verifier(month.before)
        verifier.feed(event.as_chain_row() for event in self.events(month))
        verifier.finish(month.after)

    def write(
        self, name: str, log: UUID, before: ChainCheckpoint, pages: Iterable[list[ChainRow]]
    ) -> Iterator[int]:
        """Add a month; yields the position that is written and proven, page by page.

        It counts from the moment its manifest has its name, which is after it was read back.
        Raises BrokenChainError, and adds nothing, if the events are not what was stored.
        """
        verifier = Verifier(before)
        data = self.directory / f"events-{name}.jsonl.gz"
        with becomes(data) as file:
            with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as lines:
                for page in pages:
                    verifier.feed(page)
                    events = [ArchivedEvent(decode(row.canonical), row.chain) for row in page]
                    lines.write(b"".join(map(_line, events)))
                    yield verifier.checkpoint.position
            verifier.finish(verifier.checkpoint)  # nothing is open behind the last link
        month = Month(
            month=name, log=log, before=before, after=verifier.checkpoint, sha256=_sha256(data)
        )
        self.check(month)
        with becomes(self.directory / f"events-{name}.json") as file:
            file.write(orjson.dumps(month.as_json(), option=orjson.OPT_INDENT_2))


def _line(event: ArchivedEvent) -> bytes:
    columns = event.row._asdict()
    body = columns.pop("body")
    try:
        columns["body"] = body.decode()
    except UnicodeDecodeError:  # no event of ours; but the log takes any bytes
        columns["body_base64"] = b64encode(body).decode()
    columns["chain"] = None if event.chain is None else event.chain.hex()
    return orjson.dumps(columns, option=orjson.OPT_APPEND_NEWLINE)


def _event(columns: dict[str, Any]) -> ArchivedEvent:
    chain = columns.pop("chain")
    if "body" in columns:
        columns["body"] = columns["body"].encode()
    else:
        columns["body"] = b64decode(columns.pop("body_base64"))
    columns["recorded_at"] = datetime.fromisoformat(columns["recorded_at"])
    for name in _UUIDS:
        if columns[name] is not None:
            columns[name] = UUID(columns[name])
    return ArchivedEvent(StoredRow(**columns), None if chain is None else bytes.fromhex(chain))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def becomes(path: Path) -> Iterator[IO[bytes]]:
    """A new file that gets its name when all of it is on the disk, or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:  # a disk that is full does not stay so for it
        part.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
