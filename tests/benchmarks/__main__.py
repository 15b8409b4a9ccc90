"""Measure, print the table, keep it.

    python -m tests.benchmarks [--full] [--write DIRECTORY] [PART ...]

Each part runs in a process of its own, one after the other, so that neither memory nor
CPU time of one is counted for another; one that fails does not stop the others.  With
--write, the rows that were measured are replaced in DIRECTORY/benchmarks.json, and the table
in DIRECTORY/benchmarks.md is made from that.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks.figures import Size

PARTS = (
    *("append", "rebuild", "reads", "agents", "cycle", "shortcuts", "storm", "look", "meanwhile"),
    *("console", "written", "overload"),
)
#: Needs a cloud that `make bench-nova` starts.
NOVA = "nova"
_BEGIN, _END = "<!-- measured -->", "<!-- end of measured -->"


def measure(part: str, size: Size) -> list[dict[str, Any]]:
    """The figures of one part, here."""
    module = importlib.import_module(f"tests.benchmarks.{part}")
    return [figure.as_json() for figure in module.figures(size)]


def measure_apart(part: str, size: Size) -> list[dict[str, Any]]:
    """The figures of one part, from a process of its own; its other output passes through."""
    command = [sys.executable, "-m", "tests.benchmarks", "--json-of", part]
    if size is Size.FULL:
        command.append("--full")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: list[dict[str, Any]] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table, in the order of the rows."""
    lines = [
        "| # | what | measured | target | met | on | compared with |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(figures, key=lambda one: one["row"]):
        target, met = "", ""
        if one["target"] is not None:
            at_least = (one["value"] >= one["target"]) == one["ok"]
            sign = "" if one["value"] == one["target"] else "≥ " if at_least else "≤ "
            target, met = f"{sign}{one['target']:g}", "yes" if one["ok"] else "**no**"
        value = f"{one['value']:g} {one['unit']}"
        judged = f"| {one['row']} | {one['name']} | {value} | {target} | {met} |"
        lines.append(f"{judged} {one['on']} | {one['compared_with'] or ''} |")
    return "\n".join(lines)


def machine() -> str:
    """What it was measured on."""
    cpus = len(os.sched_getaffinity(0))
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    facts = [
        f"{cpus} CPUs" + (f" ({model[1].strip()})" if model else ""),
        f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "",
        f"Python {platform.python_version()}",
        f"load average before {os.getloadavg()[0]:.1f}",
    ]
    return ", ".join(fact for fact in facts if fact)


def write(directory: Path, figures: list[dict[str, Any]], facts: str) -> None:
    """Keep the figures as data, and as the table of the page; rows not measured now stay."""
    data, page = directory / "benchmarks.json", directory / "benchmarks.md"
    kept = orjson.loads(data.read_bytes()) if data.exists() else []
    measured = {one["row"] for one in figures}
    every = [*(one for one in kept if one["row"] not in measured), *figures]
    every.sort(key=lambda one: one["row"])
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for the table: {_BEGIN} and {_END} around it")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    data.write_bytes(orjson.dumps(every, option=options))
    page.write_text(f"{before}{_BEGIN}\n{facts}\n\n{table(every)}\n{_END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the ledger beside its targets.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--full", action="store_true", help="with the 10 M events")
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="keep the results")
    parser.add_argument("--json-of", choices=(*PARTS, NOVA), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    size = Size.FULL if asked.full else Size.QUICK
    if asked.json_of:
        print(orjson.dumps(measure(asked.json_of, size)).decode())
        return
    if unknown := set(asked.parts) - {*PARTS, NOVA}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    facts, figures, failed = machine(), [], []
    for part in asked.parts or PARTS:
        began = time.monotonic()
        try:
            figures += measure_apart(part, size)
        except subprocess.CalledProcessError:
            failed.append(part)
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(facts, table(figures), sep="\n\n")
    if asked.write:
        write(asked.write, figures, f"{facts}, {size.value} size")
    if failed:
        sys.exit(f"not measured, see above why: {', '.join(failed)}")


if __name__ == "__main__":
    main()
