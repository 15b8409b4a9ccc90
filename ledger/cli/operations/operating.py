"""What commands share that begin an operation, or wait for one.

All of them answer with the operation, and with how it ended as the exit code if asked
to wait: 0 completed, 5 failed cleanly or cancelled, 6 parked, 7 still running.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import ShowOne, complain
from ledger.cli.errors import ExitCode
from ledger.cli.operations.operation import shown


class Waiting(ShowOne):
    """Shows an operation, at its end if asked to."""

    def waited(self, operation_id: str, timeout_s: float) -> tuple[Any, Any]:
        """Wait; the exit code says how it ended."""
        from ledger.cli.operations import plan, waiting

        operation = waiting.wait(self.client, operation_id, timeout_s)
        self.exit_code = plan.exit_code(operation)
        if self.exit_code is ExitCode.TIMED_OUT:
            complain(
                f"operation {operation_id} is not over after {timeout_s:g} s; it goes on.",
                f"Keep waiting: attachment-ledger operation wait {operation_id}",
            )
        if self.exit_code is ExitCode.OPERATION_FAILED:
            complain(f"operation {operation_id} {operation['outcome']}: {operation['why']}")
        if self.exit_code is ExitCode.PARKED:
            complain(
                f"operation {operation_id} is parked: {'; '.join(plan.left(operation))}",
                f"See what may be done: attachment-ledger operation show {operation_id}",
            )
        return shown(self.client, operation)

    def under_way(self, operation_id: str, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """The operation as it is, or as it has ended (`--wait`)."""
        if parsed_args.wait:
            return self.waited(operation_id, parsed_args.timeout)
        return shown(self.client, self.client.get(f"/v1/operations/{operation_id}"))


class Beginning(Waiting):
    """A command that begins an operation."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from ledger.cli.operations.waiting import add_wait

        add_wait(parser)

    def begin(self, parsed_args: argparse.Namespace) -> str:
        """Ask for it; the operation's id."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.under_way(self.begin(parsed_args), parsed_args)


class OfServer(Beginning):
    """One that works on a server."""

    about = "server"
