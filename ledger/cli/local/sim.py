"""`sim cinder`, `sim fault list|set`: the simulated Cinder, and incidents to order."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import PORT, Lister, PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from host_agent.shared.faults import Faults

CINDER_URL = "http://127.0.0.1:8776"


class SimulateCinder(PlainCommand):
    """Run a simulated Cinder for unmodified clients.

    The first line of its output is its URL.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
        add("--port", type=PORT, default=8776, help="port to listen on; 0: a free one")
        add("--state", type=Path, metavar="FILE", help="store volumes and attachments in this file")
        add(
            "--faults",
            type=Path,
            metavar="FILE",
            help="fault rules, read again when the file changes",
        )
        add(
            "--compute-url",
            metavar="URL",
            help="the compute API to ask before a user deletes an attachment, e.g. http://127.0.0.1:8790/v2.1",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        import asyncio

        asyncio.run(_serve(parsed_args))
        return 0


async def _serve(arguments: argparse.Namespace) -> None:
    import asyncio

    from host_agent.shared.faults import FaultError
    from ledger.trial.cinder import server as cinder
    from ledger.trial.cinder.compute import ComputeCheck
    from ledger.trial.cinder.model.model import CinderModel
    from ledger.trial.cinder.store import CinderStore

    model = CinderModel()
    store = CinderStore(arguments.state) if arguments.state else None
    try:
        faults = faults_of(arguments.faults)
    except FaultError as error:
        raise usage(str(error)) from None
    try:
        if store is not None:
            store.load(model)
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{arguments.state} has no state of a simulated Cinder: {error!r}."
        raise usage(why, "Name its own file, or a new one: --state.") from None
    app = cinder.make_app(
        model, faults=faults, compute=ComputeCheck(arguments.compute_url), store=store
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await cinder.serve(arguments.host, arguments.port, app=app, ready=_announce, stop=stop)
    except OSError as error:
        raise usage(
            f"cannot listen on {arguments.host}:{arguments.port}: {error.strerror or error}.",
            "Choose another --port.",
        ) from None


def faults_of(path: Path | None) -> Faults:
    """The rules of a file.  How often each was met is kept beside it, so that the server that is
    started after a `crash` does not crash again.  Raises FaultError.
    """
    from host_agent.shared.faults import Faults

    return Faults() if path is None else Faults.load(path, path.with_name(f"{path.name}.cinder"))


def _announce(url: str) -> None:
    """The first line of stdout is the URL: whoever started it can read where it is."""
    print(f"{url}/v3", flush=True)
    note(f"Simulated Cinder at {url}/v3; faults: attachment-ledger sim fault list --cinder {url}")


def _add_cinder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cinder", default=CINDER_URL, metavar="URL", help=f"the simulation (default {CINDER_URL})"
    )


_COLUMNS = ("Call", "Match", "Do", "Skip", "Count", "Seen", "Note")


def _rows(answer: Any) -> list[tuple[Any, ...]]:
    rules = answer["faults"] if isinstance(answer, dict) else answer
    return [
        tuple(
            json.dumps(value) if isinstance(value := rule.get(name.lower()), dict) else value
            for name in _COLUMNS
        )
        for rule in rules
    ]


def _rules_at(url: str, new: Any = None) -> list[tuple[Any, ...]]:
    """The rows of a simulation's rules; `new`: they are replaced by these first."""
    from ledger.cli.client import Client, UnreachableError

    cinder = Client(url)
    try:
        if new is not None:
            cinder.send("PUT", "/sim/faults", body=new)
        return _rows(cinder.get("/sim/faults"))
    except UnreachableError:
        raise CliError(
            f"no simulated Cinder answers at {url}.",
            ExitCode.UNEXPECTED,
            "Start one with 'attachment-ledger sim cinder', or say where it is: --cinder.",
        ) from None


class ListFaults(Lister):
    """List the fault rules of a simulated Cinder, and how often each has matched."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_cinder(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return _COLUMNS, _rules_at(parsed_args.cinder)


class SetFaults(Lister):
    """Replace the fault rules of a simulated Cinder by those of a file ('-': standard input)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="<file>", help="a JSON list of rules: docs/faults.md")
        _add_cinder(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from host_agent.shared.faults import FaultError, parse_rules

        name = parsed_args.file
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text()
            rules = json.loads(text)
            parse_rules(rules)
        except OSError as error:
            raise usage(f"{name} cannot be read: {error.strerror}.") from None
        except (json.JSONDecodeError, FaultError) as error:
            raise usage(f"{name}: {error}.", "The form of rules is in docs/faults.md.") from None
        return _COLUMNS, _rules_at(parsed_args.cinder, rules)
