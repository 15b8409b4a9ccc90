"""`drift repair`: show what would mend a finding, or (`--apply`) do it."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import add_reason
from ledger.cli.naming import named
from ledger.cli.operations.operating import Waiting


class Repair(Waiting):
    """Show what would mend what differs; with `--apply` do it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        from ledger.cli.operations.waiting import add_wait

        parser = super().get_parser(prog_name)
        parser.add_argument("id", metavar="<finding>", type=named("finding"))
        add_reason(parser)
        parser.add_argument("--apply", action="store_true", help="do it; else nothing is changed")
        parser.add_argument(
            "--repair", metavar="NAME", help="which one, where there are two (forget_attachment)"
        )
        add_wait(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        body: dict[str, Any] = {"reason": parsed_args.reason, "apply": parsed_args.apply}
        if parsed_args.repair is not None:
            body["repair"] = parsed_args.repair
        path = f"/v1/drift/{parsed_args.id}/repair"
        if parsed_args.apply:
            return self.under_way(self.client.begin("POST", path, body), parsed_args)
        return self._proposed(self.client.post(path, body))

    def _proposed(self, plan: dict[str, Any]) -> tuple[Any, Any]:
        from ledger.cli.base import note
        from ledger.cli.drift.drift import said_by
        from ledger.cli.operations.plan import Lines

        note("Nothing was changed. To do it: add --apply")
        steps = (f"on {s['place']}: {s['step']}  {s['does']}" for s in plan["steps"])
        shown = {
            "finding": plan["finding_id"],
            "class": plan["drift_class"],
            "meaning": plan["meaning"],
            "flow": plan["flow"],
            "steps": Lines(plan["steps"], steps),
            "looks again at": ", ".join([*plan["asks_again"], *plan["hosts"]]),
            "evidence": Lines(plan["differs"], said_by(plan["differs"])),
            "never": plan["never"],
        }
        return self.dict2columns(shown)
