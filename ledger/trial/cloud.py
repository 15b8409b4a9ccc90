"""A small cloud on this machine, for the demo: what runs, where, and how it ends.

PostgreSQL is the embedded one; Cinder and the hosts are simulated; the service and the
agents are the real programs, each in a process of its own, so that they can be killed
like real ones.  Everything they write is below one directory.  Leaving the context ends
every process that was begun, in reverse order; a process that does not end when asked
is killed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import psycopg

import sql
from ledger.cli.client import Client, ClientError
from ledger.log import schema
from ledger.trial.embedded import EmbeddedPostgres

T = TypeVar("T")

HOSTS = ("host-1", "host-2")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 15.0
POLL_S = 0.05
LOG_LINES_SHOWN = 15
USER, OPERATOR = "alice", "olivia"

#: Variables that would lead our processes somewhere else.
_FOREIGN = ("LEDGER_", "ATTACHMENT_LEDGER_", "OS_")


class DemoError(Exception):
    """The demo cannot go on; what happened, and the end of the log that tells why."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end us wait: a child that is born is known before we leave."""
    held: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, lambda number, _frame: held.append(number)) for n in numbers}
    try:
        yield
    finally:
        for ours, handler in before.items():
            signal.signal(ours, handler)
        for number in held:
            signal.raise_signal(number)


