"""`volume list`: the volumes that servers have, and hosts hold.

The ledger knows a volume by its attachments; its name, its size and its type are Cinder's.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, add_limit, listed, said
from ledger.cli.naming import add_filters
from ledger.cli.table import NamedId

COLUMNS: dict[str, Any] = {
    "Volume": "volume_id",
    "State": "state",
    "Server": lambda row: NamedId(row["server_id"], row.get("server_name")),
    "Host": "host",
    "Attachment": "attachment_id",
    "Operation": "operation_id",
    "Since": "created_at",
}


class ListVolumes(Lister):
    """List volumes that are attached or being attached: to which servers, on which hosts."""

    every_cell = True
    brief = ("Volume", "State", "Server", "Host", "Attachment", "Since")
    empty = "No volumes are attached."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_filters(parser, "server", "host")
        add_limit(parser, "at most N attachments of volumes")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = {**said(parsed_args, "server", "host"), "open": True}
        found = self.client.items("/v1/attachments", "attachments", parsed_args.limit, **asked)
        by_volume = sorted(found, key=lambda row: (row["volume_id"], row["created_at"]))
        return listed(COLUMNS, by_volume)
