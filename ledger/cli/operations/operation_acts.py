"""`operation wait|retry|skip|unwind|give-up`: what a person may do about an operation."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import add_reason, note
from ledger.cli.naming import named
from ledger.cli.operations.operating import Waiting
from ledger.words.consequences import ACTS


class _OfOperation(Waiting):
    """What these commands have in common."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", metavar="<operation>", type=named("operation"))
        return parser


class Wait(_OfOperation):
    """Wait until an operation ends or needs an operator."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.operations.waiting import add_timeout

        parser = super().get_parser(prog_name)
        add_timeout(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.waited(parsed_args.id, parsed_args.timeout)


class Act(_OfOperation):
    """An act with a reason, which is recorded with who asked; it may leave something behind."""

    act = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.operations.waiting import add_wait

        parser = super().get_parser(prog_name)
        add_reason(parser)
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="change nothing; say what it would do, and what would stay behind",
        )
        add_wait(parser)
        return parser

    def details(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """What this act says beside the reason."""
        del parsed_args
        return {}

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        body = {self.act: {"reason": parsed_args.reason, **self.details(parsed_args)}}
        path = f"/v1/operations/{parsed_args.id}/actions"
        acted = self.client.post(path + "?dry_run=true" * parsed_args.dry_run, body)
        if parsed_args.dry_run:
            return self._proposed(acted)
        for remnant in acted["remnants"]:
            note(f"may stay behind: {remnant['detail']}")
        if acted["remnants"]:
            note("See to it, then: attachment-ledger remnant list")
        return self.under_way(parsed_args.id, parsed_args)

    def _proposed(self, operation: dict[str, Any]) -> tuple[Any, Any]:
        """What the act would do to the operation as it is."""
        from ledger.cli.operations.plan import Lines
        from ledger.words.consequences import will

        note("Nothing was changed.")
        remnants = operation["remnants"]
        return self.dict2columns(
            {
                "operation_id": operation["operation_id"],
                "would": f"{self.act.replace('_', ' ')}: {will(operation, self.act)}",
                "remnants": Lines(remnants, [each["detail"] for each in remnants]),
            }
        )


class Retry(Act):
    __doc__ = ACTS["retry"]

    act = "retry"


class Skip(Act):
    __doc__ = ACTS["skip"]

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
    __doc__ = ACTS["unwind"]

    act = "unwind"


class GiveUp(Act):
    __doc__ = ACTS["give_up"]

    act = "give_up"
