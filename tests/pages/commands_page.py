"""docs/commands.md: every command with its arguments, options and examples, as `--help` has them.

`python -m tests.pages.commands_page FILE` (`make docs`) writes it; a test holds that it is current.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ledger.cli.examples import lines
from ledger.cli.shell import COMMANDS, NAME, Shell

#: What cliff gives each command: the forms of its output (docs/cli.md, "Output").
FORMS = {"output formatters", "json formatter", "CSV Formatter", "table formatter"}
FORMS |= {"shell formatter"}
WIDTH = 100

HEAD = f"""# Commands

All of them, as `{NAME} COMMAND --help` says it. What they have in common is in
[the command line](cli.md): where the ledger is, the forms of output (`-f`, `-c`), what is typed
for a thing, exit codes. This page is made by `make docs`.
"""


def page() -> str:
    shell = Shell()
    nouns = groupby(sorted(COMMANDS), lambda command: command.split()[0])
    return "\n".join([HEAD, *(part for noun, some in nouns for part in _noun(noun, some, shell))])


def _noun(noun: str, commands: Iterator[str], shell: Shell) -> Iterator[str]:
    yield f"## {noun}\n"
    for command in commands:
        kind, name, _ = shell.command_manager.find_command(command.split())
        parser = kind(shell, None, cmd_name=name).get_parser(name)
        yield f"### {command}\n"
        yield f"{inspect.getdoc(kind)}\n"
        yield "\n".join(["```console", *_typed(command, parser), "```\n"])
        if options := list(_options(parser)):
            yield "\n".join([*options, ""])


def _typed(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    places = [_place(each) for each in parser._get_positional_actions()]
    yield " ".join([NAME, command, *places])
    yield from lines(command, f"$ attachment-ledger {command}")


def _place(action: argparse.Action) -> str:
    return action.metavar if isinstance(action.metavar, str) else f"<{action.dest}>"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        if group.title in FORMS:
            continue
        for action in group._group_actions:
            if isinstance(action, argparse._HelpAction):
                continue
            said = _said(action)
            if action.option_strings or action.help:
                yield "\n".join(
                    textwrap.wrap(
                        said,
                        WIDTH,
                        initial_indent="- ",
                        subsequent_indent="  ",
                        break_on_hyphens=False,
                    )
                )


def _said(action: argparse.Action) -> str:
    name = max(action.option_strings, key=len, default=_place(action))
    value = ""
    if action.option_strings and action.nargs != 0:
        chosen = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else None
        value = f" {action.metavar or chosen or action.dest.upper()}"
    help_ = (action.help or "") % {**vars(action), "prog": NAME} if action.help else ""
    return f"`{name}{value}`" + (f": {help_}" if help_ else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
