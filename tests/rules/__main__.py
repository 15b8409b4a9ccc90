"""Remove each rule from the code, and see whether one of its tests fails.

    python -m tests.rules [ROW ...] [--jobs N]

ROW is a row of docs/specs.md, or the number of a decision.  `rules.toml` says of each row what to
change in which file, and `borders.toml` of each decision.  The tests are those that the row
names, without the lab's; they run in a copy of the tree.  First they all have to pass as the code
is.  Ends with 1 if a rule can be removed and all of its tests still pass.

What is said of each rule names the test that failed, and why: a rule is held by the test that
misses it, not by one that meets a name that is gone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.rules.table import ROOT, Rule, rules

#: pytest's exit codes.
PASSED, FAILED = 0, 1
#: A rule that is gone may keep a test waiting for ever.
DEADLINE_S = 600
#: What a rule names is run, whether it is `nightly` or not.
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not lab")
#: All kinds of trouble, as by night, and no sample of them (tests.flows.test_every_flow).
_DEEP = {"FLOW_STRIDE": "1"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.rules", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="rows, or decisions; all by default")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help="copies of the tree to work in")
    wanted = parser.parse_args(argv)
    began = time.monotonic()
    chosen = [rule for rule in rules() if not wanted.rows or rule.row in wanted.rows]
    with tempfile.TemporaryDirectory(prefix="rules-") as home:
        tree = copied(Path(home) / "0")
        code, said = pytest_in(tree, _every(chosen), "-n", str(wanted.jobs), cached=True)
        if code != PASSED:
            print(said, "As the code is, not all of these tests pass: so nothing can be seen.")
            return 1
        trees: SimpleQueue[Path] = SimpleQueue()
        trees.put(tree)
        for number in range(1, wanted.jobs):  # what was compiled for the first comes along
            trees.put(shutil.copytree(tree, Path(home) / str(number)))

        def removed(rule: Rule) -> bool:
            tree = trees.get()
            try:
                return _is_noticed(rule, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(wanted.jobs) as pool:
            noticed = list(pool.map(removed, chosen))
    survivors = [rule for rule, seen in zip(chosen, noticed, strict=True) if not seen]
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(chosen)} rules of {len({r.row for r in chosen})} rows removed in {minutes:.0f} min"
    )
    for rule in survivors:
        print(f"NOT NOTICED: {rule.row} {rule.file}: {rule.old!r}")
    return 1 if survivors else 0


def _every(chosen: Sequence[Rule]) -> list[str]:
    return list(dict.fromkeys(test for rule in chosen for test in rule.tests))


def copied(tree: Path) -> Path:
    """What git knows of the tree, and what is new in it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def _is_noticed(rule: Rule, tree: Path) -> bool:
    path = tree / rule.file
    whole = path.read_text()
    path.write_text(whole.replace(rule.old, rule.new))
    try:
        code, said = pytest_in(tree, rule.tests, "-x", "-n", "0")
    finally:
        path.write_text(whole)
    if code == FAILED:
        print(f"{rule.row:5} noticed: {_first_failure(said)}", flush=True)
    else:
        print(f"{rule.row:5} NOT NOTICED (exit {code}): {rule.file}: {rule.old!r}", flush=True)
    if code not in {PASSED, FAILED}:
        print(said[-2000:], flush=True)
    return code == FAILED


def _first_failure(said: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) tests/(.*)$", said, re.MULTILINE)
    return found[1] if found else said.splitlines()[-1]


def pytest_in(
    tree: Path, tests: Sequence[str], *options: str, cached: bool = False
) -> tuple[int, str]:
    """pytest's exit code and output; the tests import the copy, in processes of their own too."""
    environment = {**os.environ, **_DEEP, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    if not cached:  # a file of the same second and size would be taken for the one before it
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        done = subprocess.run(
            [*_PYTEST, "-q", "--tb=short", *options, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=None if cached else DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"not done after {DEADLINE_S} s"
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
