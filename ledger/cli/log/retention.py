"""`event archive|restore`: closed months of the log go to files, and come back."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ledger.cli.base import PlainCommand, note
from ledger.cli.local.settings import add_config, checked_database
from ledger.cli.log.archived import archive_errors, directory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import psycopg

    from ledger.upkeep.long_work import Checkmark


class ArchiveEvents(PlainCommand):
    """Write closed months of the log to files, one per month, with their proofs.

    Existing files stay.  --detach then deletes from the database the events that only describe
    ended operations, attachments and mappings.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--before",
            type=_month,
            required=True,
            metavar="MONTH",
            help="only months before this one, e.g. 2026-06 (UTC)",
        )
        parser.add_argument(
            "--to",
            type=directory,
            required=True,
            metavar="DIRECTORY",
            help="the directory of this log's months, and of no other log's",
        )
        parser.add_argument(
            "--detach",
            action="store_true",
            help="delete them from the database, once they are archived and read back",
        )
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.upkeep import archive, retention

        into, before = archive.Archive(parsed_args.to), parsed_args.before
        with archive_errors(), checked_database(parsed_args) as dsn:
            _work(dsn, "archive", lambda db: retention.archive(db, into, before))
            months = [month for month in into.months() if month.begins_before(before)]
            for month in months:
                self.app.stdout.write(f"{into.directory / month.file}\n")
            if parsed_args.detach:
                _work(dsn, "detach", lambda db: retention.detach(db, into, before))
        if not months:
            note("No month before that is closed: it is once the log has an event of a later one.")
        return 0


class RestoreEvents(PlainCommand):
    """Load all detached events back into the database, for example to rebuild projections."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--from", type=directory, dest="source", required=True, metavar="DIRECTORY"
        )
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.upkeep import archive, retention

        source = archive.Archive(parsed_args.source)
        with archive_errors(), checked_database(parsed_args) as dsn:
            _work(dsn, "restore", lambda db: retention.restore(db, source))
        note("The database has all events of the log.")
        return 0


def _work(
    dsn: str, name: str, work: Callable[[psycopg.Connection[Any]], Generator[Checkmark]]
) -> None:
    """Long work on a connection of its own.  Where it was, the files and the table say."""
    import psycopg

    from ledger.cli.local.long_work import run_shown

    with psycopg.connect(dsn, autocommit=True) as connection:
        run_shown(dsn, name, lambda _: work(connection))


def _month(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a month like 2026-06, not {text!r}") from None
