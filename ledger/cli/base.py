"""What all commands share: their errors, the client, cliff's classes with our errors.

Nothing here, and nothing at the top of a command's module, may import slowly: help
must come at once.  The client, the database and the service are imported in actions.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from cliff import lister, show

from host_agent.shared.platform.text import visible
from ledger.cli import cells, naming, plugin
from ledger.cli.cliff_parts import WithoutPlugins
from ledger.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from ledger.cli.client import Client, ClientError, ServiceError

LIMIT_DEFAULT = 100
LIMIT_MAX = 100_000


#: What to do about an answer that lacks this, or about none; behind `openstack`: plugin.HINTS.
HINTS = {
    "token": "Give a token the service knows: --token, or the environment's LEDGER_TOKEN.",
    "url": "Is it running? Start it with 'attachment-ledger serve', or say where it is: "
    "--url, or the environment's LEDGER_URL.",
}


def _from_api(error: ServiceError, ours: Mapping[str, str | None]) -> CliError:
    codes = {400: ExitCode.USAGE, 404: ExitCode.NOT_FOUND}
    server_error = 500
    code = ExitCode.UNEXPECTED if error.status >= server_error else ExitCode.REFUSED
    hints = {
        401: ours["token"],
        503: "See what is not ready: curl .../readyz on the service.",
    }
    hint = error.hint or hints.get(error.status)
    if error.status == 503 and "Cinder" in str(error):  # noqa: PLR2004
        hint = f"The service is up and waits for Cinder. {hint or 'Try again in a moment.'}"
    if "Policy" in str(error):  # other refusals with 403 are no question of who asks
        hint = hint or "The token's roles do not allow this."
    return CliError(str(error), codes.get(error.status, code), hint)


def from_client(error: ClientError, hints: Mapping[str, str | None]) -> CliError:
    """The exit code of an answer, or of none."""
    from ledger.cli.client import ServiceError, UnreachableError

    if isinstance(error, ServiceError):
        return _from_api(error, hints)
    hint = error.hint
    if isinstance(error, UnreachableError):
        hint = hint or hints["url"]
    return CliError(str(error), ExitCode.UNEXPECTED, hint)


class ErrorReporting(WithoutPlugins):
    """Errors go to stderr in one form and become exit codes; `exit_code` may be set too.

    What names a thing (`type=naming.named(...)`) is its id when the command acts.  `about`: what
    kind of thing is named first, if one is.  `brief`: of a list, the columns of a table on a
    terminal, unless others are asked for; (): all.
    """

    exit_code = ExitCode.OK
    about: str | None = None
    brief: tuple[str, ...] = ()
    #: Of several ledgers the one that is asked, or all.
    cell: str | None = None

    @property
    def client(self) -> Client:
        from ledger.cli.client import Client

        if self._behind_openstack:
            manager: Any = self.app.client_manager  # type: ignore[attr-defined]
            return cast("Client", manager.attachment_ledger)
        options = self.app.options
        url = options.url if self.cell is None else cells.url_of(self.cell)
        return Client(url, options.token, options.cacert)

    @property
    def _behind_openstack(self) -> bool:
        return hasattr(self.app, "client_manager")

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        short_usage_errors(parser)
        _with_examples(parser, self.app.NAME, self.cmd_name or "")
        if self.brief:
            parser.add_argument(
                "--long", action="store_true", help="show all columns, also on a terminal"
            )
        if self.about:
            naming.add_thing(parser, self.about)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What may be typed behind the command's name."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        if self._behind_openstack and not isinstance(self.app.stdout, EscapingStream):
            self.app.stdout = EscapingStream(self.app.stdout)
        try:
            self.cell = getattr(self.app.options, "cell", None)
            self.prepare(parsed_args)
            code = super().run(parsed_args)
        except Exception as error:  # noqa: BLE001 - told to the user, with an exit code
            return self._ended(error, parsed_args)
        return self.exit_code or code

    def prepare(self, parsed_args: argparse.Namespace) -> None:
        """Before it acts: what is typed for things becomes ids."""
        naming.resolve(lambda: self.client, parsed_args)

    def _ended(self, error: Exception, parsed_args: argparse.Namespace) -> int:
        from ledger.cli.client import ClientError, ServiceError

        if isinstance(error, BrokenPipeError):
            raise error
        if isinstance(error, ClientError):
            if isinstance(error, ServiceError) and error.status == 404:  # noqa: PLR2004
                error.hint = error.hint or naming.hint(self.client, parsed_args)
            error = from_client(error, plugin.HINTS if self._behind_openstack else HINTS)
        if self.app.options.debug:
            import traceback

            traceback.print_exception(error, file=self.app.stderr)
        if isinstance(error, CliError):
            complain(str(error), error.hint)
            return error.code
        complain(
            f"unexpected {type(error).__name__}: {error}",
            "This is a bug, or a broken installation: the same with --debug shows where.",
        )
        return ExitCode.UNEXPECTED


def short_usage_errors(parser: argparse.ArgumentParser) -> None:
    """Let wrong usage be told by what is wrong, not by all that would be right."""

    def error(message: str) -> NoReturn:
        complain(f"{message}.", f"See: {parser.prog} --help")
        raise SystemExit(ExitCode.USAGE)

    parser.error = error  # type: ignore[method-assign]


def _with_examples(parser: argparse.ArgumentParser, program: str, command: str) -> None:
    """Let help end with command lines that can be typed, each on a line of its own."""
    from ledger.cli.examples import lines

    plain_help, ours = parser.format_help, command.removeprefix(f"{plugin.NOUN} ")

    def format_help() -> str:
        examples = "".join(f"  {line}\n" for line in lines(ours, f"{program} {command}"))
        return plain_help() + (f"\nexamples:\n{examples}" if examples else "")

    parser.format_help = format_help  # type: ignore[method-assign]


class PlainCommand(ErrorReporting):
    """A command that prints nothing, or something of its own."""


class _Tables(ErrorReporting):
    """Prints tables of ours in the place of cliff's."""

    def _load_formatter_plugins(self) -> Any:
        from ledger.cli.table import TerminalTable

        known = super()._load_formatter_plugins()  # type: ignore[misc]
        known["table"].obj = TerminalTable()
        return known


