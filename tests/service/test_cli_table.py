"""Tables for people: they fit 80 columns, break no id, and are left alone in a pipe."""

from __future__ import annotations

import io
import json
import subprocess
from typing import Any

import pytest

from ledger.cli import table
from ledger.native import schemas, schemas_attachments
from tests.service.cli_stub import (
    ATTACHMENT,
    NOW,
    OPERATION,
    SERVER,
    VOLUME,
    Run,
    Screen,
    Stub,
    Terminal,
    attachment,
    event,
    operation,
    operations,
)
from tests.service.test_cli_api import HISTORY, page

TWIN = OPERATION[:9] + "5" + OPERATION[10:]


# --- lists ------------------------------------------------------------------------------


def test_a_list_fits_80_columns_with_short_ids_names_and_ages(screen: Screen, stub: Stub) -> None:
    stub.answers["GET /v1/operations"] = operations(destination="hv2")
    lines = screen("operation", "list").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["ID", "Flow", "State", "Server", "Host", "Started", "Why"]
    assert lines[1].startswith("44444444  detach  parked")
    assert "3 min ago" in lines[1]
    assert "db-1" in lines[1]
    assert "..." not in "".join(lines)
    words = " ".join(line[-30:].strip() for line in lines[1:])
    assert "array-7.example.org" in words


def test_ids_are_as_long_as_it_takes_to_tell_them_apart(screen: Screen, stub: Stub) -> None:
    rows = operations().operations + operations(operation_id=TWIN).operations
    stub.answers["GET /v1/operations"] = schemas.Operations(operations=rows, next=None)
    shown = screen("operation", "list")
    assert OPERATION[:13] in shown
    assert TWIN[:13] in shown
    assert OPERATION[:18] not in shown


def test_other_programs_get_whole_ids() -> None:
    cut = table.shortener([[OPERATION, SERVER]])
    rest = f"`openstack server show {SERVER}`; WHERE uuid = '{SERVER}'"
    assert cut(f"{OPERATION}: {rest}") == f"{OPERATION[:8]}: {rest}"


def test_long_shows_all_columns(screen: Screen, stub: Stub) -> None:
    stub.answers["GET /v1/operations"] = operations()
    assert "Volumes" not in screen("operation", "list").splitlines()[0]
    heading = screen("operation", "list", "--long").splitlines()[0]
    assert "Volumes" in heading
    assert "Ended" in heading


@pytest.mark.parametrize(
    "arguments",
    [("-f", "json"), ("-f", "value"), ("-f", "csv"), ("-f", "json", "--long")],
    ids=["json", "value", "csv", "long"],
)
def test_what_scripts_read_has_whole_ids_and_moments(
    arguments: tuple[str, ...], screen: Screen, stub: Stub
) -> None:
    stub.answers["GET /v1/operations"] = operations()
    shown = screen("operation", "list", *arguments)
    assert OPERATION in shown
    assert SERVER in shown
    assert "2026-11-20 10:00:00Z" in shown
    assert "db-1" not in shown
    if "json" in arguments:
        [row] = json.loads(shown)
        assert tuple(row) == (
            *("ID", "Flow", "State", "Why", "Server", "Volumes", "Host", "Started", "Ended"),
        )


def test_a_table_in_a_pipe_is_whole(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/operations"] = operations()
    assert run("operation", "list") == 0
    shown = capsys.readouterr().out
    assert all(whole in shown for whole in (OPERATION, SERVER, VOLUME, "2026-11-20 10:00:00Z"))
    assert "\x1b" not in shown


def test_a_column_that_is_asked_for_has_whole_ids_on_a_terminal_too(
    screen: Screen, stub: Stub
) -> None:
    stub.answers["GET /v1/operations"] = operations()
    assert screen("operation", "list", "-c", "ID").splitlines()[1] == OPERATION


def test_states_have_a_colour_on_a_terminal_only_and_not_if_unwanted(
    screen: Screen, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers["GET /v1/operations"] = operations()
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in screen("operation", "list")
    monkeypatch.setenv("NO_COLOR", "")  # counts as not set
    assert "\x1b[31mparked" in screen("operation", "list")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in screen("operation", "list")


def test_no_name_gives_the_terminal_an_order(
    screen: Screen, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    stub.answers["GET /v1/operations"] = operations(server_name="\x1b[2Jdb", state="running")
    shown = screen("operation", "list")
    assert "\x1b[2J" not in shown
    assert "\\u001b" in shown


def test_volumes_are_listed_with_servers_and_hosts(screen: Screen, stub: Stub) -> None:
    second = attachment(attachment_id=OPERATION, server_id=ATTACHMENT, server_name="db-2")
    stub.answers["GET /v1/attachments"] = schemas_attachments.Attachments(
        attachments=[attachment(), second], next=None
    )
    lines = screen("volume", "list", "--host", "hv1").splitlines()
    assert lines[1].split()[:4] == ["22222222", "attached", "db-1", "11111111"]
    assert lines[2].split()[:4] == ["22222222", "attached", "db-2", "33333333"]
    assert stub.asked[-1].query == {"host": "hv1", "open": "true"}


@pytest.mark.parametrize(
    ("typed", "path", "answer", "said"),
    [
        ("operation list", "operations", schemas.Operations(operations=[], next=None), "No oper"),
        ("host list", "hosts", schemas.Hosts(hosts=[]), "No hosts: no agent has registered yet."),
        (
            "volume list",
            "attachments",
            schemas_attachments.Attachments(attachments=[], next=None),
            "No volumes are attached.",
        ),
    ],
    ids=["operations", "hosts", "volumes"],
)
def test_an_empty_list_says_so(
    typed: str,
    path: str,
    answer: Any,
    said: str,
    run: Run,
    stub: Stub,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub.answers[f"GET /v1/{path}"] = answer
    assert run(*typed.split()) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert run(*typed.split(), "-f", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


# --- single things -------------------------------------------------------------------------


def test_one_thing_has_its_own_id_whole_and_no_python_in_it(screen: Screen, stub: Stub) -> None:
    stub.answers[f"GET /v1/attachments/{ATTACHMENT}"] = attachment()
    shown = screen("attachment", "show", ATTACHMENT)
    assert f"attachment_id  {ATTACHMENT}" in shown
    assert "2026-11-20 10:00:00Z, 3 min ago" in shown
    assert "None" not in shown
    assert "False" not in shown
    assert "device_path" not in shown  # nothing is known of it


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, ""),
        (True, "yes"),
        (3, "3"),
        ({"new": 1, "old": 0}, "new: 1\nold: 0"),
        ({"migration": {"uri": "x", "tls": False}}, "migration: uri x, tls no"),
        (["a", "b"], "a, b"),
    ],
    ids=["none", "bool", "number", "dict", "nested", "list"],
)
def test_values_are_told_in_words(value: Any, told: str) -> None:
    assert table.plain(value) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (86_400, "24 h"),
        (172_800, "2 d"),
    ],
)
def test_a_span_has_the_largest_unit_of_which_there_are_two(seconds: float, told: str) -> None:
    assert table.span(seconds) == told


