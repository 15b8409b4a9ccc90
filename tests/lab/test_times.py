"""How long attach and detach take end to end, and whose time it is."""

from __future__ import annotations

import statistics
from datetime import datetime
from typing import Any

import pytest

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node
from tests.lab.settings import LAB_DIR

pytestmark = pytest.mark.lab

ROUNDS = 5
REPORT = LAB_DIR / "log" / "times.txt"
#: Whose work a step is.  What no step accounts for is ours.
OWNER = {
    "reserve": "Cinder",
    "update": "Cinder",
    "ready": "Cinder",
    "complete": "Cinder",
    "delete": "Cinder",
    "connect": "os-brick",
    "disconnect": "os-brick",
    "plug": "libvirt",
    "unplug": "libvirt",
}
OWNERS = ("Cinder", "os-brick", "libvirt", "us")


def shares(operation: Any) -> dict[str, float]:
    """Milliseconds of one operation by owner, and in all."""
    begin, end = (datetime.fromisoformat(operation[key]) for key in ("started_at", "finished_at"))
    spent = dict.fromkeys(OWNERS, 0.0)
    for step in operation["steps"]:
        spent[OWNER.get(step["step"], "us")] += step["took_ms"] or 0
    total = (end - begin).total_seconds() * 1000
    spent["us"] = total - sum(spent[owner] for owner in OWNERS if owner != "us")
    return {"total": total, **spent}


def line(flow: str, backend: str, rounds: list[dict[str, float]]) -> str:
    middle = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
    parts = ", ".join(f"{owner} {middle[owner]:.0f}" for owner in OWNERS)
    return f"{flow:6} {backend:4} {middle['total']:6.0f} ms: {parts}"


def test_attach_and_detach_are_timed_with_the_share_of_each(
    lab: Lab, guest: LabGuest, volume: str, backend: str
) -> None:
    seen: dict[str, list[dict[str, float]]] = {"attach": [], "detach": []}
    with guest.console() as console:
        for _ in range(ROUNDS):
            assert lab.ledger.attach(guest.id, volume).ok
            seen["attach"].append(shares(lab.ledger.wait_outcome("attach", volume)))
            wait_node(console, volume)
            assert lab.ledger.detach(guest.id, volume).ok
            seen["detach"].append(shares(lab.ledger.wait_outcome("detach", volume)))
    for flow, rounds in seen.items():
        assert all(item["total"] > 0 and item["us"] >= 0 for item in rounds)
        with REPORT.open("a") as report:
            print(line(flow, backend, rounds), file=report)