class Lister(_Tables, lister.Lister):
    """A command that prints a list in the format asked for."""

    #: Whether `--cell all` asks each: of a command that only reads what a ledger has.
    every_cell = False
    #: What is said of a list without rows.
    empty = "Nothing was found."
    #: Of all cells, the command as each was asked that has answered.
    by_cell: Mapping[str, Lister] | None = None

    def prepare(self, parsed_args: argparse.Namespace) -> None:
        if self.cell == cells.ALL and self.every_cell:
            if getattr(parsed_args, "archive", None):
                raise usage("an archive is one ledger's.", "Ask that cell alone: --cell NAME")
            self.take_action = self._of_all  # type: ignore[method-assign]
        else:
            super().prepare(parsed_args)

    def _of_all(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[Any]]:
        """Its action in each cell, put together; who gave no answer is told."""
        told, silent = cells.asked(lambda cell: self._of_one(cell, parsed_args))
        for cell, error in silent.items():
            complain(f"cell {cell} gave no answer: {error}", error.hint)
            self.exit_code, self.empty = ExitCode.PARTIAL, "The cells that answered have none."
        if not told:
            raise CliError("no cell that answered has anything of it.", ExitCode.PARTIAL)
        self.by_cell = {cell: each for cell, (each, _, _) in told.items()}
        names: Sequence[str] = next(names for _, names, _ in told.values())
        return (cells.COLUMN, *names), [row for _, _, rows in told.values() for row in rows]

    def _of_one(self, cell: str, parsed_args: argparse.Namespace) -> tuple[Lister, Any, list[Any]]:
        """As it has run there, with its columns and rows.  Raises CliError."""
        from ledger.cli.client import ClientError

        each, arguments = copy.copy(self), argparse.Namespace(**vars(parsed_args))
        each.cell = cell
        try:
            each.client.check_alive()
            naming.resolve(lambda: each.client, arguments)
            names, rows = type(self).take_action(each, arguments)
            return each, names, [(cell, *row) for row in rows]
        except ClientError as error:
            raise from_client(error, {**HINTS, "url": None}) from None
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise CliError(
                f"its answer lacks what a ledger's has ({error!r}): is this the ledger?",
                ExitCode.UNEXPECTED,
                f"The same with --cell {cell} --debug shows where.",
            ) from error

    def is_brief(self, parsed_args: argparse.Namespace) -> bool:
        """Whether a person reads it, who asked for no columns."""
        asked = parsed_args.columns or getattr(parsed_args, "long", False)
        return parsed_args.formatter == "table" and not asked and bool(self.app.stdout.isatty())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        data = list(data)
        if not data and parsed_args.formatter == "table" and not parsed_args.print_empty:
            note(self.empty)
            return 0
        brief = (cells.COLUMN, *self.brief) if self.brief else ()
        parsed_args.brief = brief if self.is_brief(parsed_args) else ()
        return _with_known_columns(
            lambda: super(Lister, self).produce_output(parsed_args, column_names, data)
        )


