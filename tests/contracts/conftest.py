"""What is held to a contract: Cinders, and hypervisors, simulated and in the lab real ones.

LEDGER_LAB_LIBVIRT is the URI of a hypervisor to make throw-away guests on, and
LAB_LIBVIRT_URI_2 that of another to migrate them to, whose libvirt the first one reaches
by it; the data goes to LAB_ADDRESS_2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts import cinder_worlds as worlds
from tests.contracts.cinder_worlds import SimulatedWorld, World
from tests.contracts.machines import Machine, RealMachine, SimulatedMachine


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealMachine]:
    uri = os.environ.get("LEDGER_LAB_LIBVIRT")
    if not uri:
        pytest.skip("LEDGER_LAB_LIBVIRT names no hypervisor")
    there, address = os.environ.get("LAB_LIBVIRT_URI_2"), os.environ.get("LAB_ADDRESS_2")
    machine = RealMachine(uri, there, address, tmp_path)
    yield machine
    machine.close()


@pytest.fixture(params=["simulated", pytest.param("libvirt", marks=pytest.mark.lab)])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "simulated":
        return SimulatedMachine()
    real_machine: RealMachine = request.getfixturevalue("real")
    return real_machine


@pytest.fixture(params=worlds.ALL)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with worlds.WORLDS[request.param]() as made:
        yield made


@pytest.fixture(params=worlds.SIMULATED)
def simulated(request: pytest.FixtureRequest) -> Iterator[SimulatedWorld]:
    with worlds.WORLDS[request.param]() as made:
        yield made
