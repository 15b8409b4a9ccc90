"""Three machines with PostgreSQL under Patroni, etcd, and HAProxy by deploy/haproxy-postgresql.cfg.

Each machine is a network namespace with a disk of its own, so that it can be cut off, vanish whole,
stand still, or be full.  Root, Debian 12.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from tests.stack import ROOT, eventually

NODES = (1, 2, 3)
#: As the proxy's configuration has them.
NET, PROXY = "10.92.0", "127.0.0.1:5433"
#: With the WAL that Patroni keeps for a member that is away.
DISK = "2g"
#: Until a cluster is whole: a node is made anew from another one.
WHOLE_S = 180.0
#: run.sh installs it.
PATRONI = "/var/tmp/attachment-ledger-patroni/bin/patroni"
#: How long etcd is away, or a disk full: longer than Patroni's ttl.
AWAY_S = 30.0
#: What was killed is gone in this time.
STOPS_S = 10.0
_SETTINGS = """
scope: ledger
name: node-{n}
restapi: {{listen: "{address}:8008", connect_address: "{address}:8008"}}
etcd3: {{hosts: "{net}.254:2379"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 3
    retry_timeout: 5
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters: {{wal_log_hints: "on", max_connections: 150}}
  initdb: [{{encoding: UTF8}}, data-checksums]
postgresql:
  listen: "{address}:5432"
  connect_address: "{address}:5432"
  data_dir: {disk}/data
  bin_dir: {bin}
  pgpass: {disk}/pgpass
  pg_hba: [host all all {net}.0/24 trust, host replication all {net}.0/24 trust]
  authentication:
    superuser: {{username: postgres, password: lab}}
    replication: {{username: replicator, password: lab}}
    rewind: {{username: rewinder, password: lab}}
  parameters: {{unix_socket_directories: {disk}, shared_buffers: 64MB, max_wal_size: 128MB}}
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Cluster:
    """Use `running_cluster`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._bin = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- up, down -----------------------------------------------------------------------------

    def up(self) -> None:
        _run("ip", "link", "add", "ha0", "type", "bridge")
        _run("ip", "address", "add", f"{NET}.254/24", "dev", "ha0")
        _run("ip", "link", "set", "ha0", "up")
        for node in NODES:
            self._make(node)
        self.start_etcd()
        for node in NODES:
            self.start(node)
        proxy = ROOT / "deploy/haproxy-postgresql.cfg"
        self._spawn("haproxy", shutil.which("haproxy") or "haproxy", "-db", "-f", str(proxy))
        eventually(self.is_whole, f"the cluster is whole; see {self.home}", WHOLE_S)

    def _make(self, node: int) -> None:
        name, disk = f"ha{node}", self._disk(node)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", name, "master", "ha0", "up")
        for command in (
            f"address add {NET}.{node}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            _run("ip", "-n", name, *command.split())
        disk.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK}", f"tmpfs-ha{node}", str(disk))
        shutil.chown(disk, "postgres", "postgres")
        disk.chmod(0o700)
        address = f"{NET}.{node}"
        settings = {"n": node, "address": address, "net": NET, "disk": disk, "bin": self._bin}
        (self.home / f"{name}.yml").write_text(_SETTINGS.format(**settings))

    def _disk(self, node: int) -> Path:
        return self.home / f"disk-{node}"

    def down(self) -> None:
        for node in NODES:
            self.signal(node, signal.SIGCONT)
            self.kill(node)
        for process in self.processes.values():
            process.kill()
            process.wait()
        for node in NODES:
            with suppress(subprocess.CalledProcessError):
                _run("umount", "--lazy", "--all-targets", f"tmpfs-ha{node}")
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", f"ha{node}")
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "delete", "ha0")

    def _spawn(self, name: str, *command: str) -> None:
        if (former := self.processes.get(name)) is not None:
            former.wait(STOPS_S)
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def start_etcd(self) -> None:
        url, peer = f"http://{NET}.254:2379", f"http://{NET}.254:2380"
        command = ["etcd", "--data-dir", str(self.home / "etcd")]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._spawn("etcd", *command, "--initial-cluster", f"default={peer}")

    def start(self, node: int) -> None:
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        settings = str(self.home / f"ha{node}.yml")
        inside = ["ip", "netns", "exec", f"ha{node}", *as_postgres]
        self._spawn(f"patroni-{node}", *inside, PATRONI, settings)

    # --- what there is ------------------------------------------------------------------------

    def members(self) -> list[dict[str, Any]]:
        for node in NODES:
            with suppress(requests.RequestException):
                answer = requests.get(f"http://{NET}.{node}:8008/cluster", timeout=3)
                return list(answer.json()["members"])
        return []

    def is_whole(self) -> bool:
        """One leads, one follows it synchronously, and all run."""
        members = self.members()
        roles = [each["role"] for each in members]
        well = all(each["state"] in {"running", "streaming"} for each in members)
        return (
            len(members) == len(NODES)
            and well
            and roles.count("leader") == roles.count("sync_standby") == 1
        )

    def one(self, role: str) -> int:
        return next(int(each["name"][-1]) for each in self.members() if each["role"] == role)

    def dsn(self, database: str) -> str:
        host, port = PROXY.split(":")
        return f"host={host} port={port} user=postgres dbname={database} connect_timeout=2"

    # --- what can happen to a machine -----------------------------------------------------------

    def _pids(self, node: int) -> list[int]:
        """All that run on it; in a vanished one none do."""
        told = subprocess.run(
            ["ip", "netns", "pids", f"ha{node}"], check=False, capture_output=True, text=True
        )
        return [int(pid) for pid in told.stdout.split()]

    def signal(self, node: int, what: signal.Signals) -> None:
        for pid in self._pids(node):
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def kill(self, node: int) -> None:
        while self._pids(node):
            self.signal(node, signal.SIGKILL)

    def wire(self, node: int, state: str) -> None:
        """Its cable: "up" or "down"."""
        _run("ip", "link", "set", f"ha{node}", state)


@contextmanager
def running_cluster(home: Path) -> Iterator[Cluster]:
    """Below `home`, a directory that PostgreSQL's user may enter; its logs stay there."""
    cluster = Cluster(home)
    cluster.down()  # of a run that was killed
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o711)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


# --- cases: what is struck, and what mends it -----------------------------------------------------

Case = Callable[[Cluster], Callable[[], None]]


def switchover(cluster: Cluster) -> Callable[[], None]:
    """An operator has another node lead."""
    leader, to = cluster.one("leader"), cluster.one("sync_standby")
    wanted = {"leader": f"node-{leader}", "candidate": f"node-{to}"}
    answer = requests.post(f"http://{NET}.{leader}:8008/switchover", json=wanted, timeout=60)
    assert answer.ok, answer.text
    return lambda: None


def postgresql(cluster: Cluster) -> Callable[[], None]:
    """The leader's PostgreSQL is killed; Patroni lives."""
    pid = (
        (cluster.home / f"disk-{cluster.one('leader')}/data/postmaster.pid").read_text().split()[0]
    )
    os.kill(int(pid), signal.SIGKILL)
    return lambda: None


def machine(cluster: Cluster) -> Callable[[], None]:
    """All processes of the leader's machine are killed."""
    leader = cluster.one("leader")
    cluster.kill(leader)
    return lambda: cluster.start(leader)


def patroni(cluster: Cluster) -> Callable[[], None]:
    """Patroni of the leader is killed; nobody tells its PostgreSQL that it leads no more."""
    leader = cluster.one("leader")
    cluster.processes[f"patroni-{leader}"].kill()
    return lambda: cluster.start(leader)


def frozen(cluster: Cluster) -> Callable[[], None]:
    """The leader's machine stands still; its kernel acknowledges what it is sent."""
    leader = cluster.one("leader")
    cluster.signal(leader, signal.SIGSTOP)
    return lambda: cluster.signal(leader, signal.SIGCONT)


def standby(cluster: Cluster) -> Callable[[], None]:
    """The machine of the synchronous standby is killed."""
    node = cluster.one("sync_standby")
    cluster.kill(node)
    return lambda: cluster.start(node)


def etcd(cluster: Cluster) -> Callable[[], None]:
    """etcd is away for longer than Patroni's ttl: nobody may lead."""
    cluster.processes["etcd"].terminate()
    time.sleep(AWAY_S)  # the length of the outage
    cluster.start_etcd()
    return lambda: None


def cut(cluster: Cluster) -> Callable[[], None]:
    """The leader's network is cut."""
    leader = cluster.one("leader")
    cluster.wire(leader, "down")
    return lambda: cluster.wire(leader, "up")


def vanished(cluster: Cluster) -> Callable[[], None]:
    """The leader's machine is gone: nobody answers at its address."""
    leader = cluster.one("leader")
    cluster.wire(leader, "down")
    cluster.kill(leader)

    def mend() -> None:
        cluster.wire(leader, "up")
        cluster.start(leader)

    return mend


def full(cluster: Cluster) -> Callable[[], None]:
    """The leader's disk is full for a while."""
    ballast = cluster.home / f"disk-{cluster.one('leader')}/ballast"
    with ExitStack() as stack, suppress(OSError):
        file = stack.enter_context(ballast.open("wb", buffering=0))
        while True:
            file.write(bytes(64 * 1024))
    time.sleep(AWAY_S)  # the length of the outage
    ballast.unlink()
    return lambda: None


CASES: tuple[Case, ...] = (
    *(switchover, postgresql, machine, patroni, frozen, standby, etcd),
    *(cut, vanished, full),
)
#: What lasts so long whatever anybody does, in seconds: some small rows may still be stored.
OUTAGES: dict[Case, float] = {etcd: AWAY_S, full: AWAY_S}
