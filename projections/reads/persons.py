"""Personal data, which is stored outside the log so that it can be erased (decision 0130).

Theory of operation.  Where a person would be named, the log and everything made from it have the
hash of a row of the table `persons`: a random salt, the user's id, and a name.  Another row has the
address and the program of a request.  Chain and signatures cover the hash.  Readers replace the
hash by the row.  After the row is deleted nobody can, but equal hashes still mean the same person.
A row is stored with the first event that has its hash, so refused requests store none.

Nothing of the table is cached: an erasure takes effect in all processes at once, and an erased
person gets another hash at the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from projections.base import Row

PREFIX = "p:"

#: By the key that may have a hash: the keys to fill in, and the columns of the person for them.
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
    """The hashes of persons in these rows."""
    return sorted({known_as for row in rows for _, _, known_as in _places(row)})


def tell(rows: Iterable[Row], persons: Mapping[str, Row]) -> None:
    """Replace hashes by persons.  The name of an erased person says that."""
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
