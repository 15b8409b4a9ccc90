"""`operation wait|retry|skip|unwind|give-up`: what a person may do about an operation.

All of them answer with the operation, and with how it ended as the exit code if asked
to wait: 0 completed, 5 failed cleanly or cancelled, 6 parked, 7 still running.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import ExitCode, ShowOne, complain
from ledger.cli.operation import shown


class Waiting(ShowOne):
    """What these commands have in common."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", metavar="<operation>")
        return parser

    def waited(self, operation_id: str, timeout_s: float) -> tuple[Any, Any]:
        """Wait; the exit code says how it ended."""
        from ledger.cli import plan, waiting

        operation = waiting.wait(self.client, operation_id, timeout_s)
        self.exit_code = plan.exit_code(operation)
        if self.exit_code is ExitCode.TIMED_OUT:
            complain(
                f"operation {operation_id} is not over after {timeout_s:g} s; it goes on.",
                f"Wait on: attachment-ledger operation wait {operation_id}",
            )
        if self.exit_code is ExitCode.OPERATION_FAILED:
            complain(f"operation {operation_id} {operation['outcome']}: {operation['why']}")
        if self.exit_code is ExitCode.PARKED:
            complain(
                f"operation {operation_id} is parked: {'; '.join(plan.left(operation))}",
                f"See what may be done: attachment-ledger operation show {operation_id}",
            )
        return shown(operation)


class Wait(Waiting):
    """Wait until an operation ends or needs an operator."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.waiting import add_timeout

        parser = super().get_parser(prog_name)
        add_timeout(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.waited(parsed_args.id, parsed_args.timeout)


class Act(Waiting):
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
        path = f"/v1/operations/{parsed_args.id}"
        self.client.post(f"{path}/actions", body)
        if parsed_args.wait:
            return self.waited(parsed_args.id, parsed_args.timeout)
        return shown(self.client.get(path))


class Retry(Act):
    """Try the failed steps of a parked operation again."""

    act = "retry"


class Skip(Act):
    """Go on as if a step were done: you vouch for it, and say why."""

    act = "skip"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("step", metavar="<step>", help="the first step that is left")
        parser.add_argument(
            "--lane", type=int, default=0, metavar="N", help="which volume's, if it has several"
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
