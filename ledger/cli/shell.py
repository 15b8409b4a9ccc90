"""The program `attachment-ledger`: global options, the table of commands, help.

Commands are named here and loaded when they are used (ledger.cli.cliff_parts).
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TextIO, cast

from cliff import app

from host_agent.shared.platform.process import PrintBuild
from ledger.cli import acts
from ledger.cli.base import EscapingStream, complain, short_usage_errors
from ledger.cli.cliff_parts import CommandTable
from ledger.cli.errors import ExitCode
from ledger.cli.table import wrap

NAME = "attachment-ledger"
DESCRIPTION = "The ledger of block-volume attachments: the service, its history, its operations."
DEFAULT_URL = "http://127.0.0.1:8790"

COMMANDS = {
    **acts.COMMANDS,
    "attachment convert": "ledger.cli.servers.attachment_acts:ConvertAttachments",
    "attachment list": "ledger.cli.servers.attachment:ListAttachments",
    "attachment refresh": "ledger.cli.servers.attachment_acts:RefreshAttachments",
    "attachment show": "ledger.cli.servers.attachment:ShowAttachment",
    "attachment swap": "ledger.cli.servers.attachment_acts:SwapServerVolume",
    "complete": "ledger.cli.completion:Complete",
    "config show": "ledger.cli.local.config:ShowConfig",
    "db check": "ledger.cli.local.db:CheckSchema",
    "db federate": "ledger.cli.local.federate:Federate",
    "db grant": "ledger.cli.local.db:GrantRights",
    "db preflight": "ledger.cli.local.db:Preflight",
    "db restored": "ledger.cli.local.restored:Restored",
    "db status": "ledger.cli.local.db:ShowSchema",
    "db upgrade": "ledger.cli.local.db:UpgradeSchema",
    "demo": "ledger.cli.local.demo:Demo",
    "drift classes": "ledger.cli.drift.drift:ListDriftClasses",
    "drift list": "ledger.cli.drift.drift:ListDrift",
    "drift look": "ledger.cli.drift.looks:ShowLook",
    "drift looks": "ledger.cli.drift.looks:ListLooks",
    "drift show": "ledger.cli.drift.drift:ShowFinding",
    "event archive": "ledger.cli.log.retention:ArchiveEvents",
    "event checkpoint": "ledger.cli.log.audit:PrintCheckpoint",
    "event erase-person": "ledger.cli.log.erase:ErasePerson",
    "event list": "ledger.cli.log.event:ListEvents",
    "event prove": "ledger.cli.log.proof:ProveEvent",
    "event restore": "ledger.cli.log.retention:RestoreEvents",
    "event sign": "ledger.cli.log.proof:SignLog",
    "event tail": "ledger.cli.log.event:TailEvents",
    "event verify": "ledger.cli.log.audit:VerifyLog",
    "flow list": "ledger.cli.operations.flow:ListFlows",
    "flow show": "ledger.cli.operations.flow:ShowFlow",
    "flow verify": "ledger.cli.operations.flow:VerifyFlows",
    "forward": "ledger.cli.log.forward:Forward",
    "history attachment": "ledger.cli.log.history:ShowAttachmentHistory",
    "history host": "ledger.cli.log.history:ShowHostHistory",
    "history import": "ledger.cli.log.history_import:ImportHistory",
    "history operation": "ledger.cli.log.history:ShowOperationHistory",
    "history server": "ledger.cli.log.history:ShowServerHistory",
    "history sql": "ledger.cli.log.history_import:PrintSql",
    "history volume": "ledger.cli.log.history:ShowVolumeHistory",
    "host disable": "ledger.cli.servers.host:DisableHost",
    "host enable": "ledger.cli.servers.host:EnableHost",
    "host list": "ledger.cli.servers.host:ListHosts",
    "host show": "ledger.cli.servers.host:ShowHost",
    "operation list": "ledger.cli.operations.operation:ListOperations",
    "operation show": "ledger.cli.operations.operation:ShowOperation",
    "operation wait": "ledger.cli.operations.operation_acts:WaitForOperation",
    "projection list": "ledger.cli.local.projection:ListProjections",
    "projection rebuild": "ledger.cli.local.projection:RebuildProjection",
    "remnant list": "ledger.cli.operations.remnant:ListRemnants",
    "request show": "ledger.cli.operations.request:ShowRequest",
    "serve": "ledger.cli.local.serve:Serve",
    "server add volume": "ledger.cli.servers.attachment_acts:AddServerVolume",
    "server create": "ledger.cli.servers.server:CreateServer",
    "server delete": "ledger.cli.servers.server:DeleteServer",
    "server evacuate": "ledger.cli.servers.server_actions:EvacuateServer",
    "server event list": "ledger.cli.servers.server_moves:ListServerEvents",
    "server event show": "ledger.cli.servers.server_moves:ShowServerEvent",
    "server forget": "ledger.cli.servers.server_forget:ForgetServers",
    "server list": "ledger.cli.servers.server:ListServers",
    "server lock": "ledger.cli.servers.server_edits:LockServer",
    "server migrate": "ledger.cli.servers.server_actions:MigrateServer",
    "server migration abort": "ledger.cli.servers.server_moves:AbortServerMigration",
    "server migration list": "ledger.cli.servers.server_moves:ListServerMigrations",
    "server migration show": "ledger.cli.servers.server_moves:ShowServerMigration",
    "server pause": "ledger.cli.servers.server_actions:PauseServer",
    "server reboot": "ledger.cli.servers.server_actions:RebootServer",
    "server rebuild": "ledger.cli.servers.server_actions:RebuildServer",
    "server remove volume": "ledger.cli.servers.attachment_acts:RemoveServerVolume",
    "server reset-state": "ledger.cli.servers.server_edits:ResetServerState",
    "server resize": "ledger.cli.servers.server_actions:ResizeServer",
    "server resize confirm": "ledger.cli.servers.server_actions:ConfirmResize",
    "server resize revert": "ledger.cli.servers.server_actions:RevertResize",
    "server shelve": "ledger.cli.servers.server_actions:ShelveServer",
    "server show": "ledger.cli.servers.server:ShowServer",
    "server start": "ledger.cli.servers.server_actions:StartServer",
    "server stop": "ledger.cli.servers.server_actions:StopServer",
    "server unlock": "ledger.cli.servers.server_edits:UnlockServer",
    "server unpause": "ledger.cli.servers.server_actions:UnpauseServer",
    "server unshelve": "ledger.cli.servers.server_actions:UnshelveServer",
    "sim cinder": "ledger.cli.local.sim:SimulateCinder",
    "sim fault list": "ledger.cli.local.sim:ListFaults",
    "sim fault set": "ledger.cli.local.sim:SetFaults",
    "survey": "ledger.cli.survey.survey:SurveyCloud",
    "top": "ledger.cli.operations.top:Top",
    "volume list": "ledger.cli.servers.volume:ListVolumes",
}

EXIT_BROKEN_PIPE = 141  # 128 and SIGPIPE, as cliff has it
_HELP = ("-h", "--help")


class Shell(app.App):
    """The program; `options` are the global ones."""

    NAME = NAME
    command_manager: CommandTable
    options: argparse.Namespace

    def __init__(self) -> None:
        super().__init__(DESCRIPTION, version=None, command_manager=CommandTable(COMMANDS, NAME))

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
        short_usage_errors(parser)
        add("--version", action=PrintBuild, nargs=0, help="print the version and exit")
        add(
            "--url",
            default=os.environ.get("LEDGER_URL", DEFAULT_URL),
            help="the ledger's address; several of its processes with commas "
            f"(environment: LEDGER_URL; default {DEFAULT_URL})",
        )
        add(
            "--cell",
            metavar="NAME",
            help="one of the ledgers in the environment's LEDGER_CELLS ('north=https://... "
            "south=https://...'), in place of --url; 'all': list those of every ledger",
        )
        add(
            "--token",
            default=os.environ.get("LEDGER_TOKEN"),
            help="the token for requests; better given in the environment: LEDGER_TOKEN",
        )
        add(
            "--cacert",
            default=os.environ.get("LEDGER_CACERT"),
            metavar="FILE",
            help="PEM file of the certificate authorities to trust "
            "(environment: LEDGER_CACERT; default: Python's)",
        )
        add(
            "-v",
            "--verbose",
            dest="verbose_level",
            action="count",
            default=0,
            help="show more messages",
        )
        add("--debug", action="store_true", help="show tracebacks and all messages")
        return parser

    def configure_logging(self) -> None:
        """Messages of libraries, to stderr; the service sets up its own logs."""
        levels = [logging.WARNING, logging.INFO, logging.DEBUG]
        level = min(2, self.options.verbose_level + 2 * self.options.debug)
        logging.basicConfig(
            level=levels[level], stream=EscapingStream(sys.stderr), format="%(name)s: %(message)s"
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
        if argv[0].startswith("-"):
            complain(f"there is no global option {argv[0]!r}.", f"See: {NAME} --help")
            return ExitCode.USAGE
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


def main(argv: Sequence[str] | None = None) -> int:
    try:
        with redirect_stdout(cast("TextIO", EscapingStream(sys.stdout))):
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
