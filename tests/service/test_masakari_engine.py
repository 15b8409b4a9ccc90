"""Masakari's own engine, unmodified, recovers a host of ours: its recovery flow, its database.

What runs is masakari.engine's TaskFlow driver with all tasks of its default flow, in an environment
of its own, where `pip install` brings it.  It logs in at a simulated Keystone.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.config import Fencing
from tests.doubles.simulated_keystone import PASSWORD, SimulatedKeystone
from tests.service import keystone_world
from tests.service.api_world import HOST, NEWEST, OTHER, Api, guest, running_api
from tests.service.test_ha_controllers import FORCE

MASAKARI = "masakari==22.0.0"
SETTINGS = """
[DEFAULT]
nova_catalog_admin_info = compute:compute:publicURL
os_privileged_user_name = masakari
os_privileged_user_password = {password}
os_privileged_user_tenant = service
os_privileged_user_auth_url = {keystone}/v3
wait_period_after_service_update = 1
wait_period_after_evacuation = 60
verify_interval = 1
[keystone_authtoken]
auth_type = password
[database]
connection = sqlite:///{home}/masakari.db
[taskflow]
connection = sqlite:///{home}/taskflow.db
"""
#: As `masakari-engine` begins, up to where a notification of a host that is down comes to.
ENGINE = """
import sys, uuid
import masakari.cmd.engine
from masakari import config, context, objects
from masakari.db import migration
from masakari.engine.drivers.taskflow import driver
config.parse_args(["masakari-engine", "--config-file", sys.argv[1]])
objects.register_all()
migration.db_sync()
driver.TaskFlowDriver().execute_host_failure(
    context.get_admin_context(), sys.argv[2], "auto", str(uuid.uuid4())
)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has Masakari."""
    home = tmp_path_factory.mktemp("masakari") / "venv"
    found = home / "bin/python"
    for words in (
        (sys.executable, "-m", "venv", str(home)),
        (str(found), "-m", "pip", "install", "--quiet", MASAKARI),
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.fixture
async def api(keystone: SimulatedKeystone, database_url: str) -> AsyncIterator[Api]:
    given = replace(
        keystone_world.settings(keystone), fencing=Fencing(controllers=("user-operator",))
    )
    keystone.user("masakari", "admin", project="service")
    async with running_api(database_url, given) as running:
        keystone.catalog["compute"] = str(running.http.make_url("/v2.1"))
        yield running


def settings_in(home: Path, keystone: SimulatedKeystone) -> Path:
    """Masakari's settings, and its databases beside them."""
    home.mkdir()
    file = home / "masakari.conf"
    password = PASSWORD.format("masakari")
    file.write_text(SETTINGS.format(password=password, keystone=keystone.url, home=home))
    return file


async def recovered(python: Path, file: Path) -> tuple[int, str]:
    """What Masakari's flow ends with, and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-c", ENGINE, file, HOST),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def played(api: Api) -> None:
    """The evacuation's host does all that it is told, for as long as this runs."""
    while True:
        rows = (await api.get("/v1/operations"))["operations"]
        for row in rows:
            if row["flow"] == "evacuate" and row["state"] == "running":
                headers = {"X-Attachment-Ledger-Operation": f"/v1/operations/{row['operation_id']}"}
                await api.played(SimpleNamespace(headers=headers))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)


@pytest.mark.nightly
async def test_masakaris_flow_recovers_a_host_that_is_fenced_and_no_other(
    api: Api, python: Path, keystone: SimulatedKeystone, tmp_path: Path
) -> None:
    servers = [guest(), guest()]
    await api.two_hosts(*servers)
    await api.projected()
    code, said = await recovered(python, settings_in(tmp_path / "alive", keystone))
    assert code != 0, said
    assert "HostRecoveryFailureException" in said
    host = await api.get(f"/v1/hosts/{HOST}")
    assert (host["disabled"], host["guests"]) == (True, 2), "it is disabled, and that is all"

    answer = await api.ask("PUT", FORCE, "operator", NEWEST, json={"forced_down": True})
    assert answer.status == 200, await answer.text()
    playing = asyncio.create_task(played(api))
    try:
        code, said = await recovered(python, settings_in(tmp_path / "fenced", keystone))
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    assert code == 0, said
    for each in servers:
        shown = (await api.get(f"/v2.1/servers/{each['server_id']}", version="2.53"))["server"]
        assert (shown["OS-EXT-SRV-ATTR:host"], shown["status"]) == (OTHER, "ACTIVE")
        assert shown["locked"] is False
