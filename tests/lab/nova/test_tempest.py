"""tempest's tests of volumes and attachments, asked of Nova and then by the ledger's endpoint: the
same becomes of each, and neither the service's looks nor surveys find anything meanwhile.

`LAB_TEMPEST=60 run.sh nova -k tempest`: by the ledger's endpoint for so many minutes, a round at
least.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.conformance import prepare
from tests.lab.nova.beside import SLOW_S, beside, lab
from tests.lab.nova.cloud import NOVA, NovaCloud, survey, wait_until
from tests.lab.settings import ENV, LAB_DIR, LAB_SRC, LOG_DIR, SETTLE_S

MINUTES = float(ENV.get("LAB_TEMPEST", "0"))
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not MINUTES, reason="LAB_TEMPEST=1: a quarter of an hour"),
]
VENV = LAB_DIR / "venv-conformance"
#: The driver of Cinder's volumes has no data to copy.
WITHOUT_DATA = {"test_volume_upload", "test_boot_from_multiattach_volume"}


@pytest.fixture
def _settings(cloud: NovaCloud) -> Iterator[None]:
    """tempest's, and what it needs besides: Glance with an image, and two sizes of servers."""
    for command in (
        f"venv {VENV} requirements-conformance.txt",
        "./glance.sh fill",
        "./glance.sh up",
    ):
        lab(command)
    flavors = tuple(_flavor(cloud, ram) for ram in (160, 192))
    prepare.settings(prepare.image(), flavors, "fake", passwords=True)
    yield
    for each in flavors:  # other tests expect one
        cloud.of_admin.delete(f"/flavors/{each}")
    lab("./glance.sh down")


def _flavor(cloud: NovaCloud, ram: int) -> str:
    """With a local disk: only an administrator may have a server without any."""
    wanted = {"name": f"tempest-{ram}", "ram": ram, "vcpus": 1, "disk": 1}
    made = cloud.of_admin.post("/flavors", json={"flavor": wanted}, headers=NOVA).json()
    return str(made["flavor"]["id"])


def tempest(name: str) -> tuple[dict[str, str], list[tuple[int, Any]]]:
    """The outcome of each test, and what surveys said meanwhile."""
    results = LOG_DIR / f"tempest-{name}.jsonl"
    env = {**ENV, "TEMPEST_CONFIG_DIR": f"{LAB_DIR}/etc", "TEMPEST_CONFIG": "tempest.conf"}
    env |= {"LAB_TIER": "nova", "OS_TEST_TIMEOUT": "300", "PYTHONWARNINGS": "ignore"}
    command = [VENV / "bin/python", LAB_SRC / "conformance/run.py", results]
    with (
        (LOG_DIR / "tempest.out").open("a") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as process,
    ):
        surveys: list[tuple[int, Any]] = []
        while process.poll() is None:
            surveys.append(survey()[:2])
    assert process.returncode == 0
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {each["test"]: each["outcome"] for each in rows}, surveys


@pytest.mark.usefixtures("_settings")
def test_tempest_by_the_ledger_is_as_by_nova_and_nothing_is_found(cloud: NovaCloud) -> None:
    novas, surveys = tempest("nova")
    cloud.clear()
    differ: list[dict[str, tuple[str, str]]] = []
    assert {test.rpartition(".")[2] for test in novas if novas[test] == "fails"} == WITHOUT_DATA
    with beside() as ledger:
        before, until = ledger.looks(), time.monotonic() + MINUTES * 60
        while not differ or time.monotonic() < until:
            ours, said = tempest("ledger")
            surveys += said
            both = {each: (novas.get(each, ""), ours.get(each, "")) for each in novas | ours}
            differ.append({test: pair for test, pair in both.items() if pair[0] != pair[1]})
        cloud.settle()
        found, looks = ledger.findings("all"), ledger.looks() - before
        cloud.clear()
        nobody = lambda: not ledger.get("/attachments")["attachments"]  # noqa: E731
        wait_until(nobody, "the ledger to see that nobody has any", SETTLE_S + SLOW_S)
    told = f"{dict(Counter(novas.values()))} of Nova, {len(differ)} rounds by the ledger, "
    told += f"{sum(map(len, differ))} differ; {len(surveys)} surveys; {looks} looks, "
    told += f"{len(found)} findings\n"
    (LOG_DIR / "times.txt").write_text(told)
    assert differ == [{}] * len(differ)
    assert (found, surveys) == ([], [(0, [])] * len(surveys))
