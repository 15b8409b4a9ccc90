"""The first volume on a cloud with Keystone, by the very lines of docs/keystone.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, node_of, wait_node
from tests.lab.settings import ENV, LAB_DIR
from tests.lab.world import CLI_S

pytestmark = pytest.mark.lab

PAGE = Path(ENV["LAB_ROOT"]) / "docs/keystone.md"


def lines() -> list[str]:
    """The commands of the page's section."""
    section = PAGE.read_text().split("## Attach a first volume\n")[1].split("\n## ")[0]
    return [line.removeprefix("$ ") for line in section.splitlines() if line.startswith("$ ")]


class Shell:
    """One after the other, as a person types them: what is exported stays."""

    def __init__(self, **names: str) -> None:
        self._exports: list[str] = []
        self._names = names
        settings = {name: value for name, value in ENV.items() if name != "OS_CLOUD"}
        settings.pop("LEDGER_TOKEN")
        programs = f"{LAB_DIR}/venv-client/bin:{ENV['LAB_VENV']}/bin"
        self._env = settings | {"PATH": f"{programs}:{ENV['PATH']}"}

    def type(self, line: str) -> str:
        for name, value in self._names.items():
            line = line.replace(f" {name}", f" {value}")
        if line.startswith("export "):
            self._exports.append(line)
        done = subprocess.run(
            ["bash", "-ec", "\n".join([*self._exports, line])],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=CLI_S,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout


def test_a_member_attaches_a_first_volume_by_the_lines_of_the_page(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    shell, told = Shell(VM=guest.id, VOLUME=volume), {}
    for line in lines():
        told[line] = shell.type(line)
        if " add volume" in line:
            lab.cloud.wait_status(volume, "in-use")
            with guest.console() as console:
                wait_node(console, volume)
    assert guest.id in told["openstack server list"]
    assert volume in told["openstack server volume list VM"]
    assert f"Attach requested: server {guest.id}" in told["attachment-ledger history server VM"]
    lab.cloud.wait_status(volume, "available")
    with guest.console() as console:
        assert node_of(console, volume) is None
