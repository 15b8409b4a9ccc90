"""Erasure of a person: whom the log means can no more be told, and all that it proves stays.

Theory of operation (decision 0130).  First the log says which hashes are erased, then their rows
are deleted.  Whoever is stopped in between does it again: what is left is found by the same name,
and until then `wrong` tells of it.  A person who asks for something meanwhile gets another hash, or
has asked for it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg

import sql
from aggregates.base import Actor, EventContext
from aggregates.person import Person
from ledger.log.application import Ledger
from projections.running.runner import connect

PAGE_EVENTS = 100_000


class KnownPerson(NamedTuple):
    """Whom `user_id` is; empty: nobody.

    `known_as`: their hashes.  `events`: how many say that they asked; `plain`: how many have their
    id or name as a text, which stays.  `files`: archives that may name them as a hash or, if
    they are of before, as a text.
    """

    user_id: str
    known_as: Sequence[str]
    events: int
    plain: int
    files: Sequence[str]


def look(dsn: str, person: str) -> KnownPerson:
    """What there is to erase of a person: by the user's id, or any of the hashes.

    Reads the whole log.
    """
    with connect(dsn) as connection:
        rows = _rows(connection, "of", person=person)
        known_as = [row[0] for row in rows]
        user_id = rows[0][1] if rows else person
        texts = sorted({user_id, *(row[2] for row in rows if row[2])})
        counts = [*_pages(connection, "told_of", known_as=known_as, texts=texts)]
        months = connection.execute(sql.query("reads", "detached"), {"after": 0}).fetchall()
    events, plain = map(sum, zip((0, 0), *counts, strict=True))
    return KnownPerson(user_id, known_as, events, plain, [row[2] for row in months])


def erase(dsn: str, person: str, reason: str, actor: str) -> KnownPerson:
    """Erase a person, if there is one; what there was."""
    found = look(dsn, person)
    if found.known_as:
        with closing(Ledger(dsn)) as ledger:
            told = Person(uuid4())
            told.record(Person.Erased, known_as=list(found.known_as), reason=reason)
            ledger.save(told, context=_context(actor))
        with connect(dsn) as connection, connection.transaction():
            connection.execute(sql.query("persons", "erase"), {"known_as": list(found.known_as)})
            connection.execute(sql.query("persons", "erase_refusals"), {"user_id": found.user_id})
    return found


def wrong(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """Hashes that cannot be believed, and why: forged, left, lost (sql/queries/persons.sql)."""
    found: dict[str, set[str]] = {"told": set(), "erased": set()}
    for what, known_as in _pages(connection, "hashes", erased=Person.Erased.TOPIC):
        found[what].add(known_as)
    erased, told = found["erased"], found["told"] - found["erased"]
    rows = _rows(connection, "wrong", erased=list(erased), told=list(told))
    if any(why == "lost" for why, _ in rows):  # or somebody was erased meanwhile
        pages = _pages(connection, "hashes", erased=Person.Erased.TOPIC)
        late = {known_as for what, known_as in pages if what == "erased"}
        rows = [(why, known_as) for why, known_as in rows if why != "lost" or known_as not in late]
    return rows


def _context(actor: str) -> EventContext:
    return EventContext(actor=Actor(name=actor), request_id=f"req-{uuid4()}", cause="operator")


def _pages(
    connection: psycopg.Connection[Any], query: str, /, **parameters: Any
) -> Iterator[tuple[Any, ...]]:
    """Of the whole log.  At once it would take longer than a connection waits (DbConnection), and
    than a standby lets a query read (max_standby_streaming_delay).
    """
    [(head, _)] = connection.execute(sql.query("reads", "head")).fetchall()
    for after in range(0, head, PAGE_EVENTS):
        bounds = {"after": after, "until": after + PAGE_EVENTS}
        yield from _rows(connection, query, **parameters, **bounds)


def _rows(
    connection: psycopg.Connection[Any], query: str, /, **parameters: Any
) -> list[tuple[Any, ...]]:
    return connection.execute(sql.query("persons", query), parameters).fetchall()
