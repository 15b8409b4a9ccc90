"""What people type for a thing: its id, the beginning of one, or a name that is unique.

A command says of an argument what kind of thing it names (`type=naming.named("server")`); before
the command acts, the service says which one is meant (`GET /v1/find`).  An id that is whole is
taken as it is, so a script asks nothing more than before.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from host_agent.shared.contract import HOST_NAME
from ledger.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from ledger.cli.client import Client

#: A finding may be a remnant or a parked operation: they are listed together (docs/api.md).
_TAKEN_AS = {"finding": {"finding", "remnant", "operation"}}
_HOSTS_NAMED = 8

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")

_SERVER_HELP = "its name, its id, or the beginning of that"

Thing = dict[str, Any]


class Named(str):
    """What somebody typed for a thing of a kind."""

    __slots__ = ("kind",)
    kind: str


def named(kind: str) -> Callable[[str], Named]:
    """The type of an argument that names a thing of this kind."""

    def read(text: str) -> Named:
        if kind == "host" and not re.fullmatch(HOST_NAME, text):
            raise argparse.ArgumentTypeError(f"must be a host's name, not {text!r}")
        name = Named(text)
        name.kind = kind
        return name

    return read


def add_thing(
    parser: argparse._ActionsContainer, kind: str, nargs: Literal["?"] | None = None
) -> None:
    """What a command is about; of hosts and servers the argument is called as they are."""
    dest = kind if kind in {"host", "server"} else "id"
    text = _SERVER_HELP if kind == "server" else None
    parser.add_argument(dest, metavar=f"<{kind}>", type=named(kind), help=text, nargs=nargs)


def add_filters(parser: argparse._ActionsContainer, *kinds: str) -> None:
    """By what a list may be narrowed."""
    for kind in kinds:
        if kind == "host":
            parser.add_argument("--host", metavar="NAME")
        else:
            parser.add_argument(f"--{kind}", metavar="ID", type=named(kind))


def is_id(text: str) -> bool:
    return _UUID.match(text) is not None


def resolve(client: Callable[[], Client], arguments: argparse.Namespace) -> None:
    """Put ids in the place of what was typed.

    Raises CliError if that fits nothing, or several things; ClientError as the client does.
    """
    for key, value in list(vars(arguments).items()):
        if isinstance(value, Named) and value.kind != "host" and not is_id(value):
            setattr(arguments, key, _meant(client(), value))


def _meant(client: Client, name: Named) -> Named:
    found = client.get("/v1/find", text=name)["found"] if name else []
    fitting = {thing["id"]: _told(thing) for thing in found if thing["kind"] in _kinds(name)}
    if len(fitting) > 1:
        raise ambiguous(str(name), list(fitting.values()))
    if not fitting:
        raise CliError(
            f"there is no {name.kind} {str(name)!r}.", ExitCode.NOT_FOUND, _other(name, found)
        )
    return named(name.kind)(next(iter(fitting)))


def _other(name: Named, found: list[Thing]) -> str:
    if found:
        return f"Expected {_a(name.kind)}; {str(name)!r} is {_told(found[0])}."
    if name.kind == "volume":
        return "Known are volumes that a server has had, or that differ; else give the whole id."
    name_too = "a name, " if name.kind == "server" else ""
    listed = _LISTS.get(name.kind, f"{name.kind} list")
    return f"Wanted: {name_too}an id, or 4 characters of its beginning: attachment-ledger {listed}"


#: The lists that have all of a kind, where it is not just `KIND list`.
_LISTS = {
    "attachment": "attachment list --all",
    "finding": "drift list --all",
    "remnant": "remnant list --all",
    "look": "drift looks",
}


def hint(client: Client, arguments: argparse.Namespace) -> str | None:
    """What the whole ids and the hosts are that the service did not find; None: unknown, too."""
    from ledger.cli.client import ClientError

    for value in vars(arguments).values():
        if not isinstance(value, Named):
            continue
        with suppress(ClientError):
            if value.kind == "host":
                return _near(value, [each["host"] for each in client.get("/v1/hosts")["hosts"]])
            found = client.get("/v1/find", text=value)["found"]
            if found and not {thing["kind"] for thing in found} & _kinds(value):
                return _other(value, found)
    return None


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _near(name: str, hosts: list[str]) -> str | None:
    if name in hosts or not hosts:
        return None
    near = get_close_matches(name, hosts) or hosts[:_HOSTS_NAMED]
    return f"Did you mean: {', '.join(near)}"


def _kinds(name: Named) -> set[str]:
    return _TAKEN_AS.get(name.kind, {name.kind})


def ambiguous(text: str, which: list[str]) -> CliError:
    """What was typed fits all of these."""
    return usage(f"{text!r} may be any of {len(which)}: name one.", "\n  ".join(which))


def _told(thing: Thing) -> str:
    called = f" ({thing['name']})" if thing["name"] else ""
    return f"{thing['kind']} {thing['id']}{called}"
