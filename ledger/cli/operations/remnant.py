"""`remnant list`: what skipped and given-up operations may have left behind."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, add_limit, clock
from ledger.cli.naming import named

COLUMNS = ("ID", "State", "What", "Operation", "Act", "Reason", "Left", "Acknowledged")


class ListRemnants(Lister):
    """List what may be left in Cinder and on hosts, newest first: not yet acknowledged ones."""

    every_cell = True
    brief = ("ID", "State", "What", "Act", "Reason", "Left")
    empty = "No remnants."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        state = parser.add_mutually_exclusive_group()
        state.add_argument("--state", choices=("open", "acknowledged"), default="open")
        state.add_argument(
            "--all", dest="state", action="store_const", const=None, help="in any state"
        )
        parser.add_argument("--server", metavar="ID", type=named("server"))
        parser.add_argument("--host", metavar="NAME")
        add_limit(parser, "so many at most")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        query = {name: getattr(parsed_args, name) for name in ("state", "server", "host", "limit")}
        rows = [
            (
                remnant["remnant_id"],
                remnant["state"],
                remnant["detail"],
                remnant["from_operation"],
                remnant["act"],
                remnant["reason"],
                clock(remnant["left_at"]),
                remnant["acknowledged_reason"] or "",
            )
            for remnant in self.client.get("/v1/remnants", **query)["remnants"]
        ]
        return COLUMNS, rows