def test_an_id_is_never_broken_however_narrow() -> None:
    lines = list(table.list_lines(("ID", "Why"), [(OPERATION, f"see {SERVER} now")], 12, NOW))
    text = "\n".join(lines)
    assert OPERATION[:8] in text
    assert SERVER[:8] in text
    whole = list(table.field_lines([("id", OPERATION), ("volume", f"on {VOLUME}")], 24, NOW))
    assert whole[0].endswith(OPERATION)


def test_a_request_id_is_no_id_to_cut() -> None:
    [_, row] = table.list_lines(("Request",), [(f"req-{OPERATION}",)], 80, NOW)
    assert row == f"req-{OPERATION}"


def test_a_request_id_is_never_broken_and_a_moment_of_nova_s_is_an_age() -> None:
    row = (f"req-{OPERATION}", "attach_volume", "a message of some length", "2026-11-20T10:00:00.5")
    lines = list(table.list_lines(("Request", "Action", "Message", "Start"), [row], 80, NOW))
    assert lines[1].startswith(row[0])
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("3 min ago")


def test_what_goes_on_stands_below_the_last_column_that_leaves_room() -> None:
    text = "  10:00:00.000  alice  one two three four"
    assert table.wrap(text, 50) == [text]
    assert table.wrap(text, 36) == ["  10:00:00.000  alice  one two three", "    four"]
    assert table.wrap("name  one two three", 12) == ["name  one", "      two", "      three"]


def test_a_message_on_a_terminal_is_broken_between_words_and_not_in_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = f"attachment-ledger operation show {OPERATION}"
    text = f"  It is parked. See what may be done: {command}"
    assert table.fitted(text, io.StringIO()) == text
    lines = table.fitted(text, Terminal()).splitlines()
    assert lines == ["  It is parked. See what may be done:", f"    {command}"]


def test_a_history_fits_80_columns_on_a_terminal(screen: Screen, stub: Stub) -> None:
    asked = event(3, "Operation.OperationRequested", {"flow": "detach", "server_id": SERVER})
    stub.answers[HISTORY] = page(asked)
    lines = screen("history", "volume", VOLUME).splitlines()
    assert max(map(len, lines)) <= 80
    assert OPERATION[:8] in lines[0]
    assert OPERATION not in "".join(lines)


def test_a_running_operation_says_in_its_list_what_it_waits_for(screen: Screen, stub: Stub) -> None:
    at = dict(operation().steps[1])
    stub.answers["GET /v1/operations"] = operations(
        state="running", why=None, at={**at, "verb": "volume_disconnect", "attempts": 2}
    )
    shown = " ".join(screen("operation", "list").split())
    assert "disconnect: waiting for os-brick, 3" in shown


def test_what_a_shell_evaluates_is_no_command_of_a_name(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    name = '$(echo x)`echo y`"; echo z; "${HOME} \\" \\$HOME \\'
    stub.answers[f"GET /v1/operations/{OPERATION}"] = operation(actor=name)
    assert run("operation", "show", OPERATION, "-f", "shell") == 0
    told = [capsys.readouterr().out, 'printf %s "$who"']
    done = subprocess.run(["sh", "-c", "\n".join(told)], capture_output=True, text=True, check=True)
    assert done.stdout == name
