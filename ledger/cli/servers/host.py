"""`host list|show|disable|enable`: the hypervisors, and who is shut out."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.acts import ActCommand
from ledger.cli.base import Lister, ShowOne, clock, columns, listed
from ledger.cli.errors import ExitCode

Host = dict[str, Any]


def state(host: Host) -> str:
    """In a word: fenced, unvouched (since a restore), suspect (it may still have leftovers), up or
    down; whether disabled.
    """
    if host["fenced"]:
        return "fenced"
    if host["unvouched"]:
        return "unvouched"
    if host["suspect"]:
        return "suspect"
    up = "up" if host["alive"] else "down"
    return f"{up}, disabled" if host["disabled"] else up


COLUMNS: dict[str, Any] = {
    "Host": "host",
    "State": state,
    "Epoch": "epoch",
    "Guests": "guests",
    "Attachments": "open_attachments",
    "Commands": "open_commands",
    "Last contact": lambda host: clock(host["seen_at"]),
    "Version": "service_version",
}


class ListHosts(Lister):
    """List hosts: up, down, suspect, unvouched or fenced, and what they hold."""

    every_cell = True
    brief = ("Host", "State", "Epoch", "Guests", "Attachments", "Commands", "Last contact")
    empty = "No hosts: no agent has registered yet."

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return listed(COLUMNS, self.client.get("/v1/hosts")["hosts"])


class _OfHost(ShowOne):
    about = "host"

    def shown(self, name: str) -> tuple[Any, Any]:
        return shown(self.client.get(f"/v1/hosts/{name}"))


class ShowHost(_OfHost):
    """Show a host: its agent's contact and capabilities, its epoch, what it holds, and leftovers.

    A host that was fenced is suspect until it has released its leftovers: guests and connections
    that no longer belong to it.  Until then it gets no work.  An unvouched host gets no work
    either: the ledger was restored, and no operator has vouched for the host since.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.shown(parsed_args.host)


class DisableHost(_OfHost):
    """Place no new servers on a host; its servers stay, and their volumes can be changed."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--reason", required=True, metavar="TEXT", help="why; shown with the host"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        _set(self, parsed_args.host, "disable-log-reason", disabled_reason=parsed_args.reason)
        return self.shown(parsed_args.host)


class EnableHost(_OfHost):
    """Allow new servers on a host again."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        _set(self, parsed_args.host, "enable")
        return self.shown(parsed_args.host)


def _set(command: _OfHost, host: str, action: str, **more: str) -> None:
    """By Nova's call, in its first form: it names hosts, and no ids have to be looked up."""
    body = {"host": host, "binary": "nova-compute", **more}
    command.client.send("PUT", f"/v2.1/os-services/{action}", body=body)


def shown(host: Host) -> tuple[Any, Any]:
    from ledger.cli.operations.plan import Lines

    left = [
        f"{kind[:-1]} {each}" for kind, some in (host["leftovers"] or {}).items() for each in some
    ]
    return columns({**host, "state": state(host), "leftovers": Lines(host["leftovers"], left)})


def passed(command: ActCommand, _: argparse.Namespace, done: dict[str, Any]) -> tuple[Any, Any]:
    """A host that is adopted, or goes back: what is in the way of all, and what became of each."""
    from ledger.cli.operations.plan import Lines

    if done["refusals"] or not done["whole"]:
        command.exit_code = ExitCode.NOT_ALL
    lines = [line for server in done["servers"] for line in _passed(server)]
    told = {name: Lines(done[name], done[name]) for name in ("refusals", "notes")}
    script = "\n\n".join(each["sql"] for each in done["servers"] if each["sql"])
    return columns({**done, **told, "servers": Lines(done["servers"], lines), "sql": script})


def _passed(server: dict[str, Any]) -> list[str]:
    head = f"{server['server_id']} {server['name']}: {server['state']}"
    notes = (f"not known: {each}" for each in server["notes"])
    return [head, *(f"  {each}" for each in (*server["why"], *notes))]
