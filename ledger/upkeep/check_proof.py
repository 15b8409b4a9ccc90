"""Checks what `attachment-ledger event prove` has printed.  One file, and Python 3.11 alone.

    python3 check_proof.py --key KEY event.tlog-proof           # an event is in the signed log
    python3 check_proof.py --key KEY --before OLD later.proof   # one log has grown out of the other

KEY is the public key as `event sign` says it, from somebody you believe; not from beside the proof.
Exit code 0: it holds, and the event is printed as JSON.  1: it does not.

Theory of operation.  A checkpoint (c2sp.org/tlog-checkpoint) is a size and the root of a Merkle
tree (RFC 9162, 2.1) over all events up to there, signed with Ed25519 (RFC 8032) as a note
(c2sp.org/signed-note).  A leaf is an event as PostgreSQL sends the row, so it has each column.  A
proof (c2sp.org/tlog-proof) has one event and the hashes beside its way to the root: they say
nothing of other events.  That a later log has the earlier one in it is proven likewise; the text
is the body of c2sp.org/tlog-witness's `add-checkpoint`.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import struct
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

PROOF = "c2sp.org/tlog-proof@v1"
DASH = "\u2014"
ED25519 = b"\x01"
HASH_BYTES = KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_TEXT_MAX = 1_000_000
_DIGITS_MAX = 19  # positions have eight bytes


class ProofError(Exception):
    """It proves nothing; the message says why."""


# --- the tree: RFC 9162, 2.1 -------------------------------------------------------------------


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_by_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root of a tree that has this leaf there (2.1.3.2).  Raises ProofError."""
    if not 0 <= index < size:
        raise ProofError(f"there is no event {index + 1} in a log of {size}")
    place, last, root = index, size - 1, leaf
    for each in path:
        if last == 0:
            raise ProofError("the path is too long")
        if place & 1 or place == last:
            root = node_hash(each, root)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            root = node_hash(root, each)
        place, last = place >> 1, last >> 1
    if last:
        raise ProofError("the path is too short")
    return root


def check_consistency(old: TreeCheckpoint, new: TreeCheckpoint, path: Sequence[bytes]) -> None:
    """That the first events of the newer tree are those of the older one (2.1.4.2)."""
    if not 0 < old.size < new.size:
        if (old.size, old.root) != (new.size, new.root) or path:
            raise ProofError(f"a log of {new.size} events cannot have grown out of {old.size}")
        return
    way = [old.root, *path] if old.size & (old.size - 1) == 0 else list(path)
    if not way:
        raise ProofError("the path is too short")
    place, last = old.size - 1, new.size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    first = second = way[0]
    for each in way[1:]:
        if last == 0:
            raise ProofError("the path is too long")
        if place & 1 or place == last:
            first, second = node_hash(each, first), node_hash(each, second)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            second = node_hash(second, each)
        place, last = place >> 1, last >> 1
    if (first, second, last) != (old.root, new.root, 0):
        raise ProofError("the log was changed before the earlier checkpoint's end")


# --- Ed25519: RFC 8032, 5.1 --------------------------------------------------------------------

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
Point = tuple[int, int, int, int]


def _add(a: Point, b: Point) -> Point:
    x = (a[1] - a[0]) * (b[1] - b[0]) % _P
    y = (a[1] + a[0]) * (b[1] + b[0]) % _P
    t, z = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = y - x, z - t, z + t, y + x
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Point) -> Point:
    result: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point, scalar = _add(point, point), scalar >> 1
    return result


def _point(text: bytes) -> Point:
    """Raises ProofError for what is no point of the curve."""
    number = int.from_bytes(text, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if y >= _P or (x * x - square) % _P or (x == 0 and sign):
        raise ProofError("not a point of the curve")
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


_BASE = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))


