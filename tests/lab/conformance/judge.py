"""What a run of conformance.sh means, and the table of docs/conformance.md.

`python -m tests.lab.conformance.judge RESULTS [PART ...]`: the page's rows of the tests that ran
are written anew; without parts, those of tests that are gone are removed.  It fails, and the page
stays, if a test that passes in the page does not any more, if one that does not pass has no reason
in reasons.toml, or if all of a reason's tests pass.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.settings import LAB_SRC

REASONS = LAB_SRC / "conformance/reasons.toml"
PAGE = LAB_SRC.parents[1] / "docs/conformance.md"
BEGIN, END = "<!-- results: tests/lab/conformance.sh -->\n", "<!-- end of the results -->\n"
PASSES = "passes"

Outcomes = dict[str, str]  # of each test: "passes", "fails", "skipped"


@dataclass(frozen=True)
class Reason:
    """Why tests that match one of the patterns (fnmatch) have an outcome that is not "passes"."""

    tests: tuple[str, ...]
    outcome: str
    why: str

    def of(self, test: str, outcome: str) -> bool:
        return outcome == self.outcome and self.names(test)

    def names(self, test: str) -> bool:
        return any(fnmatch.fnmatchcase(test, pattern) for pattern in self.tests)


def reasons(text: str) -> tuple[Reason, ...]:
    """The first that matches counts."""
    found = tomllib.loads(text)["reason"]
    return tuple(Reason(tuple(each["tests"]), each["outcome"], each["why"]) for each in found)


def reason_of(test: str, outcome: str, known: tuple[Reason, ...]) -> str | None:
    return next((each.why for each in known if each.of(test, outcome)), None)


def faults(
    now: Mapping[str, str], before: Mapping[str, str], known: tuple[Reason, ...]
) -> list[str]:
    """What makes a run fail, in words."""
    found = []
    for test, outcome in sorted(now.items()):
        if outcome != PASSES and before.get(test) == PASSES:
            found.append(f"{test}: {outcome}, and passed before")
        elif outcome != PASSES and reason_of(test, outcome, known) is None:
            found.append(f"{test}: {outcome}, and reasons.toml does not say why")
    after = {**before, **now}
    for each in known:
        named = {test for test in after if each.names(test)}
        if named & now.keys() and {after[test] for test in named} == {PASSES}:
            found.append(f"{', '.join(each.tests)}: passes, and has a reason why it does not")
    return found


# ------------------------------------------------------------------------------ the page


def rows(page: str) -> Outcomes:
    """What the page's tables say of each test."""
    found, module = {}, ""
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("### "):
            module = line.removeprefix("### ").strip("`")
        elif line.startswith("| `"):
            test, outcome, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            found[f"{module}.{test.strip('`')}"] = outcome
    return found


def table(outcomes: Mapping[str, str], known: tuple[Reason, ...]) -> str:
    """A heading and a table for each module, in their order."""
    lines, last = [summary(outcomes), ""], ""
    for test in sorted(outcomes):
        module, short = module_of(test), test.removeprefix(f"{module_of(test)}.")
        if module != last:
            lines += ["", f"### `{module}`", "", "| test | | why |", "|---|---|---|"]
            last = module
        why = reason_of(test, outcomes[test], known) or ""
        lines.append(f"| `{short}` | {outcomes[test]} | {why} |")
    return "\n".join(lines) + "\n"


def summary(outcomes: Mapping[str, str]) -> str:
    lines = ["| | passes | fails | skipped |", "|---|---|---|---|"]
    for program in sorted({test.partition(".")[0] for test in outcomes}):
        of = [each for test, each in outcomes.items() if test.startswith(f"{program}.")]
        counts = " | ".join(str(of.count(each)) for each in (PASSES, "fails", "skipped"))
        lines.append(f"| {program} | {counts} |")
    return "\n".join(lines)


def module_of(test: str) -> str:
    """Of module.Class.test."""
    return test.rsplit(".", 2)[0]


def written(page: str, outcomes: Mapping[str, str], known: tuple[Reason, ...]) -> str:
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table(outcomes, known)}\n{END}{after}"


def main() -> None:
    results, *parts = sys.argv[1:]
    lines = Path(results).read_text().splitlines()
    known, page = reasons(REASONS.read_text()), PAGE.read_text()
    now = {each["test"]: each["outcome"] for each in map(json.loads, lines)}
    before = rows(page)
    found = faults(now, before, known)
    print(summary(now), *found, sep="\n")  # noqa: T201
    if found:
        sys.exit(1)
    PAGE.write_text(written(page, {**before, **now} if parts else now, known))


if __name__ == "__main__":
    main()
