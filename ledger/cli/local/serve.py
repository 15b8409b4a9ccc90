"""`serve`: run the service."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ledger.cli.base import PORT, PlainCommand
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.local import settings

if TYPE_CHECKING:
    from ledger.config import Settings


class Serve(PlainCommand):
    """Run the service until SIGTERM or SIGINT.

    If this version cannot run on the schema of the database, it refuses and says what to run.  With
    `--trial` it starts a PostgreSQL of its own, and deletes its data at the end.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        settings.add_config(parser)
        add = parser.add_argument
        add(
            "--trial",
            action="store_true",
            help="use an embedded PostgreSQL, deleted at the end, to try the service",
        )
        add(
            "--read-only",
            action="store_const",
            const=True,
            help="overrides read_only: serve only reads, on a standby of the database",
        )
        add("--host", help="overrides listen.host")
        add("--port", type=PORT, help="overrides listen.port; 0 takes a free one, which is logged")
        add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
        add("--log-format", choices=("auto", "human", "json"), default="auto")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        flags = {
            "listen.host": parsed_args.host,
            "listen.port": parsed_args.port,
            "read_only": parsed_args.read_only,
        }
        again = settings.again(parsed_args, **flags)
        chosen = settings.load(parsed_args, **flags)
        _refuse_wrong_database(chosen, trial=parsed_args.trial)

        import psycopg

        from host_agent.shared.contract.ports import PortError
        from host_agent.shared.platform import logs
        from host_agent.shared.platform.settings import ConfigError, NotNowError
        from ledger import bootstrap
        from ledger.log.schema import SchemaError
        from ledger.trial.embedded import EmbeddedPostgresError

        logs.set_up(parsed_args.log_level, parsed_args.log_format)
        if not (chosen.cinder.endpoint or chosen.cinder.auth):
            raise usage(
                "the settings do not say where Cinder is.",
                "Set cinder.endpoint (LEDGER_CINDER__ENDPOINT) or [cinder.auth]; for a trial: "
                "attachment-ledger sim cinder, or all at once: attachment-ledger demo",
            )
        try:
            bootstrap.serve(chosen, again)
        except ConfigError as error:
            hint = "See docs/tls.md, docs/keystone.md and docs/policy.md."
            code = ExitCode.UNEXPECTED if isinstance(error, NotNowError) else ExitCode.USAGE
            raise CliError(f"the settings cannot be used: {error}", code, hint) from None
        except SchemaError as error:
            raise settings.schema_error(error) from None
        except PortError as error:
            raise CliError(
                f"Cinder would not serve us: {error.message}",
                ExitCode.REFUSED,
                "Check [cinder.auth] and its service user's roles.",
            ) from None
        except EmbeddedPostgresError as error:
            raise CliError(f"no database: {error}", ExitCode.UNEXPECTED) from None
        except psycopg.OperationalError as error:
            raise settings.database_error(error) from None
        except OSError as error:
            raise CliError(
                f"cannot serve on {chosen.listen.host}:{chosen.listen.port}: {error}",
                ExitCode.UNEXPECTED,
                "Another --port, or stop what uses this one.",
            ) from None
        return 0


def _refuse_wrong_database(chosen: Settings, *, trial: bool) -> None:
    """A trial has no database but its own, and a service none that nobody named."""
    if not trial:
        try:
            settings.named(chosen)
        except CliError as error:
            raise usage(str(error), f"{error.hint} For a trial: serve --trial") from None
    elif chosen.database_url is not None:
        raise usage(
            "--trial is with a database of its own, and the settings name one.",
            "Leave out --trial, or database_url.",
        )
