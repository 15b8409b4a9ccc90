"""`server migration list|show|abort`, `server event list|show`: Nova's records of what was done.

`history server` tells the same from the log, and more.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, ShowOne, add_limit, listed
from ledger.cli.naming import add_filters
from ledger.cli.operations.operating import OfServer

MIGRATION_COLUMNS = {
    "ID": "id",
    "Operation": "uuid",
    "Type": "migration_type",
    "Status": "status",
    "Server": "instance_uuid",
    "Source": "source_compute",
    "Dest": "dest_compute",
    "Created": "created_at",
}
EVENT_COLUMNS = {
    "Request": "request_id",
    "Action": "action",
    "Message": "message",
    "Start": "start_time",
    "User": "user_id",
}


class ListServerMigrations(Lister):
    """List migrations of all kinds, newest first."""

    every_cell = True
    brief = ("ID", "Type", "Status", "Server", "Source", "Dest", "Created")
    empty = "No migrations."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add_filters(parser, "server")
        add("--host", metavar="NAME", help="migrations from or to this host")
        add("--status", metavar="STATUS", help="e.g. running, finished, confirmed, error")
        add("--type", choices=("live-migration", "resize", "evacuation"))
        add_limit(parser, "at most N migrations")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        found = self.client.nova_items(
            "/os-migrations",
            "migrations",
            parsed_args.limit,
            instance_uuid=parsed_args.server,
            host=parsed_args.host,
            status=parsed_args.status,
            migration_type=parsed_args.type,
        )
        return listed(MIGRATION_COLUMNS, found)


class ShowServerMigration(ShowOne):
    """Show a live migration in progress."""

    about = "server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("migration", metavar="<migration>", help="from 'migration list'")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        path = f"/servers/{parsed_args.server}/migrations/{parsed_args.migration}"
        return self.dict2columns(self.client.nova(path)["migration"])


class AbortServerMigration(OfServer):
    """Abort a live migration: the guest stays on its host, unless it has already moved."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("migration", metavar="<migration>", help="from 'migration list'")

    def begin(self, parsed_args: argparse.Namespace) -> str:
        """The operation that migrates is unwound; no other begins."""
        path = f"/servers/{parsed_args.server}/migrations/{parsed_args.migration}"
        migration = self.client.nova(path)["migration"]
        self.client.nova(path, "DELETE")
        return str(migration["uuid"])


class ListServerEvents(Lister):
    """List the requests for a server, newest first."""

    every_cell = True
    brief = ("Request", "Action", "Message", "Start")
    empty = "Nothing was asked to be done to it."

    about = "server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_limit(parser, "at most N actions")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        path = f"/servers/{parsed_args.server}/os-instance-actions"
        found = self.client.nova_items(path, "instanceActions", parsed_args.limit)
        return listed(EVENT_COLUMNS, found)


class ShowServerEvent(ShowOne):
    """Show one request for a server, with the result of each step."""

    about = "server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("request", metavar="<request>", help="from 'event list'")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines

        path = f"/servers/{parsed_args.server}/os-instance-actions/{parsed_args.request}"
        action = self.client.nova(path)["instanceAction"]
        events = action.get("events", [])
        return self.dict2columns({**action, "events": Lines(events, map(_event, events))})


def _event(event: dict[str, Any]) -> str:
    words = [event["finish_time"], event.get("host") or "", event["event"], event["result"]]
    return "  ".join([*words, event.get("details") or ""]).rstrip()
