"""`operation wait`, and what acts on operations print."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.acts import ActCommand
from ledger.cli.base import columns, note
from ledger.cli.operations.operating import Waiting


class WaitForOperation(Waiting):
    """Wait until an operation ends or needs an operator."""

    about = "operation"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from ledger.cli.operations.waiting import add_timeout

        add_timeout(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return self.waited(parsed_args.id, parsed_args.timeout)


def acted(
    command: ActCommand, arguments: argparse.Namespace, operation: dict[str, Any]
) -> tuple[Any, Any]:
    """What an act may leave behind, and the operation, at its end if asked to."""
    if arguments.dry_run:
        return _proposed(command.act.name, operation)
    for remnant in operation["remnants"]:
        note(f"may stay behind: {remnant['detail']}")
    if operation["remnants"]:
        note("See to it, then: attachment-ledger remnant list")
    return command.under_way(arguments.id, arguments)


def _proposed(act: str, operation: dict[str, Any]) -> tuple[Any, Any]:
    """What the act would do to the operation as it is."""
    from ledger.cli.operations.plan import Lines
    from ledger.words.consequences import will

    note("Nothing was changed.")
    remnants = operation["remnants"]
    return columns(
        {
            "operation_id": operation["operation_id"],
            "would": f"{act.replace('_', ' ')}: {will(operation, act)}",
            "remnants": Lines(remnants, [each["detail"] for each in remnants]),
        }
    )
