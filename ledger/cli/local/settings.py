"""For the commands that run on the service's own machine: its settings and its database."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    import psycopg

    from ledger.auth.renewal import SettingsReload
    from ledger.config import Settings


def add_config(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings in TOML (default: LEDGER_CONFIG of the environment, then "
        "/etc/attachment-ledger/ledger.toml if it is there)",
    )
    add("--database-url", metavar="URL", help="overrides database_url of the settings")


class Configured:
    """A command that is told where the settings are, and nothing else."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)


def load(arguments: argparse.Namespace, **flags: Any) -> Settings:
    """The settings; wrong ones end the command with the text that names the key."""
    from host_agent.shared.platform.settings import ConfigError
    from ledger import config

    flags = {"database_url": arguments.database_url, **flags}
    try:
        return config.load(arguments.config, flags=flags)
    except ConfigError as error:
        raise CliError(
            f"the settings cannot be used.\n{error}",
            ExitCode.USAGE,
            "What is in force: attachment-ledger config show",
        ) from None


def again(arguments: argparse.Namespace, **flags: Any) -> SettingsReload | None:
    """How the settings are read again when their file has changed; None: there is none."""
    from host_agent.shared.platform.settings import file_of
    from host_agent.shared.platform.tls import Watched
    from ledger import config
    from ledger.auth.renewal import SettingsReload

    flags = {"database_url": arguments.database_url, **flags}
    file = file_of(config.SOURCE, arguments.config)
    if file is None:
        return None
    return SettingsReload(Watched(file), lambda: config.load(arguments.config, flags=flags))


def add_reason_or_dry_run(parser: argparse.ArgumentParser, reason: str) -> None:
    """One of both has to be there; `reason`: what is said of it in the help."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--reason", metavar="TEXT", help=reason)
    what.add_argument(
        "--dry-run", action="store_true", help="change nothing; show what it would do"
    )


@contextmanager
def database(arguments: argparse.Namespace) -> Iterator[str]:
    """The DSN of the database that the settings name; none is ever started for a command.

    Database errors within end the command with what to look at.
    """
    import psycopg

    from host_agent.shared.platform import logs
    from ledger.log.schema import SchemaError

    logs.set_up("warning")  # to stderr: stdout is for results
    settings = load(arguments)
    try:
        yield named(settings)
    except SchemaError as error:
        raise schema_error(error) from None
    except psycopg.Error as error:
        told = _told(error)
        if told is None:
            raise
        raise told from None


@contextmanager
def checked_database(arguments: argparse.Namespace) -> Iterator[str]:
    """The same, if its schema is one that this version can work on."""
    from ledger.log import schema

    with database(arguments) as dsn:
        schema.check(dsn)
        yield dsn


def named(settings: Settings) -> str:
    """The database that the settings name.  Raises CliError if they name none that can be."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    if settings.database_url is None:
        raise CliError(
            "the settings name no database.",
            ExitCode.USAGE,
            "Name one: --database-url postgresql://..., LEDGER_DATABASE_URL, or database_url in "
            "the file of the settings.",
        )
    try:
        conninfo_to_dict(settings.database_url)
    except ProgrammingError as error:
        # libpq cites what it cannot read, which may be the password.
        why = re.sub(r'".*"', '"..."', str(error).strip(), flags=re.DOTALL)
        raise CliError(
            f"database_url is no address of a database: {why}.",
            ExitCode.USAGE,
            "Write it as postgresql://USER@HOST/NAME, or host=... dbname=...",
        ) from None
    return settings.database_url


def schema_error(error: Exception) -> CliError:
    """The text of a SchemaError ends with the command to run, where there is one."""
    message, _, command = str(error).partition("Run: ")
    return CliError(message.strip(), ExitCode.REFUSED, f"Run: {command}" if command else None)


def _told(error: psycopg.Error) -> CliError | None:
    """What an operator can mend of the database; None: it is ours."""
    from psycopg.errors import InsufficientPrivilege, OperationalError, ReadOnlySqlTransaction

    if isinstance(error, InsufficientPrivilege):
        return CliError(
            f"the database's role may not do this: {error.diag.message_primary}.",
            ExitCode.REFUSED,
            "Run it as the owner of the tables: --database-url",
        )
    if isinstance(error, (OperationalError, ReadOnlySqlTransaction)):
        return database_error(error)
    return None


def database_error(error: Exception) -> CliError:
    return CliError(
        f"the database cannot be used: {str(error).strip()}",
        ExitCode.UNEXPECTED,
        "Check database_url: attachment-ledger config show",
    )
