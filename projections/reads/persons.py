"""People, whose names and ids are beside the log, so that they can be erased (decision 0130).

Theory of operation.  In place of a person the log, and whatever is made of it, has the hash of a
row of the table `persons`: a random salt, the user's id, and a name; of another row for the address
and the program that a request came from.  Chain and signatures cover the hash.  Readers put what
the row says back in its place.  Once the row is deleted nobody can, and the hash still says that
the same person did two things.  A row is stored with the first event that has its hash, so who was
refused has none.

Nothing of the table is kept in memory: whoever is erased is so for every process at once, and gets
another hash when they come again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from projections.base import Row

PREFIX = "p:"

#: Where a part of a row has a hash, and what of the person goes into which of its places.
_OWNER = {"user_id": {"user_id": "user_id"}}
_ROW = {
    **_OWNER,
    "actor": {"actor": "name", "user_id": "user_id"},
    "asked_by": {"asked_by": "name"},
}
_SOMEBODY = {
    "name": {"name": "name", "user_id": "user_id"},
    "address": {"address": "address", "agent": "agent"},
}
_TOLD = ("user_id", "address", "agent")


def hashes(rows: Iterable[Row]) -> list[str]:
    """Those of the persons in these rows."""
    return sorted({known_as for row in rows for _, _, known_as in _places(row)})


def tell(rows: Iterable[Row], persons: Mapping[str, Row]) -> None:
    """Put persons (by their hashes) in the place of these.  The name of an erased one says so."""
    for part, meant, known_as in [place for row in rows for place in _places(row)]:
        erased = {**dict.fromkeys(_TOLD, known_as), "name": f"erased {known_as}"}
        who = persons.get(known_as, erased)
        part.update({key: who[what] or None for key, what in meant.items()})


def _places(row: Row) -> Iterator[tuple[Row, Mapping[str, str], str]]:
    for part, places in _parts(row):
        for key, meant in places.items():
            value = part.get(key)
            if isinstance(value, str) and value.startswith(PREFIX):
                yield part, meant, value


def _parts(row: Row) -> Iterator[tuple[Row, Mapping[str, Mapping[str, str]]]]:
    yield row, _ROW
    body: Any = row.get("body") or {}
    yield body, _OWNER
    for part in (row.get("asked_by"), body.get("actor"), body.get("sender")):
        if isinstance(part, dict):
            yield part, _SOMEBODY
