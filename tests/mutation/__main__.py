"""Change the core in small ways and see whether a test fails: mutmut over `groups.toml`.

    python -m tests.mutation [GROUP ...] [--sample N [--skip M]] [--again] [--write DIRECTORY]

mutmut wants one configuration, and tests that it may run all together for each mutant; so each
group gets a copy of the tree of its own below build/mutation, with its own configuration at the
end of its pyproject.toml.  One PostgreSQL serves them all.

Ends with 1 if less than SCORE_MIN percent of the mutants are killed, or if one survives that
`argued.toml` does not argue.  docs/mutation.md says how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ledger.trial.embedded import EmbeddedPostgres
from tests.conftest import roomy
from tests.databases import Databases

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "mutation"
PACKAGES = ["aggregates", "handlers", "host_agent", "ledger", "projections", "sql"]
#: Percent; of what mutmut makes, without what UNJUDGED leaves out.
SCORE_MIN = 90.0
#: Lines that are not mutated, whatever is on them: what only people read in a log.
#: Nor do the words of a message count (Change.only_words).
UNJUDGED = [r"(?i)log\.(debug|info|warning|error|exception)\(", r"with _log_and_continue\("]
#: mutmut's words for a mutant that no test notices.
ALIVE = {"survived", "no tests"}
UNDECIDED = {"not checked", "check was interrupted by user"}
_STRING = re.compile(r'"[^"]*"')
_BEGIN, _END = "<!-- measured -->", "<!-- end of measured -->"


class Mutant(NamedTuple):
    """One change of the code, and what mutmut says of it."""

    path: str
    name: str  # mutmut's: it is numbered, so it changes with the function
    status: str


class Change(NamedTuple):
    """What was changed, in words that stay when other lines of the function change."""

    where: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.where}: {self.was} -> {self.now}"

    @property
    def only_words(self) -> bool:
        """Whether it is the text of a message: a string of several words, and nothing else."""
        pairs = zip(_STRING.findall(self.was), _STRING.findall(self.now), strict=False)
        changed = [(was, now) for was, now in pairs if was != now]
        if len(changed) != 1:
            return False
        [(was, now)] = changed
        return " " in was and self.now.replace(now, was) == self.was


def prepare(group: str, settings: dict[str, Any]) -> Path:
    """A copy of the working tree for mutmut; one that is there is brought up to date."""
    tree = BUILD / group
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    configuration = {
        "source_paths": PACKAGES,
        "only_mutate": [str(path) for path in modules(ROOT, settings)],
        "do_not_mutate_patterns": UNJUDGED,
        "also_copy": ["docs"],
        "process_isolation": "forkserver",  # mutants find nothing that other tests have cached
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-seed=1"],
        # All flows are asked each property, and not a third of them as in `make test`.
        "pytest_add_cli_args_test_selection": ["-m", "not lab and not nightly", *settings["tests"]],
    }
    with (tree / "pyproject.toml").open("a") as file:
        file.write("\n[tool.mutmut]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in configuration.items())
    return tree


def modules(tree: Path, settings: dict[str, Any]) -> list[Path]:
    """What a group changes.  Its patterns are of paths: `handlers/*.py` has no `handlers/flows`."""
    found = {path.relative_to(tree) for each in settings["mutate"] for path in tree.glob(each)}
    return sorted(found)


def chosen(tree: Path, settings: dict[str, Any], skip: int, size: int) -> list[str]:
    """The names of `size` mutants of each module, without the first `skip` of a random order."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    names: list[str] = []
    with contextlib.chdir(tree):
        for path in modules(Path(), settings):
            made = mutate_file_contents(str(path), path.read_text()).mutant_names
            some = sorted(made, key=random_order)[skip : skip + size]
            names += [get_mutant_name(path, name) for name in some]
    return names


def random_order(name: str) -> bytes:
    """By name alone, so that a change elsewhere in the module hardly moves a sample."""
    return hashlib.sha256(name.encode()).digest()


def run_mutmut(tree: Path, jobs: int, names: list[str]) -> None:
    """Its progress goes to a file beside the tree: it is one line that is drawn over and over."""
    log = tree.with_suffix(".log")
    command = [sys.executable, str(HERE / "runner.py"), "run", f"--max-children={jobs}", *names]
    with log.open("w") as output:
        done = subprocess.run(command, cwd=tree, stdout=output, stderr=output, check=False)
    if done.returncode:
        sys.exit(f"error: mutmut gave {done.returncode}; see the end of {log}")


def results(tree: Path) -> Iterator[Mutant]:
    from mutmut.stats import status_by_exit_code

    for meta in sorted((tree / "mutants").rglob("*.py.meta")):
        path = str(meta.relative_to(tree / "mutants").with_suffix(""))
        for name, exit_code in json.loads(meta.read_text())["exit_code_by_key"].items():
            yield Mutant(path, name, status_by_exit_code[exit_code])


