"""`forward`: the events of the log, and refused requests, told to another system as they come."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import POSITION, PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.local.settings import add_config, checked_database

if TYPE_CHECKING:
    from ledger.forward.following import FeedReader
    from ledger.forward.targets import ForwardTarget

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
FORMS = ("cadf", "cloudevents", "ocsf")
#: How often a waiting process tries to take over.
TAKE_OVER_S = 2.0


class Forward(PlainCommand):
    """Forward every event of the log, and refused requests, to another system.

    Each is sent at least once, in the order of the log.  The database stores the position of
    <consumer>: the same command resumes there, on any machine, and waits while another one runs.
    While the target does not answer, it waits, too; if the target refuses an event, it ends with
    exit code 4.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "name",
            type=_name,
            metavar="<consumer>",
            help="the name under which the position is stored, e.g. siem",
        )
        add(
            "--to",
            required=True,
            metavar="URL",
            help="https://HOST/PATH, file:///PATH, syslog+tls://HOST[:PORT], syslog://HOST[:PORT]",
        )
        add("--format", choices=FORMS, required=True, help="the format of each event")
        add("--token-file", type=Path, metavar="FILE", help="a bearer token for the HTTP server")
        add(
            "--after",
            type=POSITION,
            metavar="POSITION",
            help="start after this position, in place of the stored one, if no other process "
            "forwards; not in a unit, where each start would begin there again",
        )
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.forward.following import FeedReader

        target = _target(parsed_args, self.app.options.cacert)
        with checked_database(parsed_args) as dsn, FeedReader.opened(dsn) as reader:
            _follow(dsn, reader, target, parsed_args)
        return 0


def _follow(
    dsn: str, reader: FeedReader, target: ForwardTarget, arguments: argparse.Namespace
) -> None:
    from ledger.forward.following import ForwardError, forward
    from ledger.forward.forms import FORMS as MADE
    from ledger.upkeep.long_work import Checkmark, run
    from projections.running.detached import DetachedError

    def work(begun: Checkmark) -> Any:
        return forward(reader, begun, MADE[arguments.format], target, after=arguments.after)

    try:
        _when_free(
            lambda: run(dsn, f"forward {arguments.name}", work, lambda _: None),
            waits=arguments.after is None,
        )
    except ForwardError as error:
        raise CliError(str(error), ExitCode.REFUSED, error.hint) from None
    except DetachedError as error:
        raise CliError(
            str(error),
            ExitCode.REFUSED,
            f"Put them back (event restore), or go on behind them: --after {error.last_position}.",
        ) from None


def _when_free(follow: Callable[[], object], *, waits: bool) -> None:
    """Wait while another process follows.  That may be our former one, whose line was lost: the
    server finds that out some seconds later.

    Who may not wait would begin at a position that is old by then.
    """
    from ledger.upkeep.long_work import BusyError

    said = False
    while True:
        try:
            follow()
        except BusyError as error:
            if not waits:
                raise CliError(
                    f"{error}. --after cannot change its position",
                    ExitCode.REFUSED,
                    "End that process first. If it has just ended, try again in some seconds.",
                ) from None
            if not said:
                note(f"{error}. This one takes over when that has ended.")
            said = True
            time.sleep(TAKE_OVER_S)
        else:
            return


def _target(arguments: argparse.Namespace, cacert: str | None) -> ForwardTarget:
    from ledger.forward.targets import target_of

    token = None
    if arguments.token_file:
        try:
            token = arguments.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"{arguments.token_file} cannot be read: {error}") from None
    try:
        return target_of(arguments.to, arguments.format, token=token, cacert=cacert)
    except (ValueError, OSError) as error:
        raise usage(f"{error}.") from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"must be of small letters, digits and hyphens, not {text!r}"
        )
    return text
