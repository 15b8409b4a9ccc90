"""`remnant list`: what skipped and given-up operations may have left behind."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, add_limit, clock, listed, said
from ledger.cli.naming import add_filters

COLUMNS: dict[str, Any] = {
    "ID": "remnant_id",
    "State": "state",
    "What": "detail",
    "Operation": "from_operation",
    "Act": "act",
    "Reason": "reason",
    "Left": lambda remnant: clock(remnant["left_at"]),
    "Acknowledged": lambda remnant: remnant["acknowledged_reason"] or "",
}


class ListRemnants(Lister):
    """List what may be left in Cinder and on hosts, newest first; acknowledged ones with --all."""

    every_cell = True
    brief = ("ID", "State", "What", "Act", "Reason", "Left")
    empty = "No remnants."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        state = parser.add_mutually_exclusive_group()
        state.add_argument("--state", choices=("open", "acknowledged"), default="open")
        state.add_argument(
            "--all", dest="state", action="store_const", const=None, help="in any state"
        )
        add_filters(parser, "server", "host")
        add_limit(parser, "so many at most")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = said(parsed_args, "state", "server", "host")
        found = self.client.items("/v1/remnants", "remnants", parsed_args.limit, **asked)
        return listed(COLUMNS, found)
