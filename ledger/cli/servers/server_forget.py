"""`server forget`: servers whose guests have vanished, shown by default, done with `--apply`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from ledger.cli.naming import SERVER_HELP, named
from ledger.cli.servers.attachment_acts import OF_MANY_COLUMNS, PAGE_SERVERS, OfMany

PLAN_COLUMNS = ("Server", "What would be done", "Evidence", "Why not")

One = dict[str, Any]


class ForgetServers(OfMany):
    """Forget servers whose guests have vanished: release what they have, delete no volume.

    Two looks have to have confirmed it, and hosts say what they have.  Without --apply
    it shows the plan and its evidence.  One row per server; the exit code is the worst
    of all.
    """

    act, which = "forget", "a guest that has vanished"
    empty = "No look has confirmed that a guest is missing there (see 'drift list')."

    def add_whose(self, whose: argparse._MutuallyExclusiveGroup) -> None:
        add = whose.add_argument
        add("server", metavar="<server>", nargs="?", type=named("server"), help=SERVER_HELP)
        add("--host", metavar="NAME", help=f"all servers of this host with {self.which}")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        parser.add_argument(
            "--reason", required=True, metavar="TEXT", help="why; stored permanently in the history"
        )
        add("--apply", action="store_true", help="do it; else nothing is changed")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        if parsed_args.apply:
            end = time.monotonic() + parsed_args.timeout
            asked = list(self._asked(parsed_args))
            return OF_MANY_COLUMNS, [
                self.row(each, end if parsed_args.wait else None) for each in asked
            ]
        from ledger.cli.base import note

        rows = [self._planned(each) for each in self._asked(parsed_args)]
        note("Nothing was changed. To do it: add --apply")
        return PLAN_COLUMNS, rows

    def _asked(self, parsed_args: argparse.Namespace) -> Iterator[One]:
        names = ("server", "host", "reason", "apply")
        given = {name: getattr(parsed_args, name) for name in names}
        body = {name: value for name, value in given.items() if value is not None}
        while True:
            page = self.client.post("/v1/forget", {**body, "limit": PAGE_SERVERS})
            yield from page["servers"]
            if page["next"] is None:
                return
            body["after"] = page["next"]

    def _planned(self, one: One) -> tuple[Any, ...]:
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
