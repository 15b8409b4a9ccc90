"""`projection list|rebuild`: the tables that are made from the log."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import CliError, Command, ExitCode, Lister, note
from ledger.cli.settings import add_config, database


class List(Lister):
    """List the projections, and how far each is behind the log."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_config(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger import migrations
        from projections.catalog import ALL
        from projections.projector import Projector
        from projections.runner import connect

        with database(parsed_args) as dsn:
            migrations.check(dsn)
            with connect(dsn) as connection:
                head, positions = Projector(connection, ALL).positions()
        rows = [(name, position, head - position) for name, position in positions.items()]
        return ("Name", "Position", "Behind"), sorted(rows)


class Rebuild(Command):
    """Make a projection anew from the whole log; its old rows are read until it is done."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<projection>", help="from 'projection list', or all")
        add_config(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger import migrations
        from projections.catalog import ALL
        from projections.runner import rebuild

        chosen = [each for each in ALL if parsed_args.name in {each.name, "all"}]
        if not chosen:
            raise CliError(
                f"there is no projection {parsed_args.name!r}.",
                ExitCode.NOT_FOUND,
                f"Projections: {', '.join(each.name for each in ALL)}; or all",
            )
        with database(parsed_args) as dsn:
            migrations.check(dsn)
            for each in chosen:
                position = rebuild(dsn, each)
                note(f"{each.name} is rebuilt up to position {position}.")
        return 0
