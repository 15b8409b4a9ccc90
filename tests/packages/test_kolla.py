"""The role for kolla-ansible, run by Ansible with kolla-ansible's filters, modules and defaults.

Two hosts that are this machine.  What would start containers notes what it was asked, behind
kolla-ansible's own check of arguments; so does what would register in Keystone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from host_agent import config as agent_config
from ledger import config
from ledger.cli.plugin import SERVICE_TYPE
from ledger.config import hash_token
from tests.tokens import write_private

DEPLOY = Path(__file__).parents[2] / "deploy/kolla"
KOLLA = Path(sys.prefix) / "share/kolla-ansible/ansible"
WORKER = """
import json

class DockerWorker:
    changed, result = True, {}

    def __init__(self, module):
        self._params = module.params

    def __getattr__(self, action):
        with open(NOTED, "a") as file:
            file.write(json.dumps(self._params) + "\\n")
        return lambda: True
"""
REGISTER = """
- ansible.builtin.copy:
    dest: "{{ registered }}"
    content: "{{ {'services': service_ks_register_services, 'users': users} | to_json }}"
  vars:
    users: "{{ service_ks_register_users }}"
  run_once: true
"""
INVENTORY = """
[attachment-ledger]
controller
[attachment-ledger-agent]
compute
[all:vars]
ansible_connection=local
ansible_become=false
"""
GIVEN = {
    "attachment_ledger_database_url": "postgresql://ledger:pw@192.0.2.10/ledger",
    "attachment_ledger_keystone_password": "keystone-password",
    "attachment_ledger_agent_secret": "0123456789abcdef0123456789abcdef",
}

pytestmark = [pytest.mark.slow]


class Kolla:
    """A copy of kolla-ansible with our role in it, as docs/install.md has one make it."""

    def __init__(self, home: Path) -> None:
        self.home, self.tree = home, home / "ansible"
        shutil.copytree(KOLLA, self.tree)
        shutil.copytree(DEPLOY, self.tree, dirs_exist_ok=True)
        noted = f"NOTED = {str(home / 'noted')!r}\n"
        utils = self.tree / "module_utils"
        (utils / "kolla_docker_worker.py").write_text(noted + WORKER)
        (utils / "kolla_container_worker.py").write_text("class ContainerWorker: pass\n")
        (self.tree / "roles/service-ks-register/tasks/main.yml").write_text(REGISTER)
        (home / "inventory").write_text(INVENTORY)

    def run(self, action: str, **given: Any) -> subprocess.CompletedProcess[str]:
        own = {
            "kolla_action": action,
            "node_config_directory": f"{self.home}/{{{{ inventory_hostname }}}}",
            "registered": str(self.home / "registered"),
            "api_interface": "lo",
            "migration_interface": "lo",
            "kolla_internal_vip_address": "127.0.0.1",
            "kolla_same_external_internal_vip": True,  # else it asks a collection of Galaxy's
            "docker_registry": "registry:5000",
            "docker_registry_password": "",  # of its passwords.yml
            "kolla_action_stop_ignore_missing": False,  # of its command line
            "attachment_ledger_uid": str(os.getuid()),
            "ansible_python_interpreter": sys.executable,
        }
        playbook = str(self.tree / "attachment-ledger.yml")
        command = [str(Path(sys.executable).with_name("ansible-playbook")), playbook]
        words = ["-i", str(self.home / "inventory"), "-e", json.dumps(own | GIVEN | given)]
        environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin",
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_NOCOLOR": "1",
        }
        return subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=self.tree,
        )

    def ran(self, action: str, **given: Any) -> list[dict[str, Any]]:
        """What it asked of containers, in order."""
        (self.home / "noted").write_text("")
        done = self.run(action, **given)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        return [json.loads(line) for line in (self.home / "noted").read_text().splitlines()]


@pytest.fixture(scope="module")
def kolla(tmp_path_factory: pytest.TempPathFactory) -> Kolla:
    return Kolla(tmp_path_factory.mktemp("kolla"))


def test_what_it_writes_both_programs_take(kolla: Kolla, tmp_path: Path) -> None:
    asked = kolla.ran("deploy", openstack_cacert="/etc/ssl/certs/ca-certificates.crt")
    told = [(each["action"], each["name"]) for each in asked]
    [first, *_], restarts = told, [each for each in told if each[0].startswith("recreate")]
    assert first[0] == "compare_container"
    assert told.index(("start_container", "bootstrap_attachment_ledger")) < min(
        map(told.index, restarts)
    ), "the database first"
    assert len(restarts) == 2

    text = (kolla.home / "controller/attachment-ledger/ledger.toml").read_text()
    settings = config.load(write_private(tmp_path / "ledger.toml", text), flags={})
    assert settings.database_url == GIVEN["attachment_ledger_database_url"]
    assert settings.listen.host == "127.0.0.1"
    assert (settings.cinder.auth or {})["password"] == GIVEN["attachment_ledger_keystone_password"]

    text = (kolla.home / "compute/attachment-ledger-agent/agent.toml").read_text()
    agent = agent_config.load(write_private(tmp_path / "agent.toml", text), flags={})
    [token] = settings.tokens
    assert (token.host, token.token_sha256) == (
        agent.agent.host,
        hash_token(agent.ledger.token or ""),
    )
    assert agent.ledger.url == "http://127.0.0.1:8790"

    registered = json.loads((kolla.home / "registered").read_text())
    [ours] = registered["services"]
    assert (ours["name"], ours["type"]) == ("attachment-ledger", SERVICE_TYPE)
    assert {each["role"] for each in registered["users"]} == {"admin", "service"}


def test_the_agents_container_is_what_the_manual_says(kolla: Kolla) -> None:
    """docs/containers.md, but for Kolla's own volume of iscsid."""
    asked = kolla.ran("reconfigure", attachment_ledger_port=8791)
    [agent] = [
        each
        for each in asked
        if each["action"].startswith("recreate") and each["name"] == "attachment_ledger_agent"
    ]
    assert (agent["privileged"], agent["pid_mode"], agent["ipc_mode"]) == (True, "host", "host")
    assert agent["image"] == "registry:5000/attachment-ledger-agent:latest"
    page = (DEPLOY.parents[1] / "docs/containers.md").read_text()
    places = {each.split(":")[1].rstrip("/") for each in agent["volumes"]}
    assert places == {
        word.split(":")[1]
        for word in page.partition("# podman run")[2].partition("```")[0].split()
        if word.startswith("/") and word.split(":")[1] not in {"/etc/iscsi", "/etc/multipath"}
        if not word.startswith("/etc/nvme")
    }


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_not_given_is_told_before_anything_is_done(kolla: Kolla, name: str) -> None:
    assert kolla.ran("precheck") == []
    done = kolla.run("precheck", **{name: ""})
    assert done.returncode != 0
    assert name in done.stdout


@pytest.mark.parametrize("action", ["pull", "stop"])
def test_both_are_pulled_and_stopped(kolla: Kolla, action: str) -> None:
    asked = kolla.ran(action)
    assert len(asked) == 2
    assert {each["action"].partition("_")[0] for each in asked} == {action}
