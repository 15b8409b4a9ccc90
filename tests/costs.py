"""`make costly`: writes which functions of tests are costly into tests/costly.txt (tests.tiers).

A plugin for a run of all tests.  A function's cost is the time of all its cases together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from tests.tiers import COSTLY, COSTLY_FILE, function_of

#: From this on a function is costly; one that was stays so down to half of it, so that few lines
#: come and go from run to run.
COSTLY_S = 0.5


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    spent_s = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent_s[function_of(report.nodeid)] += report.duration
    COSTLY_FILE.write_text("".join(f"{name}\n" for name in sorted(costly(spent_s))))


def costly(spent_s: Mapping[str, float]) -> list[str]:
    return [
        name
        for name, spent in spent_s.items()
        if spent >= (COSTLY_S / 2 if name in COSTLY else COSTLY_S)
    ]
