"""Several ledgers (cells): one command asks each by itself, and names who is silent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ledger.cli import cells, shell
from ledger.cli.cliff_parts import CommandTable
from ledger.native.schemas import Operations
from tests.databases import Databases
from tests.service.cli_stub import (
    SERVER,
    VOLUME,
    Run,
    Screen,
    Stub,
    event,
    operations,
    refusing,
    running_stub,
)
from tests.service.test_cli_api import HISTORY, page
from tests.stack import ADMIN, Stack, eventually, running_stack

LISTED = "GET /v1/operations"


@pytest.fixture
def south() -> Iterator[Stub]:
    with running_stub() as running:
        yield running


@pytest.fixture(autouse=True)
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "south" in request.fixturenames:
        north = request.getfixturevalue("stub").url
        urls = f"north={north} south={request.getfixturevalue('south').url}"
        monkeypatch.setenv(cells.VARIABLE, urls)


def test_a_list_of_all_cells_says_of_each_row_where_it_is(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[LISTED], south.answers[LISTED] = operations(), operations(host="hv9")
    assert run("--cell", "all", "operation", "list", "-f", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["Cell"], row["Host"]) for row in rows] == [("north", "hv1"), ("south", "hv9")]


def test_on_a_terminal_the_cell_is_the_first_of_the_columns_that_matter(
    screen: Screen, stub: Stub, south: Stub
) -> None:
    stub.answers[LISTED], south.answers[LISTED] = operations(), operations(host="hv9")
    heads, *rows = screen("--cell", "all", "operation", "list").splitlines()
    assert heads.split()[:2] == ["Cell", "ID"]
    assert [line.split()[0] for line in rows if line[0] != " "] == ["north", "south"]


def test_one_cell_is_asked_in_place_of_the_url(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    south.answers[LISTED] = operations(host="hv9")
    assert run("--cell", "south", "operation", "list", "-f", "value", "-c", "Host") == 0
    assert capsys.readouterr().out == "hv9\n"
    assert stub.asked == []


@pytest.mark.parametrize("trouble", [(500, "bug", "Broken."), (401, "unauthorized", "Who?")])
def test_a_cell_that_refuses_is_named_and_the_others_rows_are_printed(
    trouble: Any, run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[LISTED], south.answers[LISTED] = operations(), refusing(*trouble)
    assert run("--cell", "all", "operation", "list", "-f", "value", "-c", "Cell") == 9
    said = capsys.readouterr()
    assert said.out == "north\n"
    assert f"cell south gave no answer: {trouble[2]}" in said.err


@pytest.mark.parametrize(
    "text",
    ["<html>It works!</html>", '{"versions": []}', "[1]", "null", '{"operations": [{"a": 1}]}'],
)
def test_a_cell_where_no_ledger_answers_is_named_and_the_others_rows_are_printed(
    text: str, run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def other(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    stub.answers[LISTED], south.answers[LISTED] = operations(), other
    assert run("--cell", "all", "operation", "list", "-f", "value", "-c", "Cell") == 9
    said = capsys.readouterr()
    assert said.out == "north\n"
    assert "cell south gave no answer: " in said.err
    assert "is this the ledger?" in said.err


def test_a_history_is_told_of_each_cell_that_knows_the_thing(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    held = page(event(3, "Volume.Held", {"server_id": SERVER}))
    south.answers[HISTORY] = held
    assert run("--cell", "all", "history", "volume", VOLUME) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "cell south"
    assert len(said) > 1
    assert "cell north" not in said
    south.answers.pop(HISTORY)
    assert run("--cell", "all", "history", "volume", VOLUME) == 3


def test_what_one_does_not_know_while_another_is_silent_is_not_said_to_be_unknown(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    south.answers[HISTORY] = south.answers[LISTED] = refusing(503, "away", "The log is away.")
    assert run("--cell", "all", "history", "volume", VOLUME) == 9
    said = capsys.readouterr()
    assert "cell south gave no answer" in said.err
    assert "no cell that answered has anything of it" in said.err
    stub.answers[LISTED] = Operations(operations=[], next=None)
    assert run("--cell", "all", "operation", "list") == 9
    assert "The cells that answered have none." in capsys.readouterr().err
    stub.answers[LISTED] = south.answers[LISTED]
    assert run("--cell", "all", "operation", "list", "-f", "json", "-c", "Host") == 9
    assert capsys.readouterr().out == ""


def test_what_is_typed_for_a_thing_means_in_each_cell_what_it_means_there(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    from ledger.native.log.schemas_find import FoundThings

    other = SERVER.replace("1", "9")
    for each, id_ in ((stub, SERVER), (south, other)):
        thing = {"kind": "server", "id": id_, "name": "db-1"}
        each.answers["GET /v1/find"] = FoundThings.model_validate({"found": [thing]})
        each.answers["GET /v1/operations"] = operations()
    assert run("--cell", "all", "operation", "list", "--server", "db-1") == 0
    assert [asked.query["server"] for asked in stub.asked[-1:] + south.asked[-1:]] == [
        SERVER,
        other,
    ]


@pytest.mark.parametrize(
    "command",
    [
        "host disable hv1 --reason r",
        "attachment refresh --all",
        f"operation show {SERVER}",
        "top --once",
    ],
)
def test_what_is_no_list_asks_one_cell(
    command: str, run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--cell", "all", *command.split()) == 2
    assert "asks one cell" in capsys.readouterr().err
    assert [*stub.asked, *south.asked] == []


def test_an_archive_is_not_told_as_every_cells(
    run: Run, stub: Stub, south: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("history", "volume", VOLUME, "--archive", str(tmp_path))
    assert run("--cell", "all", *asked) == 2
    assert "an archive is one ledger's" in capsys.readouterr().err
    assert [*stub.asked, *south.asked] == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "no cells are known"),
        ("north=http://a all=http://b", "'all=http://b'"),
        ("north=http://a north=http://b", "second time"),
        ("north=ftp://a", "names no cell"),
        ("no/rth=http://a", "names no cell"),
    ],
)
def test_cells_that_are_named_wrongly_are_refused(
    given: str,
    why: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(cells.VARIABLE, given)
    assert run("--cell", "all", "host", "list") == 2
    assert why in capsys.readouterr().err


def test_a_cell_that_nobody_named_is_not_known(
    run: Run, stub: Stub, south: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--cell", "west", "host", "list") == 2
    assert "Known: north, south" in capsys.readouterr().err


def test_all_cells_are_asked_for_lists_and_histories_and_for_nothing_else() -> None:
    table = CommandTable(shell.COMMANDS, "test").commands
    asked = {name for name, each in table.items() if getattr(each.load(), "every_cell", False)}
    lists = {name for name in table if name.startswith("history ") or name.endswith(" list")}
    of_one = {"flow list", "projection list", "sim fault list", "history import", "history sql"}
    assert asked == lists - of_one | {"drift looks"}


@pytest.fixture
def both(
    tmp_path: Path, database_url: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Stack]]:
    """Two clouds with a ledger each; their hosts are called alike."""
    with ExitStack() as exits:
        second = databases.create_migrated()
        exits.callback(databases.drop, second)
        stacks = []
        for name, url in (("north", database_url), ("south", databases.url(second))):
            (tmp_path / name).mkdir()
            stack = exits.enter_context(running_stack(tmp_path / name, url))
            stack.add_server()
            stack.start_service()
            stack.start_agent()
            stack.wait_for_host()
            stacks.append(stack)
        monkeypatch.setenv("LEDGER_TOKEN", ADMIN)
        named = zip(("north", "south"), stacks, strict=True)
        monkeypatch.setenv(
            cells.VARIABLE, " ".join(f"{name}={stack.url('')}" for name, stack in named)
        )
        yield stacks


def _states(stack: Stack, volume: str) -> list[str]:
    found = stack.get(f"/v1/attachments?volume={volume}").json()["attachments"]
    return [each["state"] for each in found]


@pytest.mark.slow
def test_a_paused_cell_is_named_and_the_other_says_who_held_the_volume(
    both: list[Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    north, south = both
    [server], volume = north.servers, north.add_volume()
    north.attach(server, volume)
    eventually(lambda: _states(north, volume) == ["attached"], "an attachment")
    who_held = ["--cell", "all", "attachment", "list", "--volume", volume, "-f", "json"]
    hosts = ["--cell", "all", "host", "list", "-f", "value", "-c", "Cell", "-c", "Host"]
    assert shell.main(hosts) == 0
    assert capsys.readouterr().out == "north compute-1\nsouth compute-1\n"
    assert shell.main(who_held) == 0
    [held] = json.loads(capsys.readouterr().out)
    south.components[0].pause()
    assert shell.main(who_held) == 9
    said = capsys.readouterr()
    assert json.loads(said.out) == [held]
    assert (held["Cell"], held["Server"]) == ("north", server)
    assert "cell south gave no answer" in said.err
    assert "has not answered yet" in said.err
    south.components[0].kill()
    assert shell.main(hosts) == 9
    assert "connection refused" in capsys.readouterr().err
