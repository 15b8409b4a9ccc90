"""SQL for Nova's database, for a person to read and to execute; nothing here executes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sql
from handlers.results.nova_rows import OWN_ID, PLAIN, RowChange

_CONSTANTS: tuple[tuple[Any, str], ...] = (
    *((None, "NULL"), (True, "TRUE"), (False, "FALSE")),
    (OWN_ID, "id"),
)


def script(server_id: str, changes: Iterable[RowChange]) -> str:
    """ValueError for a text that a database could read otherwise than as itself."""
    head = f"-- Server {server_id}. Each statement changes 1 row, or something has changed since."
    return "\n".join([head, *map(_statement, changes)])


def read_deleted() -> str:
    """Reads the mappings that have ended, and changes nothing; what it prints, `history import`
    takes.
    """
    table, rows = "block_device_mapping", _text("deleted")
    live, archived = (rows.format(table=each) for each in (table, f"shadow_{table}"))
    return _text("read").format(live=live, archived=archived)


def _statement(change: RowChange) -> str:
    if change.unless is None:
        new = ", ".join(f"{name} = {_literal(value)}" for name, value in change.new.items())
        return _text("change").format(table=change.table, new=new, old=_conditions(change.old))
    return _text("add").format(
        table=change.table,
        columns=", ".join(change.new),
        values=", ".join(map(_literal, change.new.values())),
        old=_conditions(change.old),
        unless=_conditions(change.unless),
    )


def _text(name: str) -> str:
    return sql.queries("nova_rows")[name].text


def _conditions(row: Mapping[str, Any]) -> str:
    return " AND ".join(
        f"{name} IS NULL" if value is None else f"{name} = {_literal(value)}"
        for name, value in row.items()
    )


def _literal(value: Any) -> str:
    for constant, text in _CONSTANTS:
        if value is constant:
            return text
    if isinstance(value, int):
        return str(value)
    if not PLAIN.fullmatch(str(value)):
        raise ValueError(f"{value!r} cannot be written as SQL")
    return f"'{value}'"
