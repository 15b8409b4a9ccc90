"""`complete`: the completion of shells, of commands, options, and of what the ledger knows.

The script of a shell asks this program at each TAB, with the words up to the cursor; so there is
one source of what can be typed, the parsers of the commands.  Hosts and ids are asked of the
service, by one request that has little time; without an answer there are none, and no message.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ledger.cli.base import PlainCommand
from ledger.cli.naming import Named

if TYPE_CHECKING:
    from ledger.cli.client import Client
    from ledger.cli.shell import Shell

#: Nobody waits longer after TAB.
ANSWER_S = 2.0
_IDS_FROM_CHARS = 4  # GET /v1/find takes shorter ones for names
#: Printed by a shell's start-up file, or put where the shell looks for such files.
SCRIPTS = {
    "bash": """\
_attachment_ledger()
{
  local IFS=$'\\n'
  COMPREPLY=( $(attachment-ledger complete --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
}
complete -o default -F _attachment_ledger attachment-ledger
""",
    "zsh": """\
#compdef attachment-ledger
_attachment_ledger()
{
  local -a found
  found=( ${(f)"$(attachment-ledger complete --words "${(@)words[2,CURRENT]}" 2>/dev/null)"} )
  (( $#found )) && compadd -a found || _files
}
if [[ $funcstack[1] == _attachment_ledger ]]; then
  _attachment_ledger "$@"
else
  compdef _attachment_ledger attachment-ledger
fi
""",
}


class Complete(PlainCommand):
    """Print the completion script of a shell, or the words that can come next."""

    app: Shell

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--shell", choices=sorted(SCRIPTS), default="bash")
        parser.add_argument(
            "--words",
            nargs=argparse.REMAINDER,
            metavar="WORD",
            help="the words typed so far; the last one is to be completed",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        words = parsed_args.words
        if words is None:
            self.app.stdout.write(SCRIPTS[parsed_args.shell])
            return 0
        for each in candidates(self.app, words or [""], lambda: self.client):
            self.app.stdout.write(f"{each}\n")
        return 0


def candidates(shell: Shell, words: Sequence[str], client: Callable[[], Client]) -> list[str]:
    """What the last of these words can be, in order.  `client`: to ask the service."""
    *before, current = words
    before, waiting = _without_globals(shell, before)
    if waiting:
        return []
    name, rest = _command(shell, before)
    depth = len(name.split()) if name else len(before)
    found = set()
    if len(before) == depth:  # the next word of a command, also of one that is a command itself
        begun = shell.command_manager.begin(before)
        found |= {each.split()[depth] for each in begun if len(each.split()) > depth}
    if name:
        found |= {*_of_command(shell, name, rest, current, client)}
    elif not before and current.startswith("-"):
        found |= {*_by_option(shell.parser)}
    return sorted(each for each in found if each.startswith(current))


def _without_globals(shell: Shell, words: Sequence[str]) -> tuple[list[str], bool]:
    """The words behind the global options, and whether one of these waits for its value."""
    known, left = _by_option(shell.parser), list(words)
    taking = {name for name, each in known.items() if each.nargs is None}
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in taking and not left:
            return [], True
        if option in taking:
            left.pop(0)
    return left, False


def _command(shell: Shell, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The longest command that the words begin with, and what follows it."""
    for count in range(len(words), 0, -1):
        name = " ".join(words[:count])
        if name in shell.command_manager.commands:
            return name, list(words[count:])
    return None, list(words)


def _of_command(
    shell: Shell, name: str, rest: Sequence[str], current: str, client: Callable[[], Client]
) -> Iterable[str]:
    """The value of an option; else the options, or the argument that is the next."""
    parser = shell.command_manager.commands[name].load()(shell, None).get_parser(name)
    by_option = _by_option(parser)
    if rest and (option := by_option.get(rest[-1])) and option.nargs is None:
        return _values(option, current, client)
    positional = [each for each in _actions(parser) if not each.option_strings]
    given = _given(rest, by_option)
    if current.startswith("-") or given >= len(positional):
        return by_option
    return _values(positional[given], current, client)


def _given(rest: Sequence[str], by_option: dict[str, argparse.Action]) -> int:
    """How many of these words are no options, nor values of such."""
    count, of_option = 0, False
    for word in rest:
        if of_option:
            of_option = False
        elif word.startswith("-"):
            option = by_option.get(word)
            of_option = option is not None and option.nargs is None
        else:
            count += 1
    return count


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """argparse has no public way to them; cliff goes the same."""
    return parser._actions  # noqa: SLF001


def _by_option(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    listed = (each for each in _actions(parser) if each.help != argparse.SUPPRESS)
    return {text: each for each in listed for text in each.option_strings}


def _values(action: argparse.Action, current: str, client: Callable[[], Client]) -> Iterable[str]:
    """What an argument can be: its choices, or things of its kind."""
    if action.choices is not None:
        return map(str, action.choices)
    if action.dest == "host":
        return _known("host", current, client)
    read: Any = action.type
    named = read("") if getattr(read, "__module__", "") == Named.__module__ else None
    return _known(named.kind, current, client) if isinstance(named, Named) else ()


def _known(kind: str, current: str, client: Callable[[], Client]) -> Iterable[str]:
    """Names and ids of this kind that the service knows; none if it does not say."""
    from ledger.cli.client import ClientError

    if kind != "host" and len(current) < _IDS_FROM_CHARS:
        return ()
    try:
        return _asked(client(), kind, current)
    except ClientError:
        return ()


def _asked(client: Client, kind: str, current: str) -> list[str]:
    if kind == "host":
        return [each["host"] for each in client.get("/v1/hosts", timeout_s=ANSWER_S)["hosts"]]
    found = client.get("/v1/find", text=current, timeout_s=ANSWER_S)["found"]
    return [each["id"] for each in found if each["kind"] == kind]
