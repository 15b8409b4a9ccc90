"""What `drift repair` prints: what would mend a finding, or (`--apply`) the operation that does."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import columns
from ledger.cli.operations.operating import Waiting


def acted(
    command: Waiting, arguments: argparse.Namespace, answer: dict[str, Any]
) -> tuple[Any, Any]:
    """What was begun, or would be."""
    if arguments.apply:
        return command.under_way(answer["operation_id"], arguments)
    return _proposed(answer)


def _proposed(plan: dict[str, Any]) -> tuple[Any, Any]:
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
    return columns(shown)
