"""PostgreSQL's binary form of rows, and of arrays of rows.

A row is the number of its fields and then, for each, the number of its type, the length of
its value in bytes (-1 for NULL) and the value.  So each thread encodes its own append, and the
leader only joins bytes.  The type numbers of PostgreSQL's built-in types never change.

It replaces psycopg's adaptation of composites and arrays in the writer: 12 us of CPU for an
event, made and encoded, instead of 18, which would be spent while other threads wait (row 12 of
docs/benchmarks.md; measure again with `make bench ARGS=shortcuts`).  The hash chain
(ledger.log.chain) needs the same form without a database.  Should psycopg come within a tenth,
the writer can leave encoding to it; the chain keeps what it needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

_BYTEA, _INT8, _INT4, _TEXT, _TEXTS, _TIME, _UUID = 17, 20, 23, 25, 1009, 1184, 2950

_COUNT = struct.Struct("!i")
_FIELD = struct.Struct("!Ii")  # type, length
_ARRAY = struct.Struct("!iiIii")  # dimensions, may have nulls, type, length, lower bound
_NO_ARRAY = struct.pack("!iiI", 0, 0, _TEXT)  # an array without elements has no dimension
_INT4_FIELD = struct.Struct("!Iii").pack
_INT8_FIELD = struct.Struct("!Iiq").pack
_UUID_BYTES = 16
_UUID_HEAD = _FIELD.pack(_UUID, _UUID_BYTES)
_NULL = {kind: _FIELD.pack(kind, -1) for kind in (_BYTEA, _TEXT, _TEXTS, _UUID)}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def int4(value: int) -> bytes:
    return _INT4_FIELD(_INT4, 4, value)


def int8(value: int) -> bytes:
    return _INT8_FIELD(_INT8, 8, value)


def bytea(value: bytes) -> bytes:
    return _FIELD.pack(_BYTEA, len(value)) + value


def text(value: str | None) -> bytes:
    if value is None:
        return _NULL[_TEXT]
    data = value.encode()
    return _FIELD.pack(_TEXT, len(data)) + data


def texts(values: Sequence[str] | None) -> bytes:
    if values is None:
        return _NULL[_TEXTS]
    data = array(_TEXT, [value.encode() for value in values]) if values else _NO_ARRAY
    return _FIELD.pack(_TEXTS, len(data)) + data


def time(value: datetime) -> bytes:
    return _INT8_FIELD(_TIME, 8, (value - _EPOCH) // _MICROSECOND)


def uuid(value: UUID | str | None) -> bytes:
    """Raises ValueError for text that is no uuid."""
    if value is None:
        return _NULL[_UUID]
    data = value.bytes if isinstance(value, UUID) else bytes.fromhex(value.replace("-", ""))
    if len(data) != _UUID_BYTES:
        raise ValueError(f"not a uuid: {value}")
    return _UUID_HEAD + data


def row(count: int, fields: bytes) -> bytes:
    return _COUNT.pack(count) + fields


def array(kind: int, elements: Sequence[bytes]) -> bytes:
    """An array of one dimension."""
    parts = [_ARRAY.pack(1, 0, kind, len(elements), 1)]
    for element in elements:
        parts += (_COUNT.pack(len(element)), element)
    return b"".join(parts)


def values(data: bytes) -> tuple[Any, ...]:
    """What the fields of a row are, in Python; ValueError if it is no row of such types."""
    try:
        return tuple(_values(data))
    except (struct.error, KeyError, ValueError) as error:
        raise ValueError(f"not a row: {data[:100]!r}") from error


def _values(data: bytes) -> Iterator[Any]:
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(data)[0]):
        kind, length = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        end = at + max(length, 0)
        yield None if length < 0 else _DECODE[kind](data[at:end])
        at = end
    if at != len(data):
        raise ValueError(f"a row of {len(data)} bytes where {at} are expected")


def _texts_back(data: bytes) -> list[str]:
    found, at = [], _ARRAY.size
    while at < len(data):
        end = at + _COUNT.size + _COUNT.unpack_from(data, at)[0]
        found.append(data[at + _COUNT.size : end].decode())
        at = end
    return found


_DECODE: dict[int, Callable[[bytes], Any]] = {
    _BYTEA: bytes,
    _INT4: lambda data: _COUNT.unpack(data)[0],
    _INT8: lambda data: struct.unpack("!q", data)[0],
    _TEXT: bytes.decode,
    _TEXTS: _texts_back,
    _TIME: lambda data: _EPOCH + struct.unpack("!q", data)[0] * _MICROSECOND,
    _UUID: lambda data: UUID(bytes=data),
}
