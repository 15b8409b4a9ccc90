"""Fixtures of the lab's tests.  `up.sh` has started everything they need.

`make test` collects this directory too, on machines without libvirt's Python
binding: then there is nothing here, and nothing is imported before it is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.lab.control import Lab
    from tests.lab.guest import LabGuest
    from tests.lab.moving import Moving

if importlib.util.find_spec("libvirt") is None:
    collect_ignore_glob = ["test_*.py"]

#: Whose logs are shown with a test that fails, and how many lines of each, without its details.
LOGS: tuple[str, ...] = ("ledger", "agent-1", "agent-2")
if os.environ.get("LAB_TIER") == "nova":
    LOGS += ("nova-api", "nova-compute-1", "nova-compute-2", "nova-compute-3", "cinder")
LOG_LINES = 40
BACKENDS = ["nfs", "rbd"] if os.environ.get("LAB_TIER") == "full" else ["nfs"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a test that fails, the ends of our processes' logs: the lab is gone afterwards."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {name}", log_end(name)) for name in LOGS]
    return report


def log_end(name: str) -> str:
    """The last lines of a log above its details."""
    from tests.lab.settings import LOG_DIR

    with contextlib.suppress(FileNotFoundError):
        lines = (LOG_DIR / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if '"level": "debug"' not in line][-LOG_LINES:])
    return "there is none"


@pytest.fixture(scope="session")
def lab() -> Lab:
    """All of it; without it no test is worth its deadline."""
    from tests.lab.api import Ledger
    from tests.lab.control import Gate, Host, Lab, Process
    from tests.lab.settings import ENV
    from tests.lab.world import Cloud

    made = Lab(
        cloud=Cloud(),
        ledger=Ledger(),
        gate=Gate(),
        service=Process("ledger", "ledger.sh", "start", "ledger"),
        cinder=Process("cinder", "cinder.sh", "up"),
        hosts=(Host(1, ENV["LAB_HOST"]), Host(2, ENV["LAB_HOST_2"])),
    )
    for process in (made.cinder, made.service, *(host.agent for host in made.hosts)):
        if not process.runs():
            pytest.exit(f"the lab is not up, {process.name} does not run: tests/lab/up.sh", 1)
    return made


@pytest.fixture(autouse=True)
def _processes_run(lab: Lab) -> Iterator[None]:
    """However a test ends, the next one finds the service and the hosts at work."""
    yield
    with contextlib.suppress(ProcessLookupError):
        lab.service.resume()
    for process in (lab.cinder, lab.service):
        process.start()
    for host in lab.hosts:
        host.power_on()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_guest(lab: Lab) -> Iterator[Callable[..., LabGuest]]:
    """Makes guests that the ledger knows; they are removed after the test."""
    from tests.lab.guest import LabGuest

    made: list[LabGuest] = []

    def make(name: str, *, running: bool = True, **design: Any) -> LabGuest:
        guest = LabGuest.define(name, **design)
        made.append(guest)
        if running:
            guest.start()
        lab.ledger.wait_status(guest.id, "ACTIVE" if running else "SHUTOFF")
        return guest

    yield make
    for host in lab.hosts:  # what is off keeps its guests
        host.power_on()
    for guest in made:
        guest.remove()


@pytest.fixture
def guest(new_guest: Callable[..., LabGuest]) -> LabGuest:
    """A running tiny Linux."""
    return new_guest("guest")


@pytest.fixture
def new_volume(lab: Lab) -> Iterator[Callable[[str], str]]:
    made: list[str] = []

    def make(backend: str) -> str:
        made.append(lab.cloud.create_volume(backend))
        return made[-1]

    yield make
    for volume in made:
        lab.cloud.remove_volume(volume)


@pytest.fixture
def volume(new_volume: Callable[[str], str], backend: str) -> str:
    """The id of an available volume of each backend in turn."""
    return new_volume(backend)


@pytest.fixture
def encrypted(lab: Lab, backend: str) -> Iterator[str]:
    """The id of an encrypted volume of each backend in turn."""
    made = lab.cloud.create_encrypted(backend)
    yield made[-1]
    for each in made:
        lab.cloud.remove_volume(each)


@pytest.fixture
def moving(
    lab: Lab, new_guest: Callable[..., LabGuest], new_volume: Callable[[str], str], backend: str
) -> Moving:
    """A guest on the first host that writes to two volumes."""
    from tests.lab.moving import Moving

    return Moving(lab, new_guest("moving"), [new_volume(backend) for _ in range(2)])
