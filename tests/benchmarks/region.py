"""A region under one service: PostgreSQL, a simulated Cinder, the service and many hosts.

Each is a process of its own.  What the service did is read from its log afterwards, and what
it needed from /proc meanwhile, so that looking costs it nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psycopg

from ledger.trial.cloud import free_port
from tests.benchmarks.hosts import names
from tests.benchmarks.servers import server
from tests.stack import Process, eventually
from tests.tokens import token_of, write_private

ADMIN, USER = token_of("admin"), token_of("user")
DEADLINE_S = 3_600.0
SEEDED_AT_ONCE = 2_000
SAMPLE_S = 0.1
_PAGE_BYTES = resource.getpagesize()
_TICKS_PER_S = 100


@dataclass(frozen=True)
class Shape:
    """How much of it.  Each host has so many servers."""

    hosts: int
    servers: int

    @property
    def operations(self) -> int:
        """One for each server."""
        return self.hosts * self.servers


class Sample(NamedTuple):
    """What the service has needed so far, at a moment (seconds since the epoch)."""

    at: float
    memory_bytes: int
    cpu_s: float


@dataclass
class Region:
    """Use `region`."""

    shape: Shape
    dsn: str
    home: Path
    cinder: str
    exits: ExitStack
    cinder_pid: int
    port: int
    service: Process = field(init=False)
    _hosts: subprocess.Popen[bytes] = field(init=False)

    # ------------------------------------------------------------------ processes

    def start_service(self) -> None:
        """Begin to start it, and return at once."""
        config, log = self.home / "ledger.toml", self.home / "service.log"
        write_private(config, self._config())
        self.service = Process(log, "ledger", "serve", "--config", str(config))
        self.exits.callback(self.service.kill)

    def _config(self) -> str:
        tokens = [
            f'[[tokens]]\nname = "agent of {host}"\ntoken = "{token_of(host)}"\n'
            f'user_id = "agents"\nproject_id = "service"\nroles = ["agent"]\nhost = "{host}"\n'
            for host in names(self.shape.hosts)
        ]
        return (  # the hosts share two cores with all the rest: they may be late, and live
            f'database_url = "{self.dsn}"\nauth = "tokens"\nhost_down_after_s = 300.0\n'
            f"[listen]\nport = {self.port}\n"
            f'[cinder]\nendpoint = "{self.cinder}"\n'
            f'[[tokens]]\nname = "admin"\ntoken = "{ADMIN}"\nuser_id = "admin"\n'
            f'project_id = "bench"\nroles = ["admin"]\n'
            f'[[tokens]]\nname = "user"\ntoken = "{USER}"\nuser_id = "user"\n'
            f'project_id = "bench"\nroles = ["member"]\n{"".join(tokens)}'
        )

    def ready(self) -> bool:
        """Whether the service says that it is."""
        assert self.service.running, self.service.log.read_text()[-3000:]
        with suppress(OSError):
            url = f"http://127.0.0.1:{self.port}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    def start_hosts(self) -> None:
        """Returns when all have registered."""
        numbers = map(str, (self.port, self.shape.hosts, self.shape.servers))
        self._hosts = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.hosts", *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.exits.callback(self._hosts.kill)
        assert self.said_by_hosts() == "registered", "the hosts did not register"

    def order(self, what: str) -> None:
        """Have the hosts `answer` or `hold`."""
        assert self._hosts.stdin is not None
        self._hosts.stdin.write(what.encode() + b"\n")
        self._hosts.stdin.flush()

    def said_by_hosts(self) -> str:
        """The next line of the hosts."""
        assert self._hosts.stdout is not None
        return self._hosts.stdout.readline().decode().strip()

    # --------------------------------------------------------------------- Cinder

    def seed(self, volumes: list[str]) -> None:
        """Make volumes in Cinder."""
        for start in range(0, len(volumes), SEEDED_AT_ONCE):
            batch = volumes[start : start + SEEDED_AT_ONCE]
            body = orjson.dumps([{"id": volume, "project_id": "bench"} for volume in batch])
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(self._sim("volumes"), body, kind, method="PUT")
            urllib.request.urlopen(request, timeout=60).close()

    def doubled(self) -> int:
        """So many attachments in Cinder, or mappings, are of a volume that has one already."""
        with urllib.request.urlopen(self._sim("state"), timeout=60) as answer:
            rows = orjson.loads(answer.read())["attachments"]
        volumes = Counter(row["volume_id"] for row in rows)
        [(mappings,)] = self.rows("SELECT count(*) - count(DISTINCT volume_id) FROM mappings")
        return sum(count - 1 for count in volumes.values()) + int(mappings)

    def _sim(self, what: str) -> str:
        return f"{self.cinder.removesuffix('/v3')}/sim/{what}"

    # -------------------------------------------------------------------- the log

    def rows(self, query: Any, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query, parameters).fetchall()

    def head(self) -> int:
        """The last position of the log."""
        return int(self.rows("SELECT position FROM log_head")[0][0])

    def first_event_at(self, after: int) -> float:
        """When the first event after a position was recorded (seconds since the epoch)."""
        first = "SELECT min(recorded_at) FROM events WHERE position > %s"
        return float(self.rows(first, after)[0][0].timestamp())

    def begun(self, after: int) -> list[float]:
        """When operations began after a position, in order."""
        return self._times("topic = 'Operation.OperationStarted'", after)

    def bound(self, after: int) -> list[float]:
        """When volumes were reserved and bound after a position, in order: accepted."""
        return self._times("topic = 'BlockDeviceMapping.MappingCreated'", after)

    def completed(self, after: int) -> list[float]:
        """When operations ended in success after a position, in order."""
        return self._times(
            "topic = 'Operation.OperationFinished'"
            " AND convert_from(body, 'UTF8')::json->>'outcome' = 'completed'",
            after,
        )

    def _times(self, which: str, after: int) -> list[float]:
        rows = self.rows(
            f"SELECT recorded_at FROM events WHERE position > %s AND {which} ORDER BY position",
            after,
        )
        return [at.timestamp() for (at,) in rows]

    def due(self) -> int:
        """How many operations wait for the ledger itself, as far as is projected."""
        due = "SELECT count(*) FROM operations WHERE due_at IS NOT NULL"
        return int(self.rows(due)[0][0])

    def wait_for_end(self) -> None:
        """Until no operation is open any more."""

        def ended() -> bool:
            return not self.rows("SELECT FROM operations WHERE state = 'running' LIMIT 1")

        eventually(ended, "all operations end", DEADLINE_S)

    # --------------------------------------------------------------- what it needs

    @contextmanager
    def sampled(self) -> Iterator[list[Sample]]:
        """What the service needs while it lasts, every SAMPLE_S."""
        pid, samples, over = self.service.pid, list[Sample](), threading.Event()

        def sample() -> None:
            while True:
                samples.append(Sample(time.time(), memory_bytes(pid), cpu_s(pid)))
                if over.wait(SAMPLE_S):
                    return

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()

    def cpu_of_others(self) -> dict[str, float]:
        """CPU seconds so far, of what shares the machine with the service."""
        backends = self.rows("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        return {
            "PostgreSQL": sum(cpu_s(pid) for (pid,) in backends),
            "Cinder": cpu_s(self.cinder_pid),
            "hosts": cpu_s(self._hosts.pid),
            "clients": time.process_time(),
        }


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far; 0 if it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0


def memory_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def cpu_between(samples: list[Sample], begin: float, end: float) -> float:
    """CPU seconds of the service from one moment to another."""
    times = [sample.at for sample in samples]
    first, last = (min(bisect_left(times, at), len(samples) - 1) for at in (begin, end))
    return samples[last].cpu_s - samples[first].cpu_s


@contextmanager
def region(shape: Shape) -> Iterator[Region]:
    """All of it, running, with every host registered."""
    with ExitStack() as exits:
        dsn = exits.enter_context(server())
        home = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="region-")))
        cinder = subprocess.Popen(
            [sys.executable, "-m", "ledger", "sim", "cinder", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        exits.callback(cinder.kill)
        assert cinder.stdout is not None
        endpoint = cinder.stdout.readline().decode().strip()
        made = Region(shape, dsn, home, endpoint, exits, cinder.pid, free_port(exits))
        made.start_service()
        eventually(made.ready, "the service is ready")
        made.start_hosts()
        yield made
