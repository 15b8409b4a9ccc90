"""Everything the tests hold in their hands: the cloud, the processes, the gate before Cinder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.lab.api import Ledger
from tests.lab.guest import wait_until
from tests.lab.settings import ENV, LAB_DIR, LAB_SRC, SETTLE_S
from tests.lab.world import CLI_S, Cloud

START_S = 120

#: Requests to Cinder that tests hold: of attachments, ...
CREATE = ("POST", "/attachments$")
UPDATE = ("PUT", "/attachments/[^/]+$")
COMPLETE = ("POST", "/attachments/[^/]+/action$")
DELETE = ("DELETE", "/attachments/[^/]+$")
SHOW = ("GET", "/attachments/[^/]+$")
#: ... and of volumes.
VOLUME_CREATE = ("POST", "/volumes$")
VOLUME_DELETE = ("DELETE", "/volumes/[^/]+$")
SNAPSHOT_SHOW = ("GET", "/snapshots/[^/]+$")
VOLUME_ACTION = ("POST", "/volumes/[^/]+/action$")
_NAMES = {
    CREATE: "create",
    UPDATE: "update",
    COMPLETE: "complete",
    DELETE: "delete",
    VOLUME_CREATE: "make",
}


def name_of(case: object) -> str | None:
    """Of a request, as part of a test's name."""
    return _NAMES.get(case) if isinstance(case, tuple) else None


class Process:
    """One of the lab's daemons, by its pid file; started again by the script that knows how."""

    def __init__(self, name: str, *starter: str) -> None:
        self.name = name
        self._starter = [str(LAB_SRC / starter[0]), *starter[1:]]

    @property
    def pid(self) -> int:
        return int((LAB_DIR / "run" / f"{self.name}.pid").read_text().split()[0])

    def runs(self) -> bool:
        try:
            return _running(self.pid)
        except FileNotFoundError:  # stopped in good order
            return False

    def kill(self) -> None:
        """kill -9, and wait until it is no more."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _running(pid), f"{self.name} to die", SETTLE_S)

    def start(self) -> None:
        """Until it is ready; does nothing if it runs."""
        if not self.runs():
            subprocess.run(self._starter, check=True, timeout=START_S)

    def suspend(self) -> None:
        """SIGSTOP: whoever calls it from now on waits for the answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.suspend()
        try:
            yield
        finally:
            self.resume()


class Host:
    """A machine with a hypervisor and our agent, whose power may fail."""

    def __init__(self, number: int, name: str) -> None:
        self.name = name
        self._number = str(number)
        self.libvirtd = Process(f"libvirtd-{number}", "hosts.sh", "start", self._number)
        self.agent = Process(f"agent-{number}", "ledger.sh", "start", f"agent-{number}")

    def power_off(self) -> None:
        """Agent, libvirtd and guests at once: nobody can tell anybody of it."""
        off = [str(LAB_SRC / "hosts.sh"), "off", self._number]
        subprocess.run(off, check=True, timeout=START_S)

    def power_on(self) -> None:
        """Its guests are shut off then; does nothing to what runs."""
        self.libvirtd.start()
        self.agent.start()


class Gate:
    """Holds one kind of the ledger's requests to Cinder; see gate.py."""

    def __init__(self) -> None:
        self._url = f"{ENV['LAB_GATE_URL']}/_gate"

    @contextlib.contextmanager
    def hold(self, method: str, path: str, when: str) -> Iterator[Callable[..., None]]:
        """Yields a function that waits until one request is held, or so many; the end opens the
        gate.
        """
        rule = {"method": method, "path": path, "when": when}
        requests.put(self._url, json=rule, timeout=CLI_S).raise_for_status()
        try:
            what = f"{method} {path} to be held {when} Cinder does it"
            yield lambda count=1: self._wait_held(count, what)
        finally:
            requests.delete(self._url, timeout=CLI_S).raise_for_status()

    def _wait_held(self, count: int, what: str) -> None:
        def held() -> bool:
            return bool(requests.get(self._url, timeout=CLI_S).json()["held"] >= count)

        wait_until(held, what, SETTLE_S)


def _running(pid: int) -> bool:
    """Until its last thread has ended: one that waits for a disk keeps the process's locks."""
    return any(map(_lives, Path(f"/proc/{pid}/task").glob("*/stat")))


def _lives(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class Lab:
    """Everything there is, to look at and to take hold of."""

    cloud: Cloud
    ledger: Ledger
    gate: Gate
    service: Process
    cinder: Process
    hosts: tuple[Host, Host]

    @property
    def agent(self) -> Process:
        """The first host's: where guests are if nothing else is said."""
        return self.hosts[0].agent

    def host(self, name: str) -> Host:
        return next(each for each in self.hosts if each.name == name)

    @property
    def libvirtd(self) -> Process:
        return self.hosts[0].libvirtd

    @contextlib.contextmanager
    def dying(self, process: Process, call: tuple[str, str], when: str) -> Iterator[None]:
        """What is begun here kills the process while it asks Cinder for that; it comes back."""
        with self.gate.hold(*call, when) as wait_held:
            yield
            wait_held()
            process.kill()
        process.start()
