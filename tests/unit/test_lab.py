"""What the lab's scripts take for their own: labs run side by side on one machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAB = Path(__file__).parents[1] / "lab"


@contextmanager
def process(name: str, lab: Path) -> Iterator[None]:
    """A process that some lab has started."""
    command = ["bash", "-c", 'echo; exec -a "$0" cat', name]
    environ = {**os.environ, "LAB_DAEMON": str(lab)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield
        running.terminate()


def script(text: str, lab: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LAB_DIR": str(lab), "LAB_PARTS": " "}
    command = ["bash", "-c", text]
    return subprocess.run(
        command, cwd=LAB, env=environ, capture_output=True, text=True, check=False
    )


def test_what_another_lab_runs_is_not_left_by_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with process("guest=lab-theirs", theirs):
        assert script("./down.sh", ours).returncode == 0
    with process("cinder", ours):
        left = script("./down.sh", ours)
    assert (left.returncode, "still running" in left.stdout) == (1, True)


def test_what_labs_share_is_for_the_last_one_to_take_away(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    others = ". ./env.sh; . ./lib.sh; other_labs"
    with process("cinder", theirs), process("gate", ours):
        assert str(theirs) in script(others, ours).stdout.splitlines()
        assert str(ours) not in script(others, ours).stdout.splitlines()
    done = script(others, ours)
    assert (done.returncode, str(theirs) in done.stdout) == (0, False)
