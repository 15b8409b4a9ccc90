"""How long attach and detach take end to end, and whose time it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import datetime

import pytest
import requests

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node
from tests.lab.settings import FULL, LAB_DIR

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="full tier: it measures")]

ROUNDS = 5
REPORT = LAB_DIR / "log" / "times.txt"
#: Whose work a step is.  What no step of theirs accounts for is ours.
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
OWNERS = ("Cinder", "os-brick", "libvirt")
COLUMNS = ("total", "guards", *OWNERS, "us")

Times = dict[str, float]


def timed(
    lab: Lab, flow: str, volume: str, request: Callable[[], requests.Response]
) -> tuple[Times, Times]:
    """One flow in milliseconds: by column, and by step.

    `total` is from sending the request to the operation's end, `guards` its part before
    the operation begins: authentication, checks, and reading the volume in Cinder.
    """
    sent_s = time.time()
    answer = request()
    assert answer.ok, answer.text
    operation = lab.ledger.wait_outcome(flow, volume)
    assert operation["outcome"] == "completed"
    began_s, ended_s = (timestamp(operation[key]) for key in ("started_at", "finished_at"))
    assert sent_s < began_s < ended_s, "the operation found is not this request's"

    steps = {step["step"]: float(step["took_ms"]) for step in operation["steps"]}
    columns = dict.fromkeys(COLUMNS, 0.0)
    columns |= {"total": (ended_s - sent_s) * 1000, "guards": (began_s - sent_s) * 1000}
    for step, took_ms in steps.items():
        columns[OWNER.get(step, "us")] += took_ms
    columns["us"] = columns["total"] - columns["guards"] - sum(map(columns.__getitem__, OWNERS))
    return columns, steps


def timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def median(rounds: list[Times]) -> Times:
    return {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}


def report(flow: str, backend: str, rounds: list[tuple[Times, Times]]) -> str:
    """Two lines of the table: by owner, and below it by step."""
    columns, steps = (median([item[part] for item in rounds]) for part in (0, 1))
    own = " ".join(f"{columns[name]:8.0f}" for name in COLUMNS)
    each = ", ".join(f"{name} {took_ms:.0f}" for name, took_ms in steps.items())
    return f"{flow:7} {backend:7} {own}\n{'':15} {each}\n"


def head() -> str:
    names = " ".join(f"{name:>8}" for name in COLUMNS)
    return f"{'ms':7} {'backend':7} {names}\n"


def test_attach_and_detach_are_timed_with_the_share_of_each(
    lab: Lab, guest: LabGuest, volume: str, backend: str
) -> None:
    attaches, detaches = [], []
    with guest.console() as console:
        for _ in range(ROUNDS):
            attach = timed(lab, "attach", volume, lambda: lab.ledger.attach(guest.id, volume))
            attaches.append(attach)
            wait_node(console, volume)
            detach = timed(lab, "detach", volume, lambda: lab.ledger.detach(guest.id, volume))
            detaches.append(detach)
    assert all(columns["us"] >= 0 for columns, _ in attaches + detaches), "steps do not overlap"
    known = REPORT.read_text() if REPORT.exists() else head()
    rows = report("attach", backend, attaches) + report("detach", backend, detaches)
    REPORT.write_text(known + rows)
