"""The Merkle tree over the log, as files of hashes: c2sp.org/tlog-tiles.

`tile/0/x001/234` has the 256 leaf hashes from number 1,234 * 256 on, `tile/1/...` a hash for each
whole tile below, and so on; the last of a level may be partial, `067.p/13`.  Nothing in them
changes, so a proof for any checkpoint is made of them in a moment, without the log, and a log that
has grown adds to them without being read again.  They are hashes: they tell nothing of events.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ledger.upkeep.archive import becomes
from ledger.upkeep.check_proof import node_hash

HASH_BYTES = 32
WIDTH = 256
_TILE_BYTES = WIDTH * HASH_BYTES
_BITS = 8


class TileError(Exception):
    """A file of the tree is missing or too short; the message names it."""


class Tiles:
    """The tree in a directory, as it is at a `size`; it may have grown beyond that."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory, self.size = directory, size
        self._read: dict[tuple[int, int], bytes] = {}

    # -- reading ------------------------------------------------------------------------------

    def root(self) -> bytes:
        """Of a tree that is not empty."""
        return self._hash(0, self.size)

    def leaf(self, index: int) -> bytes:
        return self._node(0, index)

    def inclusion(self, index: int) -> list[bytes]:
        """The path from a leaf to the root (RFC 9162, 2.1.3.1)."""
        return self._path(index, 0, self.size)

    def consistency(self, old: int) -> list[bytes]:
        """That the tree of the first `old` leaves is in this one (RFC 9162, 2.1.4.1)."""
        return self._subproof(old, 0, self.size, whole=True)

    def _path(self, index: int, begin: int, end: int) -> list[bytes]:
        if end - begin == 1:
            return []
        middle = begin + _split(end - begin)
        if index < middle:
            return [*self._path(index, begin, middle), self._hash(middle, end)]
        return [*self._path(index, middle, end), self._hash(begin, middle)]

    def _subproof(self, old: int, begin: int, end: int, *, whole: bool) -> list[bytes]:
        if old == end:
            return [] if whole else [self._hash(begin, end)]
        middle = begin + _split(end - begin)
        if old <= middle:
            return [*self._subproof(old, begin, middle, whole=whole), self._hash(middle, end)]
        return [*self._subproof(old, middle, end, whole=False), self._hash(begin, middle)]

    def _hash(self, begin: int, end: int) -> bytes:
        """The root over leaves; where they are a power of two, it is a node of the tree."""
        count = end - begin
        if count & (count - 1) == 0:
            return self._node(count.bit_length() - 1, begin // count)
        middle = begin + _split(count)
        return node_hash(self._hash(begin, middle), self._hash(middle, end))

    def _node(self, level: int, index: int) -> bytes:
        """The root over the 2**level leaves from index * 2**level on."""
        tile_level, inside = divmod(level, _BITS)
        number, first = divmod(index << inside, WIDTH)
        hashes = self._tile(tile_level, number)
        part = hashes[first * HASH_BYTES : (first + (1 << inside)) * HASH_BYTES]
        if len(part) != HASH_BYTES << inside:
            raise TileError(f"{self._path_of(tile_level, number)} is too short")
        return _folded(part)

    def _tile(self, level: int, number: int) -> bytes:
        """The last read of each level are kept.

        Where the tree ends in a tile, the partial one is of this tree; a whole one may be of what
        was added without a checkpoint, by a run that was stopped, and is lost by the log since.
        """
        if (level, number) not in self._read:
            path = self._path_of(level, number)
            end, width = divmod(self.size >> (_BITS * level), WIDTH)
            partial = path.with_name(f"{path.name}.p") / str(width)
            if number == end and (partial.exists() or not path.exists()):
                path = partial
            try:
                hashes = path.read_bytes()
            except OSError as error:
                raise TileError(f"{path} cannot be read: {error.strerror}") from None
            self._read = {at: old for at, old in self._read.items() if at[0] != level}
            self._read[level, number] = hashes
        return self._read[level, number]

    def _path_of(self, level: int, number: int) -> Path:
        thousands, last = divmod(number, 1000)
        parts = [f"{last:03}"]
        while thousands:
            thousands, part = divmod(thousands, 1000)
            parts.insert(0, f"x{part:03}")
        return self._directory.joinpath("tile", str(level), *parts)

    # -- growing ------------------------------------------------------------------------------

    def grow(self, leaves: Sequence[bytes]) -> None:
        """Add leaves' hashes.  They count once a checkpoint says so: half of it does no harm."""
        level, first, new = 0, self.size, b"".join(leaves)
        while new:
            number, begun = divmod(first, WIDTH)
            if begun:
                new = self._tile(level, number)[: begun * HASH_BYTES] + new
            tiles = [new[at : at + _TILE_BYTES] for at in range(0, len(new), _TILE_BYTES)]
            for beyond, tile in enumerate(tiles):
                self._write(level, number + beyond, tile)
            new = b"".join(_folded(tile) for tile in tiles if len(tile) == _TILE_BYTES)
            level, first = level + 1, number
        self._read.clear()
        self.size += len(leaves)

    def _write(self, level: int, number: int, tile: bytes) -> None:
        path = self._path_of(level, number)
        partial = path.with_name(f"{path.name}.p")
        whole = len(tile) == _TILE_BYTES
        to = path if whole else partial / str(len(tile) // HASH_BYTES)
        to.parent.mkdir(parents=True, exist_ok=True)
        with becomes(to) as file:
            file.write(tile)
        if whole and partial.exists():
            shutil.rmtree(partial)


class Roots:
    """The roots of a tree at some sizes, from its leaves, in memory of a few hashes."""

    def __init__(self) -> None:
        self._peaks: list[bytes] = []  # of whole trees, the largest first
        self.size = 0

    def add(self, leaf: bytes) -> None:
        self.size += 1
        rest = self.size
        while not rest & 1:
            leaf, rest = node_hash(self._peaks.pop(), leaf), rest >> 1
        self._peaks.append(leaf)

    def root(self) -> bytes:
        """Of a tree that is not empty."""
        root = self._peaks[-1]
        for peak in self._peaks[-2::-1]:
            root = node_hash(peak, root)
        return root


def _split(count: int) -> int:
    """The largest power of two below it."""
    return 1 << ((count - 1).bit_length() - 1)


def _folded(hashes: bytes) -> bytes:
    """The root over a power of two of hashes."""
    row = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(row) > 1:
        row = [node_hash(row[at], row[at + 1]) for at in range(0, len(row), 2)]
    return row[0]
