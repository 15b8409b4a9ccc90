"""Whether rows fit their tables, by what the schema says of each column: without a database.

One row that a table cannot take holds back its projection for good, so every storm looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, StrictBool, StrictInt, ValidationError, create_model

import sql
from projections.base import Row

_TABLE = re.compile(r"^CREATE TABLE (\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^    ([a-z0-9_]+) ([a-z]+(?:\[\])?)(.*)$", re.MULTILINE)
_ALTERED = re.compile(r"^ALTER TABLE (\w+) (.*?);", re.MULTILINE | re.DOTALL)
_ADDED = re.compile(r"ADD COLUMN ([a-z0-9_]+) ([a-z]+(?:\[\])?)([^,;]*)")
_NEVER_NULL = re.compile("NOT NULL|PRIMARY KEY")
_TYPES: dict[str, Any] = {
    "uuid": UUID,
    "uuid[]": list[UUID],
    "text": str,
    "text[]": list[str],
    "int": StrictInt,
    "bigint": StrictInt,
    "boolean": StrictBool,
    "timestamptz": AwareDatetime,
    "jsonb": Any,
}


def misfits(table: str, row: Row) -> Iterator[str]:
    """What of a row its table cannot take; a column that it does not name is NULL."""
    try:
        _tables()[table].model_validate(row)
    except ValidationError as refused:
        for error in refused.errors():
            at = ".".join(map(str, (table, *error["loc"])))
            yield f"{at}, {error['input']!r}: {error['msg']}"


@cache
def _tables() -> dict[str, type[BaseModel]]:
    migrations = "\n".join(sql.migrations().values())
    columns = {table: _COLUMN.findall(made) for table, made in _TABLE.findall(migrations)}
    for table, changes in _ALTERED.findall(migrations):
        columns[table] += _ADDED.findall(changes)
    return {
        table: create_model(
            table,
            __config__={"extra": "forbid"},
            **{name: _field(*of) for name, *of in found},
        )
        for table, found in columns.items()
    }


def _field(of: str, rest: str) -> Any:
    kept = _TYPES.get(of, Any)
    return (kept, ...) if _NEVER_NULL.search(rest) else (kept | None, None)
