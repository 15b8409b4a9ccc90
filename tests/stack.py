"""The whole system in its own processes: service, agents, PostgreSQL, simulated Cinder.

Everything speaks its real protocol over real sockets; only Cinder's backend, os-brick
and the hypervisor are simulated.  Any process can be killed with SIGKILL and started
again; the host's state and the log are what is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import requests

from host_agent.shared.contract.messages import PowerState
from host_agent.simulated.host_state import HostState
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.views import MAX_VERSION, Microversion
from ledger.trial.cloud import free_port
from tests.authority import Authority
from tests.doubles.host_checks import broken_invariants, plugged
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.replaying import broken_rules
from tests.tokens import token_of, write_private

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
DEADLINE_S = 120.0
ADMIN = token_of("admin")
PROJECT = "9d1f5b0c6a7e4d8f9b2a3c4d5e6f7a8b"


def eventually(
    look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S, log: Path | None = None
) -> T:
    """The first true answer of `look`; at the deadline fails with `what`, and the log's end."""
    end = time.monotonic() + deadline_s
    while True:
        if answer := look():
            return answer
        told = f"not in {deadline_s:g} s: {what}"
        assert time.monotonic() < end, f"{told}\n{log.read_text()[-3000:]}" if log else told
        time.sleep(0.02)


