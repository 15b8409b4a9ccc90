"""What an agent that did as it was told reports of a command: as few reports as it may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wire = dict[str, Any]


def reports_of(command: Wire, outputs_of: Callable[[Wire], Wire]) -> list[Wire]:
    """One that ends with each step whose result the next one waits for, and the last."""
    reports: list[Wire] = []
    results: list[Wire] = []
    for step in command["steps"]:
        outputs = outputs_of(step)
        results.append({"step": step["name"], "took_ms": 1, "outputs": outputs, "error": None})
        if step["durable"] or step is command["steps"][-1]:
            ids = {name: command[name] for name in ("operation_id", "run", "epoch")}
            reports.append({**ids, "results": results})
            results = []
    return reports
