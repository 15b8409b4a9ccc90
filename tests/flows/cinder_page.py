"""docs/cinder-calls.md: the calls of Cinder that each flow makes, and what each is for."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/cinder-calls.md"
#: By scenario and step ("who: step"): "call, call 2".
CALLS: dict[str, dict[str, str]] = tomllib.loads((HERE / "cinder_calls.toml").read_text())
#: Who, call, what it is for, what its answer is valid for.
REASONS: list[list[str]] = tomllib.loads((HERE / "cinder_reasons.toml").read_text())["calls"]

_HEAD = """# Calls of Cinder

The calls of Cinder that each flow makes when nothing fails, and what each call is for. The reasons
are in [decision 0098](decisions/0098-each-question-once-per-fact.md). A test counts the calls over
the simulated Cinder; `make docs` counts them again and writes this page.

Calls have the names of [faults](faults.md), actions of a volume the names of Cinder. Flows that
move a server move one with two volumes, one of them encrypted. In addition each process logs in
at Keystone and asks Cinder for its versions.

An answer is *valid for* what the last column names: a later decision asks again. Calls without an
entry there change something.
"""


def counts(calls: str) -> list[tuple[str, int]]:
    """The calls of a step, and how many there are of each."""
    words = [call.split() for call in calls.split(", ")]
    return [(name, int(number[0]) if number else 1) for name, *number in words]


def total(scenario: str) -> int:
    return sum(n for calls in CALLS[scenario].values() for _, n in counts(calls))


def reason(step: str, call: str) -> list[str]:
    """The first row that matches; KeyError if there is none."""
    who = step.partition(":")[0]
    for row in REASONS:
        if row[0] in {step, who} and row[1] == call:
            return row
    raise KeyError(f"cinder_reasons.toml has no reason for {call} of {step}")


def _one(title: str, scenario: str) -> list[str]:
    lines = [f"## {title}: {total(scenario)} calls", ""]
    lines += [
        "| who: step | call | what it is for | valid for |",
        "|---|---|---|---|",
    ]
    for step, calls in CALLS[scenario].items():
        for call, _ in counts(calls):
            _, _, why, age = reason(step, call)
            lines.append(f"| {step} | `{call}` | {why} | {age} |")
    return [*lines, ""]


def _all() -> list[str]:
    lines = ["## Every flow", "", "| flow | calls | by step |", "|---|---|---|"]
    for scenario, steps in CALLS.items():
        of = "<br>".join(f"{step} `{calls}`" for step, calls in steps.items())
        lines.append(f"| {scenario} | {total(scenario)} | {of} |")
    return [*lines, ""]


def _reasons() -> list[str]:
    lines = ["## What each call is for", ""]
    lines += [
        "| who: step | call | what it is for | valid for |",
        "|---|---|---|---|",
    ]
    lines += [f"| {who} | `{call}` | {why} | {age} |" for who, call, why, age in REASONS]
    return lines


def page() -> str:
    parts = [_one("An attach", "attach-running"), _one("A detach", "detach-running")]
    lines = [line for part in (*parts, _all(), _reasons()) for line in part]
    return "\n".join([_HEAD, *lines]) + "\n"
