"""`history volume|server|attachment|host|operation`: everything that ever happened to it."""

from __future__ import annotations

import argparse
from typing import Any, cast

from ledger.cli.base import Lister, add_at, add_known_at, add_limit, clock, known_at, note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.log.archived import (
    AsOf,
    HistorySubject,
    add_archive,
    archive_errors,
    history_of,
)
from ledger.cli.naming import named

TIMELINE = "timeline"


class ShowHistory(Lister):
    """The last events of one thing, oldest first."""

    every_cell = True
    noun = ""

    def _load_formatter_plugins(self) -> Any:
        from stevedore import ExtensionManager
        from stevedore.extension import Extension

        manager = super()._load_formatter_plugins()
        timeline = Extension(TIMELINE, None, None, _Timeline())  # type: ignore[arg-type]
        return ExtensionManager.make_test_instance([*manager.extensions, timeline])

    @property
    def formatter_default(self) -> str:
        return TIMELINE

    @property
    def need_sort_by_cliff(self) -> bool:
        return False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        what = "name" if self.noun == "host" else "id"
        parser.add_argument("id", metavar=f"<{self.noun} {what}>", type=named(self.noun))
        add_at(parser, "only events until that time")
        add_known_at(parser)
        add_limit(parser, "the newest N events")
        add_archive(parser, "also what is in an archive's files")
        parser.add_argument("--reverse", action="store_true", help="newest first")
        parser.add_argument(
            "--long",
            action="store_true",
            help="also show claims and other bookkeeping",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.client import ServiceError
        from ledger.words.timeline import COLUMNS, Entry

        subject = HistorySubject(self.noun, parsed_args.id)
        as_of = AsOf(parsed_args.at, known_at(parsed_args))
        try:
            with archive_errors():
                events = history_of(
                    self.client, subject, parsed_args.limit, as_of, parsed_args.archive
                )
        except ServiceError as error:
            if error.status == 404 and parsed_args.at:  # noqa: PLR2004
                self._refuse_before(subject, parsed_args.at)
            raise
        entries = [Entry.of(event, parsed_args.at) for event in events]
        if len(entries) == parsed_args.limit:
            note(f"Only the last {parsed_args.limit} events are shown: --limit shows more.")
        if not parsed_args.reverse:
            entries.reverse()
        self.entries = entries
        return COLUMNS, [entry.row for entry in entries]

    def _refuse_before(self, subject: HistorySubject, at: str) -> None:
        """Raises CliError if it began only later than that, ClientError if it never did."""
        first = next(iter(self.client.items(subject.path, "events", 1)), None)
        if first is not None:
            raise CliError(
                f"at {clock(at)} nothing had happened to {self.noun} {subject.id} yet.",
                ExitCode.NOT_FOUND,
                f"Its history begins at {clock(first['recorded_at'])}.",
            )

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        from ledger.words.timeline import lines

        if parsed_args.formatter != TIMELINE:
            return super().produce_output(parsed_args, column_names, data)
        from ledger.cli.table import for_reader

        told = {"": self} if self.by_cell is None else cast("dict[str, ShowHistory]", self.by_cell)
        for cell, each in told.items():
            head = [f"cell {cell}"] if cell else []
            timeline = lines(each.entries, long=parsed_args.long)
            for line in for_reader([*head, *timeline], self.app.stdout):
                self.app.stdout.write(f"{line}\n")
        return 0


class _Timeline:
    """Only a name for `-f`: the timeline is drawn from the events, not from columns."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """It has no options."""


class ShowVolumeHistory(ShowHistory):
    """Show the history of a volume."""

    noun = "volume"


class ShowServerHistory(ShowHistory):
    """Show the history of a server."""

    noun = "server"


class ShowAttachmentHistory(ShowHistory):
    """Show the history of an attachment."""

    noun = "attachment"


class ShowHostHistory(ShowHistory):
    """Show the history of a host."""

    noun = "host"


class ShowOperationHistory(ShowHistory):
    """Show the history of an operation."""

    noun = "operation"
