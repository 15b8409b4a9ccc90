"""`request show`: why a request was refused."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import ShowOne


class Show(ShowOne):
    """Show what a refused request was told; it is kept for a day at most."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", metavar="<request id>")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.dict2columns(self.client.get(f"/v1/requests/{parsed_args.id}"))
