"""What we do not leave to cliff: its search for plug-ins.  Nothing else here goes past its
public way.

cliff asks the entry points of all installed packages for the program's commands, for hooks of
each command, and for the name of the distribution at the end of each help.  Ours are a table
(ledger.cli.shell.COMMANDS), and nobody can add hooks.  `_load_hooks` is private to cliff; that
it is still there is held by tests/service/test_cli_parts.py.

It gives 107 ms of CPU for the start of a command where cliff's way takes 156 (row 12 of
docs/benchmarks.md; measure again with `make bench ARGS=shortcuts`).  Delete this file when cliff
lets an App say that it has no plug-ins, or when they cost less than 20 ms.  argparse alone would
not be smaller: of cliff we use lists and single things in five formats, columns and sorting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint

from cliff import command, commandmanager


class WithoutPlugins(command.Command):
    """A command that looks at no entry points."""

    def _load_hooks(self) -> None:
        self._hooks = []

    def get_epilog(self) -> str:
        return ""


class CommandTable(commandmanager.CommandManager):
    """Commands by name, each loaded from `module:Class` when it is used."""

    def __init__(self, commands: Mapping[str, str], program: str) -> None:
        super().__init__()
        self.commands.update(
            {name: EntryPoint(name, where, program) for name, where in commands.items()}
        )

    def add_command(self, *_: object, **__: object) -> None:
        """cliff's own are not ours: help is an option here, also of each noun."""

    def begin(self, words: Sequence[str]) -> list[str]:
        """The commands that begin with these words."""
        return [name for name in sorted(self.commands) if name.split()[: len(words)] == list(words)]
