"""Several ledgers (cells): which there are, and one command that asks each of them by itself.

A cell is a ledger of its own, with its own database, hosts and Cinder; none knows what another
does.  So a list of all is put together here, and whoever is silent is named: what it knows is
missing, and the exit code says so.  Nothing is ever changed in several cells at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ledger.cli.errors import CliError, ExitCode, usage

ALL = "all"
VARIABLE = "LEDGER_CELLS"
COLUMN = "Cell"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)=(?P<url>https?://\S+)\Z")

T = TypeVar("T")


def named() -> dict[str, str]:
    """The URL of each cell, as the environment says.  Raises CliError."""
    found: dict[str, str] = {}
    for word in os.environ.get(VARIABLE, "").split():
        match = _NAMED.match(word)
        if match is None or match["name"] in {ALL, *found}:
            raise usage(
                f"{VARIABLE} has {word!r}, which names no cell, or one for the second time.",
                f"Wanted: {VARIABLE}='north=https://north:8790 south=https://south:8790'",
            )
        found[match["name"]] = match["url"]
    return found


def url_of(cell: str) -> str:
    """Raises CliError if the cell is not known, or not one."""
    found = named()
    if cell == ALL:
        raise usage("this command asks one cell.", f"--cell with one of: {', '.join(found)}")
    if cell not in found:
        known = ", ".join(found) or f"none: {VARIABLE} names them"
        raise usage(f"there is no cell {cell!r}.", f"Known: {known}")
    return found[cell]


def asked(ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, CliError]]:
    """What `ask` has of each cell, of all at once, and the errors of those that gave no answer.

    That a cell does not know something is an answer.  Raises CliError if none knows it, and none
    was silent, or if there are no cells.
    """
    cells = list(named())
    if not cells:
        raise usage("no cells are known.", f"{VARIABLE}='north=https://north:8790 ...'")

    def one(cell: str) -> T | CliError:
        try:
            return ask(cell)
        except CliError as error:
            return error

    with ThreadPoolExecutor(len(cells)) as threads:
        all_ = dict(zip(cells, threads.map(one, cells), strict=True))
    told = {cell: each for cell, each in all_.items() if not isinstance(each, CliError)}
    errors = {cell: each for cell, each in all_.items() if isinstance(each, CliError)}
    silent = {cell: each for cell, each in errors.items() if each.code is not ExitCode.NOT_FOUND}
    if not told and not silent:
        raise next(iter(errors.values()))
    return told, silent
