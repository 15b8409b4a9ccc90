"""`server lock|unlock|reset-state`: what is said of a server, and begins no operation."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.servers import server


class _Edit(server.ShowServer):
    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        path = f"/servers/{parsed_args.server}/action"
        self.client.nova(path, "POST", body=self.asked(parsed_args))
        return super().take_action(parsed_args)


class LockServer(_Edit):
    """Refuse users' requests for a server until it is unlocked; operators' are accepted."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reason", metavar="TEXT", help="why; users see it")

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"lock": {"locked_reason": parsed_args.reason} if parsed_args.reason else None}


class UnlockServer(_Edit):
    """Accept users' requests for a server again."""

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        del parsed_args
        return {"unlock": None}


class ResetServerState(_Edit):
    """Show a server as in error, or as active again; its guest and volumes do not change."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--state", required=True, choices=["active", "error"], help="the state to show"
        )

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"os-resetState": {"state": parsed_args.state}}
