"""`db federate`: audit views over several ledgers, in a database of the auditors' own."""

from __future__ import annotations

import argparse
from pathlib import Path

from ledger.cli.base import PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.local.settings import add_config, database


class Federate(PlainCommand):
    """Create views over the audit views of several ledgers, in a database of the auditors.

    The views have the names of a ledger's own, and a column 'cell' in addition; they read by
    postgres_fdw.  Run it again after the file has changed.  If a cell does not answer, nothing is
    changed.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file",
            metavar="<file>",
            type=Path,
            help="a file like PostgreSQL's pg_service.conf, with a section for each cell: host, "
            "port, dbname, and user and password of an auditor's role there",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print the SQL, without passwords; change nothing",
        )
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from host_agent.shared.platform.settings import ConfigError
        from ledger.upkeep.federate import FederateError, cells_of, federate

        try:
            cells = cells_of(parsed_args.file)
            with database(parsed_args) as dsn:
                done = federate(dsn, cells, dry_run=parsed_args.dry_run)
        except OSError as error:
            raise usage(f"{parsed_args.file} cannot be read: {error.strerror}.") from None
        except ConfigError as error:
            raise usage(f"{error}") from None
        except FederateError as error:
            raise CliError(f"{error}.", ExitCode.REFUSED, "Nothing was changed.") from None
        for statement in done:
            self.app.stdout.write(f"{statement};\n")
        note(
            f"{len(cells)} cells can be read: {', '.join(cell.name for cell in cells)}."
            + (" Nothing was changed." if parsed_args.dry_run else "")
        )
        return 0
