"""`db upgrade|grant|status|check|preflight`: the schema of the service's database."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, PlainCommand, ShowOne, note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.local.settings import add_config, checked_database, database


class UpgradeSchema(PlainCommand):
    """Bring the database to the schema of this version; safe to run at any time."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.log import schema

        with database(parsed_args) as dsn:
            done = schema.upgrade(dsn)
        for name in done:
            self.app.stdout.write(f"{name}\n")
        note(f"{len(done)} migrations applied." if done else "The schema is current.")
        return 0


class GrantRights(PlainCommand):
    """Give a role of the database what the service, or an auditor, needs, and no more.

    To be run as the owner of the tables.  A role that does not exist is created, without a
    password: let pg_hba.conf say how it comes in, or set one.  Safe to run at any time; after
    `db upgrade` it gives what is new.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=("service", "auditor"), help="whom the role is for")
        parser.add_argument("role", metavar="<role>", help="the name of the role")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.log import roles
        from projections.running.rights import RoleKind

        kind, role = RoleKind(parsed_args.kind), parsed_args.role
        with checked_database(parsed_args) as dsn:
            try:
                done = roles.grant(dsn, role, kind)
            except roles.RoleError as error:
                raise CliError(f"{error}.", ExitCode.REFUSED) from None
        for statement in done:
            self.app.stdout.write(f"{statement};\n")
        note(
            f"{len(done)} statements: role {role} has the rights of the {kind}."
            if done
            else f"Role {role} has the rights of the {kind}, and no more."
        )
        return 0


class ShowSchema(ShowOne):
    """Show which migrations the database has, and which it lacks.

    Exit 0 if this version can work on the schema, else 4.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.log import schema

        with database(parsed_args) as dsn:
            state = schema.status(dsn)
        if not state.current:
            self.exit_code = ExitCode.REFUSED
            note("The schema is not this version's. What to do: attachment-ledger db check")
        columns = ("current", "applied", "pending", "unknown", "changed")
        values = [getattr(state, name) for name in columns]
        if parsed_args.formatter in {"table", "value", "shell"}:
            values = [", ".join(v) if isinstance(v, tuple) else v for v in values]
        return columns, [list(v) if isinstance(v, tuple) else v for v in values]


class CheckSchema(PlainCommand):
    """Exit 0 if this version can work on the schema, else say what to run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with checked_database(parsed_args):
            note("The schema is current.")
        return 0


class Preflight(Lister):
    """Check before an upgrade that nothing is in progress, or list what is; it only reads.

    Exit 0 if no operation is running or parked, no finding of drift is open, all projections
    are at the end of the log, and the schema is one that 'db upgrade' takes; else 4.
    """

    empty = "Nothing is running, parked, drifted or behind."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        import psycopg

        from ledger.log import schema
        from ledger.upkeep.preflight import reasons

        with database(parsed_args) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            connection.read_only = True
            try:
                found = reasons(connection, schema.status(dsn))
            except psycopg.errors.UndefinedTable:
                raise CliError("the database has no log.", ExitCode.NOT_FOUND) from None
        if found:
            self.exit_code = ExitCode.REFUSED
        return ("Reason", "About", "Count", "Look at"), found