class ShowOne(_Tables, show.ShowOne):
    """A command that prints one thing in the format asked for."""

    def _load_formatter_plugins(self) -> Any:
        from ledger.cli.table import QuotedShell

        known = super()._load_formatter_plugins()
        known["shell"].obj = QuotedShell()
        return known

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        return _with_known_columns(
            lambda: super(ShowOne, self).produce_output(parsed_args, column_names, data)
        )


def _with_known_columns(produce: Any) -> int:
    try:
        return int(produce())
    except ValueError as error:
        if "No recognized column" not in str(error):
            raise
        raise usage(str(error)) from None


def said(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """These of what was typed, by name."""
    return {name: getattr(parsed_args, name) for name in names}


def listed(
    columns: Mapping[str, str | Callable[[Any], Any]], rows: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A list of an answer as a table: in each column a field of the row, or what is made of it."""
    return tuple(columns), [
        tuple(row[cell] if isinstance(cell, str) else cell(row) for cell in columns.values())
        for row in rows
    ]


def columns(shown: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """One thing as cliff's `dict2columns` has it: by name."""
    return tuple(sorted(shown)), tuple(shown[name] for name in sorted(shown))


class EscapingStream:
    """A stream on which no text can give a terminal an order: names are tenants' and agents'."""

    def __init__(self, stream: TextIO) -> None:
        #: For text that is visible already, and colours that are ours.
        self.unescaped = stream

    def write(self, text: str) -> int:
        return self.unescaped.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def complain(message: str, hint: str | None = None) -> None:
    """The one form of an error: what and why, then what next."""
    note(f"error: {message}")
    if hint:
        note(f"  {hint}")


def note(message: str) -> None:
    """Something to know that is no result: kept out of what scripts read."""
    from ledger.cli.table import fitted

    print(fitted(visible(message), sys.stderr), file=sys.stderr)


def add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--limit",
        type=whole(1, LIMIT_MAX),
        default=LIMIT_DEFAULT,
        metavar="N",
        help=f"{what} (default {LIMIT_DEFAULT}, at most {LIMIT_MAX})",
    )


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that is a whole number in these bounds."""

    def read(text: str) -> int:
        if re.fullmatch(r"\d{1,19}", text, re.ASCII) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}, not {text!r}")

    return read


PORT = whole(0, 2**16 - 1)
POSITION = whole(0, 2**63 - 1)


def add_at(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument(
        "--at",
        type=moment,
        metavar="TIME",
        help=f"{what}: ISO 8601, UTC unless it has an offset, e.g. 2026-11-17T14:02",
    )


def add_known_at(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--known-at",
        type=moment,
        metavar="TIME",
        help="with --at: as it was known at this time (default: at the time of --at)",
    )


def known_at(parsed_args: argparse.Namespace) -> str | None:
    """What was said.  CliError if that is of no moment."""
    if parsed_args.known_at and not parsed_args.at:
        raise usage("--known-at needs --at: known of which moment?")
    return cast("str | None", parsed_args.known_at)


def moment(text: str) -> str:
    """A time as the API takes it."""
    try:
        at = datetime.fromisoformat(text)
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be a time like 2026-11-17T14:02 or 2026-11-17T15:02+01:00, not {text!r}"
        ) from None
    return at.isoformat().replace("+00:00", "Z")


def clock(text: str | None) -> str:
    """A moment of the API for people: UTC, to the second."""
    return "" if not text else f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
