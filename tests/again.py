"""A plugin for `.ci/run`: writes which tests failed, if nothing else went wrong.

`-p tests.again --failed-to FILE`: one id a line, as pytest reads them by `@FILE`.  No file is
written after any other error: at the end of a fixture, in what is collected, in a worker that died,
or in pytest.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers tell who began them
        config.pluginmanager.register(_Failures(config.option.failed_to))


class _Failures:
    def __init__(self, file: Path) -> None:
        self._file, self._tests, self._others = file, dict[str, None](), False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tests[report.nodeid] = None
            self._others |= report.when not in {"setup", "call"}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._others |= report.failed

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.TESTS_FAILED and not self._others:
            self._file.write_text("".join(f"{each}\n" for each in self._tests))
