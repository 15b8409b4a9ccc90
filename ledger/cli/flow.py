"""`flow list|show`: what the ledger does, step by step, from the tables it works by.

The tables are those of this program; no service is asked.  An operation that runs
keeps the plan it was started with: `operation show`.
"""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import Lister
from ledger.cli.errors import CliError, ExitCode


class List(Lister):
    """List the flows."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from handlers.flows import FLOWS

        rows = [
            (flow.name, ", ".join(s.name for stage in flow.stages for s in stage.steps), flow.pivot)
            for flow in FLOWS.values()
        ]
        return ("Name", "Steps", "Pivot"), rows


class Show(Lister):
    """Show the table of a flow, or its sequence diagram."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<flow>", help="a name from 'flow list'")
        parser.add_argument(
            "--diagram",
            choices=("text", "mermaid"),
            nargs="?",
            const="text",
            help="print the sequence diagram instead (default: text)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from handlers.flows import FLOWS
        from handlers.verbs import VERBS
        from ledger.cli import diagram

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
