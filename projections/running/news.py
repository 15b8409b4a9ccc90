"""The payload of a projection step's NOTIFY: the keys that changed.

It saves each waiter a query (ledger.core.wakeups).  A payload that is too long for a notification
is left out; then every waiter queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import orjson

from projections.running.writes import Replacement

TEXT_BYTES_MAX = 7_999  # PostgreSQL's limit of a NOTIFY payload

#: A row of the query `changed`: what, who, position (None), bound, ended, due.
Moved = tuple[str, str, int | None, bool, bool, bool]


class News(NamedTuple):
    """Projections advanced from one position to another, and what that changed."""

    projections: list[str]
    after: int
    to: int
    moved: list[Moved]

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(*orjson.loads(text))


def text_of(
    projections: list[str], after: int, to: int, replacements: Sequence[Replacement]
) -> str:
    """The payload for a step; "" if it is too long."""
    news = News(projections, after, to, list(_moved(after, replacements)))
    text = orjson.dumps(tuple(news))
    return text.decode() if len(text) <= TEXT_BYTES_MAX else ""


def _moved(after: int, replacements: Sequence[Replacement]) -> Iterator[Moved]:
    """A command that existed before, with fewer steps left now, is not reported."""
    for place, _, rows, _ in replacements:
        match place.table:
            case "mailbox" | "hosts":
                for row in rows:
                    if row["position"] <= after:
                        continue
                    yield "host", row["host"], None, False, False, False
            case "operations":
                for row in rows:
                    ended, due = row["state"] != "running", row["due_at"] is not None
                    bound = row["bound"] or ended
                    yield "operation", row["operation_id"], None, bound, ended, due
