"""`event erase-person`: whom the log means by somebody is forgotten."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from ledger.cli.base import ShowOne, note
from ledger.cli.local.settings import add_config, add_reason_or_dry_run, checked_database


class ErasePerson(ShowOne):
    """Erase the names and ids of a person; the log and its proofs do not change.

    Everything that the person did so far is then shown as done by the same "erased p:...". This
    cannot be undone. Lock the user out in Keystone first: a new request would store the names
    again. Events of older versions have names as text, and so may texts that people typed: these
    stay, and 'plain' says in how many events. The command reads the whole log.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "person",
            metavar="USER",
            help="the user's id in Keystone, or a p:... by which the log names the user",
        )
        add_reason_or_dry_run(parser, "why, without the name; stored permanently in the log")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines
        from ledger.upkeep import erase

        with checked_database(parsed_args) as dsn:
            if parsed_args.dry_run:
                found = erase.look(dsn, parsed_args.person)
            else:
                found = erase.erase(dsn, parsed_args.person, parsed_args.reason, getpass.getuser())
        _explain(len(found.known_as), done=not parsed_args.dry_run)
        known_as, files = list(found.known_as), list(found.files)
        return ("known_as", "events", "plain", "archives"), (
            Lines(known_as, known_as),
            found.events,
            found.plain,
            Lines(files, files),
        )


def _explain(rows: int, *, done: bool) -> None:
    """What became of them, or would, and what is next."""
    if not rows:
        note("No person is stored with this id, or p:...: there is nothing to erase.")
    elif done:
        note(
            f"{rows} rows are erased. Keep one p:... where a restored backup does not reach: by "
            "it they are erased again. Backups, the write-ahead log, what was forwarded, and logs "
            "of the service still have the name (docs/audit.md)."
        )
    else:
        note(f"{rows} rows would be erased, for good. Do: --reason TEXT")
