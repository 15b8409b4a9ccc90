"""The units: systemd can read them, and what they leave open is what is argued in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from host_agent.__main__ import main

SIGN, SURVEY = "attachment-ledger-sign.service", "attachment-ledger-agent-survey.service"
UNITS = Path(__file__).parents[2] / "deploy/systemd"
#: `systemd-analyze security`, 0 to 100: 15 is "1.5"; those of the agent are root, as they argue.
EXPOSED = {
    "attachment-ledger.service": 15,
    "attachment-ledger-forward@.service": 15,
    "attachment-ledger-sign.service": 15,
    "attachment-ledger-agent.service": 65,
    SURVEY: 25,
}

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


@pytest.mark.parametrize(("unit", "most"), EXPOSED.items())
def test_what_a_unit_leaves_open_is_bounded(unit: str, most: int) -> None:
    asked = [
        "systemd-analyze",
        "security",
        str(UNITS / unit),
        "--offline=true",
        f"--threshold={most}",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", EXPOSED)
def test_systemd_reads_all_of_a_unit(unit: str) -> None:
    """That the program is not installed here is all that it may say."""
    environment = os.environ | {"SYSTEMD_LOG_LEVEL": "warning", "LC_ALL": "C"}
    asked = ["systemd-analyze", "verify", "--recursive-errors=no", str(UNITS / unit)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    said = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert said == []


@pytest.mark.parametrize(("unit", "every"), [(SIGN, 3600), (SURVEY, 60)])
def test_a_timer_starts_the_service_of_its_name_each_time(unit: str, every: int) -> None:
    timer = text(unit.replace(".service", ".timer"))
    [when] = re.findall("^OnCalendar=(.*)$", timer, re.MULTILINE)
    asked = ["systemd-analyze", "calendar", "--iterations=2", when]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", done.stdout)
    first, second = map(datetime.fromisoformat, dict.fromkeys(times))
    assert (second - first).total_seconds() == every
    assert "Unit=" not in timer


def test_a_survey_is_sent_by_the_agents_own_program(capsys: pytest.CaptureFixture[str]) -> None:
    """It comes as far as the ledger, which is not there."""
    found = "^ExecStart=/usr/bin/attachment-ledger-agent (.*)$"
    [line] = re.findall(found, text(SURVEY), re.MULTILINE)
    with TemporaryDirectory() as home:
        (state := Path(home) / "host.json").write_text("{}")
        more = ["--simulated", str(state), "--ledger-url=http://127.0.0.1:9"]
        assert main([*line.split(), *more]) == 1
    assert "ledger not reached" in capsys.readouterr().err


@pytest.mark.parametrize("unit", ["attachment-ledger-forward@.service", SIGN])
def test_what_a_unit_starts_is_a_command(unit: str) -> None:
    """With all that it needs: it comes as far as the database, which is not there."""
    [line] = re.findall("^ExecStart=/usr/bin/attachment-ledger (.*)$", text(unit), re.MULTILINE)
    given = {"%i": "siem", "${TO}": "file:///x", "${FORMAT}": "cadf", "$OPTIONS": "", "%S": "/tmp"}
    for name, value in given.items():
        line = line.replace(name, value)
    words = line.replace("/tmp/attachment-ledger-checkpoints", "/tmp").split()
    asked = [sys.executable, "-m", "ledger", *words, "--database-url", "postgresql://127.0.0.1:9/x"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "the database cannot be used" in done.stderr, done.stderr


def text(unit: str) -> str:
    return (UNITS / unit).read_text()


def test_both_programs_may_be_on_one_machine() -> None:
    """Whichever is installed later: it makes the other's directories as that one has them."""
    lines = [
        line.split()
        for path in sorted(UNITS.glob("*.tmpfiles"))
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    ]
    made = {line[1]: line for line in lines}
    assert len(made) < len(lines)  # they share one
    assert all(made[line[1]] == line for line in lines)
