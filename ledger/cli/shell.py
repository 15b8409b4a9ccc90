"""The program `attachment-ledger`: global options, the table of commands, help.

Commands are named here and loaded when they are used (ledger.cli.cliff_parts).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TextIO, cast

from cliff import app

from ledger.cli.base import Visible, complain, told_first
from ledger.cli.cliff_parts import Table
from ledger.cli.errors import ExitCode
from ledger.cli.table import wrap

NAME = "attachment-ledger"
DESCRIPTION = "The ledger of block-volume attachments: the service, its history, its operations."
DEFAULT_URL = "http://127.0.0.1:8790"

COMMANDS = {
    "attachment convert": "ledger.cli.attachment_acts:Convert",
    "attachment list": "ledger.cli.attachment:List",
    "attachment refresh": "ledger.cli.attachment_acts:Refresh",
    "attachment show": "ledger.cli.attachment:Show",
    "attachment swap": "ledger.cli.attachment_acts:Swap",
    "complete": "ledger.cli.completion:Complete",
    "config show": "ledger.cli.config:Show",
    "db check": "ledger.cli.db:Check",
    "db grant": "ledger.cli.db:Grant",
    "db status": "ledger.cli.db:Status",
    "db upgrade": "ledger.cli.db:Upgrade",
    "demo": "ledger.cli.demo:Demo",
    "drift classes": "ledger.cli.drift:Classes",
    "drift heed": "ledger.cli.drift:Heed",
    "drift ignore": "ledger.cli.drift:Ignore",
    "drift list": "ledger.cli.drift:List",
    "drift look": "ledger.cli.drift_looks:Show",
    "drift looks": "ledger.cli.drift_looks:Looks",
    "drift resume": "ledger.cli.drift_looks:Resume",
    "drift run": "ledger.cli.drift_looks:Run",
    "drift show": "ledger.cli.drift:Show",
    "drift stop": "ledger.cli.drift_looks:Stop",
    "event archive": "ledger.cli.retention:Archive",
    "drift repair": "ledger.cli.drift_repair:Repair",
    "event checkpoint": "ledger.cli.audit:Checkpoint",
    "event list": "ledger.cli.event:List",
    "event restore": "ledger.cli.retention:Restore",
    "event tail": "ledger.cli.event:Tail",
    "event verify": "ledger.cli.audit:Verify",
    "flow list": "ledger.cli.flow:List",
    "flow show": "ledger.cli.flow:Show",
    "flow verify": "ledger.cli.flow:Verify",
    "history attachment": "ledger.cli.history:OfAttachment",
    "history host": "ledger.cli.history:OfHost",
    "history operation": "ledger.cli.history:OfOperation",
    "history server": "ledger.cli.history:OfServer",
    "history volume": "ledger.cli.history:OfVolume",
    "host disable": "ledger.cli.host:Disable",
    "host enable": "ledger.cli.host:Enable",
    "host fence": "ledger.cli.host:Fence",
    "host list": "ledger.cli.host:List",
    "host show": "ledger.cli.host:Show",
    "host unfence": "ledger.cli.host:Unfence",
    "operation give-up": "ledger.cli.operation_acts:GiveUp",
    "operation list": "ledger.cli.operation:List",
    "operation retry": "ledger.cli.operation_acts:Retry",
    "operation show": "ledger.cli.operation:Show",
    "operation skip": "ledger.cli.operation_acts:Skip",
    "operation unwind": "ledger.cli.operation_acts:Unwind",
    "operation wait": "ledger.cli.operation_acts:Wait",
    "projection list": "ledger.cli.projection:List",
    "projection rebuild": "ledger.cli.projection:Rebuild",
    "remnant acknowledge": "ledger.cli.remnant:Acknowledge",
    "remnant list": "ledger.cli.remnant:List",
    "request show": "ledger.cli.request:Show",
    "serve": "ledger.cli.serve:Serve",
    "server add volume": "ledger.cli.attachment_acts:Attach",
    "server create": "ledger.cli.server:Create",
    "server delete": "ledger.cli.server:Delete",
    "server evacuate": "ledger.cli.server_actions:Evacuate",
    "server event list": "ledger.cli.server_moves:EventList",
    "server event show": "ledger.cli.server_moves:EventShow",
    "server forget": "ledger.cli.server_forget:Forget",
    "server list": "ledger.cli.server:List",
    "server lock": "ledger.cli.server_edits:Lock",
    "server migrate": "ledger.cli.server_actions:Migrate",
    "server migration abort": "ledger.cli.server_moves:MigrationAbort",
    "server migration list": "ledger.cli.server_moves:MigrationList",
    "server migration show": "ledger.cli.server_moves:MigrationShow",
    "server pause": "ledger.cli.server_actions:Pause",
    "server reboot": "ledger.cli.server_actions:Reboot",
    "server rebuild": "ledger.cli.server_actions:Rebuild",
    "server remove volume": "ledger.cli.attachment_acts:Detach",
    "server reset-state": "ledger.cli.server_edits:ResetState",
    "server resize": "ledger.cli.server_actions:Resize",
    "server resize confirm": "ledger.cli.server_actions:ResizeConfirm",
    "server resize revert": "ledger.cli.server_actions:ResizeRevert",
    "server shelve": "ledger.cli.server_actions:Shelve",
    "server show": "ledger.cli.server:Show",
    "server start": "ledger.cli.server_actions:Start",
    "server stop": "ledger.cli.server_actions:Stop",
    "server unlock": "ledger.cli.server_edits:Unlock",
    "server unpause": "ledger.cli.server_actions:Unpause",
    "server unshelve": "ledger.cli.server_actions:Unshelve",
    "sim cinder": "ledger.cli.sim:Cinder",
    "sim fault list": "ledger.cli.sim:FaultList",
    "sim fault set": "ledger.cli.sim:FaultSet",
    "top": "ledger.cli.top:Top",
    "volume list": "ledger.cli.volume:List",
}

EXIT_BROKEN_PIPE = 141  # 128 and SIGPIPE, as cliff has it
_HELP = ("-h", "--help")


class Shell(app.App):
    """The program; `options` are the global ones."""

    NAME = NAME
    command_manager: Table
    options: argparse.Namespace

    def __init__(self) -> None:
        super().__init__(DESCRIPTION, version=None, command_manager=Table(COMMANDS, NAME))

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, object] | None = None,
    ) -> argparse.ArgumentParser:
        """Global options.  No abbreviations: they would steal the commands' options."""
        del version, argparse_kwargs
        parser = argparse.ArgumentParser(
            NAME, description=description, add_help=False, allow_abbrev=False
        )
        add = parser.add_argument
        told_first(parser)
        add("--version", action=_Version, nargs=0, help="print the version and exit")
        add(
            "--url",
            default=os.environ.get("LEDGER_URL", DEFAULT_URL),
            help=f"where the ledger is (environment: LEDGER_URL; default {DEFAULT_URL})",
        )
        add(
            "--token",
            default=os.environ.get("LEDGER_TOKEN"),
            help="the token to ask with; better given in the environment: LEDGER_TOKEN",
        )
        add(
            "--cacert",
            default=os.environ.get("LEDGER_CACERT"),
            metavar="FILE",
            help="authorities that may have signed the ledger's certificate, in PEM "
            "(environment: LEDGER_CACERT; default: those that Python knows)",
        )
        add("-v", "--verbose", dest="verbose_level", action="count", default=0, help="say more")
        add("--debug", action="store_true", help="show tracebacks and all messages")
        return parser

    def configure_logging(self) -> None:
        """Messages of libraries, to stderr; the service sets up its own logs."""
        levels = [logging.WARNING, logging.INFO, logging.DEBUG]
        level = min(2, self.options.verbose_level + 2 * self.options.debug)
        logging.basicConfig(
            level=levels[level], stream=Visible(sys.stderr), format="%(name)s: %(message)s"
        )

    def run(self, argv: list[str]) -> int:
        words = self.parser.parse_known_args(argv)[1]
        if words[:1] == ["help"]:  # as openstackclient has it
            return self.run([*(word for word in argv if word != "help"), "--help"])
        if not words or words[0] in _HELP:
            self.print_help(self.command_manager.begin([]), full=True)
            return ExitCode.OK if words else ExitCode.USAGE
        return super().run(argv)

    def run_subcommand(self, argv: list[str]) -> int:
        try:
            self.command_manager.find_command(argv)
        except ValueError:
            return self._no_command([word for word in argv if word not in _HELP], argv)
        return super().run_subcommand(argv)

    def _no_command(self, words: list[str], argv: list[str]) -> int:
        """Help on a noun, or what may have been meant."""
        begun = self.command_manager.begin(words)
        if begun and argv[-1] in _HELP:
            self.print_help(begun, full=False)
            return ExitCode.OK
        meant = begun or self.get_fuzzy_matches(" ".join(words))[:5]
        hint = "Did you mean: " + ", ".join(meant) if meant else f"See: {NAME} --help"
        why = "wants a verb" if begun else "is no command"
        complain(f"{' '.join(argv)!r} {why}.", hint)
        return ExitCode.USAGE

    def print_help(self, names: list[str], *, full: bool) -> None:
        if full:
            self.parser.usage = f"{NAME} [global options] <noun> <verb> [arguments]"
            self.parser.print_help(self.stdout)
        self.stdout.write("\nCommands (each has --help):\n")
        width = max(map(len, names))
        columns = shutil.get_terminal_size().columns
        for name in names:
            kind = self.command_manager.commands[name].load()
            first_line = (inspect.getdoc(kind) or "").splitlines()[0].rstrip(".")
            for line in wrap(f"  {name:<{width}}  {first_line}", columns):
                self.stdout.write(f"{line}\n")


class _Version(argparse.Action):
    """Reading the version costs a little, so only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        sys.stdout.write(f"{NAME} {importlib.metadata.version(NAME)}\n")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    try:
        with redirect_stdout(cast("TextIO", Visible(sys.stdout))):
            return Shell().run(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # cliff sees to its own part
        return EXIT_BROKEN_PIPE
    finally:
        _flush()


def _flush() -> None:
    """What is still buffered, now: a reader that is gone is no error of the interpreter's."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
