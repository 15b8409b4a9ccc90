"""Commands that need no service: database, settings, projections, the simulated Cinder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledger import bootstrap
from ledger.cli import shell
from ledger.cli.client import Client
from ledger.cli.local import sim
from ledger.log import schema
from ledger.trial.embedded import EmbeddedPostgres
from projections.catalog import ALL
from tests.service.cli_stub import Run, Stub
from tests.tokens import write_private

EXIT_DEADLINE_S = 60.0
NO_SERVER = "postgresql://ledger@127.0.0.1:9/ledger"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LEDGER_")]:
        monkeypatch.delenv(name)


# --- database ---------------------------------------------------------------------------


def test_upgrade_brings_an_empty_database_to_the_schema(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--database-url", empty_database_url]
    assert shell.main(["db", "check", *where]) == 4
    assert "Run: attachment-ledger db upgrade" in capsys.readouterr().err
    assert shell.main(["db", "status", *where, "-f", "json"]) == 4
    state = json.loads(capsys.readouterr().out)
    assert state["current"] is False
    assert state["applied"] == []
    assert shell.main(["db", "upgrade", *where]) == 0
    applied = capsys.readouterr().out.split()
    assert applied == list(schema.status(empty_database_url).applied)
    assert applied
    assert shell.main(["db", "check", *where]) == 0
    assert shell.main(["db", "upgrade", *where]) == 0
    assert "is current" in capsys.readouterr().err
    assert shell.main(["db", "status", *where, "-f", "json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["current"] is True
    assert state["applied"] == applied
    assert state["pending"] == []


def test_serve_refuses_a_wrong_schema_and_names_the_command(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_CINDER__ENDPOINT", "http://127.0.0.1:9/v3")
    done = subprocess.run(
        [sys.executable, "-m", "ledger", "serve", "--database-url", empty_database_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=EXIT_DEADLINE_S,
    )
    assert done.returncode == 4
    assert "Run: attachment-ledger db upgrade" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["db", "status", "--database-url", NO_SERVER]) == 1
    said = capsys.readouterr().err
    assert "error: the database cannot be used" in said
    assert "config show" in said


@pytest.mark.parametrize("command", ["db status", "serve"])
@pytest.mark.parametrize(
    "url",
    [
        *("nonsense", "host=a nope=b", "postgresql://user:s3cret@[bad/x", "u:s3cret%zz@"),
        *("postgres//u:s3cret@h/d", 'u:"s3cret"@h', "postgresql://u:s3cret%zz@h/d"),
        *("postgresql://u:p%00s3cret@h", "postgresql://u:p@h:1s3cret/x?s3cret", "host='s3cret"),
        *("host=a password=b s3cret=c", "password=x\"s3cret' s3cret"),
    ],
)
def test_what_is_no_address_of_a_database_is_a_wrong_setting(
    command: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main([*command.split(), "--database-url", url]) == 2
    said = capsys.readouterr().err
    assert "error: database_url is no address of a database: " in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "command", ["db status", "db check", "db upgrade", "projection list", "event verify"]
)
def test_no_command_starts_a_database_of_its_own(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EmbeddedPostgres, "start", _must_not)
    assert shell.main(command.split()) == 2
    said = capsys.readouterr().err
    assert "error: the settings name no database." in said
    assert "--database-url" in said


@pytest.mark.parametrize("trial", [False, True], ids=["without", "with"])
def test_a_service_and_a_trial_are_told_apart(
    trial: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --trial a database is to be named, with it none may be."""
    monkeypatch.setattr(bootstrap, "serve", _must_not)
    monkeypatch.setenv("LEDGER_CINDER__ENDPOINT", "http://127.0.0.1:9/v3")
    if trial:
        monkeypatch.setenv("LEDGER_DATABASE_URL", NO_SERVER)
    assert shell.main(["serve", *["--trial"] * trial]) == 2
    assert "--trial" in capsys.readouterr().err


