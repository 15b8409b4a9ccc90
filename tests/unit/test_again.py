"""What `.ci/run` learns of a run of tests: which of them failed, if nothing else went wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pytest

@pytest.fixture
def end():
    yield
    assert not {end}

def test_fine(end): pass

@pytest.mark.parametrize("what", ["a b", "[c] 'd' - \\"e\\""])
def test_wrong(what): assert not {wrong}

def test_dies(): {dies} and os._exit(1)
"""
RIGHT = {"end": False, "wrong": False, "dies": False}
pytestmark = pytest.mark.slow


def run(home: Path, *arguments: str, **tests: bool) -> tuple[int, Path]:
    """In a process of its own: its exit code, and where it was to write."""
    file = home / "failed"
    (home / "test_these.py").write_text(TESTS.format(**{**RIGHT, **tests}))
    command = [sys.executable, "-m", "pytest", "-p", "tests.again", "--failed-to", str(file)]
    command += ["--rootdir", str(home), "-p", "no:cacheprovider", *arguments]
    environ = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, check=False)
    return done.returncode, file


def test_the_tests_that_failed_can_be_run_again(tmp_path: Path) -> None:
    code, file = run(tmp_path, "test_these.py", wrong=True)
    assert code == 1
    assert sorted(file.read_text().splitlines()) == [
        "test_these.py::test_wrong[[c] 'd' - \"e\"]",
        "test_these.py::test_wrong[a b]",
    ]
    assert run(tmp_path, "@failed")[0] == 0, "they are right now"


def test_nothing_can_if_anything_else_went_wrong(tmp_path: Path) -> None:
    for what, given in {"end": (), "dies": ("-p", "xdist", "-n", "1")}.items():
        code, file = run(tmp_path, "test_these.py", *given, **{"wrong": True, what: True})
        assert (code, file.exists()) == (1, False), what
    (tmp_path / "test_those.py").write_text("import nothing_of_that_name\n")
    code, file = run(tmp_path, "test_these.py", "test_those.py", wrong=True)
    assert (code > 1, file.exists()) == (True, False)
