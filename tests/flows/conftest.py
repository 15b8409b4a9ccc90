"""The cases that the generic tests walk through are counted."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases there were, over all workers."""
    cases = sum(
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "cases"
    )
    if cases:
        terminalreporter.write_line(f"generic flow cases: {cases}")
