"""`volume list`: the volumes that servers have, and hosts hold.

The ledger knows a volume by its attachments; its name, its size and its type are Cinder's.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, add_limit
from ledger.cli.naming import named

COLUMNS = ("Volume", "State", "Server", "Host", "Attachment", "Operation", "Since")


class ListVolumes(Lister):
    """List volumes that are attached, or are being so: to which servers, and on which hosts."""

    every_cell = True
    brief = ("Volume", "State", "Server", "Host", "Attachment", "Since")
    empty = "No volumes are attached."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--server", metavar="ID", type=named("server"))
        parser.add_argument("--host", metavar="NAME")
        add_limit(parser, "at most N attachments of volumes")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = {"server": parsed_args.server, "host": parsed_args.host, "open": True}
        found = self.client.items("/v1/attachments", "attachments", parsed_args.limit, **asked)
        by_volume = sorted(found, key=lambda row: (row["volume_id"], row["created_at"]))
        return COLUMNS, [_row(row) for row in by_volume]


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    from ledger.cli.table import NamedId

    return (
        row["volume_id"],
        row["state"],
        NamedId(row["server_id"], row.get("server_name")),
        row["host"],
        row["attachment_id"],
        row["operation_id"],
        row["created_at"],
    )
