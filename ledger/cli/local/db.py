"""`db upgrade|grant|status|check|preflight`: the schema of the service's database."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister, PlainCommand, ShowOne, note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.local.settings import Configured, add_config, checked_database, database


class UpgradeSchema(Configured, PlainCommand):
    """Migrate the database to the schema of this version; safe to run at any time."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.log import schema

        with database(parsed_args) as dsn:
            done = schema.upgrade(dsn)
        for name in done:
            self.app.stdout.write(f"{name}\n")
        note(f"{len(done)} migrations applied." if done else "The schema is current.")
        return 0


class GrantRights(PlainCommand):
    """Grant a database role the rights that the service or an auditor needs, and no others.

    Run it as the owner of the tables.  It creates a role that does not exist, without a password:
    configure its login in pg_hba.conf, or set a password.  Safe to run at any time; run it again
    after `db upgrade`, which may have added tables.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=("service", "auditor"), help="who uses the role")
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


class ShowSchema(Configured, ShowOne):
    """Show which migrations the database has, and which are missing.

    Exit 0 if this version can run on the schema, else 4.
    """

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


class CheckSchema(Configured, PlainCommand):
    """Exit 0 if this version can run on the schema; else say what to run."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with checked_database(parsed_args):
            note("The schema is current.")
        return 0


class Preflight(Configured, Lister):
    """Check before an upgrade that nothing is in progress; it only reads.

    Exit 0 if no operation is running or parked, no finding is open, every projection is at the end
    of the log, and 'db upgrade' can migrate the schema.  Else it lists what is not so, and exits
    with 4.
    """

    empty = "Nothing is running, parked, drifted or behind."

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
