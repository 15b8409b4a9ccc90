"""What people may type for a thing, and what is said if it is none, or several."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from ledger.cli import naming, shell
from ledger.native import schemas
from ledger.native.log.schemas_find import FoundThings
from tests.service.cli_stub import (
    OPERATION,
    SERVER,
    VOLUME,
    Run,
    Stub,
    operation,
    refusing,
)
from tests.service.test_cli_api import host

PATH = f"/v1/operations/{OPERATION}"
TWIN = OPERATION[:9] + "5" + OPERATION[10:]
#: Arguments with these names, or metavars, name a thing.
ID_WORDS = ("server", "volume", "operation", "attachment", "finding", "remnant", "look")


def things(*found: tuple[str, str, str | None]) -> FoundThings:
    rows = [{"kind": kind, "id": identity, "name": name} for kind, identity, name in found]
    return FoundThings.model_validate({"found": rows})


def test_the_beginning_of_an_id_is_as_good_as_the_whole(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/find"] = things(("operation", OPERATION, "detach"))
    stub.answers[f"GET {PATH}"] = operation()
    assert run("operation", "show", "44444444") == 0
    assert [asked.path for asked in stub.asked] == ["/v1/find", PATH]
    assert stub.asked[0].query == {"text": "44444444"}


def test_a_whole_id_costs_no_question_more(run: Run, stub: Stub) -> None:
    stub.answers[f"GET {PATH}"] = operation()
    assert run("operation", "show", OPERATION) == 0
    assert [asked.path for asked in stub.asked] == [PATH]


def test_a_servers_name_is_taken_for_its_id(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/find"] = things(("server", SERVER, "db-1"), ("host", "db-1", None))
    stub.answers["GET /v1/operations"] = schemas.Operations(operations=[], next=None)
    assert run("operation", "list", "--server", "db-1") == 0
    assert stub.asked[-1].query["server"] == SERVER


def test_what_fits_several_names_them_and_does_nothing(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/find"] = things(
        ("operation", OPERATION, "detach"), ("operation", TWIN, "attach")
    )
    assert run("operation", "retry", "44444444", "--reason", "why") == 2
    said = capsys.readouterr().err
    assert "'44444444' may be any of 2" in said
    assert f"operation {OPERATION} (detach)" in said
    assert f"operation {TWIN} (attach)" in said
    assert {asked.method for asked in stub.asked} == {"GET"}


def test_what_fits_nothing_says_what_is_wanted(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/find"] = things()
    assert run("operation", "show", "nonsense") == 3
    said = capsys.readouterr().err
    assert "error: there is no operation 'nonsense'." in said
    assert "attachment-ledger operation list" in said


@pytest.mark.parametrize("typed", ["22222222", VOLUME], ids=["beginning", "whole"])
def test_the_id_of_another_kind_is_told_as_what_it_is(
    typed: str, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/find"] = things(("volume", VOLUME, None))
    assert run("operation", "show", typed) == 3
    assert f"Expected an operation; {typed!r} is volume {VOLUME}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ("operation", "list", "--limit", "x"),
            "--limit: must be a number from 1 to 100000, not 'x'",
        ),
        (("event", "list", "--after=-1"), "--after: must be a number from 0 to 92233"),
        (("forward", "siem", "--after", "\u0663"), "--after: must be a number from 0 to 92233"),
        (("sim", "cinder", "--port", "99999"), "--port: must be a number from 0 to 65535"),
        (("host", "show", "a/history"), "<host>: must be a host's name, not 'a/history'"),
        (("drift", "list", "--at", "noon"), "--at: must be a time like 2026-11-17T14:02"),
        (("drift", "run", "--timeout", "-1"), "--timeout: must be a number of seconds, not '-1'"),
    ],
    ids=["number", "position", "digits", "port", "host", "time", "seconds"],
)
def test_a_wrong_value_says_what_it_must_be(
    typed: tuple[str, ...], said: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*typed)
    assert said in capsys.readouterr().err


def test_a_finding_may_be_an_operation(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/find"] = things(("operation", OPERATION, "detach"))
    assert run("drift", "show", "44444444") == 3
    assert stub.asked[1].path == f"/v1/drift/{OPERATION}"


def test_a_host_that_is_not_there_has_neighbours(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/hosts"] = schemas.Hosts(hosts=[host(), host(host="db-hv")])
    assert run("host", "show", "hv2") == 3
    assert "Did you mean: hv1\n" in capsys.readouterr().err


def test_a_refusal_while_asking_what_is_meant_is_told(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/find"] = refusing(403, "forbidden", "Policy doesn't allow find.")
    assert run("operation", "show", "44444444") == 4


def arguments_of(name: str) -> list[argparse.Action]:
    program = shell.Shell()
    kind = program.command_manager.commands[name].load()
    parser = kind(program, None, cmd_name=name).get_parser(name)
    return [action for action in parser._actions if action.dest != "help"]


@pytest.mark.parametrize("name", sorted(shell.COMMANDS))
def test_every_argument_that_names_a_thing_takes_the_beginning_of_its_id(name: str) -> None:
    for action in arguments_of(name):
        about = str(action.metavar or "").strip("<>").split(" ")[-1]
        if action.nargs == 0 or not (action.dest in ID_WORDS or about in ID_WORDS):
            continue
        assert action.type is not None, action
        read: Any = action.type
        assert isinstance(read("cafe"), naming.Named), action.dest
