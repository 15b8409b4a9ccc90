"""PostgreSQL arrays in binary form, with a type that does not depend on what is in them.

psycopg finds the type of a list by looking at its elements; a list of nothing but None
then has another type than its neighbours, and with it the statement another plan.  The
writer sends the same seventeen arrays all day long, so here each says what it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = struct.Struct("!iiIii")  # dimensions, has nulls, element type, length, lower bound
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)


class Array:
    """A one-dimensional array; `items` are elements in PostgreSQL's binary form, or None."""

    element_oid: ClassVar[int]
    array_oid: ClassVar[int]

    __slots__ = ("items",)

    def __init__(self, items: Sequence[bytes | None]) -> None:
        self.items = items


class Bytea(Array):
    element_oid, array_oid = 17, 1001


class Int4(Array):
    element_oid, array_oid = 23, 1007


class Int8(Array):
    element_oid, array_oid = 20, 1016


class Text(Array):
    element_oid, array_oid = 25, 1009


class Uuid(Array):
    element_oid, array_oid = 2950, 2951


def encode(array: Array) -> bytes:
    """The array as PostgreSQL's array_recv reads it."""
    items = array.items
    header = _HEADER.pack(1 if items else 0, None in items, array.element_oid, len(items), 1)
    parts = [header if items else header[:12]]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH.pack(len(item)), item)
    return b"".join(parts)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> Buffer:
        return encode(obj)


def register(connection: Connection[object]) -> None:
    """Let `connection` take these arrays as parameters."""
    for kind in Array.__subclasses__():
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.array_oid})
        connection.adapters.register_dumper(kind, dumper)
