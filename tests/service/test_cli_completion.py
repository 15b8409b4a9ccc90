"""What TAB offers: each command, each option, values, and what the ledger knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.cli import completion
from ledger.cli.client import Client
from ledger.cli.shell import COMMANDS, Shell, main
from ledger.native.log.schemas_find import FindableKind, FoundThing, FoundThings
from tests.service.cli_stub import OPERATION, SERVER, Run, Stub

BIN = Path(sys.executable).parent
SHELLS = {
    "bash": """
source <(attachment-ledger complete)
COMP_WORDS=(attachment-ledger operation list --state pa); COMP_CWORD=4
_attachment_ledger; printf '%s\\n' "${COMPREPLY[@]}"
COMP_WORDS=(attachment-ledger "server" ""); COMP_CWORD=2
_attachment_ledger; printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
compdef() { : }
compadd() { print -l -- "${(@P)2}" }
source <(attachment-ledger complete --shell zsh)
words=(attachment-ledger operation list --state pa); CURRENT=5
_attachment_ledger
words=(attachment-ledger server ""); CURRENT=3
_attachment_ledger
""",
}


def offered(*words: str) -> list[str]:
    def nobody() -> Client:
        raise AssertionError("nothing is asked of the service")

    return completion.candidates(Shell(), words, nobody)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_is_offered_word_by_word_and_then_its_options(name: str) -> None:
    words = name.split()
    for count, word in enumerate(words):
        assert word in offered(*words[:count], "")
        assert word in offered("--url", "http://x", "-v", *words[:count], word[:1])
    options = offered(*words, "-")
    assert {"-h", "--help"} <= {*options}
    parser = Shell().command_manager.commands[name].load()(Shell(), None).get_parser(name)
    missing = [word for word in options if word not in parser.format_help()]
    assert missing == [], "and each of them is one"


def test_a_command_that_others_begin_with_offers_both() -> None:
    assert offered("server", "resize", "c") == ["confirm"]
    assert "--wait" in offered("server", "resize", "--")


def test_the_values_of_an_option_are_offered_and_no_options_for_one() -> None:
    assert offered("operation", "list", "--state", "") == ["finished", "parked", "running"]
    assert offered("operation", "list", "--limit", "") == []
    assert offered("--url", "") == []
    assert offered("no-such-command", "") == []


def test_ids_are_those_that_the_service_knows(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/find"] = FoundThings(
        found=[
            FoundThing(kind=FindableKind.OPERATION, id=OPERATION, name=None),
            FoundThing(kind=FindableKind.SERVER, id=SERVER, name="4444"),
        ]
    )
    for words in (("operation", "show", "4444"), ("operation", "skip", "--reason", "x", "4444")):
        assert run("complete", "--words", *words) == 0
        assert capsys.readouterr().out.split() == [OPERATION], words
    assert run("complete", "--words", "operation", "show", "444") == 0
    assert capsys.readouterr().out == "", "too short for an id"


def test_without_an_answer_nothing_is_offered_and_nothing_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEDGER_URL", "http://127.0.0.1:1")
    for words in (("operation", "show", "4444"), ("operation", "list", "--host", "")):
        assert main(["complete", "--words", *words]) == 0
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", sorted(SHELLS))
def test_a_shell_asks_for_what_was_typed_so_far(name: str) -> None:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [program, "-c", SHELLS[name]],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    first, *verbs = done.stdout.split()
    assert first == "parked"
    assert verbs == offered("server", "")


def test_each_script_is_tried() -> None:
    assert set(SHELLS) == set(completion.SCRIPTS)