def test_a_trial_serves_without_a_named_database(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(bootstrap, "serve", lambda settings, *_: served.append(settings))
    monkeypatch.setenv("LEDGER_CINDER__ENDPOINT", "http://127.0.0.1:9/v3")
    assert shell.main(["serve", "--trial"]) == 0
    assert [settings.database_url for settings in served] == [None]


def _must_not(*_arguments: object) -> None:
    raise AssertionError("nothing may be started")


def test_projections_are_listed_and_rebuilt(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--database-url", database_url]
    assert shell.main(["projection", "list", *where, "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["Name"] for row in rows} == {projection.name for projection in ALL}
    assert shell.main(["projection", "rebuild", "all", *where]) == 0
    assert capsys.readouterr().err.count("is rebuilt") == len(ALL)
    assert shell.main(["projection", "rebuild", "moods", *where]) == 3
    assert ALL[0].name in capsys.readouterr().err


# --- settings ------------------------------------------------------------------------------


def test_config_show_hides_secrets_and_names_where_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.toml"
    write_private(
        file,
        'database_url = "postgresql://ledger:hunter2@db/ledger"\nauth = "tokens"\n'
        '[[tokens]]\nname = "alice"\nuser_id = "a"\nproject_id = "p"\nroles = ["member"]\n'
        'token = "hunter3-0123456789abcdef-of-alice"\n[cinder]\nendpoint = "http://cinder/v3"\n',
    )
    for form in ("table", "json", "yaml", "shell"):
        assert shell.main(["config", "show", "--config", str(file), "-f", form]) == 0
        shown = capsys.readouterr().out
        assert "http://cinder/v3" in shown
        assert "alice" in shown
        assert "hunter" not in shown


def test_wrong_settings_name_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.toml"
    file.write_text("[listen]\nprot = 1\n")
    for command in (["config", "show"], ["serve"], ["db", "check"]):
        assert shell.main([*command, "--config", str(file)]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert "did you mean 'port'?" in said


def test_serve_without_a_cinder_says_how_to_name_one(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["serve", "--database-url", database_url]) == 2
    assert "LEDGER_CINDER__ENDPOINT" in capsys.readouterr().err


# --- the simulated Cinder --------------------------------------------------------------------


@contextmanager
def simulated_cinder(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "ledger", "sim", "cinder", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip().removesuffix("/v3"), child
    finally:
        child.kill()
        child.communicate()


def test_sim_cinder_keeps_its_rows_and_stops_when_told(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "cinder.json")]
    with simulated_cinder(*state) as (url, child):
        Client(url).send("PUT", "/sim/volumes", body={"name": "data-1", "size": 3})
        child.send_signal(signal.SIGTERM)
        assert child.wait(EXIT_DEADLINE_S) == 0
    with simulated_cinder(*state) as (url, _):
        volumes = Client(url).get("/sim/state")["volumes"]
    assert [volume["name"] for volume in volumes] == ["data-1"]


def test_sim_faults_are_set_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('[{"call": "attachment_delete", "do": "fail", "match": {"volume_id": "v"}}]')
    with simulated_cinder() as (url, _):
        assert shell.main(["sim", "fault", "set", str(rules), "--cinder", url]) == 0
        capsys.readouterr()
        assert shell.main(["sim", "fault", "list", "--cinder", url, "-f", "json"]) == 0
    [rule] = json.loads(capsys.readouterr().out)
    assert (rule["Call"], rule["Do"], rule["Seen"]) == ("attachment_delete", "fail", 0)
    assert json.loads(rule["Match"]) == {"volume_id": "v"}
    assert shell.main(["sim", "fault", "list", "--cinder", url]) == 1, "it has ended"
    assert "no simulated Cinder answers" in capsys.readouterr().err


def test_a_crash_that_a_fault_file_asks_for_happens_once(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('[{"call": "volume_list", "do": "crash"}]')
    assert sim.faults_of(rules).take("volume_list") is not None, "here the process is killed"
    assert sim.faults_of(rules).take("volume_list") is None, "the one that is started after it"


def test_sim_cinder_says_which_file_has_no_state_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "state.json"
    for text in ("{", "[]", '{"backends": 1}'):
        wrong.write_text(text)
        assert shell.main(["sim", "cinder", "--port", "0", "--state", str(wrong)]) == 2
        assert f"{wrong} has no state of a simulated Cinder" in capsys.readouterr().err


def test_sim_cinder_says_when_its_port_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with simulated_cinder() as (url, _):
        assert shell.main(["sim", "cinder", "--port", url.rpartition(":")[2]]) == 2
    assert "Choose another --port" in capsys.readouterr().err


# --- the simulated Cinder -------------------------------------------------------------------------


def test_fault_rules_are_checked_before_they_are_sent(
    run: Run, stub: Stub, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('[{"call": "attachment_delete", "do": "explode"}]')
    assert run("sim", "fault", "set", str(rules), "--cinder", stub.url) == 2
    assert "rule 1: 'do' is 'explode'" in capsys.readouterr().err
    assert run("sim", "fault", "set", str(tmp_path / "none"), "--cinder", stub.url) == 2
    assert stub.asked == []