class Process:
    """A process of ours, its output in a file."""

    def __init__(
        self,
        log: Path,
        *command: str,
        python: Sequence[str] = (sys.executable,),
        **environ: str,
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [*python, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait()

    def stop(self) -> int:
        """SIGTERM, and wait; its exit code."""
        self._popen.send_signal(signal.SIGTERM)
        return self._popen.wait(DEADLINE_S)

    def pause(self) -> None:
        """Returns when it stands still: a thread of it may go on for a moment after the signal."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def died(self) -> bool:
        """Whether it was killed (by a fault rule)."""
        return self._popen.poll() == -signal.SIGKILL


class Stack:
    """Use `running_stack`."""

    cinder: RunningCinder
    auth, settings = "tokens", ""  # of the service, besides what all of them have
    host_down_after_s = 30.0
    #: The program under which services run: its module and arguments.
    service_under: tuple[str, ...] = ()
    #: The interpreter of what is started next, and its options: that of another version has that.
    python: tuple[str, ...] = (sys.executable,)

    def __init__(
        self,
        home: Path,
        database_url: str,
        *,
        hosts: Sequence[str] = ("compute-1", "compute-2"),
        authority: Authority | None = None,
        own_clocks: bool = False,
    ) -> None:
        """`authority`: the service speaks TLS; `own_clocks`: `set_clock` of single processes."""
        self.hosts, self._authority, self._own_clocks = hosts, authority, own_clocks
        self.home = home
        self.database_url = database_url
        self._exits, self._held = ExitStack(), ExitStack()
        self.ports = [free_port(self._held) for _ in range(3)]
        self._volumes, self._cinder_port = CinderModel(), free_port(self._held)
        self.components: dict[int, Process] = {}
        self.agents: dict[str, Process] = {}
        self.servers: dict[str, str] = {}  # server id -> host
        self.http = self.session(ADMIN)

    # ------------------------------------------------------------ processes

    def start_cinder(self, max_version: Microversion = MAX_VERSION) -> None:
        """Serve the volumes there are; when it runs, as another version from now on."""
        self._exits.close()
        self.cinder = self._exits.enter_context(
            running_cinder(
                self._volumes,
                compute_endpoint=self.url("/v2.1"),
                port=self._cinder_port,
                max_version=max_version,
            )
        )

    def kill_all(self) -> None:
        """All processes but Cinder."""
        for process in (*self.agents.values(), *self.components.values()):
            if process.running:
                process.kill()

    def close(self) -> None:
        self.kill_all()
        self._exits.close()
        self._held.close()

    def start_service(self, number: int = 0) -> None:
        self.begin_service(number)
        self.wait_for_service(number)

    def wait_for_service(self, number: int) -> None:
        log = self.components[number].log
        eventually(lambda: self._serves(number), "service answers", log=log)

    def begin_service(self, number: int) -> None:
        """Without waiting until it answers."""
        config = self.home / f"ledger-{number}.toml"
        write_private(config, self._service_config(number))
        log = self.home / f"service-{number}.log"
        command = [
            *self.service_under,
            "ledger",
            "serve",
            "--config",
            str(config),
            "--log-level",
            "debug",
        ]
        self.components[number] = self._process(log, *command)

    def _process(self, log: Path, *command: str) -> Process:
        if not self._own_clocks:
            return Process(log, *command, python=self.python)
        clocked = ("tests.chaos.set_clock", str(log.with_suffix(".clock")), *command)
        return Process(log, *clocked, PYTHONPATH=str(ROOT))

    def show_threads(self) -> None:
        """In the services' logs, if they have clocks of their own (tests.chaos.set_clock)."""
        for process in self.components.values():
            os.kill(process.pid, signal.SIGUSR1)

    def set_clock(self, process: Process, by_s: float) -> None:
        """Its wall clock is so far ahead of the machine's from now on."""
        draft = process.log.with_suffix(".clock.new")
        draft.write_text(str(by_s))
        draft.rename(process.log.with_suffix(".clock"))

    def _service_config(self, number: int) -> str:
        tokens = "".join(
            f'[[tokens]]\nname = "agent of {host}"\ntoken = "{token_of(host)}"\n'
            f'user_id = "agents"\nproject_id = "service"\nroles = ["agent"]\nhost = "{host}"\n'
            for host in self.hosts
        )
        return (
            f'database_url = "{self.database_url}"\nauth = "{self.auth}"\n'
            f"host_down_after_s = {self.host_down_after_s}\n"
            f"[listen]\nport = {self.ports[number]}\n{self._tls()}"
            f'[cinder]\nendpoint = "{self.cinder.endpoint}"\n'
            f"{self.settings}"
            f'[[tokens]]\nname = "admin"\ntoken = "{ADMIN}"\nuser_id = "admin"\n'
            f'project_id = "{PROJECT}"\nroles = ["admin"]\n{tokens}'
        )

    def _tls(self) -> str:
        if self._authority is None:
            return ""
        files = self._authority.pair("localhost", "IP:127.0.0.1").files
        return "".join(f'{name} = "{path}"\n' for name, path in files.items())

    def _serves(self, number: int) -> bool:
        assert self.components[number].running, self.components[number].log.read_text()[-3000:]
        try:
            return self.http.get(self.url("/readyz", number), timeout=5).status_code == 200
        except (requests.ConnectionError, requests.Timeout):  # not yet, or busy
            return False

    def start_agent(self, host: str = "compute-1", *numbers: int) -> None:
        """An agent of the services `numbers`, or of the first."""
        trust = f'ca_file = "{self._authority.certificate}"\n' if self._authority else ""
        config = self.home / f"{host}.toml"
        write_private(
            config,
            f'[agent]\nhost = "{host}"\nlock_path = "{self.home / host}-locks"\n'
            f'log_level = "debug"\n[ledger]\n{self._ledger_of(numbers or (0,))}'
            f'token = "{token_of(host)}"\nwait_s = 5.0\n{trust}'
            f'[cinder]\nendpoint = "{self.cinder.endpoint}"\n',
        )
        command = ["host_agent", "run", "--config", str(config)]
        command += ["--simulated", str(self.home / f"{host}.json")]
        command += ["--faults", str(self.home / f"{host}-faults.json")]
        self.agents[host] = self._process(self.home / f"{host}.log", *command)

    def _ledger_of(self, numbers: Sequence[int]) -> str:
        """Where an agent finds it."""
        return f'url = "{",".join(self.url("", number) for number in numbers)}"\n'

    def wait_for_host(self, host: str = "compute-1") -> None:
        eventually(
            lambda: self.get(f"/v1/hosts/{host}").status_code == 200,
            f"{host} registers",
            log=self.agents[host].log,
        )

    def set_agent_faults(self, *rules: dict[str, Any], host: str = "compute-1") -> None:
        draft = self.home / "draft"
        draft.write_text(json.dumps(list(rules)))
        draft.rename(self.home / f"{host}-faults.json")

    # --------------------------------------------------------------- things

    def host(self, name: str = "compute-1") -> HostState:
        return HostState(self.home / f"{name}.json")

    def add_server(
        self, host: str = "compute-1", power_state: PowerState = PowerState.RUNNING
    ) -> str:
        """Define a guest before the agent starts."""
        server_id = str(uuid4())
        guest = {"server_id": server_id, "power_state": power_state.value, "project_id": PROJECT}
        HostState(self.home / f"{host}.json", {"define": [guest]})
        self.servers[server_id] = host
        return server_id

    def add_volume(self, **fields: Any) -> str:
        return self.cinder.model.add_volume(project_id=PROJECT, **fields).id

    # ------------------------------------------------------------------ API

    def session(self, token: str) -> requests.Session:
        """Somebody's, to ask any of the services."""
        session = requests.Session()
        session.headers["X-Auth-Token"] = token
        session.trust_env = False  # REQUESTS_CA_BUNDLE would win over `verify`
        session.verify = str(self._authority.certificate) if self._authority else True
        return session

    def url(self, path: str, number: int = 0) -> str:
        scheme = "https" if self._authority else "http"
        return f"{scheme}://127.0.0.1:{self.ports[number]}{path}"

    def get(self, path: str, number: int = 0, **headers: str) -> requests.Response:
        return self.http.get(self.url(path, number), timeout=DEADLINE_S, headers=headers)

    def build(self, *disks: dict[str, Any], host: str = "compute-1") -> str:
        """A new server that runs on `host`."""
        wanted: dict[str, Any] = {"name": "vm", "host": host, "disks": list(disks)}
        answer = self.http.post(self.url("/v1/servers"), json=wanted, timeout=DEADLINE_S)
        self.completed(answer)
        server_id = str(answer.json()["server_id"])
        self.servers[server_id] = host
        return server_id

    def act(
        self, server: str, name: str, body: Any = None, version: str = "2.95"
    ) -> requests.Response:
        return self.http.post(
            self.url(f"/v2.1/servers/{server}/action"),
            json={name: body},
            headers={"OpenStack-API-Version": f"compute {version}"},
            timeout=DEADLINE_S,
        )

    def server(self, server: str) -> dict[str, Any]:
        return dict(self.get(f"/v2.1/servers/{server}").json()["server"])

    def attachments(self, server: str, version: str) -> list[dict[str, Any]]:
        path = f"/v2.1/servers/{server}/os-volume_attachments"
        headers = {"OpenStack-API-Version": f"compute {version}"}
        answer = self.http.get(self.url(path), timeout=DEADLINE_S, headers=headers)
        return list(answer.json()["volumeAttachments"])

    def attach(
        self, server: str, volume: str, number: int = 0, version: str = "2.89", **body: Any
    ) -> requests.Response:
        wanted = {"volumeAttachment": {"volumeId": volume, "device": None, **body}}
        return self.http.post(
            self.url(f"/v2.1/servers/{server}/os-volume_attachments", number),
            json=wanted,
            headers={"OpenStack-API-Version": f"compute {version}"},
            timeout=DEADLINE_S,
        )

    def detach(
        self, server: str, volume: str, number: int = 0, version: str = "2.89"
    ) -> requests.Response:
        return self.http.delete(
            self.url(f"/v2.1/servers/{server}/os-volume_attachments/{volume}", number),
            headers={"OpenStack-API-Version": f"compute {version}"},
            timeout=DEADLINE_S,
        )

    def operation_of(self, response: requests.Response) -> str:
        return response.headers["X-Attachment-Ledger-Operation"].rsplit("/", 1)[-1]

    def finished(self, operation_id: str, number: int = 0) -> dict[str, Any]:
        """The operation when it is finished or parked."""

        def look() -> dict[str, Any] | None:
            try:
                answer = self.get(f"/v1/operations/{operation_id}?wait_s=2", number).json()
            except requests.ConnectionError:
                return None
            return None if answer.get("state") == "running" else answer

        return eventually(look, f"operation {operation_id} ends")

    def completed(self, answer: requests.Response) -> None:
        """Wait for the operation that was accepted; it must have succeeded."""
        assert answer.ok, answer.text
        operation = self.finished(self.operation_of(answer))
        assert operation.get("outcome") == "completed", operation

    def history(self, volume: str) -> list[str]:
        events = self.get(f"/v1/volumes/{volume}/history?limit=500").json()["events"]
        return [event["topic"] for event in events]

    def disks(self, server: str) -> dict[str, tuple[str | None, str | None]]:
        return plugged(self.host(self.servers[server]))[server]

    def check_host(self, host: str = "compute-1") -> None:
        assert broken_invariants(self.host(host)) == []

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.home.glob("*.log"))


@contextmanager
def running_stack(home: Path, database_url: str, **how: Any) -> Iterator[Stack]:
    """A simulated Cinder and nothing else yet; whatever is started is stopped at the end, and the
    log is held against the ledger's rules.
    """
    stack = Stack(home, database_url, **how)
    try:
        stack.start_cinder()
        yield stack
        if stack.components:
            stack.kill_all()
            broken = broken_rules(database_url)
            assert broken == [], broken
    finally:
        stack.close()