@dataclass
class Process:
    """One program, its log, and how to end it."""

    name: str
    arguments: list[str]
    log: Path
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin it (again); its output is added to its log."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        with undisturbed(), self.log.open("ab") as out:
            # A session of its own: Ctrl-C on the terminal is for us, and we end it in order.
            self.child = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.child is not None, "it has been started"
        return self.child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if one ended it."""
        return self.child.poll() if self.child else None

    def stop(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(f"  | {line}" for line in lines[-LOG_LINES_SHOWN:])


@dataclass(frozen=True)
class DemoServer:
    """A server of the demo."""

    name: str
    host: str
    power_state: str = "running"
    devices: tuple[str, ...] = ()  # disks of its host's own: with such it cannot leave
    id: str = field(default_factory=lambda: str(uuid4()))


@dataclass(frozen=True)
class DemoVolume:
    """A volume of the demo."""

    name: str
    size: int
    multiattach: bool = False
    bootable: bool = False
    id: str = field(default_factory=lambda: str(uuid4()))


class TrialCloud:
    """Enter it to have it run.  Ports that are not given are free ones."""

    def __init__(self, home: Path, port: int | None, cinder_port: int | None) -> None:
        self.home = home
        self.guests: tuple[DemoServer, ...] = (
            DemoServer("web-1", HOSTS[0], devices=("vda",)),
            DemoServer("db-1", HOSTS[1]),
            DemoServer("batch-1", HOSTS[1], "shutdown"),
        )
        self.volumes: tuple[DemoVolume, ...] = (
            DemoVolume("data-1", 10),
            DemoVolume("data-2", 20),
            DemoVolume("shared-1", 5, multiattach=True),
            DemoVolume("boot-1", 20, bootable=True),
        )
        self._stack = ExitStack()
        self.url = f"http://127.0.0.1:{port or free_port(self._stack)}"
        self.cinder_url = f"http://127.0.0.1:{cinder_port or free_port(self._stack)}"
        self._project = secrets.token_hex(16)
        #: What Cinder's noauth calls a token; the ledger is told to know it.
        self.user_token = f"{USER}:{self._project}"
        self.operator_token = secrets.token_hex(16)
        self._agent_tokens = {host: secrets.token_hex(16) for host in HOSTS}
        self.processes: dict[str, Process] = {}
        self._dsn = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what runs ------------------------------------------------------------------------

    def _start(self) -> None:
        cinder = ["--port", _port(self.cinder_url), "--compute-url", f"{self.url}/v2.1"]
        state = str(self.home / "cinder.json")
        self._run("cinder", ["ledger", "sim", "cinder", "--state", state, *cinder])
        self._dsn = self._stack.enter_context(EmbeddedPostgres()).start(self.home / "postgresql")
        schema.upgrade(self._dsn)
        self._run("ledger", ["ledger", "serve", "--config", str(self._write_settings(self._dsn))])
        for host in HOSTS:
            self._run_agent(host)
        self._seed()
        self._wait_until_up()
        self._write_clouds_yaml()

    def _write_settings(self, dsn: str) -> Path:
        agents = [
            self._token(f"agent-{host}", "agent", token, host=host)
            for host, token in self._agent_tokens.items()
        ]
        settings = [
            f"database_url = {json.dumps(dsn)}",
            'auth = "tokens"',
            f"listen = {{port = {_port(self.url)}}}",
            f'cinder = {{endpoint = "{self.cinder_url}/v3"}}',
            *self._token(USER, "member", self.user_token),
            *self._token(OPERATOR, "admin", self.operator_token),
            *(line for lines in agents for line in lines),
        ]
        return write_private(self.home / "ledger.toml", "\n".join(settings) + "\n")

    def _run(self, name: str, arguments: list[str]) -> None:
        process = Process(name, arguments, self.home / f"{name}.log")
        self.processes[name] = process
        self._stack.callback(process.stop)
        process.start()

    def _run_agent(self, host: str) -> None:
        guests = [guest for guest in self.guests if guest.host == host]
        define = [
            {
                "server_id": guest.id,
                "name": guest.name,
                "power_state": guest.power_state,
                "devices": guest.devices,
                "project_id": self._project,
                "user_id": USER,
            }
            for guest in guests
        ]
        self.state_file(host).write_text(json.dumps({"define": define}))
        self.set_faults(host, [])
        token = write_private(self.home / f"{host}.token", self._agent_tokens[host])
        arguments = ["host_agent", "run", "--host", host, "--ledger-url", self.url]
        arguments += ["--set", f"ledger.token_file={token}"]
        arguments += ["--simulated", str(self.state_file(host))]
        arguments += ["--faults", str(self.fault_file(host))]
        arguments += ["--lock-path", str(self.home / f"{host}.locks")]
        self._run(host, [*arguments, "--set", f"cinder.endpoint={self.cinder_url}/v3"])

    def _seed(self) -> None:
        volumes = [
            {
                "id": volume.id,
                "name": volume.name,
                "size": volume.size,
                "multiattach": volume.multiattach,
                "bootable": volume.bootable,
                "driver": "iscsi",
                "project_id": self._project,
            }
            for volume in self.volumes
        ]

        def look() -> bool:
            self.cinder.send("PUT", "/sim/volumes", body=volumes)
            return True

        self.until("the simulated Cinder answers", look)

    def _wait_until_up(self) -> None:
        def up() -> bool:
            hosts = {host["host"]: host["alive"] for host in self.ledger.get("/v1/hosts")["hosts"]}
            servers = self.compute.get("/servers")["servers"]
            known = {server["id"] for server in servers}
            return all(map(hosts.get, HOSTS)) and known >= {guest.id for guest in self.guests}

        self.until("the ledger knows both hosts and their servers", up)

        def ready() -> bool:
            return bool(self.ledger.get("/readyz")["status"] == "ok")

        self.until("the ledger is ready", ready)

    def _write_clouds_yaml(self) -> None:
        auth = {"endpoint": self.url, "token": self.user_token}
        cloud = {
            "auth_type": "admin_token",
            "auth": auth,
            "volume_api_version": "3",
            "block_storage_api_version": "3",
            # Some commands want to see an identity service, version 3, and ask it nothing:
            # Cinder's version document will do.
            "identity_endpoint_override": f"{self.cinder_url}/v3",
            "compute_endpoint_override": f"{self.url}/v2.1",
            "block_storage_endpoint_override": f"{self.cinder_url}/v3/{self._project}",
            "volume_endpoint_override": f"{self.cinder_url}/v3/{self._project}",
        }
        # JSON is YAML.
        text = json.dumps({"clouds": {"demo": cloud}}, indent=2)
        write_private(self.clouds_yaml, text + "\n")

    # --- where things are -------------------------------------------------------------------

    @cached_property
    def ledger(self) -> Client:
        """As the operator, who may see everything."""
        return Client(self.url, self.operator_token)

    @cached_property
    def compute(self) -> Client:
        """The same service as the user sees it, in Nova's form."""
        return Client(f"{self.url}/v2.1", self.user_token)

    @cached_property
    def cinder(self) -> Client:
        return Client(self.cinder_url, self.user_token)

    def _token(self, name: str, role: str, token: str, host: str | None = None) -> list[str]:
        """A [[tokens]] section of the settings."""
        fields = {"name": name, "user_id": name, "project_id": self._project, "token": token}
        fields |= {"host": host} if host else {}
        return ["[[tokens]]", f'roles = ["{role}"]', *(f'{k} = "{v}"' for k, v in fields.items())]

    @property
    def clouds_yaml(self) -> Path:
        return self.home / "clouds.yaml"

    def state_file(self, host: str) -> Path:
        return self.home / f"{host}.json"

    def fault_file(self, host: str) -> Path:
        return self.home / f"{host}.faults.json"

    def set_faults(self, host: str, rules: list[dict[str, Any]]) -> None:
        draft = self.home / f"{host}.faults.new"
        draft.write_text(json.dumps(rules, indent=1))
        draft.replace(self.fault_file(host))

    def logs(self) -> Iterator[Path]:
        return (process.log for process in self.processes.values())

    # --- waiting ----------------------------------------------------------------------------

    def until(
        self,
        what: str,
        look: Callable[[], T],
        deadline_s: float = START_DEADLINE_S,
        *,
        may_end: str | None = None,
    ) -> T:
        """What `look` finds as soon as it is true; not being reached yet counts as false.

        Raises DemoError at the deadline, or as soon as a process (but `may_end`) has ended.
        """
        end = time.monotonic() + deadline_s
        why = ""
        while True:
            try:
                if found := look():
                    return found
            except ClientError as error:
                why = f" ({error})"
            for process in self.processes.values():
                if process.name != may_end and process.exit_code is not None:
                    raise DemoError(
                        f"{process.name} ended with {process.exit_code} while waiting that "
                        f"{what}:\n{process.log_end()}"
                    )
            if time.monotonic() > end:
                ends = "\n".join(f"{p.name}:\n{p.log_end()}" for p in self.processes.values())
                raise DemoError(f"not within {deadline_s:g} s: {what}{why}\n{ends}")
            time.sleep(POLL_S)

    def age_findings(self, seconds: float) -> None:
        """Spare whoever watches the wait between two looks of which the second one counts."""
        with psycopg.connect(self._dsn, autocommit=True) as database:
            database.execute(sql.query("trial", "wait_for_findings"), {"seconds": seconds})

    def kill(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGKILL)


def free_port(held: ExitStack | AsyncExitStack) -> int:
    """A port of 127.0.0.1 that nobody but a server that is told of it gets until `held` is closed.

    A socket stays bound to it and never listens: so the kernel gives it to no connection, and to
    nobody who asks for any port.  A server binds it beside that by SO_REUSEADDR, as servers do.
    """
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])


def _port(url: str) -> str:
    return url.rpartition(":")[2]


def write_private(path: Path, text: str) -> Path:
    """A file that only its owner may read: there are tokens in it."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path
