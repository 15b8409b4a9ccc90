"""`survey`: what differs between Nova, Cinder and hosts of a running cloud, without a ledger.

It reads twice, some time apart, and tells what both rounds have seen alike.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import Lister, clock, note
from ledger.cli.errors import ExitCode

if TYPE_CHECKING:
    from handlers.drift.beside_nova import Difference
    from handlers.drift.seen import Cloud
    from ledger.nova_beside.reads import CloudReader

COLUMNS = (
    *("Class", "Severity", "Volume", "Server", "Attachment", "Host", "Since", "Seen", "Meaning"),
    *("Command", "Why"),
)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
#: Reasons why something was not read that are told one by one.
TOLD_MAX = 10


class SurveyCloud(Lister):
    """Compare Nova, Cinder and hosts of a running cloud, by GET requests alone; changes nothing.

    It exits with 8 if something differs.
    """

    brief = ("Class", "Severity", "Volume", "Server", "Host", "Since")
    empty = "Nothing differs."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--os-cloud",
            metavar="NAME",
            help="an administrator's cloud in clouds.yaml (default: OS_CLOUD, else other OS_*)",
        )
        hosts = parser.add_mutually_exclusive_group()
        hosts.add_argument(
            "--hosts",
            nargs="+",
            type=Path,
            default=[],
            metavar="FILE",
            help="output of 'attachment-ledger-agent survey' on some hosts",
        )
        hosts.add_argument(
            "--ssh",
            nargs="*",
            metavar="HOST",
            help="in each round ask these hosts by ssh; without a name, all of Nova's",
        )
        add(
            "--apart",
            type=_span,
            default="60s",
            metavar="TIME",
            help="time between the rounds (default 60s)",
        )
        add(
            "--stuck",
            type=_span,
            default="15m",
            metavar="TIME",
            help="report a transient state that is at least so old, e.g. 90s, 2h (default 15m)",
        )
        add(
            "--every-mapping",
            action="store_true",
            help="ask Nova for the attachments of every server, one request each; this finds "
            "mappings whose attachment was replaced",
        )
        add("--html", type=Path, metavar="FILE", help="also write the report as an HTML page")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from keystoneauth1 import exceptions

        from handlers.drift.beside_nova import confirmed, found
        from ledger.cli.survey import clouds, hosts
        from ledger.nova_beside import one_host
        from ledger.nova_beside.adapters import OVERRIDES, adapter_of
        from ledger.nova_beside.reads import CloudReader, CutListError

        silent: dict[str, str] = {}
        unseen: list[str] = []
        given = hosts.of_files(parsed_args.hosts, unseen)
        cloud = clouds.options_of(parsed_args.os_cloud, os.environ)
        to = clouds.session_of(cloud)
        nova, cinder = (adapter_of(cloud, to, each) for each in OVERRIDES)
        reader = CloudReader(nova, cinder, time.time)
        rounds, seen = [], None
        try:
            for first in (True, False):
                if parsed_args.ssh is not None:
                    names = parsed_args.ssh or sorted(filter(None, one_host.hosts(reader)))
                    given = hosts.by_ssh(names, silent, unseen)
                seen = reader.cloud(given, every_mapping=parsed_args.every_mapping)
                rounds.append(found(seen, parsed_args.stuck))
                if first:
                    _say_size(seen, parsed_args.apart)
                    seen = None  # two large clouds at once are one too many
                    time.sleep(parsed_args.apart.total_seconds())
        except (exceptions.ClientException, CutListError) as error:
            raise clouds.told(error) from error
        assert seen is not None
        names, reasons = hosts.told(silent)
        reader.unread = [*names, *reader.unread, *reasons, *dict.fromkeys(unseen)]
        both = confirmed(*rounds)
        once = len(rounds[1]) - len(both)
        rows = [row_of(each) for each in both]
        self._tell(reader, once, rows)
        if parsed_args.html:
            from ledger.cli.survey.page import page

            named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
            parsed_args.html.write_text(page(both, named, seen.now, reader.unread))
        return COLUMNS, rows

    def _tell(self, reader: CloudReader, once: int, rows: list[tuple[Any, ...]]) -> None:
        """What is no finding, on standard error."""
        for why in reader.unread[:TOLD_MAX]:
            note(f"Not read: {why}. Nothing is said of it.")
        if len(reader.unread) > TOLD_MAX:
            note(f"Not read: {len(reader.unread) - TOLD_MAX} more.")
        if once:
            note(f"Seen in the second round alone, so not told: {once}. Survey again to know.")
        note(f"{reader.requests} requests, all of them GET.")
        if rows:
            self.exit_code = ExitCode.DIFFERS
            note("What mends each, or why nothing is safe: --long, -f json, or --html FILE.")


def _span(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([smhd]?)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time like 90s, 15m or 2h, not {text!r}")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def _say_size(seen: Cloud, apart: timedelta) -> None:
    note(
        f"{len(seen.servers)} servers, {len(seen.volumes)} volumes, {len(seen.attachments)} "
        f"attachments, {len(seen.hosts)} hosts; again in {apart.total_seconds():g} s."
    )


# ------------------------------------------------------------------------------- in words


def row_of(each: Difference) -> tuple[Any, ...]:
    """A finding, in `COLUMNS`."""
    from handlers.drift.beside_words import remedy_of
    from ledger.cli.operations.plan import Lines

    about, kind = each.about, each.kind
    command, why = remedy_of(kind, each.case, about)
    return (
        *(kind.name, kind.severity.value, about.volume_id, about.server_id),
        *(about.attachment_id, about.host, clock(each.since), Lines(each.says, _said(each.says))),
        *(kind.meaning, command, why),
    )


def _said(says: Mapping[str, Any]) -> Iterator[str]:
    from ledger.cli.drift.drift import said_by

    return said_by(dict(says))
