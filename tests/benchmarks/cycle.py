"""Row 9: what one attach and one detach cost us, when nothing else goes on.

Service, agent, Cinder and PostgreSQL are processes of their own, as where they serve; the
backend behind Cinder, os-brick and the hypervisor are simulated.  A member of a project
attaches as Nova's clients do and waits by the operation that the answer names.  Then the
volume is detached in the same way.

CPU is what the kernel has counted for the service's and the agent's process, all threads,
calls of Cinder's client included; that of the simulated host, which is in the agent's
process, is taken off as it was metered.  Wall is the client's, less what Cinder's and the
host's verbs took by the events of the operation.

The split by parts comes from a second pass over metered processes (tests.benchmarks.metered);
its shares are applied to the CPU of the first.
"""

from __future__ import annotations

import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from host_agent.simulated.host_state import HostState
from ledger.trial.cloud import free_port
from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.servers import server
from tests.stack import PROJECT, eventually
from tests.tokens import token_of, write_private

HOST = "compute-1"
USER, AGENT = token_of("user"), token_of("agent")
VERSION = "compute 2.89"
CINDER = ("ledger", "sim", "cinder", "--port", "0")
WARM_UP_CYCLES = 20
CYCLES = {Size.QUICK: 100, Size.FULL: 600}
METERED_CYCLES = 60
GETS = 500
CYCLE_CPU_MS, GET_CPU_MS = 12.0, 2.0

#: Parts that are not ours: what the agent's process does in place of a host.
NOT_OURS = frozenset({"simulated host"})
READS = "aggregates: reading the log"


def figures(size: Size) -> Iterator[Figure]:
    with server() as dsn, tempfile.TemporaryDirectory() as home:
        with running(Path(home), dsn) as world:
            world.cycles(WARM_UP_CYCLES)
            plain = world.cycles(CYCLES[size])
            get_ms = world.gets(GETS)
        with running(Path(home), dsn, metered=True) as world:
            world.cycles(WARM_UP_CYCLES)
            before, called_before = world.parts()
            world.cycles(METERED_CYCLES)
            after, called = world.parts()
            parts_ms = {
                part: (spent - before[part]) * 1e3 / METERED_CYCLES for part, spent in after.items()
            }
    yield from _shown(plain, parts_ms)
    yield Figure(
        row=9,
        name="reads of the log in an attach and detach",
        value=(called[READS] - called_before[READS]) / METERED_CYCLES,
        unit="queries",
    )
    yield Figure(
        row=9,
        name="CPU of a GET of one attachment",
        value=get_ms,
        unit="ms",
        target=GET_CPU_MS,
    )


def _shown(plain: list[Cycle], parts_ms: dict[str, float]) -> Iterator[Figure]:
    ours = 1 - sum(parts_ms.get(part, 0.0) for part in NOT_OURS) / sum(parts_ms.values())
    attach, detach = (_mean(plain, what) for what in ("attach", "detach"))
    yield Figure(
        row=9,
        name="CPU of an attach and detach, service and agent",
        value=(attach.cpu_ms + detach.cpu_ms) * ours,
        unit="ms",
        target=CYCLE_CPU_MS,
    )
    for name, half in (("an attach", attach), ("a detach", detach)):
        yield Figure(row=9, name=f"CPU of {name}", value=half.cpu_ms * ours, unit="ms")
        without = f"wall time of {name} without Cinder and host"
        yield Figure(row=9, name=without, value=half.own_ms, unit="ms")
    scale = (attach.cpu_ms + detach.cpu_ms) / sum(parts_ms.values())
    for part, spent in sorted(parts_ms.items(), key=lambda item: -item[1]):
        if part not in NOT_OURS:
            yield Figure(row=9, name=f"of these: {part}", value=spent * scale, unit="ms")
    database = attach.database_ms + detach.database_ms
    yield Figure(row=9, name="CPU of PostgreSQL in an attach and detach", value=database, unit="ms")


@dataclass(frozen=True, kw_only=True)
class Half:
    """One attach, or one detach, in ms: CPU of service and agent, of PostgreSQL; wall."""

    cpu_ms: float
    database_ms: float
    own_ms: float


@dataclass(frozen=True)
class Cycle:
    attach: Half
    detach: Half


def _mean(cycles: list[Cycle], what: str) -> Half:
    """CPU as the mean, for it is paid; wall as the median."""
    halves: list[Half] = [getattr(cycle, what) for cycle in cycles]
    return Half(
        cpu_ms=statistics.mean(half.cpu_ms for half in halves),
        database_ms=statistics.mean(half.database_ms for half in halves),
        own_ms=statistics.median(half.own_ms for half in halves),
    )


