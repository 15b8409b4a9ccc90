"""docs/cinder-calls.md, of what is counted and what hangs on it; `python -m` this writes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/cinder-calls.md"
#: By scenario and step ("who: step"): "call, call 2".
CALLS: dict[str, dict[str, str]] = tomllib.loads((HERE / "cinder_calls.toml").read_text())
#: Who, call, what hangs on it, how old its answer may be.
REASONS: list[list[str]] = tomllib.loads((HERE / "cinder_reasons.toml").read_text())["calls"]

_HEAD = """# Calls of Cinder

What each flow asks Cinder when nothing goes wrong, counted over the simulated cloud, and what hangs
on each answer ([0098](decisions/0098-each-question-once-per-fact.md)). A test counts them again and
compares; `python -m tests.flows.test_cinder_calls` writes this page. Calls are named as
[faults](faults.md) name them, actions of a volume as Cinder does. Moves are of a server with two
volumes, one of them encrypted. Each process asks for Cinder's versions, and logs in, besides.
"""


def counts(calls: str) -> list[tuple[str, int]]:
    """The calls of a step, and how many there are of each."""
    words = [call.split() for call in calls.split(", ")]
    return [(name, int(number[0]) if number else 1) for name, *number in words]


def total(scenario: str) -> int:
    return sum(n for calls in CALLS[scenario].values() for _, n in counts(calls))


def reason(step: str, call: str) -> list[str]:
    """The first that fits; KeyError if nobody has said why."""
    who = step.partition(":")[0]
    for row in REASONS:
        if row[0] in {step, who} and row[1] == call:
            return row
    raise KeyError(f"cinder_reasons.toml has no reason for {call} of {step}")


def _one(title: str, scenario: str) -> list[str]:
    lines = [f"## {title}: {total(scenario)} calls", ""]
    lines += [
        "| who, step | call | what hangs on it | its answer may be as old as |",
        "|---|---|---|---|",
    ]
    for step, calls in CALLS[scenario].items():
        for call, _ in counts(calls):
            _, _, why, age = reason(step, call)
            lines.append(f"| {step} | `{call}` | {why} | {age} |")
    return [*lines, ""]


def _all() -> list[str]:
    lines = ["## Every flow", "", "| flow | calls | of which |", "|---|---|---|"]
    for scenario, steps in CALLS.items():
        of = "<br>".join(f"{step} `{calls}`" for step, calls in steps.items())
        lines.append(f"| {scenario} | {total(scenario)} | {of} |")
    return [*lines, ""]


def _reasons() -> list[str]:
    lines = ["## What hangs on each call", ""]
    lines += [
        "| who, step | call | what hangs on it | its answer may be as old as |",
        "|---|---|---|---|",
    ]
    lines += [f"| {who} | `{call}` | {why} | {age} |" for who, call, why, age in REASONS]
    return lines


def page() -> str:
    parts = [_one("An attach", "attach-running"), _one("A detach", "detach-running")]
    lines = [line for part in (*parts, _all(), _reasons()) for line in part]
    return "\n".join([_HEAD, *lines]) + "\n"