def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether it is the Ed25519 signature of that key, of 32 bytes."""
    if len(key) != KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    scalar = int.from_bytes(signature[KEY_BYTES:], "little")
    if scalar >= _L:
        return False
    digest = hashlib.sha512(signature[:KEY_BYTES] + key + message).digest()
    try:
        nonce, public = _point(signature[:KEY_BYTES]), _point(key)
    except ProofError:
        return False
    wanted = _add(nonce, _times(int.from_bytes(digest, "little") % _L, public))
    found = _times(scalar, _BASE)
    return all((found[n] * wanted[2] - wanted[n] * found[2]) % _P == 0 for n in (0, 1))


# --- notes and checkpoints ---------------------------------------------------------------------


class PublicKey(NamedTuple):
    """A public key, by the name that signatures bear."""

    name: str
    public: bytes

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Raises ProofError for what is no key of Ed25519."""
        name, _, rest = text.strip().partition("+")
        id_, _, encoded = rest.partition("+")
        public = _decoded(encoded)
        key = cls(name, public[1:])
        if public[:1] != ED25519 or len(key.public) != KEY_BYTES or key.id.hex() != id_:
            raise ProofError(f"this is no public key: {text.strip()[:200]!r}")
        return key


class TreeCheckpoint(NamedTuple):
    """What a log says of itself: its name, how many events it has, and the root over them."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    def signed(self, key: PublicKey, signature: bytes) -> str:
        """As a note."""
        return f"{self.text}\n{DASH} {key.name} {base64.b64encode(key.id + signature).decode()}\n"

    @classmethod
    def parse(cls, note: str, key: PublicKey) -> TreeCheckpoint:
        """Raises ProofError for what is no checkpoint that this key has signed."""
        text, parted, signatures = note.rpartition("\n\n")
        text += "\n"
        ours = f"{DASH} {key.name} "
        lines = signatures.splitlines()
        made = [_decoded(line.removeprefix(ours)) for line in lines if line.startswith(ours)]
        if not parted or not any(
            each[:4] == key.id and is_signed(key.public, text.encode(), each[4:]) for each in made
        ):
            raise ProofError("the checkpoint is not signed with this key")
        found = cls.unsigned(text)
        if found.origin != key.name:
            raise ProofError(f"the checkpoint is of another log: {found.origin}")
        return found

    @classmethod
    def unsigned(cls, text: str) -> TreeCheckpoint:
        """Of the text that is signed, which proves nothing.  Raises ProofError."""
        origin, size, root = [*text.split("\n"), "", "", ""][:3]
        found = cls(origin, _number("", size), _decoded(root))
        if len(found.root) != HASH_BYTES or found.text != text:
            raise ProofError("what is signed is no checkpoint")
        return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProofError(f"this is not base64: {text[:100]!r}") from None


# --- proofs ------------------------------------------------------------------------------------


class Proven(NamedTuple):
    """That a log had this event when it was signed."""

    checkpoint: TreeCheckpoint
    entry: bytes


def proof_text(index: int, entry: bytes, path: Sequence[bytes], note: str) -> str:
    extra = base64.b64encode(entry).decode()
    return f"{PROOF}\nextra {extra}\nindex {index}\n{_hashes(path)}\n{note}"


def growth_text(old: int, path: Sequence[bytes], note: str) -> str:
    return f"old {old}\n{_hashes(path)}\n{note}"


def _hashes(path: Sequence[bytes]) -> str:
    return "".join(f"{base64.b64encode(each).decode()}\n" for each in path)


def check_event(text: str, key: PublicKey) -> Proven:
    """Raises ProofError."""
    lines = text.split("\n")
    first, extra, number, *rest = [*lines, "", "", ""]
    if first != PROOF:
        raise ProofError("this is no proof of an event")
    entry, index = _decoded(_behind("extra ", extra)), _number("index ", number)
    path, note = _path_and_note(rest[:-3])
    found = TreeCheckpoint.parse(note, key)
    if root_by_inclusion(leaf_hash(entry), index, found.size, path) != found.root:
        raise ProofError("the log that was signed does not have this event there")
    if event_of(entry)["position"] != index + 1:
        raise ProofError("the event says that it has another position")
    return Proven(found, entry)


def check_growth(text: str, old_note: str, key: PublicKey) -> tuple[TreeCheckpoint, TreeCheckpoint]:
    """The older and the newer checkpoint.  Raises ProofError."""
    lines = text.split("\n")
    old = TreeCheckpoint.parse(old_note, key)
    if _number("old ", lines[0]) != old.size:
        raise ProofError("the proof begins at another checkpoint")
    path, note = _path_and_note(lines[1:])
    new = TreeCheckpoint.parse(note, key)
    check_consistency(old, new, path)
    return old, new


def _path_and_note(lines: list[str]) -> tuple[list[bytes], str]:
    path = list(takewhile(bool, lines))
    return [_decoded(each) for each in path], "\n".join(lines[len(path) + 1 :])


def _behind(word: str, line: str) -> str:
    if not line.startswith(word):
        raise ProofError(f"a line should begin with {word.strip()!r}: {line[:100]!r}")
    return line[len(word) :]


def _number(word: str, line: str) -> int:
    text = _behind(word, line)
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise ProofError(f"this is no number: {text[:100]!r}")
    return int(text)


# --- events ------------------------------------------------------------------------------------

COLUMNS = (
    *("position", "originator_id", "originator_version", "topic", "body", "recorded_at"),
    *("attachment_id", "volume_id", "server_id", "host", "operation_id", "request_id", "cause"),
    *("actor", "user_id", "project_id", "roles", "append_id"),
)
_INT8, _TEXT, _BYTEA, _TIMESTAMPTZ, _UUID, _TEXTS = 20, 25, 17, 1184, 2950, 1009
#: An array's head: dimensions, whether it has NULLs, its type; count and first index of each.
_ARRAY_COUNT_AT, _ARRAY_VALUES_AT = 12, 20


def event_of(entry: bytes) -> dict[str, Any]:
    """The columns of an event.  Raises ProofError for what is no row of PostgreSQL's."""
    try:
        fields = list(_fields(entry, 4, struct.unpack_from("!i", entry)[0], typed=True))
        event = dict(zip(COLUMNS, fields, strict=True))
        event["body"] = json.loads(event["body"])
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise ProofError(f"this is no event: {error}") from None
    return event


