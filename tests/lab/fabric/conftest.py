"""Fixtures of the fabric's tests, in place of the lab's.  `run.sh` has started all they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator

import pytest

if os.environ.get("LAB_TIER") != "fabric":
    collect_ignore_glob = ["test_*.py"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a test that fails, the end of the agent's log, and what is under way."""
    report = yield
    if report.failed:
        from tests.lab.fabric import world

        report.sections.append(("log of the agent", world.log_end()))
        report.sections.append(("operations", world.as_json(world.operations())))
    return report


@pytest.fixture(autouse=True)
def _processes_run() -> Iterator[None]:
    """However a test ends, the next one finds both paths and the agent, and nothing connected."""
    from tests.lab.fabric import world

    yield
    world.script("vm.sh", "up")
    world.vm("rm -f /run/die; for a in 1 2; do ip address replace 10.90.0.$a/32 dev lo; done")
    world.script("cinder.sh")
    world.script("ledger.sh", "agent")
    left = world.attachments()
    for volume in left:
        world.ask_detach(volume)
    world.wait_until(lambda: not world.attachments(), "the server to have no volumes")
    world.wait_until(lambda: not world.operations(), "the operations to end")
    for volume, status in world.volumes().items():
        if status == "available":
            world.cinder("DELETE", f"/volumes/{volume}")
    world.wait_until(lambda: not world.connected(), "all connections to end")


@pytest.fixture
def server() -> str:
    """A guest that runs, and that the service knows."""
    from tests.lab.fabric import world

    if world.NAME not in world.vm("virsh -q list --all --name"):
        world.vm("cat >/tmp/guest.xml; virsh -q define /tmp/guest.xml", world.XML)
    if "paused" not in world.vm(f"virsh domstate {world.NAME}"):
        world.vm(f"virsh -q start --paused {world.NAME}")

    def active() -> bool:
        found = world.ledger("GET", "/v2.1/servers/detail")["servers"]
        return any(each["id"] == world.SERVER and each["status"] == "PAUSED" for each in found)

    world.wait_until(active, "the service to know the server")
    return world.SERVER


@pytest.fixture
def new_volume(server: str) -> Callable[[str], str]:
    """Makes a volume of a backend, which begins with its own id."""
    from tests.lab.fabric import world

    def make(kind: str) -> str:
        if kind not in {each["name"] for each in world.cinder("GET", "/types")["volume_types"]}:
            asked = {"name": kind, "extra_specs": {"volume_backend_name": kind}}
            world.cinder("POST", "/types", {"volume_type": asked})
        body = {"volume": {"size": 1, "volume_type": kind}}
        made = str(world.cinder("POST", "/volumes", body)["volume"]["id"])
        world.wait_until(lambda: world.volumes()[made] != "creating", f"volume {made}")
        assert world.volumes()[made] == "available"
        lv = f"/dev/fab/volume-{made}"
        world.vm(f"dd of={lv} bs=512 conv=sync,fsync oflag=direct status=none", made)
        return made

    return make
