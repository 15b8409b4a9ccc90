"""Change the tables and conditions that mutmut does not see, one at a time: does a test fail?

    python -m tests.mutation.tables [GROUP ...] [--sample N] [--seed S] [--minutes M] [--jobs N]

`groups.toml` says of each group which files are changed (tests.mutation.tables.changes says how),
and which tests say their rules.  Each change is tried in a copy of the tree, until a test fails.

A run takes a sample, another with each seed, and begins no change after its minutes are over.  What
became of each is kept in build/mutation/tables.txt, with the score in the last line.  Ends with 1
below the score that groups.toml keeps: it is raised when survivors get a test.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.tables.changes import Change, changes
from tests.rules.__main__ import FAILED, PASSED, copied, pytest_in
from tests.rules.table import ROOT

KEPT = ROOT / "build/mutation/tables.txt"


def main() -> int:
    settings = tomllib.loads((Path(__file__).parent / "groups.toml").read_text())
    groups = settings["groups"]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.tables")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}")
    parser.add_argument("--sample", type=int, help="so many changes, of all groups; else all")
    parser.add_argument("--seed", default=time.strftime("%Y-%m-%d"), help="which; by default today")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin none after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="changes at once")
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    wanted = [
        (each, groups[name]["tests"])
        for name in asked.groups or groups
        for path in groups[name]["change"]
        for file in sorted(ROOT.glob(path))
        for each in changes(str(file.relative_to(ROOT)), file.read_text())
    ]
    random.Random(asked.seed).shuffle(wanted)
    with tempfile.TemporaryDirectory(prefix="tables-") as home:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(asked.jobs):
            trees.put(copied(Path(home) / str(number)))

        def tried(pair: tuple[Change, list[str]]) -> str | None:
            tree = trees.get()
            try:
                return _tried(tree, *pair) if time.monotonic() < until else None
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(asked.jobs) as pool:
            told = [each for each in pool.map(tried, wanted[: asked.sample]) if each]
    killed = sum(each.startswith("killed") for each in told)
    tried_of = killed + sum(each.startswith("SURVIVED") for each in told)
    score = 100 * killed / tried_of if tried_of else 0.0
    last = f"{killed} of {tried_of} killed, {score:.1f} %; seed {asked.seed}"
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text("\n".join([*sorted(told), last, ""]))
    print(last)
    return int(score < settings["score_min"])


def _tried(tree: Path, change: Change, tests: list[str]) -> str:
    path = tree / change.path
    whole = path.read_text()
    path.write_text(whole[: change.start] + change.new + whole[change.end :])
    try:
        code, said = pytest_in(tree, tests, "-x", "-n", "0")
    finally:
        path.write_text(whole)
    outcome = {PASSED: "SURVIVED", FAILED: "killed"}.get(code, "killed at import")
    if said.startswith("not done"):
        outcome = "too late"  # counts as neither
    print(told := f"{outcome} {change}", flush=True)
    return told


if __name__ == "__main__":
    sys.exit(main())
