"""mutmut, made to collect once, with its own arguments.

mutmut forks a process for each mutant, starts pytest in it, and pytest collects each file that a
test of the mutant is in: that costs more than the tests do.  Here pytest has collected all tests
of the group before the fork, and run none.  A mutant's process only runs those that reach it: first
the one that killed the last mutant of the same function, then the quickest first.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path

import pytest
from mutmut import __main__ as mutmut
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers.isolation import ForkServerRunner

#: Where the process of a mutant leaves word of the test that killed it, by function.
KILLERS = Path("killers").absolute()
NO_MUTANT = "none"
CLEAN_CPU_MAX_S = 3600


class Session(PytestRunner):  # type: ignore[misc]  # mutmut is not looked into
    """Runs tests that are collected: `items`, by their names."""

    items: dict[str, pytest.Item]

    def warm_up(self) -> None:
        """Keep what mutmut writes to for now: that nobody closes it would fail the first test."""
        self._quiet = sys.stdout

    def run_tests(self, *, mutant_name: str, tests: Iterable[str]) -> int:
        killer = KILLERS / mutant_name.partition("__mutmut_")[0]
        before = killer.read_text() if killer.is_file() else None
        took = state().duration_by_test
        names = sorted(tests, key=lambda name: (name != before, took[name]))
        failed = self._first_failure([self.items[name] for name in names])
        if failed:
            killer.write_text(failed)
        return int(failed is not None)

    def _first_failure(self, items: list[pytest.Item]) -> str | None:
        session = items[0].session
        for item, following in zip_longest(items, items[1:]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                break
        # What the session's fixtures made goes with it.
        session.ihook.pytest_sessionfinish(session=session, exitstatus=session.testsfailed)
        return item.nodeid if session.testsfailed else None


class Server(ForkServerRunner):  # type: ignore[misc]
    """Forks within a session of pytest, between its collecting and its running."""

    _clean: set[str]

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """Later, by the way that a mutant goes."""
        self._clean = set(tests) or set(state().duration_by_test)
        return 0

    def startup(self) -> None:
        super().startup()
        self.submit(NO_MUTANT, list(self._clean), CLEAN_CPU_MAX_S, 0.0)
        if self.wait_for_result().exit_code:
            self.shutdown()
            sys.exit("the tests fail without a mutant")

    def _forkserver_main(self, work_fd: int, result_fd: int) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        KILLERS.mkdir(exist_ok=True)
        runner = PytestRunner()
        serve = functools.partial(super()._forkserver_main, work_fd, result_fd)
        with change_cwd("mutants"):
            runner.execute_pytest(
                ["-s", "-q", *runner._pytest_add_cli_args_test_selection],
                plugins=[Instead(serve)],
            )
        raise RuntimeError("pytest did not get to the tests")


class Instead:
    """A plugin of pytest: what is done instead of running the tests that were collected."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        Session.items = {item.nodeid: item for item in session.items}
        self._serve()
        os._exit(0)  # the session is not ended: it began no test


def get_runner(jobs: int) -> Server:
    return Server(max_workers=jobs, test_runner_class=Session, test_runner_args={})


if __name__ == "__main__":
    mutmut.get_mutant_runner = get_runner
    mutmut.cli()
