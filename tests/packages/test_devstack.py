"""The DevStack plugin: its phases in a directory of their own, and what both programs say of it.

Only what DevStack itself has is played: its functions note how they were called.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from host_agent import config as agent_config
from ledger import config
from ledger.cli.plugin import SERVICE_TYPE
from ledger.config import hash_token
from tests import tools

ROOT = Path(__file__).parents[2]
SHELLCHECK = tools.found("shellcheck")
#: `stack.sh` gives these to a plugin.
GIVEN = {
    "DEST": "{0}/dest",
    "DATA_DIR": "{0}/data",
    "LEDGER_CONF_DIR": "{0}/etc",
    "SERVICE_HOST": "192.0.2.5",
    "SERVICE_PASSWORD": "secret-of-the-services",
    "SERVICE_PROJECT_NAME": "service",
    "SERVICE_DOMAIN_NAME": "Default",
    "SERVICE_TIMEOUT": "60",
    "REGION_NAME": "RegionOne",
    "KEYSTONE_SERVICE_URI": "http://192.0.2.5/identity",
    "LIBVIRT_TYPE": "qemu",
    "STACK_USER": "stack",
}
DEVSTACK = """
set -euo pipefail
function noted { echo "$*" >>"$NOTED"; }
for name in install_package create_service_user get_or_create_service get_or_create_endpoint \
    run_process stop_process wait_for_service; do
    eval "function $name { noted $name \\"\\$@\\"; }"
done
function enable_service { ENABLED="${ENABLED:-$*}"; }
function is_service_enabled {
    local each
    for each in "$@"; do [[ " $ENABLED " != *" $each "* ]] || return 0; done
    return 1
}
function die { echo "$*" >&2; exit 1; }
# As root there, and not here: what is asked of PostgreSQL is noted.
function sudo {
    case "$1 $2" in
    "-u postgres") noted "$@" ;;
    "install -d") shift 4; mkdir -p "$@" ;;
    *) "$@" ;;
    esac
}
function python3 { noted python3 "$@"; mkdir -p "$3/bin"; ln -sf "$PROGRAMS"/* "$3/bin/"; }
source "$PLUGIN/settings"
for phase in "$@"; do
    set -- $phase
    source "$PLUGIN/plugin.sh" "$@"
done
"""


class Machine:
    def __init__(self, home: Path) -> None:
        self.home, self.noted = home, home / "noted"
        programs = home / "programs"
        programs.mkdir()
        for name in ("pip", "attachment-ledger"):
            program = programs / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >>"{self.noted}"\n')
            program.chmod(0o755)
        (home / "devstack.sh").write_text(DEVSTACK)

    def run(self, *phases: str, **more: str) -> list[str]:
        """What was noted."""
        self.noted.write_text("")
        given = {name: value.format(self.home) for name, value in GIVEN.items()}
        own = {
            "NOTED": str(self.noted),
            "PROGRAMS": str(self.home / "programs"),
            "PLUGIN": str(ROOT / "devstack"),  # where `enable_plugin` looks
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            ["bash", str(self.home / "devstack.sh"), *phases],
            env={**given, **own, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return self.noted.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


STACKED = ("stack install", "stack post-config", "stack extra")


def test_it_comes_up_in_devstacks_phases(machine: Machine) -> None:
    noted = machine.run(*STACKED)
    words = [line.split()[0] for line in noted]
    assert words.index("install_package") < words.index("python3") < words.index("pip")
    assert f"pip install --editable {ROOT}[service,agent]" in noted
    options = "--owner stack --encoding UTF8 --lc-collate C --template template0"
    made = noted.index(f"-u postgres createdb {options} ledger")
    upgraded = noted.index(f"attachment-ledger db upgrade --config {machine.home}/etc/ledger.toml")
    begun = [number for number, word in enumerate(words) if word == "run_process"]
    assert made < upgraded < begun[0] < words.index("wait_for_service") < begun[1]
    assert "create_service_user attachment-ledger admin" in noted
    [service] = [line for line in noted if line.startswith("get_or_create_service")]
    assert service.split()[1:3] == ["attachment-ledger", SERVICE_TYPE]
    [place] = [line.split()[1:] for line in noted if line.startswith("get_or_create_endpoint")]
    assert place == [SERVICE_TYPE, "RegionOne", "http://192.0.2.5:8790"]


def test_what_it_writes_both_programs_take(machine: Machine) -> None:
    machine.run(*STACKED)
    service = config.load(machine.home / "etc/ledger.toml", flags={}, environ={})
    agent = agent_config.load(machine.home / "etc/agent.toml", flags={}, environ={})
    [token] = service.tokens
    assert (token.host, token.token_sha256) == (
        agent.agent.host,
        hash_token(agent.ledger.token or ""),
    )
    assert agent.ledger.url == f"http://192.0.2.5:{service.listen.port}"
    assert service.cinder.auth == agent.cinder.auth
    shown = subprocess.run(
        [
            *(sys.executable, "-m", "ledger", "config", "show"),
            *("--config", str(machine.home / "etc/ledger.toml")),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert shown.returncode == 0, shown.stderr
    assert GIVEN["SERVICE_PASSWORD"] not in shown.stdout


def test_a_machine_of_guests_has_the_agent_alone(machine: Machine) -> None:
    noted = machine.run(*STACKED, ENABLED="ledger-agent")
    assert not [line for line in noted if "postgres" in line or "create_" in line]
    assert [line.split()[1] for line in noted if line.startswith("run_process")] == ["ledger-agent"]
    assert not (machine.home / "etc/ledger.toml").exists()


def test_nothing_is_done_where_it_is_disabled(machine: Machine) -> None:
    assert machine.run(*STACKED, "unstack", "clean", ENABLED="n-cpu") == []


def test_it_goes_and_leaves_nothing(machine: Machine) -> None:
    machine.run(*STACKED)
    noted = machine.run("unstack", "clean")
    assert noted == ["stop_process ledger-agent", "stop_process ledger"]
    left = [
        path.name for name in ("etc", "data", "dest") for path in machine.home.glob(f"{name}/*")
    ]
    assert left == []


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "script",
    ["devstack/plugin.sh", "devstack/settings", "sbom.sh", "debian/build.sh", "debian/postrm"],
)
def test_shellcheck_finds_nothing(script: str) -> None:
    """Of a plugin's settings others make use: SC2034 asks for a use in the file."""
    asked = [str(SHELLCHECK), "--shell=bash", "--exclude=SC2034", str(ROOT / "deploy" / script)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == ""
