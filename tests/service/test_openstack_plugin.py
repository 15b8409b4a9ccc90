"""Our commands behind the unmodified `openstack`, with Keystone's session and without."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest

from ledger.cli.plugin import API_NAME, NOUN
from ledger.cli.shell import COMMANDS, Shell
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service import cli_stub, keystone_world
from tests.service.api_world import HOST, PROJECT, Api, running_api
from tests.service.cli_stub import OPERATION, Stub

ROOT = Path(__file__).parents[2]
GROUP = f"openstack.{API_NAME}.v1"
#: Commands that ask no service: they read settings, other clouds, or only this program.
LOCAL = {"config", "db", "demo", "event archive", "projection"}
LOCAL |= {"event erase-person", "event prove", "event restore", "event sign", "event verify"}
LOCAL |= {"complete", "flow", "forward", "serve", "sim", "survey"}


class Done(NamedTuple):
    code: int | None
    out: str
    err: str


async def openstack(*words: str, **environ: str) -> Done:
    """`openstack WORDS`, which knows of no cloud but what `environ` says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("openstack"),
        *words,
        env=kept | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Done(process.returncode, out.decode(), err.decode())


def logged_in(options: dict[str, str]) -> dict[str, str]:
    """keystoneauth's options, as the environment has them."""
    return {f"OS_{name.upper()}": value for name, value in options.items()}


@pytest.fixture
async def api(keystone: SimulatedKeystone, database_url: str) -> AsyncIterator[Api]:
    async with running_api(database_url, keystone_world.settings(keystone)) as running:
        keystone.catalog["attachment-ledger"] = str(running.http.make_url("/"))
        yield running


# ------------------------------------------------------------------------- with Keystone


@pytest.mark.slow
async def test_url_and_token_are_those_of_the_session(
    api: Api, keystone: SimulatedKeystone
) -> None:
    server, volume = await api.server(), api.volume()
    alice = logged_in(keystone.user("alice", "admin", project=PROJECT))
    listed = await openstack("attachment", "ledger", "host", "list", "-f", "value", **alice)
    assert (listed.code, listed.out.split()[0]) == (0, HOST), listed
    began = await openstack(*NOUN.split(), "server", "add", "volume", server, volume, **alice)
    assert began.code == 0, began
    told = await openstack(*NOUN.split(), "history", "server", server[:8], **alice)
    assert re.search(rf"alice .*Attach requested: volume {volume}", told.out), told


@pytest.mark.slow
async def test_an_endpoint_that_is_given_counts_more_than_the_catalog(
    api: Api, keystone: SimulatedKeystone, tmp_path: Path
) -> None:
    await api.server()
    bob = logged_in(keystone.user("bob", "reader", "admin", project=PROJECT))
    where = keystone.catalog.pop("attachment-ledger")
    words = (*NOUN.split(), "host", "list", "-f", "value", "-c", "Host")
    unknown = await openstack(*words, **bob)
    assert unknown.code == 1
    assert "error: The catalog has no public endpoint of type" in unknown.err
    assert "--os-attachment-ledger-endpoint URL" in unknown.err
    option = await openstack("--os-attachment-ledger-endpoint", where, *words, **bob)
    variable = await openstack(*words, **bob, OS_ATTACHMENT_LEDGER_ENDPOINT=where)
    (tmp_path / "clouds.yaml").write_text(
        f"clouds: {{here: {{attachment_ledger_endpoint_override: '{where}'}}}}"
    )
    file = {"OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml"), "OS_CLOUD": "here"}
    of_the_file = await openstack(*words, **bob, **file)
    assert [each.out for each in (option, variable, of_the_file)] == [f"{HOST}\n"] * 3


@pytest.mark.slow
async def test_refusals_have_our_exit_codes_and_name_no_option_that_openstack_lacks(
    api: Api, keystone: SimulatedKeystone
) -> None:
    reader = logged_in(keystone.user("carol", "reader", project=PROJECT))
    refused = await openstack(*NOUN.split(), "host", "list", **reader)
    assert (refused.code, refused.out) == (4, ""), refused
    missing = await openstack(*NOUN.split(), "server", "show", "nothing-is-called-so", **reader)
    assert missing.code == 3, missing
    wrong = await openstack(*NOUN.split(), "host", "list", "--parked", **reader)
    assert (wrong.code, wrong.out) == (2, ""), wrong
    assert f"See: openstack {NOUN} host list --help" in wrong.err
    away = {"OS_ATTACHMENT_LEDGER_ENDPOINT": "http://127.0.0.1:9"}
    nobody = await openstack(*NOUN.split(), "host", "list", **reader, **away)
    assert nobody.code == 1
    assert "openstack catalog show attachment-ledger" in nobody.err
    assert "--url" not in nobody.err


# ---------------------------------------------------------------------- without Keystone


def by_token(stub: Stub) -> dict[str, str]:
    return {"OS_AUTH_TYPE": "admin_token", "OS_ENDPOINT": stub.url, "OS_TOKEN": "a-token"}


@pytest.mark.slow
async def test_a_token_the_ledger_does_not_know_is_told_in_the_words_of_openstack(
    stub: Stub,
) -> None:
    stub.answers["GET /v1/hosts"] = cli_stub.refusing(401, "unauthenticated", "Who is it?")
    done = await openstack(*NOUN.split(), "host", "list", **by_token(stub))
    assert done.code == 4
    assert "openstack token issue" in done.err
    assert stub.asked[-1].headers["x-auth-token"] == "a-token"


@pytest.mark.slow
async def test_no_text_gives_a_terminal_an_order(stub: Stub) -> None:
    stub.answers["GET /v1/operations"] = cli_stub.operations(server_name="db\x1b[2J")
    words = (*NOUN.split(), "operation", "list", "-f", "value")
    done = await openstack(*words, **by_token(stub))
    assert (done.code, "\x1b" in done.out) == (0, False), done
    assert OPERATION in done.out


# ------------------------------------------------------------------------- what is offered


def is_local(command: str) -> bool:
    return command.partition(" ")[0] in LOCAL or command in LOCAL


def test_what_goes_through_the_api_is_offered_and_nothing_else() -> None:
    """The wanted table is that of the program, below our noun."""
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    wanted = {
        f"{NOUN} {name}".replace(" ", "_"): where
        for name, where in COMMANDS.items()
        if not is_local(name)
    }
    assert offered[GROUP] == wanted


def test_no_command_that_is_offered_reads_settings() -> None:
    shell = Shell()
    for name in COMMANDS:
        kind = shell.command_manager.commands[name].load()
        options = kind(shell, None, cmd_name=name).get_parser(name).format_usage()
        assert not ("--database-url" in options and not is_local(name)), name


def test_the_installed_package_has_that_table() -> None:
    """What `openstack` finds; where it differs, the package was installed before a change."""
    there = {point.name for point in entry_points(group=GROUP)}
    assert len(there) == sum(not is_local(name) for name in COMMANDS)
