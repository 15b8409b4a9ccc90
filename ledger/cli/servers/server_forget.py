"""`server forget`: servers whose guests have vanished, shown by default, done with `--apply`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ledger.cli.base import said
from ledger.cli.naming import add_thing
from ledger.cli.servers.attachment_acts import Begun, OfMany

PLAN_COLUMNS = ("Server", "What would be done", "Evidence", "Why not")


class ForgetServers(OfMany):
    """Forget servers whose guests have vanished: release their attachments, delete no volume.

    Two looks must have confirmed that the guest is missing, and the hosts report what they have.
    Without --apply it shows the plan and its evidence.  One row per server; the exit code is the
    worst of all.
    """

    act, which = "forget", "a guest that has vanished"
    empty = "No look has confirmed that a guest is missing there (see 'drift list')."

    def add_whose(self, whose: argparse._MutuallyExclusiveGroup) -> None:
        add_thing(whose, "server", nargs="?")
        text = f"all servers of this host with {self.which}"
        whose.add_argument("--host", metavar="NAME", help=text)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        parser.add_argument(
            "--reason", required=True, metavar="TEXT", help="why; stored permanently in the history"
        )
        add("--apply", action="store_true", help="do it; without it nothing is changed")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        if parsed_args.apply:
            return super().take_action(parsed_args)
        from ledger.cli.base import note

        rows = [self._planned(each) for each in self.begun(parsed_args)]
        note("Nothing was changed. To do it: add --apply")
        return PLAN_COLUMNS, rows

    def begun(self, parsed_args: argparse.Namespace) -> Iterator[Begun]:
        given = said(parsed_args, "server", "host", "reason", "apply")
        return self.pages({name: value for name, value in given.items() if value is not None})

    def _planned(self, one: Begun) -> tuple[Any, ...]:
        from ledger.cli.errors import ExitCode
        from ledger.cli.operations.plan import Lines

        plan = one["plan"]
        if plan is None:
            self.exit_code = max(self.exit_code, ExitCode.REFUSED)
            return one["server_id"], None, None, one["refused"]
        steps = (f"on {s['place']}: {s['step']} - {s['does']}" for s in plan["steps"])
        evidence = (f"{party}: {shown}" for party, shown in plan["differs"].items())
        return (
            one["server_id"],
            Lines(plan["steps"], steps),
            Lines(plan["differs"], evidence),
            None,
        )
