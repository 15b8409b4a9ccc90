"""`make costly`: writes which tests are costly, and in how many turns they run (tests.tiers).

A plugin for a run of all tests.  A function's cost is the time of all its cases together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.tiers import COSTLY, COSTLY_FILE, TURNS_MAX, function_of

#: So much of each function fits into a run.
SHARE_S = 0.2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    spent_s = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent_s[function_of(report.nodeid)] += report.duration
    COSTLY_FILE.write_text("".join(f"{line}\n" for line in lines(spent_s)))


def lines(spent_s: Mapping[str, float]) -> Iterator[str]:
    for name, spent in sorted(spent_s.items()):
        if (turns := turns_of(spent, COSTLY.get(name, 1))) > 1:
            yield f"{turns} {name}"


def turns_of(spent_s: float, before: int = 1) -> int:
    """As many as there are shares in it; as many as before if it has not changed much, so that few
    lines change from run to run.
    """
    shares = spent_s / SHARE_S
    if before / 3 <= shares <= before * 1.5:
        return before
    return min(TURNS_MAX, 1 << math.ceil(math.log2(max(shares, 1.0))))
