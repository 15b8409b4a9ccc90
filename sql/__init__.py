r"""All SQL of the ledger, and the loader that hands it out by name.

`queries/*.sql` hold named statements: a line `-- name: x`, description lines
(`-- ...`), then the text.  A description is mandatory: a query nobody can explain
is a query nobody can change.  `migrations/` make the schema, in the order of their
names (`ledger.log.schema`).  All may contain psql's `\ir file` lines (include,
relative to the including file), so `psql -f` understands them too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^\\ir (\S+)$", re.MULTILINE)


class Query(NamedTuple):
    """A named statement.  `description` says what it answers, and how fast."""

    name: str
    description: str
    text: str


def parse(source: str, origin: str = "<string>") -> dict[str, Query]:
    """The named queries in `source`.

    Raises ValueError, naming the query, for a missing description or a second
    definition.
    """
    parts = _NAME.split(source)
    queries: dict[str, Query] = {}
    for name, block in zip(parts[1::2], parts[2::2], strict=True):
        lines = block.strip().splitlines()
        split = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
        description = " ".join(line.removeprefix("--").strip() for line in lines[:split])
        if not description or name in queries:
            raise ValueError(f"{origin}: query {name!r} has no description or is defined twice")
        queries[name] = Query(name, description, "\n".join(lines[split:]).strip())
    return queries


@cache
def queries(group: str) -> dict[str, Query]:
    """All queries of `queries/<group>.sql`."""
    path = HERE / "queries" / f"{group}.sql"
    return parse(read(path), path.name)


@cache
def query(group: str, name: str) -> bytes:
    """The text of one query, as psycopg takes static SQL: as bytes."""
    return queries(group)[name].text.encode()


def read(path: Path) -> str:
    r"""A file with its `\ir` lines replaced by what they name."""
    return _INCLUDE.sub(lambda match: read(path.parent / match[1]), path.read_text())


def migrations() -> dict[str, str]:
    """Every migration by name (`0001_schema.expand`), in the order they are applied."""
    return {path.stem: read(path) for path in sorted((HERE / "migrations").glob("*.sql"))}