def _fields(data: bytes, at: int, count: int, *, typed: bool) -> Any:
    """Values with their length, and their type before it; of an array's all are text."""
    for _ in range(count):
        kind = _TEXT
        if typed:
            [kind], at = struct.unpack_from("!i", data, at), at + 4
        [length], at = struct.unpack_from("!i", data, at), at + 4
        yield None if length < 0 else _value(kind, data[at : at + length])
        at += max(length, 0)


def _value(kind: int, data: bytes) -> Any:
    if kind == _INT8:
        return struct.unpack("!q", data)[0]
    if kind == _UUID:
        return str(UUID(bytes=data))
    if kind == _TIMESTAMPTZ:
        since = timedelta(microseconds=struct.unpack("!q", data)[0])
        return (datetime(2000, 1, 1, tzinfo=UTC) + since).isoformat()
    if kind == _TEXTS:
        [dimensions] = struct.unpack_from("!i", data)
        count = struct.unpack_from("!i", data, _ARRAY_COUNT_AT)[0] if dimensions else 0
        return list(_fields(data, _ARRAY_VALUES_AT, count, typed=False))
    return {_TEXT: bytes.decode, _BYTEA: bytes.decode}[kind](data)


# --- the program -------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--key", required=True, help="the public key, NAME+ID+KEY, or a file that has it")
    add("--before", type=Path, metavar="FILE", help="an earlier checkpoint of the same log")
    add("proof", type=Path)
    options = parser.parse_args(arguments)
    try:
        key = key_of(options.key)
        text = _read(options.proof)
        if options.before:
            old, new = check_growth(text, _read(options.before), key)
            said = f"The log of {new.size} events begins with the log of {old.size}."
        else:
            said = json.dumps(event_of(check_event(text, key).entry), indent=2)
    except (ProofError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"not proven: {error}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


def key_of(given: str) -> PublicKey:
    """Of a key, or the name of its file.  Raises ProofError, OSError, UnicodeDecodeError."""
    return PublicKey.parse(given if "+" in given else _read(Path(given)))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_TEXT_MAX).decode()


if __name__ == "__main__":
    sys.exit(main())
