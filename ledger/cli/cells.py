"""Several ledgers (cells): which there are, and one command that asks each of them by itself.

A cell is a ledger of its own, with its own database, hosts and Cinder; none knows what another
does.  So a list of all is put together here, and whoever is silent is named: what it knows is
missing, and the exit code says so.  Nothing is ever changed in several cells at once.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ledger.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from ledger.cli.base import Lister

ALL = "all"
VARIABLE = "LEDGER_CELLS"
COLUMN = "Cell"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)=(?P<url>https?://\S+)\Z")

#: Commands that may ask all cells: each only reads, and prints a list.
OF_ALL = frozenset(
    {
        "attachment list",
        "drift list",
        "drift looks",
        "event list",
        "history attachment",
        "history host",
        "history operation",
        "history server",
        "history volume",
        "host list",
        "operation list",
        "remnant list",
        "server event list",
        "server list",
        "server migration list",
        "volume list",
    }
)

Answer = tuple[Any, Any]


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


def asking_all(command: Lister) -> Callable[[argparse.Namespace], Answer]:
    """The action of a command that is asked of all cells at once, in place of its own.

    It sets `by_cell`, what each cell's own run of the command was; where a cell did not answer the
    exit code is that of a partial answer.  Raises CliError if none has an answer.
    """

    def action(parsed_args: argparse.Namespace) -> Answer:
        cells = list(named())
        if not cells:
            raise usage("no cells are known.", f"{VARIABLE}='north=https://north:8790 ...'")
        with ThreadPoolExecutor(len(cells)) as threads:
            answers = dict(
                zip(
                    cells,
                    threads.map(lambda cell: _asked(command, cell, parsed_args), cells),
                    strict=True,
                )
            )
        return _together(command, answers)

    return action


def _asked(command: Lister, cell: str, parsed_args: argparse.Namespace) -> Any:
    """The command as it has run there, with its answer; or the error that it ended with."""
    from ledger.cli import naming
    from ledger.cli.base import HINTS, from_client
    from ledger.cli.client import ClientError

    each, arguments = copy.copy(command), argparse.Namespace(**vars(parsed_args))
    each.cell = cell
    try:
        each.client.check_alive()
        naming.resolve(lambda: each.client, arguments)
        names, rows = type(each).take_action(each, arguments)
        return each, names, [(cell, *row) for row in rows]
    except ClientError as error:
        return from_client(error, {**HINTS, "url": None})
    except CliError as error:
        return error


def _together(command: Lister, answers: dict[str, Any]) -> Answer:
    from ledger.cli.base import complain

    told = {cell: each for cell, each in answers.items() if not isinstance(each, CliError)}
    errors = {cell: each for cell, each in answers.items() if isinstance(each, CliError)}
    silent = {cell: e for cell, e in errors.items() if e.code is not ExitCode.NOT_FOUND}
    if not told and not silent:
        raise next(iter(errors.values()))
    for cell, error in silent.items():
        complain(f"cell {cell} gave no answer: {error}", error.hint)
    if silent:
        command.exit_code = ExitCode.PARTIAL
    command.by_cell = {cell: each for cell, (each, _, _) in told.items()}
    names = next((names for _, names, _ in told.values()), ())
    return (COLUMN, *names), [row for _, _, rows in told.values() for row in rows]