# ------------------------------------------------------------------------- the processes


@dataclass
class World:
    """A running system and a client of it."""

    service: subprocess.Popen[bytes]
    agent: subprocess.Popen[bytes]
    postmaster: int
    client: http.client.HTTPConnection
    server_id: str
    volume_id: str
    token: str = USER
    meters: list[Path] = field(default_factory=list)

    def cycles(self, count: int) -> list[Cycle]:
        return [Cycle(self._timed(self._attach), self._timed(self._detach)) for _ in range(count)]

    def walls(self) -> tuple[float, float]:
        """How long an attach took, and a detach, in ms."""
        self.client.close()  # the service does with one that is idle for long
        began = time.perf_counter()
        self._wait_for(self._attach())
        attached = time.perf_counter()
        self._wait_for(self._detach())
        return (attached - began) * 1e3, (time.perf_counter() - attached) * 1e3

    def spent(self) -> dict[str, float]:
        """The CPU of each program since its start, in ms."""
        own = {"service": self.service.pid, "agent": self.agent.pid}
        spent = {name: _cpu_of(pid) * 1e3 for name, pid in own.items()}
        return {**spent, "PostgreSQL": self._database_s() * 1e3}

    def gets(self, count: int) -> float:
        """The CPU of one GET of an attachment, in ms."""
        self._wait_for(self._attach())
        before = self._cpu_s()
        for _ in range(count):
            shown = self._ask("GET", f"{self._attachments}/{self.volume_id}")
            assert shown[0] == http.client.OK, shown
        return (self._cpu_s() - before) * 1e3 / count

    def parts(self) -> tuple[Counter[str], Counter[str]]:
        """The CPU seconds, and the calls, that the metered processes have counted so far."""
        for process in (self.service, self.agent):
            process.send_signal(signal.SIGUSR1)
        eventually(lambda: all(path.exists() for path in self.meters), "the meters are read")
        seconds, calls = Counter[str](), Counter[str]()
        for path in self.meters:
            counted = json.loads(path.read_text())
            seconds.update(counted["seconds"])
            calls.update(counted["calls"])
            path.unlink()
        return seconds, calls

    @property
    def _attachments(self) -> str:
        return f"/v2.1/servers/{self.server_id}/os-volume_attachments"

    def _timed(self, act: Any) -> Half:
        cpu, database, began = self._cpu_s(), self._database_s(), time.perf_counter()
        ended = self._wait_for(act())
        wall_ms = (time.perf_counter() - began) * 1e3
        theirs_ms = sum(step["took_ms"] or 0 for step in ended["steps"])
        return Half(
            cpu_ms=(self._cpu_s() - cpu) * 1e3,
            database_ms=(self._database_s() - database) * 1e3,
            own_ms=wall_ms - theirs_ms,
        )

    def _attach(self) -> str:
        wanted = {"volumeAttachment": {"volumeId": self.volume_id}}
        return self._operation(self._ask("POST", self._attachments, wanted))

    def _detach(self) -> str:
        return self._operation(self._ask("DELETE", f"{self._attachments}/{self.volume_id}"))

    def _operation(self, answer: tuple[int, Any, str | None]) -> str:
        status, body, operation = answer
        assert operation is not None, (status, body)
        return operation

    def _wait_for(self, operation: str) -> dict[str, Any]:
        status, body, _ = self._ask("GET", f"{operation}?wait_s=30")
        assert (status, body["outcome"]) == (http.client.OK, "completed"), body
        ended: dict[str, Any] = body
        return ended

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, str | None]:
        headers = {"X-Auth-Token": self.token, "OpenStack-API-Version": VERSION}
        if body is not None:
            headers["Content-Type"] = "application/json"
        self.client.request(method, path, json.dumps(body) if body else None, headers)
        answer = self.client.getresponse()
        raw = answer.read()
        operation = answer.getheader("X-Attachment-Ledger-Operation")
        return answer.status, json.loads(raw) if raw else None, operation

    def _cpu_s(self) -> float:
        return sum(_cpu_of(process.pid) for process in (self.service, self.agent))

    def _database_s(self) -> float:
        return sum(_cpu_of(pid) for pid in _family(self.postmaster))


def _cpu_of(pid: int) -> float:
    """The CPU seconds of a process, all its threads: its clock as clock_getcpuclockid has it."""
    return time.clock_gettime((~pid << 3) | 2)


