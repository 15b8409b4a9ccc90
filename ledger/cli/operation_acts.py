"""`operation wait|retry|skip|unwind|give-up`: what a person may do about an operation."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.operating import Waiting


class _OfOperation(Waiting):
    """What these commands have in common."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", metavar="<operation>")
        return parser


class Wait(_OfOperation):
    """Wait until an operation ends or needs an operator."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.waiting import add_timeout

        parser = super().get_parser(prog_name)
        add_timeout(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.waited(parsed_args.id, parsed_args.timeout)


class Act(_OfOperation):
    """An act with a reason, which is recorded with who asked."""

    act = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.waiting import add_wait

        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--reason", required=True, metavar="TEXT", help="why; kept in the history for ever"
        )
        add_wait(parser)
        return parser

    def details(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """What this act says beside the reason."""
        del parsed_args
        return {}

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        body = {self.act: {"reason": parsed_args.reason, **self.details(parsed_args)}}
        self.client.post(f"/v1/operations/{parsed_args.id}/actions", body)
        return self.under_way(parsed_args.id, parsed_args)


class Retry(Act):
    """Try the failed steps of a parked operation again, or at once what one that runs puts off."""

    act = "retry"


class Skip(Act):
    """Go on as if a step were done: you vouch for it, and say why."""

    act = "skip"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("step", metavar="<step>", help="the first step that is left")
        parser.add_argument(
            "--lane",
            type=int,
            default=0,
            metavar="N",
            help="the lane, if there are several volumes; -1 for a step of the whole server",
        )
        return parser

    def details(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"lane": parsed_args.lane, "step": parsed_args.step}


class Unwind(Act):
    """Undo an operation; refused once its pivot is passed."""

    act = "unwind"


class GiveUp(Act):
    """End a parked operation as it is; what is left stays as the log shows it."""

    act = "give_up"
