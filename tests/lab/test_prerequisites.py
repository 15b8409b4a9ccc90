"""What the lab asks of its machine before it starts, and says when it is not there."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import LabGuest
from tests.lab.settings import ENV, LAB_SRC, SETTLE_S

pytestmark = pytest.mark.lab


@pytest.fixture
def taken() -> Iterator[str]:
    """A port on which a stranger listens: this process."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        yield str(stranger.getsockname()[1])


def bash(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f". {LAB_SRC}/env.sh; . {LAB_SRC}/lib.sh; {script}"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=SETTLE_S,
        check=False,
    )


def test_a_tool_that_is_missing_is_named_with_its_package() -> None:
    done = bash("tools bash=bash cryptsetup-bin=no-such-tool libvirt-dev")
    assert done.returncode != 0
    assert "no-such-tool (package cryptsetup-bin)" in done.stderr
    assert "bash (" not in done.stderr


@pytest.mark.parametrize("daemon", ["KEYSTONE", "GATE", "CINDER", "LEDGER"])
def test_the_lab_does_not_start_beside_a_stranger_on_one_of_its_ports(
    daemon: str, taken: str
) -> None:
    setting = f"LAB_{daemon}_PORT"
    done = bash(f"{LAB_SRC}/up.sh quick", **{setting: taken})
    assert done.returncode != 0
    assert f"port {taken}" in done.stderr
    assert f"{os.getpid()} " in done.stderr, "who it is"
    assert f"{setting}=" in done.stderr, "what can be done"


def test_only_the_lab_s_own_daemon_is_taken_for_it(taken: str) -> None:
    assert bash(f"listens cinder {ENV['LAB_CINDER_PORT']}").returncode == 0
    assert bash(f"listens cinder {taken}").returncode != 0
    assert bash(f"listens gate {ENV['LAB_CINDER_PORT']}").returncode != 0


def test_the_lab_buries_its_guests_itself(guest: LabGuest) -> None:
    """PID 1 of a container may take seconds, for which libvirtd waits at the end of each guest."""
    pid = Path(f"/run/libvirt/qemu/{guest.name}.pid").read_text()
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert "reaper.py" in Path(f"/proc/{parent}/cmdline").read_text()


def test_neither_another_cloud_nor_a_proxy_comes_between() -> None:
    shown = bash(
        "env",
        OS_CLOUD="another",
        OS_AUTH_URL="another",
        http_proxy="http://192.0.2.1",
        no_proxy="example",
    )
    assert f"OS_CLOUD={ENV['OS_CLOUD']}\n" in shown.stdout
    assert "OS_AUTH_URL" not in shown.stdout
    for name in ("no_proxy", "NO_PROXY"):
        [line] = [line for line in shown.stdout.splitlines() if line.startswith(f"{name}=")]
        assert {"127.0.0.1", ENV["LAB_ADDRESS"], "example"} <= set(line.split("=")[1].split(","))
