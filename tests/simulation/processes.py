"""Several processes of the service, beside each other over one log; one may stand still.

Each has read and kept something else of the log.  Who asks is answered by any of those that go on,
as behind a load balancer; what a dispatcher has begun stays with its process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.requests import Requests
from ledger.core.service import Service
from tests.memory import Tripwire
from tests.simulation.hostile import Worded

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

PROCESSES = 2


@dataclass(frozen=True, eq=False)
class Process:
    """One process of the service."""

    name: str
    service: Service
    requests: Requests


class Processes:
    """All of them; `paused` is one that stands still (SIGSTOP, a machine that is moved)."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.paused: Process | None = None
        self.all = [self._new(f"process {n}") for n in range(1, PROCESSES + 1)]
        #: Who did something for an operation last.
        self._last: dict[str, Process] = {}

    def _new(self, name: str) -> Process:
        cloud = self._cloud
        store = cloud.store.beside()
        cinder: Any = Worded(cloud, Tripwire("cinder", cloud.late, lambda: cloud.chance))
        now, wait = cloud.database_now, cloud.clock.wait
        service = Service(store, cinder, now, wait)
        return Process(name, service, Requests(store, cinder, now))

    def someone(self) -> Process:
        return self._cloud.chance.random.choice([p for p in self.all if p is not self.paused])

    def takes(self, operation_id: str) -> Process:
        """One whose dispatcher takes an operation."""
        process = self.someone()
        if self._last.setdefault(operation_id, process) is not process:
            self._cloud.happened["second process"] += 1
        self._last[operation_id] = process
        return process


class Anyone:
    """A part of whichever process answers."""

    def __init__(self, processes: Processes, part: str) -> None:
        self._processes, self._part = processes, part

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._processes.someone(), self._part), name)
