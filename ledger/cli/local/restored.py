"""`db restored`: this database was put back from an older backup."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from ledger.cli.base import ShowOne, note
from ledger.cli.local.settings import add_config, add_reason_or_dry_run, checked_database


class Restored(ShowOne):
    """Mark a database that was restored from an older backup, before the service starts on it.

    The log lacks what was done after the backup.  Therefore its fences no longer count, no host
    gets work, and nothing is started, freed or deleted, until an operator has vouched for each host
    (`host vouch`) or fenced it.  Operations that were running are parked.  Agents register again by
    themselves.  Safe while the service runs, and safe to repeat: if it was interrupted, run it
    again.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        why = "why, and which backup it was; stored permanently in the history of each host"
        add_reason_or_dry_run(parser, why)
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines
        from ledger.upkeep import restored

        with checked_database(parsed_args) as dsn:
            if parsed_args.dry_run:
                found = restored.look(dsn)
            else:
                found = restored.mark(dsn, parsed_args.reason, getpass.getuser())
        _explain(len(found.hosts), len(found.operations), done=not parsed_args.dry_run)
        hosts, operations = list(found.hosts), list(found.operations)
        return ("position", "hosts", "operations"), (
            found.position,
            Lines(hosts, hosts),
            Lines(operations, operations),
        )


def _explain(hosts: int, operations: int, *, done: bool) -> None:
    """What became of them, or would, and what is next."""
    if not done:
        note(f"{hosts} hosts would be unvouched, {operations} operations parked. Do: --reason TEXT")
        return
    note(
        f"{hosts} hosts are unvouched, {operations} operations parked. Start the service, then of "
        "each host: attachment-ledger host show NAME; attachment-ledger host vouch NAME. Persons "
        "who were erased since the backup are back: event erase-person p:... of each"
    )
