"""Signed checkpoints of the log, in a directory that others can have (decision 0116).

Theory of operation.  The directory has the newest `checkpoint`, all of them in `checkpoints/` by
their size, the tree (ledger.upkeep.tiles), and the public key.  Each time only what is new is read,
and followed along the hash chain; before that the old end is held against the tree, and the tree
against the signature that was made of it.  So nothing is signed that does not go on where the last
signature ended: not a log that was put back from a backup, nor one whose end was changed.

The key is OpenSSL's business: it reads the file, whatever protects it, and signs.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from ledger.log import chain
from ledger.log.chain import BrokenChainError, ChainRow
from ledger.upkeep import check_proof
from ledger.upkeep.archive import Archive, becomes
from ledger.upkeep.check_proof import ProofError, PublicKey, TreeCheckpoint, leaf_hash
from ledger.upkeep.long_work import Checkmark
from ledger.upkeep.tiles import TileError, Tiles
from ledger.upkeep.verify import Statement, head, pages, verify

#: Leaves that are added to the tree at once: whole tiles.
LEAVES = 256 * 256
#: What comes before the 32 bytes of an Ed25519 key in DER (RFC 8410).
_DER = bytes.fromhex("302a300506032b6570032100")
_OPENSSL_S = 60.0


class SigningError(Exception):
    """Nothing was signed; the message says why."""


class Signer:
    """A key of Ed25519 in a file of OpenSSL's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        der = _openssl("pkey", "-in", str(file), "-pubout", "-outform", "DER")
        if not der.startswith(_DER):
            raise SigningError(f"{file} has no Ed25519 key")
        self._public = der[len(_DER) :]

    def key(self, log: UUID) -> PublicKey:
        """Its public half, by the name of the log that it signs for."""
        return PublicKey(origin(log), self._public)

    def sign(self, key: PublicKey, checkpoint: TreeCheckpoint) -> str:
        with tempfile.NamedTemporaryFile() as text:  # it has to know the length before
            text.write(checkpoint.text.encode())
            text.flush()
            signature = _openssl(
                *("pkeyutl", "-sign", "-rawin", "-inkey", str(self._file), "-in", text.name)
            )
        note = checkpoint.signed(key, signature)
        TreeCheckpoint.parse(note, key)
        return note


def _openssl(*arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["openssl", *arguments],  # noqa: S607 - whichever is installed
            capture_output=True,
            check=False,
            timeout=_OPENSSL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SigningError(f"openssl is needed, and cannot be used: {error}") from None
    if done.returncode:
        raise SigningError(f"openssl {arguments[0]}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def origin(log: UUID) -> str:
    """A log's name in its checkpoints."""
    return f"attachment-ledger/{log}"


class Signed:
    """The directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def newest(self) -> str | None:
        """The newest checkpoint, a note; None: there is none yet."""
        path = self._directory / "checkpoint"
        return path.read_text() if path.exists() else None

    def tiles(self, size: int) -> Tiles:
        return Tiles(self._directory, size)

    def put(self, note: str, size: int, key: PublicKey) -> None:
        """The newest comes last: it is what the others are there for."""
        texts = {"public-key": f"{key}\n", f"checkpoints/{size}": note, "checkpoint": note}
        for name, text in texts.items():
            path = self._directory / name
            path.parent.mkdir(exist_ok=True)
            with becomes(path) as file:
                file.write(text.encode())


def sign(
    connection: psycopg.Connection[Any], signed: Signed, signer: Signer, archive: Archive | None
) -> Generator[Checkmark]:
    """Sign how the log ends now, if it is further than the last time.

    Raises SigningError; BrokenChainError and DetachedError as `verify` does.
    """
    log = log_of(connection)
    key = signer.key(log)
    tiles = _tree(signed, key)
    since = _same_end(connection, archive, tiles, log)
    leaves: list[bytes] = []

    def take(page: list[ChainRow]) -> None:
        leaves.extend(leaf_hash(row.canonical) for row in page)
        if len(leaves) >= LEAVES:
            tiles.grow(leaves[:LEAVES])
            del leaves[:LEAVES]

    old = TreeCheckpoint(key.name, tiles.size, tiles.root()) if tiles.size else None
    for proven, total in verify(connection, archive, since=since, also=take):
        yield Checkmark(proven.checkpoint.position, total)
    tiles.grow(leaves)
    if old is None or tiles.size > old.size:
        new = TreeCheckpoint(key.name, tiles.size, tiles.root())
        if old:
            check_proof.check_consistency(old, new, tiles.consistency(old.size))
        signed.put(signer.sign(key, new), new.size, key)


def log_of(connection: psycopg.Connection[Any]) -> UUID:
    """Which log it is.  Raises SigningError for one that has no event yet."""
    log = head(connection).log
    if log is None:
        raise SigningError("the log is empty")
    return log


def _tree(signed: Signed, key: PublicKey) -> Tiles:
    """As it was signed the last time.  Raises SigningError if it is not what was signed."""
    note = signed.newest()
    if note is None:
        return signed.tiles(0)
    try:
        last = TreeCheckpoint.parse(note, key)
        tiles = signed.tiles(last.size)
        if tiles.root() == last.root:
            return tiles
    except (ProofError, TileError) as error:
        raise SigningError(
            f"the directory cannot be gone on with: {error}. It is of another log or key, or was "
            "changed: begin in a new one, and keep this one"
        ) from None
    raise SigningError(
        "the files of the tree are not those that the newest checkpoint is of: get them back from "
        "a copy, or begin in a new directory, and keep this one"
    )


def _same_end(
    connection: psycopg.Connection[Any], archive: Archive | None, tiles: Tiles, log: UUID
) -> Statement | None:
    """Where to go on in the log: where the last checkpoint ended, if the event there is the same.

    Raises SigningError if the log does not come there; BrokenChainError.
    """
    size = tiles.size
    if not size:
        return None
    if (end := head(connection).checkpoint.position) < size:
        raise SigningError(
            f"the log ends at position {end}, and its newest checkpoint is of {size}: it was put "
            "back from a backup, or cut. That checkpoint is for ever; begin in a new directory, "
            "and keep this one"
        )
    for page in pages(connection, archive, size - 1, size):
        for row in page:
            if row.chain is not None and leaf_hash(row.canonical) == tiles.leaf(size - 1):
                return Statement(chain.ChainCheckpoint(size, row.chain), None, log)
    raise BrokenChainError(size, size, "not the event that was there when it was signed")


def entry(
    connection: psycopg.Connection[Any], archive: Archive | None, position: int
) -> bytes | None:
    """An event as the tree has it; None: there is none there."""
    for page in pages(connection, archive, position - 1, position):
        for row in page:
            return row.canonical
    return None
