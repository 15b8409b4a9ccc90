"""People, whose names and ids are beside the log, so that they can be erased (decision 0130).

Theory of operation.  In place of a person the log, and whatever is made of it, has the hash of a
row of the table `persons`: a random salt, the user's id, and a name; of another row for the address
and the program that a request came from.  Chain and signatures cover the hash.  Readers put what
the row says back in its place.  Once the row is deleted nobody can, and the hash still says that
the same person did two things.

Nothing of the table is kept in memory: whoever is erased is so for every process at once, and gets
another hash when they come again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from projections.base import Row

PREFIX = "p:"

#: Where a row has a hash, and what of the person is meant by it.
_OWN = {"actor": "name", "asked_by": "name", "user_id": "user_id"}
_IN_BODY = {"user_id": "user_id"}
_OF_SOMEBODY = {"name": "name", "user_id": "user_id", "address": "address", "agent": "agent"}


def hashes(rows: Iterable[Row]) -> list[str]:
    """Those of the persons in these rows."""
    return sorted({part[key] for row in rows for part, key, _ in _places(row)})


def tell(rows: Iterable[Row], persons: Mapping[str, Row]) -> None:
    """Put persons (by their hashes) in the place of these.  The name of an erased one says so."""
    for row in rows:
        for part, key, what in list(_places(row)):
            who = persons.get(part[key])
            if who is not None:
                part[key] = who[what] or None
            elif what == "name":
                part[key] = f"erased {part[key]}"


def _places(row: Row) -> Iterator[tuple[Row, str, str]]:
    for part, meant in _parts(row):
        for key, what in meant.items():
            value = part.get(key)
            if isinstance(value, str) and value.startswith(PREFIX):
                yield part, key, what


def _parts(row: Row) -> Iterator[tuple[Row, Mapping[str, str]]]:
    yield row, _OWN
    body: Any = row.get("body") or {}
    yield body, _IN_BODY
    for part in (row.get("asked_by"), body.get("actor"), body.get("sender")):
        if isinstance(part, dict):
            yield part, _OF_SOMEBODY