def change_of(tree: Path, mutant: Mutant) -> Change:
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    with contextlib.chdir(tree):
        diff = get_diff_for_mutant(mutant.name, path=mutant.path)
    function, owner = orig_function_and_class_names_from_key(mutant.name)
    return change(
        f"{mutant.path} {owner}.{function}" if owner else f"{mutant.path} {function}", diff
    )


def change(where: str, diff: str) -> Change:
    """From a unified diff."""
    lines = diff.splitlines()[2:]
    was, now = (
        " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return Change(where, was, now)


def argued() -> set[str]:
    table = tomllib.loads((HERE / "argued.toml").read_text())
    return {survivor for each in table["argued"] for survivor in each["survivors"]}


def table(counts: dict[str, Counter[str]]) -> str:
    """What was tried of each module, and what came of it, as a Markdown table."""
    lines = [
        "| module | mutants | tried | killed | score | of all, by 95 % |",
        "|---|---|---|---|---|---|",
    ]
    rows = [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]
    for path, count in rows:
        lines.append(
            f"| {path} | {count.total()} | {tried_of(count)} | {count['killed']} |"
            f" {score(count):.1f} % | {bounds(count)} |"
        )
    return "\n".join(lines)


def tried_of(count: Counter[str]) -> int:
    return count["killed"] + count["alive"]


def score(count: Counter[str]) -> float:
    return 100.0 * count["killed"] / (tried_of(count) or 1)


def bounds(count: Counter[str]) -> str:
    """Between what the score of all mutants lies, if a sample was tried (Wilson's interval)."""
    if not count["untried"] or not tried_of(count):
        return ""
    n, p, z = tried_of(count), score(count) / 100.0, 1.96
    middle = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return f"{100 * low:.0f}-{100 * high:.0f} %"


@contextlib.contextmanager
def one_server() -> Iterator[None]:
    """A PostgreSQL for all mutants, and a schema: to make them costs more than most tests."""
    home = Path(tempfile.mkdtemp(prefix="attachment-ledger-mutation-", dir=roomy()))
    home.chmod(0o711)  # as root the server runs as another account
    try:
        with EmbeddedPostgres(fsync=False) as server:
            os.environ["LEDGER_TEST_DATABASE_URL"] = url = server.start(home)
            with contextlib.closing(Databases(url)) as databases:
                os.environ["LEDGER_TEST_TEMPLATE"] = databases.create_migrated()
                yield
    finally:
        shutil.rmtree(home)


def main() -> int:
    groups = tomllib.loads((HERE / "groups.toml").read_text())
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    parser.add_argument("--sample", type=int, help="so many mutants of each module only")
    parser.add_argument("--skip", type=int, default=0, help="the sample after the first so many")
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    parser.add_argument("--write", type=Path, help="the directory of mutation.md")
    asked = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    survivors: set[str] = set()
    hung = 0
    with one_server():
        for group in asked.groups or groups:
            tree = tried(group, groups[group], asked)
            for mutant in results(tree):
                count = counts.setdefault(mutant.path, Counter())
                if mutant.status in UNDECIDED:
                    count["untried"] += 1
                elif not (what := change_of(tree, mutant)).only_words:
                    alive = mutant.status in ALIVE
                    count["alive" if alive else "killed"] += 1
                    hung += mutant.status == "timeout"
                    survivors |= {str(what)} if alive else set()
    print(f"{hung} of those killed were ended because their tests took too long\n")
    return judge(counts, survivors, asked.write)


def tried(group: str, settings: dict[str, Any], asked: argparse.Namespace) -> Path:
    """Run a group's mutants, all or those that are asked for; where the results are."""
    if not asked.again:
        shutil.rmtree(BUILD / group, ignore_errors=True)
    tree = prepare(group, settings)
    names = chosen(tree, settings, asked.skip, asked.sample) if asked.sample else []
    if asked.again:
        names = [mutant.name for mutant in results(tree) if mutant.status in ALIVE]
        # Which test reaches what is asked anew: mutmut asks only of tests that it does not know.
        (tree / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    run_mutmut(tree, asked.jobs, names)
    return tree


def judge(counts: dict[str, Counter[str]], survivors: set[str], write: Path | None) -> int:
    """Print what came of it, and say whether that is good enough."""
    shown = table(counts)
    print(shown)
    (BUILD / "survivors.txt").write_text("".join(f"{each}\n" for each in sorted(survivors)))
    if write:
        page = write / "mutation.md"
        before, _, rest = page.read_text().partition(_BEGIN)
        page.write_text(f"{before}{_BEGIN}\n{shown}\n{_END}{rest.partition(_END)[2]}")
    unargued = sorted(survivors - argued())
    print(f"\n{len(survivors)} survivors, {len(unargued)} of them not argued:")
    print("\n".join(f"  {each}" for each in unargued))
    together = sum(counts.values(), Counter())
    if together["untried"]:
        print(f"{together['untried']} mutants were not tried (--sample, or an interruption)")
    reached = score(together)
    print(f"score {reached:.1f} % of at least {SCORE_MIN:g} %")
    return int(reached < SCORE_MIN or bool(unargued))


if __name__ == "__main__":
    sys.exit(main())
