"""The released version and this one at once: an upgrade process by process, and the way back.

0.2.0 is taken out of the repository and gets an environment of its own, once: processes of it use
its lock, this one's database and files.  Users attach and detach all the time.  What they were told
has to have an order that explains it, and the invariants hold, whoever did what.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from ledger.log import schema
from tests.chaos.work import HOSTS, Work
from tests.stack import ROOT, Stack, eventually, running_stack

pytestmark = pytest.mark.nightly

#: The last commit of 0.2.0.
RELEASED = "b66dcdd2"
HOME = Path("/var/tmp/attachment-ledger-0.2.0")
#: Accepted with each mixture, before the next process is replaced.
ACCEPTED = 20

Replace = Callable[[Stack], None]


@pytest.fixture(scope="module")
def released() -> tuple[str, ...]:
    """The interpreter of 0.2.0; without what lies in the working directory."""
    python = HOME / ".venv/bin/python"
    if not (HOME / ".venv/.installed").exists():
        tree = subprocess.run(
            ["git", "archive", RELEASED], cwd=ROOT, capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(tree.stdout)) as files:
            files.extractall(HOME, filter="data")
        subprocess.run(["make", "setup"], cwd=HOME, check=True)
    return (str(python), "-P")


def service(number: int) -> Replace:
    def replace(stack: Stack) -> None:
        process = stack.components[number]
        assert process.stop() == 0, process.log.read_text()[-2000:]
        stack.start_service(number)

    return replace


def agent(number: int) -> Replace:
    def replace(stack: Stack) -> None:
        process = stack.agents[HOSTS[number]]
        assert process.stop() == 0, process.log.read_text()[-2000:]
        stack.start_agent(HOSTS[number], number, 1 - number)

    return replace


SERVICES, AGENTS = (service(0), service(1)), (agent(0), agent(1))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((*SERVICES, *AGENTS), id="services first"),
        pytest.param((*AGENTS, *SERVICES), id="agents first"),
    ],
)
def test_processes_of_both_versions_work_together_and_back(
    tmp_path: Path, empty_database_url: str, released: tuple[str, ...], order: tuple[Replace, ...]
) -> None:
    upgrade = [*released, "-m", "ledger", "db", "upgrade", "--database-url", empty_database_url]
    subprocess.run(upgrade, check=True)
    with running_stack(tmp_path, empty_database_url, hosts=HOSTS) as stack:
        ours, stack.python = stack.python, released
        work = Work(stack)
        work.begin()

        def replace(process: Replace) -> None:
            process(stack)
            _wait_for_work(work)

        def there_and_back() -> None:
            _wait_for_work(work)
            schema.upgrade(empty_database_url)
            _wait_for_work(work)
            for stack.python in (ours, released):
                for process in order:
                    replace(process)

        work.ask(there_and_back)
        work.rest()
        work.judge()


def _wait_for_work(work: Work) -> None:
    begun = len(work.accepted)
    eventually(lambda: len(work.accepted) >= begun + ACCEPTED, "work goes on")