def _family(postmaster: int) -> list[int]:
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
    return [postmaster, *map(int, children.split())]


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Which Cinder both programs use, by their settings, and for whom: a server for each volume."""

    settings: str
    volumes: tuple[str, ...]
    project: str = PROJECT
    token: str = USER
    auth: str = "tokens"


@contextmanager
def running(
    home: Path, dsn: str, *, metered: bool = False, cinder: tuple[str, ...] = CINDER
) -> Iterator[World]:
    """The system with one server and one volume of a simulated Cinder, and nothing else to do."""
    with _cinder(home, cinder) as endpoint:
        settings = f'[cinder]\nendpoint = "{endpoint}"\n'
        beside = Beside(settings=settings, volumes=(_volume(endpoint),))
        with serving(home, dsn, beside, metered=metered) as [world]:
            yield world


@contextmanager
def serving(
    home: Path, dsn: str, beside: Beside, *, metered: bool = False
) -> Iterator[list[World]]:
    """The system beside some Cinder; a client for each volume."""
    servers = {str(uuid4()): each for each in beside.volumes}
    guest = {"power_state": "running", "project_id": beside.project}
    with ExitStack() as stack:
        port = free_port(stack)
        state = home / f"{port}.json"
        HostState(state, {"define": [{**guest, "server_id": each} for each in servers]})
        write_private(home / "ledger.toml", _service_settings(dsn, port, beside))
        write_private(home / "agent.toml", _agent_settings(home, port, beside))
        meters = [home / name for name in ("service", "agent")] if metered else []
        service = ["ledger", "serve", "--config", str(home / "ledger.toml")]
        agent = ["host_agent", "run", "--config", str(home / "agent.toml")]
        agent += ["--simulated", str(state)]
        if metered:
            service = ["tests.benchmarks.metered", str(meters[0]), *service]
            agent = ["tests.benchmarks.metered", str(meters[1]), *agent]
        first = World(
            service=stack.enter_context(_process(home / "service.log", *service)),
            agent=stack.enter_context(_process(home / "agent.log", *agent)),
            postmaster=_postmaster(dsn),
            client=http.client.HTTPConnection("127.0.0.1", port, timeout=60),
            server_id="",
            volume_id="",
            token=beside.token,
            meters=meters,
        )
        worlds = [
            replace(
                first,
                client=http.client.HTTPConnection("127.0.0.1", port, timeout=60),
                server_id=server_id,
                volume_id=volume_id,
            )
            for server_id, volume_id in servers.items()
        ]
        for world in worlds:
            eventually(partial(_serves, world), f"the server is known; see {home}")
        yield worlds


@contextmanager
def _process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def _cinder(home: Path, command: tuple[str, ...]) -> Iterator[str]:
    log = home / "cinder.log"
    log.write_text("")
    with _process(log, *command):
        yield eventually(
            lambda: next((s for s in log.read_text().split() if s.endswith("/v3")), None),
            "the simulated Cinder serves",
        )


def _volume(endpoint: str) -> str:
    volume_id = str(uuid4())
    _, _, address = endpoint.removesuffix("/v3").partition("//")
    client = http.client.HTTPConnection(address)
    client.request(
        "PUT",
        "/sim/volumes",
        json.dumps({"id": volume_id, "size": 1, "project_id": PROJECT}),
        {"Content-Type": "application/json"},
    )
    answer = client.getresponse()
    assert answer.status == http.client.CREATED, answer.read()
    return volume_id


def _postmaster(dsn: str) -> int:
    """The parent of our backend."""
    with psycopg.connect(dsn) as connection:
        [(backend,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        status = Path(f"/proc/{backend}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def _serves(world: World) -> bool:
    ended = [process.poll() for process in (world.service, world.agent)]
    assert ended == [None, None], "a process has ended"
    try:
        return world._ask("GET", world._attachments)[0] == http.client.OK
    except OSError:
        world.client.close()
        return False


def _service_settings(dsn: str, port: int, beside: Beside) -> str:
    return f"""
database_url = "{dsn}"
auth = "{beside.auth}"
[listen]
port = {port}
{beside.settings}
[[tokens]]
name = "user"
token = "{USER}"
user_id = "user"
project_id = "{PROJECT}"
roles = ["member"]
[[tokens]]
name = "agent of {HOST}"
token = "{AGENT}"
user_id = "agents"
project_id = "service"
roles = ["agent"]
host = "{HOST}"
"""


def _agent_settings(home: Path, port: int, beside: Beside) -> str:
    return f"""
[agent]
host = "{HOST}"
lock_path = "{home}/locks"
[ledger]
url = "http://127.0.0.1:{port}"
token = "{AGENT}"
{beside.settings}
"""
