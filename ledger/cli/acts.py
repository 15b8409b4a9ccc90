"""The commands of acts, made of the rows of `ledger.words.acts`: each found here by its act's name.

What a command has said is the body of the act's route; the answer is printed by a function of the
module of such things.
"""

from __future__ import annotations

import argparse
import re
from pkgutil import resolve_name
from typing import Any, cast

from ledger.cli.base import moment
from ledger.cli.naming import named
from ledger.cli.operations.operating import Waiting
from ledger.words.acts import BY_NAME, Act, Field, FieldKind

COMMANDS = {act.command: f"{__name__}:{name}" for name, act in BY_NAME.items()}

_Rows = tuple[Any, Any]

#: By what a field holds, how it is typed; else it is `--NAME TEXT`.
_TYPED: dict[FieldKind, dict[str, Any]] = {
    FieldKind.TEXT: {"metavar": "TEXT"},
    FieldKind.MOMENT: {"metavar": "TIME", "type": moment},
    FieldKind.FLAG: {"action": "store_true"},
    FieldKind.APPLY: {"action": "store_true"},
    FieldKind.NAME: {"metavar": "NAME"},
    FieldKind.CLASSES: {"metavar": "CLASS", "action": "append", "default": []},
    FieldKind.LANE: {"metavar": "N", "type": int, "default": 0},
    FieldKind.HOST: {"metavar": "NAME"},
    FieldKind.SERVER: {"metavar": "ID", "type": named("server")},
    FieldKind.VOLUME: {"metavar": "ID", "type": named("volume")},
}
#: Of these at most one is given.
_ONE_OF = {FieldKind.HOST, FieldKind.SERVER, FieldKind.VOLUME}


class ActCommand(Waiting):
    act: Act

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from ledger.cli.operations.waiting import add_timeout

        add, of = parser.add_argument, self.act.of
        if of.kind:
            add("id", metavar=f"<{of.kind}>", type=named(of.kind))
        kinds = {each.kind for each in self.act.fields}
        group = parser if kinds.isdisjoint(_ONE_OF) else parser.add_mutually_exclusive_group()
        for each in self.act.fields:
            _add(group if each.kind in _ONE_OF else parser, each)
        if of.dry_run:
            text = "change nothing; say what it would do, and what would stay behind"
            add("--dry-run", action="store_true", help=text)
        if wait := self.act.wait or of.wait:
            add("--wait", action="store_true", help=wait)
            add_timeout(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.client import BEGIN_TIMEOUT_S, TIMEOUT_S, ServiceError

        act, said = self.act, vars(parsed_args)
        body = {each.name: said[each.name] for each in act.fields}
        body = {name: value for name, value in body.items() if value not in (None, [])}
        try:
            answer = self.client.send(
                "POST",
                re.sub(r"{\w+}", said.get("id", ""), act.path),
                body={act.name: body} if act.of.wraps else body,
                query={"dry_run": "true"} if said.get("dry_run") else None,
                timeout_s=BEGIN_TIMEOUT_S if act.begins or act.of.slow else TIMEOUT_S,
            )
        except ServiceError as error:
            error.hint = act.hints.get(error.code, error.hint)
            raise
        if ends := act.ends or act.of.ends:
            return cast("_Rows", resolve_name(f"ledger.cli.{ends}")(self, parsed_args, answer))
        return cast("_Rows", resolve_name(f"ledger.cli.{act.of.shown}")(answer))


def _add(parser: argparse._ActionsContainer, each: Field) -> None:
    if each.kind is FieldKind.STEP:
        parser.add_argument(each.name, metavar=f"<{each.name}>", help=each.help)
        return
    needed: dict[str, Any] = {"required": True} if each.needed else {}
    option = f"--{each.option or each.name}"
    parser.add_argument(option, dest=each.name, help=each.help, **_TYPED[each.kind], **needed)


def __getattr__(name: str) -> type[ActCommand]:
    """The command of the act that is called so."""
    if name not in BY_NAME:
        raise AttributeError(name)
    act = BY_NAME[name]
    return type(name, (ActCommand,), {"act": act, "__doc__": act.words})
