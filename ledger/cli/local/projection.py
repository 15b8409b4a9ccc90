"""`projection list|rebuild`: the tables that are made from the log."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, PlainCommand, note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.local.settings import Configured, add_config, checked_database


class ListProjections(Configured, Lister):
    """List the projections: how far each is behind the log, and what delays it.

    It also says what to do about a delay, and lists long work in progress, such as a rebuild.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.upkeep import long_work
        from projections.catalog import ALL
        from projections.running.projector import REMEDY, lags
        from projections.running.runner import connect

        with checked_database(parsed_args) as dsn, connect(dsn) as connection:
            rows = lags(connection, ALL)
            works = long_work.under_way(connection)
        for work in works:
            note(str(work))
        for name, *_, held in rows:
            if held is not None:
                note(f"{name} is held back. {REMEDY.format(name)}")
        return ("Name", "Position", "Behind", "Behind for s", "Held back by"), [
            (name, position, events, round(seconds, 1), held or "")
            for name, position, events, seconds, held in rows
        ]


class RebuildProjection(PlainCommand):
    """Rebuild a projection from the whole log; queries read its old rows until it is done.

    Ctrl-C stops it (exit code 130), and the same command resumes it.  One rebuild at a time:
    another is refused (exit code 4).
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="<projection>", help="from 'projection list', or all")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.cli.local.long_work import run_shown
        from ledger.upkeep.rebuild import RebuildError, rebuild
        from projections.catalog import ALL
        from projections.running.detached import DetachedError
        from projections.running.tables import ProjectionError

        name: str = parsed_args.name
        chosen = [each for each in ALL if name in {each.name, "all"}]
        if not chosen:
            raise CliError(
                f"there is no projection {name!r}.",
                ExitCode.NOT_FOUND,
                f"Projections: {', '.join(each.name for each in ALL)}; or all",
            )
        with checked_database(parsed_args) as dsn:
            try:
                done = run_shown(dsn, "rebuild", rebuild(dsn, chosen))
            except ProjectionError as error:
                raise CliError(
                    f"{error}: {error.__cause__!r}. The old rows are read as before.",
                    ExitCode.UNEXPECTED,
                    "Once the code is corrected, run the same command: it begins anew.",
                ) from error
            except DetachedError as error:
                hint = "Put them back first: attachment-ledger event restore --from DIRECTORY"
                raise CliError(str(error), ExitCode.REFUSED, hint) from error
            except RebuildError as error:
                raise CliError(f"{error}.", ExitCode.REFUSED) from error
        for each in chosen:
            note(f"{each.name} is rebuilt up to position {done.done}.")
        return 0
