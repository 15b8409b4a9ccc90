"""`flow list|show|verify`: what the ledger does, step by step, from the tables it works by.

The tables are those of this program; no service is asked.  An operation that runs
keeps the plan it was started with: `operation show`; whether this program can go on with it:
`flow verify`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ledger.cli.base import Lister, note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.local.settings import Configured, database

if TYPE_CHECKING:
    from handlers.engine.plan import Step
    from ledger.upkeep.rehearsal import Rehearsal


class ListFlows(Lister):
    """List the flows."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from handlers.flows import FLOWS

        rows = [
            (flow.name, ", ".join(s.name for stage in flow.stages for s in stage.steps), flow.pivot)
            for flow in FLOWS.values()
        ]
        return ("Name", "Steps", "Pivot"), rows


class ShowFlow(Lister):
    """Show the table of a flow, or its sequence diagram.

    For each step: where it runs, what it does, what undoes it, whether it runs for each volume or
    once for the server, on which attachment, and which step is the pivot.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="<flow>", help="a name from 'flow list'")
        parser.add_argument(
            "--diagram",
            choices=("text", "mermaid"),
            nargs="?",
            const="text",
            help="print the sequence diagram instead (default: text)",
        )
        parser.add_argument(
            "--functions",
            action="store_true",
            help="name the functions that do, undo and record each step instead",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from handlers.engine.verbs import VERBS
        from handlers.flows import FLOWS
        from ledger.cli.operations import diagram

        flow = FLOWS.get(parsed_args.name)
        if flow is None:
            raise CliError(
                f"there is no flow {parsed_args.name!r}.",
                ExitCode.NOT_FOUND,
                f"Flows: {', '.join(FLOWS)}",
            )
        if parsed_args.diagram:
            draw = diagram.mermaid if parsed_args.diagram == "mermaid" else diagram.text
            self.drawing = draw(flow)
        if parsed_args.functions:
            return ("Step", "Does", "Undo", "Records"), [
                (step.name, *_functions(step)) for _, step in diagram.table(flow)
            ]
        rows = [
            (
                str(stage.place),
                step.name,
                VERBS[step.do].words,
                VERBS[step.undo].words if step.undo else "",
                diagram.done_for(stage),
                str(stage.side),
                "pivot" if step.name == flow.pivot else "",
            )
            for stage, step in diagram.table(flow)
        ]
        return ("Place", "Step", "Does", "Undo", "For each", "Attachment", "Pivot"), rows

    drawing: str | None = None

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        if self.drawing is not None:
            self.app.stdout.write(self.drawing)
            return 0
        return super().produce_output(parsed_args, column_names, data)


def _functions(step: Step) -> Iterator[str]:
    """What does and undoes it, and what the log says then; functions of hosts by their names."""
    from handlers.results.meaning import MEANING
    from host_agent.shared.contract.messages import Verb
    from ledger.core.effects import EFFECTS

    for verb in (step.do, step.undo):
        ours = EFFECTS.get(verb or "", MEANING.get(verb or ""))
        yield f"host_agent.verbs: {verb}" if isinstance(verb, Verb) else _name(ours)
    yield _name(MEANING.get(step.do))


def _name(function: Callable[..., Any] | None) -> str:
    return f"{function.__module__}: {function.__name__}" if function else ""


class VerifyFlows(Configured, Lister):
    """Check, before you install this version, that it can continue from your log; it only reads.

    It loads every aggregate, folds every projection, and asks the engine for the next step of every
    open operation.  Exit 4 if there is something that it cannot read.
    """

    empty = "This version can go on from this log."

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        import psycopg

        from ledger.upkeep.rehearsal import Rehearsal

        rehearsal = Rehearsal()
        with database(parsed_args) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            connection.read_only = True
            try:
                _tell(rehearsal, connection)
            except psycopg.errors.UndefinedTable:
                raise CliError("the database has no log.", ExitCode.NOT_FOUND) from None
        if rehearsal.total:
            self.exit_code = ExitCode.REFUSED
            note(f"This version cannot take {rehearsal.total} aggregates: do not install it.")
        return ("Position", "Aggregate", "Event", "Why"), rehearsal.troubles


def _tell(rehearsal: Rehearsal, connection: Any) -> None:
    """Try all of it, with a line that says how far that is."""
    from ledger.cli.operations.waiting import ProgressLine as Line

    with Line() as line:
        for events in rehearsal.follow(connection):
            line.say_at_times(f"{events} events tried")
    note(
        f"{rehearsal.events} events of {rehearsal.aggregates} aggregates were tried, and "
        f"{rehearsal.under_way} operations that are under way."
    )
    if rehearsal.unfolded:
        note(
            f"Of {rehearsal.unfolded} aggregates some events are in detached months: they were "
            "loaded, and no projections made of them."
        )
