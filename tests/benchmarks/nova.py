"""Row 17: what an attach and a detach cost beside a real Nova 34, both against one real Cinder.

    make bench-nova

Needs the lab's tier with Nova (tests/lab/nova.sh).  Nova is its API, conductor, scheduler and
compute services, its MariaDB and its RabbitMQ; ours is service, agent and PostgreSQL.  Hosts are
simulated on both sides (Nova's fake driver), Cinder's driver is its fake one.  The two take turns.

CPU is what the kernel counts for all processes of a daemon (`utime + stime`, children that it
has buried too), less what it takes when nothing happens, measured before.  So it says little of
what else the machine does; times of the wall say more of it.  Who waits for Nova looks at Cinder's
row in its database, and at last at Nova's in its own (a query or two of some 0.1 ms), so that no
API pays for being asked; who waits for us asks our service, and that is in its CPU.  Cinder's calls
are counted in its log.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.cycle import Beside, serving
from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.servers import server
from tests.lab.nova.cloud import NOVA, NovaCloud
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LOG_DIR

AT_ONCE = 8
WARM_UP_CYCLES = 8
ROUNDS = 3
CYCLES = {Size.QUICK: 20, Size.FULL: 100}
IDLE_S = 20.0
REST_S = 1.0  # after a round: what is done behind an answer is done
POLL_S = 0.005
WAIT_S = 60.0
#: The targets: shares of Nova's, and calls.
OWN_SHARE, CINDER_SHARE, CALLS_MAX = 0.25, 0.9, 10.0
CALL = b'HTTP/1.1" status: '
DAEMONS = ("nova-api", "nova-conductor", "nova-scheduler", "nova-compute-1", "nova-compute-2")
TICKS = os.sysconf("SC_CLK_TCK")

#: An attach and a detach: how long each took, in ms.
Cycle = Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Side:
    """One of the two.  `spent`: the CPU of its programs so far, in ms; `clients`: one at a time."""

    spent: Callable[[], dict[str, float]]
    clients: list[Cycle]
    alone: list[Round] = field(default_factory=list)
    at_once: list[Round] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one cycle took: CPU by program (`Cinder` too), calls of Cinder, wall."""

    cpu_ms: dict[str, float]
    calls: float
    attached_ms: float
    detached_ms: float
    rate: float  # cycles/s

    @property
    def own_ms(self) -> float:
        return sum(spent for name, spent in self.cpu_ms.items() if name != "Cinder")


