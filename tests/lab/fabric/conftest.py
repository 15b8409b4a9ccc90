"""Fixtures of the fabric's tests, in place of the lab's.  `run.sh` has started all they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from uuid import uuid4

import pytest

LUKS = {
    "provider": "luks",
    "cipher": "aes-xts-plain64",
    "key_size": 256,
    "control_location": "front-end",
}

if os.environ.get("LAB_TIER") == "fabric":
    from tests.lab.fabric import world
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a test that fails, the end of the agent's log, and what is under way."""
    report = yield
    if report.failed:
        for host in world.HOSTS:
            report.sections.append((f"log of agent {host}", world.log_end(host)))
        report.sections.append(("operations", world.as_json(world.latest()[:5])))
    return report


@pytest.fixture(autouse=True)
def _processes_run() -> Iterator[None]:
    """However a test ends, the next one finds both paths and the agent, and nothing connected."""
    yield
    world.on_each(lambda host: world.script("vm.sh", "up", on=host))
    world.vm("for a in 1 2; do ip address replace 10.90.0.$a/32 dev lo; done")
    world.script("cinder.sh", "up")
    world.on_each(lambda host: world.script("ledger.sh", "agent", on=host))
    there = world.guests(1)
    for server in world.SERVERS:
        if server.name in there:
            _let_go(server)
    for server_id in _known() - {server.id for server in world.SERVERS}:
        world.ledger("DELETE", f"/v2.1/servers/{server_id}")
    world.settled()
    for volume, status in world.volumes().items():
        if status == "available":
            world.cinder("DELETE", f"/volumes/{volume}")
    world.wait_until(lambda: not world.connected(), "all connections to end")


def _known() -> set[str]:
    return {each["id"] for each in world.ledger("GET", "/v2.1/servers")["servers"]}


def _let_go(server: world.Server) -> None:
    for volume in server.attachments():
        server.ask_detach(volume)
    none = "the server to have no volumes"
    world.wait_until(lambda: not server.attachments(), none, world.OUTSIDE_S)


@pytest.fixture
def servers() -> list[world.Server]:
    """Two guests that run, and that the service knows."""
    for server in world.SERVERS:
        server.start()
    known = {server.id for server in world.SERVERS}

    def active() -> bool:
        found = world.ledger("GET", "/v2.1/servers/detail")["servers"]
        return known <= {each["id"] for each in found if each["status"] == "PAUSED"}

    world.wait_until(active, "the service to know the servers", world.OUTSIDE_S)
    return world.SERVERS


@pytest.fixture
def new_server() -> Callable[[int], world.Server]:
    """Makes a guest that is off, which the service knows; deleted afterwards."""

    def make(on: int) -> world.Server:
        made = world.Server(f"moving-{uuid4().hex[:6]}", str(uuid4()))
        made.define(on)
        known = "the service to know the server"
        world.wait_until(lambda: made.id in _known(), known, world.OUTSIDE_S)
        return made

    return make


@pytest.fixture
def server(servers: list[world.Server]) -> world.Server:
    return servers[0]


@pytest.fixture(scope="session")
def volume_types() -> set[str]:
    """Of both backends: ordinary ones, and those whose volumes are encrypted or for several."""
    present = {each["name"] for each in world.cinder("GET", "/types")["volume_types"]}
    made = {f"{backend}{of}" for backend in ("lio", "nvmet") for of in ("", "-luks", "-multi")}
    for name in made - present:
        backend, _, of = name.partition("-")
        specs = {"volume_backend_name": backend}
        if of == "multi":
            specs["multiattach"] = "<is> True"
        body = {"volume_type": {"name": name, "extra_specs": specs}}
        kind = world.cinder("POST", "/types", body)["volume_type"]["id"]
        if of == "luks":
            world.cinder("POST", f"/types/{kind}/encryption", {"encryption": LUKS})
    return made


@pytest.fixture
def new_volume(volume_types: set[str]) -> Callable[[str], str]:
    """Makes a volume of a type, which begins with its own id unless it is encrypted."""

    def make(kind: str) -> str:
        assert kind in volume_types
        body = {"volume": {"size": 1, "volume_type": kind}}
        made = str(world.cinder("POST", "/volumes", body)["volume"]["id"])
        ready = f"volume {made}"
        world.wait_until(lambda: world.volumes()[made] != "creating", ready, world.OUTSIDE_S)
        assert world.volumes()[made] == "available"
        if not kind.endswith("-luks"):
            lv = world.lv(made)
            world.vm(f"dd of={lv} bs=512 conv=sync,fsync oflag=direct status=none", made)
        return made

    return make
