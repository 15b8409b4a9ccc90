"""`operation list|show`: what is under way, what is parked and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ledger.cli.base import LIMIT_MAX, Lister, ShowOne, add_limit, clock, said
from ledger.cli.naming import add_filters

if TYPE_CHECKING:
    from ledger.cli.client import Client
    from ledger.words.consequences import ActFacts

COLUMNS = ("ID", "Flow", "State", "Why", "Server", "Volumes", "Host", "Started", "Ended")


class ListOperations(Lister):
    """List operations, newest first."""

    every_cell = True
    brief = ("ID", "Flow", "State", "Server", "Host", "Started", "Why")
    empty = "No operations."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        state = parser.add_mutually_exclusive_group()
        state.add_argument("--state", choices=("running", "parked", "finished"))
        state.add_argument(
            "--parked", dest="state", action="store_const", const="parked", help="--state parked"
        )
        parser.add_argument("--flow", metavar="NAME")
        add_filters(parser, "server", "volume", "host")
        add_limit(parser, "at most N operations")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Why, standing
        from ledger.cli.table import NamedId, now

        asked = said(parsed_args, "state", "flow", "server", "volume", "host")
        found = self.client.items("/v1/operations", "operations", parsed_args.limit, **asked)
        at = now()
        rows = [
            (
                operation["operation_id"],
                operation["flow"],
                standing(operation),
                Why(operation, at),
                NamedId(operation["server_id"], operation.get("server_name")),
                ", ".join(operation["volume_ids"]),
                " -> ".join(filter(None, (operation["host"], operation["destination"]))),
                clock(operation["started_at"]),
                clock(operation["finished_at"]),
            )
            for operation in found
        ]
        return COLUMNS, rows


class ShowOperation(ShowOne):
    """Show an operation: its steps, the current one, what is pending and why.

    For the current step: since when, which attempt, what it waits for, the progress of a copy, and
    the last error.  For a parked operation also: where its volumes are attached, and the commands
    that are possible now, each with what it does and what it leaves behind.
    """

    about = "operation"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return shown(self.client, self.client.get(f"/v1/operations/{parsed_args.id}"))


def shown(client: Client, operation: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The rows of one operation; of a parked one with what acts would do."""
    from ledger.cli.operations.plan import fields
    from ledger.cli.table import now

    shown = fields(operation, learn(client, operation), now())
    return tuple(shown), tuple(shown.values())


def learn(client: Client, operation: dict[str, Any]) -> ActFacts:
    """Where its volumes are attached, and what its acts would leave.  Changes nothing."""
    from ledger.cli.client import ClientError, ServiceError
    from ledger.words.consequences import ActFacts, dry_runs

    if operation["state"] != "parked":
        return ActFacts()
    known = ActFacts(attachments=_attached(client, operation))
    path = f"/v1/operations/{operation['operation_id']}/actions?dry_run=true"
    for act, body in dry_runs(operation):
        try:
            acted = client.post(path, body)
            known.leaves[act] = [each["detail"] for each in acted["remnants"]]
        except ServiceError as error:
            if error.status == 409:  # noqa: PLR2004
                known.refused[act] = str(error)
        except ClientError:
            pass
    return known


def _attached(client: Client, operation: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The open attachments of its volumes to its server; None: the service does not say."""
    from ledger.cli.client import ClientError

    server, volumes = operation["server_id"], operation["volume_ids"]
    found = client.items("/v1/attachments", "attachments", LIMIT_MAX, server=server)
    try:
        return [each for each in found if each["volume_id"] in volumes]
    except ClientError:
        return None