def figures(size: Size) -> Iterator[Figure]:
    cloud = NovaCloud()
    nova = _nova(cloud)
    with server() as dsn, tempfile.TemporaryDirectory() as home, _ours(cloud, home, dsn) as ours:
        sides = (nova, ours)
        for side in sides:
            for cycle in side.clients:
                cycle()
            for _ in range(WARM_UP_CYCLES):
                side.clients[0]()
        idle = _idle(sides)
        for _ in range(ROUNDS):
            for side in sides:
                side.alone.append(_round(side, 1, CYCLES[size], idle))
            for side in sides:
                side.at_once.append(_round(side, AT_ONCE, CYCLES[size] // 4, idle))
    cloud.clear()
    yield from _shown(ours, nova)


# --- the two sides ------------------------------------------------------------------------------


@contextlib.contextmanager
def _ours(cloud: NovaCloud, home: str, dsn: str) -> Iterator[Side]:
    member = person("member")
    settings = f"""
[cinder.auth]
auth_type = "password"
auth_url = "{ENV["LEDGER_LAB_KEYSTONE"]}"
username = "ledger"
password = "lab-ledger"
project_name = "service"
user_domain_id = "default"
project_domain_id = "default"
"""
    beside = Beside(
        settings=settings,
        volumes=tuple(cloud.volume() for _ in range(AT_ONCE)),
        project=member.project_id,
        token=member.token,
        auth="keystone",
    )
    with serving(Path(home), dsn, beside) as worlds:
        yield Side(worlds[0].spent, [world.walls for world in worlds])


def _nova(cloud: NovaCloud) -> Side:
    leaders = {name: _leader(name) for name in (*DAEMONS, "mariadb", "rabbitmq")}
    clients = [_of_nova(cloud, cloud.server(), cloud.volume()) for _ in range(AT_ONCE)]
    return Side(lambda: _spent(leaders), clients)


def _of_nova(cloud: NovaCloud, server_id: str, volume_id: str) -> Cycle:
    nova, path = cloud.of_member, f"/servers/{server_id}/os-volume_attachments"
    body = {"volumeAttachment": {"volumeId": volume_id}}
    row = "SELECT status FROM volumes WHERE id = ?"
    mapped = "SELECT count(*) FROM block_device_mapping WHERE deleted = 0"
    mapped += f" AND instance_uuid = '{server_id}' AND volume_id = '{volume_id}';\n"
    sql = _nova_database()

    def unmapped() -> None:
        """A volume is available before its mapping is gone, and Nova refuses it for as long."""
        end = time.monotonic() + WAIT_S
        while sql(mapped) != "0":
            assert time.monotonic() < end, f"Nova keeps the mapping of volume {volume_id}"
            time.sleep(POLL_S)

    def until(wanted: str) -> None:
        end = time.monotonic() + WAIT_S
        with contextlib.closing(_cinder_database()) as database:
            while database.execute(row, [volume_id]).fetchone() != (wanted,):
                assert time.monotonic() < end, f"volume {volume_id} does not become {wanted}"
                time.sleep(POLL_S)

    def cycle() -> tuple[float, float]:
        began = time.perf_counter()
        nova.post(path, json=body, headers=NOVA)
        until("in-use")
        attached = time.perf_counter()
        nova.delete(f"{path}/{volume_id}", headers=NOVA)
        until("available")
        unmapped()
        return (attached - began) * 1e3, (time.perf_counter() - attached) * 1e3

    return cycle


def _nova_database() -> Callable[[str], str]:
    """A query that has one row of one column, to that."""
    socket = f"--socket={LAB_DIR}/run/mariadb.sock"
    words = ["mariadb", "--no-defaults", socket, "-uroot", "-N", "-n", "nova_cell1"]
    client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked, told = client.stdin, client.stdout
    assert asked
    assert told

    def query(text: str) -> str:
        asked.write(text)
        asked.flush()
        return told.readline().strip()

    return query


def _cinder_database() -> sqlite3.Connection:
    place = f"file:{LAB_DIR}/cinder/cinder.sqlite?mode=ro"
    return sqlite3.connect(place, uri=True, timeout=WAIT_S)


# --- measuring ----------------------------------------------------------------------------------


def _round(side: Side, clients: int, cycles: int, idle: dict[str, float]) -> Round:
    walls: list[tuple[float, float]] = []
    threads = [
        threading.Thread(target=lambda each=each: walls.extend(each() for _ in range(cycles)))
        for each in side.clients[:clients]
    ]
    before, calls, began = _all_spent([side]), _calls(), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    done = clients * cycles
    assert len(walls) == done, "a client failed; see above"
    time.sleep(REST_S)
    after, called = _all_spent([side]), _calls()
    paused_s = time.monotonic() - began
    net = {name: (after[name] - before[name] - idle[name] * paused_s) / done for name in after}
    attached, detached = (statistics.median(column) for column in zip(*walls, strict=True))
    made = Round(
        cpu_ms=net,
        calls=(called - calls) / done,
        attached_ms=attached,
        detached_ms=detached,
        rate=done / took_s,
    )
    sys.stderr.write(f"{clients} at once: {made}\n")
    return made


def _idle(sides: tuple[Side, ...]) -> dict[str, float]:
    """What each program takes when nothing happens, in ms of CPU a second."""
    time.sleep(REST_S)
    before, began = _all_spent(sides), time.monotonic()
    time.sleep(IDLE_S)
    took_s = time.monotonic() - began
    return {name: (now - before[name]) / took_s for name, now in _all_spent(sides).items()}


def _all_spent(sides: Any) -> dict[str, float]:
    spent = _spent({"Cinder": _leader("cinder")})
    for side in sides:
        spent |= side.spent()
    return spent


def _leader(name: str) -> int:
    return int((LAB_DIR / f"run/{name}.pid").read_text().split()[0])


def _spent(leaders: dict[str, int]) -> dict[str, float]:
    """By session: a daemon of the lab leads one of its own."""
    by_session: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            rest = stat.read_text().rpartition(") ")[2].split()
            session = int(rest[3])
            by_session[session] = by_session.get(session, 0) + sum(map(int, rest[11:15]))
    return {name: by_session.get(pid, 0) * 1e3 / TICKS for name, pid in leaders.items()}


def _calls() -> int:
    return (LOG_DIR / "cinder.log").read_bytes().count(CALL)


# --- in words -----------------------------------------------------------------------------------


def _shown(ours: Side, nova: Side) -> Iterator[Figure]:
    def median(rounds: list[Round], of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, rounds))

    def beside(
        name: str, of: Callable[[Round], float], unit: str, at_once: bool = False, **more: Any
    ) -> Figure:
        """Ours as a share of Nova's; the median of the rounds."""
        mine, theirs = (
            median(side.at_once if at_once else side.alone, of) for side in (ours, nova)
        )
        said = f"ours {mine:.3g} {unit}, Nova 34 {theirs:.3g} {unit}"
        return Figure(row=17, name=name, value=mine / theirs, unit="x", compared_with=said, **more)

    for at_once in (False, True):
        who = f"{AT_ONCE} at once: " if at_once else ""
        own = f"{who}CPU of an attach and detach, own processes"
        yield beside(own, lambda one: one.own_ms, "ms", at_once, target=OWN_SHARE)
        cinders = f"{who}CPU that it makes Cinder spend"
        yield beside(cinders, lambda one: one.cpu_ms["Cinder"], "ms", at_once, target=CINDER_SHARE)
        yield beside(f"{who}until attached, wall", lambda one: one.attached_ms, "ms", at_once)
        yield beside(f"{who}until detached, wall", lambda one: one.detached_ms, "ms", at_once)
        yield beside(f"{who}cycles a second", lambda one: one.rate, "/s", at_once)
    calls = median(nova.alone, lambda one: one.calls)
    yield Figure(
        row=17,
        name="calls of Cinder in an attach and detach",
        value=median(ours.alone, lambda one: one.calls),
        unit="calls",
        target=CALLS_MAX,
        compared_with=f"Nova 34: {calls:.3g}",
    )
    for who, side in (("ours", ours), ("Nova's", nova)):
        for name in sorted(side.alone[0].cpu_ms.keys() - {"Cinder"}):
            spent = statistics.median(one.cpu_ms[name] for one in side.alone)
            yield Figure(row=17, name=f"of {who}: {name}", value=spent, unit="ms")
