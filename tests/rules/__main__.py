"""Remove each rule of docs/specs.md from the code, and see whether its row's tests fail.

    python -m tests.rules [ROW ...] [--jobs N]

`rules.toml` says, row by row, what to change in which file.  The tests are those that the row of
docs/specs.md names, without the lab's; they run in a copy of the tree.  First they all have to
pass as the code is.  Ends with 1 if a rule can be removed and all tests of its row still pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.rules.table import ROOT, Rule, rules, shown_by

#: pytest's exit codes.
_PASSED, _FAILED = 0, 1
#: A rule that is gone may keep a test waiting for ever.
DEADLINE_S = 600


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.rules", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="rows of docs/specs.md; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree to work in")
    wanted = parser.parse_args(argv)
    chosen = [rule for rule in rules() if not wanted.rows or rule.row in wanted.rows]
    with tempfile.TemporaryDirectory(prefix="rules-") as home:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(wanted.jobs):
            trees.put(_copy(Path(home) / str(number)))
        tree = trees.get()
        every = dict.fromkeys(test for rule in chosen for test in shown_by(rule.row))
        if _tests(tree, list(every)) != _PASSED:
            print("As the code is, not all of these tests pass: nothing can be seen this way.")
            return 1
        trees.put(tree)

        def removed(rule: Rule) -> bool:
            tree = trees.get()
            try:
                return _is_noticed(rule, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(wanted.jobs) as pool:
            noticed = list(pool.map(removed, chosen))
    survivors = [rule for rule, seen in zip(chosen, noticed, strict=True) if not seen]
    print(f"{len(chosen)} rules of {len({rule.row for rule in chosen})} rows removed")
    for rule in survivors:
        print(f"NOT NOTICED: {rule.row} {rule.file}: {rule.old!r}")
    return 1 if survivors else 0


def _copy(tree: Path) -> Path:
    """What git knows of the tree, and what is new in it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def _is_noticed(rule: Rule, tree: Path) -> bool:
    path = tree / rule.file
    whole = path.read_text()
    path.write_text(whole.replace(rule.old, rule.new))
    try:
        code = _tests(tree, shown_by(rule.row))
    finally:
        path.write_text(whole)
    print(
        f"{rule.row:5} {'noticed' if code == _FAILED else f'NOT NOTICED (exit {code})'}", flush=True
    )
    return code == _FAILED


def _tests(tree: Path, tests: Sequence[str]) -> int:
    """pytest's exit code; the tests import the copy, in processes of their own as well."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return _FAILED
    if done.returncode not in {_PASSED, _FAILED}:
        print(done.stdout[-2000:], done.stderr[-2000:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
