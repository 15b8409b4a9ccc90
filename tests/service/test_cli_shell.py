"""The program as a shell sees it: help, usage errors, start-up cost, its documentation."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ledger.cli import shell

ROOT = Path(__file__).parents[2]
HELP_CPU_S_MAX = 0.6  # 0.15 s here; more would mean that something slow is imported
#: What only the commands that need it may import.
SLOW = ("aiohttp", "keystoneauth1", "psycopg", "pydantic", "cinderclient", "structlog")

URL_NOBODY_LISTENS_AT = "http://127.0.0.1:9"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LEDGER_")}
    return subprocess.run(
        [sys.executable, "-m", "ledger", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**kept, **environ},
    )


def test_help_lists_every_command_in_little_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in shell.COMMANDS)
    took_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert took_s < HELP_CPU_S_MAX


def test_help_loads_nothing_slow() -> None:
    code = (
        "import sys; from ledger.cli.shell import main; main(['--help']);"
        f"sys.exit(','.join(set(sys.modules) & set({SLOW!r})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("name", sorted(shell.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main([*name.split(), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: attachment-ledger {name}" in shown


def test_a_noun_alone_shows_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["operation", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "operation give-up" in shown
    assert "host list" not in shown


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    assert shell.main(["--help"]) == 0
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(["help", "host", "fence"])
    assert ended.value.code == 0
    assert "--evidence" in capsys.readouterr().out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main([]) == 2
    assert "history volume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"), [("operation", "operation list"), ("opertion list", "operation list")]
)
def test_an_unknown_command_says_what_may_be_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(typed.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {typed!r} ")
    assert meant in said.err


def test_an_unknown_option_before_the_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["--timeout", "5", "host", "list"]) == 2
    assert "there is no global option '--timeout'" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(["operation", "list", "--nonsense"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "typed",
    ["operation show", "operation list --limit 0", "top --interval -1", "top --interval nan"],
)
def test_wrong_usage_is_told_first_and_no_dump_of_all_options(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(typed.split())
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].endswith("--help")
    assert len(lines) == 2


def test_a_reason_is_demanded_of_whoever_fences(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(["host", "fence", "hv1", "--reason", "it is gone"])
    assert ended.value.code == 2
    assert "--evidence" in capsys.readouterr().err


def test_a_ledger_that_is_not_there_says_what_to_do() -> None:
    done = run("host", "list", LEDGER_URL=URL_NOBODY_LISTENS_AT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"error: The ledger at {URL_NOBODY_LISTENS_AT} cannot be reached" in done.stderr
    assert "attachment-ledger serve" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_url_of_the_command_line_wins() -> None:
    done = run("--url", "http://127.0.0.1:1", "host", "list", LEDGER_URL=URL_NOBODY_LISTENS_AT)
    assert "http://127.0.0.1:1 cannot" in done.stderr


@pytest.mark.parametrize("command", ["--help", "flow show attach --diagram", "complete"])
def test_a_reader_that_goes_away_is_no_traceback(command: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "ledger", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait() == 141
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()


def test_version_is_printed() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout == f"attachment-ledger {version('attachment-ledger')}\n"


def test_the_documentation_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    from ledger.cli.errors import ExitCode

    assert [code for code in ExitCode if f"| {code.value} |" not in text] == []
