"""`event list|tail`: the whole log in order, by page and as it is written."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from ledger.cli.base import POSITION, Lister, PlainCommand, add_limit, note
from ledger.cli.log.archived import add_archive, archive_errors, listed

RECONNECT_S = 1.0


class ListEvents(Lister):
    """List events in the order of the log."""

    every_cell = True
    brief = ("Position", "Time", "Who", "What", "Operation")
    empty = "No events."

    @property
    def need_sort_by_cliff(self) -> bool:
        return False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_after(parser, "start after this position (default 0: from the beginning)")
        add_limit(parser, "at most N events")
        parser.add_argument(
            "--topic", metavar="TOPIC", help="only events of this topic, e.g. Operation.Parked"
        )
        add_archive(parser, "also the events that are in an archive's files")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.words.timeline import COLUMNS, Entry

        with archive_errors():
            events = listed(
                self.client,
                parsed_args.limit,
                parsed_args.after or 0,
                parsed_args.topic,
                parsed_args.archive,
            )
        return COLUMNS, [Entry.of(event).row for event in events]


class TailEvents(PlainCommand):
    """Print events as they are written, until interrupted."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_after(parser, "start after this position (default: with what is new)")
        parser.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="json: one per line"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.words.timeline import Entry

        for event in self._events(parsed_args.after):
            if parsed_args.format == "json":
                line = json.dumps(event)
            else:
                entry = Entry.of(event)
                times = entry.at.isoformat(timespec="milliseconds")[:23]
                about = entry.operation_id or entry.host or "-"
                line = f"{entry.position}  {times}Z  {entry.who}  {about}  {entry.what}"
            self.app.stdout.write(f"{line}\n")
            self.app.stdout.flush()
        return 0

    def _events(self, after: int | None) -> Iterator[dict[str, Any]]:
        """As they come; a broken stream is taken up behind the last one seen."""
        from ledger.cli.client import ClientError
        from ledger.cli.operations.waiting import is_outage

        if after is None:
            newest = self.client.get("/v1/events", order="desc", limit=1)["events"]
            after = newest[0]["position"] if newest else 0
        while True:
            try:
                for event in self.client.stream("/v1/events/stream", after=after):
                    after = event["position"]
                    yield event
            except ClientError as error:
                if not is_outage(error):
                    raise
                note(f"{error} Trying again.")
            time.sleep(RECONNECT_S)


def _add_after(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--after", type=POSITION, metavar="POSITION", help=text)
