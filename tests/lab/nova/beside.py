"""The ledger beside the lab's Nova: it watches, and is the endpoint that the catalog names.

Its agent has a simulated host where Nova's compute service has the fake driver.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from handlers.drift.judge import APART_S
from ledger.nova_beside.adapters import TIMEOUT_S
from ledger.nova_beside.observer import REST
from tests.benchmarks.servers import server
from tests.lab.nova.cloud import NovaCloud, read_only, wait_until
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LAB_SRC, LOG_DIR, SETTLE_S
from tests.printed import printed
from tests.stack import Process
from tests.tokens import write_private

INTERVAL_S = 1.0
URL = ENV["LAB_LEDGER_URL"]
NOVA_URL = f"http://127.0.0.1:{ENV['LAB_NOVA_PORT']}"
DOWN_AFTER_S = 10.0
#: A look may wait for an answer, as of a Nova that just starts, and then rests.
SLOW_S = (1 + REST) * TIMEOUT_S
#: For a script of the lab's: longer than it waits for Nova itself (ready.py).
SCRIPT_S = 300
OURS = f"""
[cinder.auth]
auth_type = "password"
auth_url = "{ENV["LEDGER_LAB_KEYSTONE"]}"
username = "ledger"
password = "lab-ledger"
project_name = "service"
user_domain_id = "default"
project_domain_id = "default"
"""
CONFIG = """
database_url = "{dsn}"
auth = "keystone"
host_down_after_s = {DOWN_AFTER_S}

[listen]
host = "{ENV[LAB_ADDRESS]}"
port = {ENV[LAB_LEDGER_PORT]}
plain_http = true

{OURS}
[observe]
interval_s = {INTERVAL_S}
interface = "public"
notifications = "rabbit://ledger:lab@127.0.0.1:{ENV[LAB_RABBIT_PORT]}/notifications"
compute_endpoint = "{NOVA_URL}/v2.1"
pass_on_to = "{NOVA_URL}"

[observe.auth]
{auth}

[[tokens]]
name = "operator"
token = "{ENV[LAB_OPERATOR_TOKEN]}"
user_id = "operator"
project_id = "operators"
roles = ["admin", "operator"]

[[tokens]]
name = "agent"
token = "{ENV[LAB_AGENT_TOKEN]}"
user_id = "agent"
project_id = "service"
roles = ["agent"]
host = "{ENV[LAB_HOST]}"

[[tokens]]
name = "agent-2"
token = "{ENV[LAB_AGENT_TOKEN_2]}"
user_id = "agent-2"
project_id = "service"
roles = ["agent"]
host = "{ENV[LAB_HOST_2]}"
"""
AGENT = """
[agent]
host = "{ENV[LAB_HOST]}"
lock_path = "{home}/locks"

[ledger]
url = "{ENV[LAB_LEDGER_URL]}"
plain_http = true
token = "{ENV[LAB_AGENT_TOKEN]}"
wait_s = 2.0

{OURS}
"""


class Beside:
    """The service, and what an operator reads there."""

    log = LOG_DIR / "ledger.log"

    def __init__(self, home: Path, config: str) -> None:
        self.home, self._config = home, write_private(home / "ledger.toml", config)
        self.process: Process

    def start(self) -> None:
        command = ("ledger", "serve", "--config", str(self._config))
        self.process = Process(self.log, *command)
        wait_until(self._ready, "the ledger to be ready")

    def _ready(self) -> bool:
        assert self.process.running, self.log.read_text()[-2000:]
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{URL}/readyz", timeout=SETTLE_S).ok
        return False

    @contextlib.contextmanager
    def agent(self, state: Path) -> Iterator[None]:
        """Of LAB_HOST, whose host has this state."""
        text = AGENT.format(ENV=ENV, OURS=OURS, home=self.home)
        config = str(write_private(self.home / "agent.toml", text))
        command = ("host_agent", "run", "--config", config, "--simulated", str(state))
        agent = Process(LOG_DIR / "agent-1.log", *command)
        try:
            yield
        finally:
            agent.stop()

    @contextlib.contextmanager
    def real_agent(self) -> Iterator[None]:
        """Of LAB_HOST_2, with os-brick and libvirt."""
        agents_settings()
        lab("exec ./ledger.sh start agent-2")
        try:
            yield
        finally:
            lab("stop agent-2")

    def get(self, path: str) -> Any:
        headers = {"X-Auth-Token": ENV["LAB_OPERATOR_TOKEN"]}
        answer = requests.get(f"{URL}/v1{path}", headers=headers, timeout=SETTLE_S)
        return answer.json() if answer.ok else {}

    def history(self, volume_id: str) -> list[dict[str, Any]]:
        return self.events(f"/volumes/{volume_id}")

    def events(self, path: str) -> list[dict[str, Any]]:
        return list(self.get(f"{path}/history?limit=1000").get("events", ()))

    def looks(self) -> int:
        """How many at everything have ended."""
        return self.log.read_text().count("looked_at_nova")

    def findings(self, state: str, **of: str) -> list[dict[str, Any]]:
        asked = "&".join(f"{name}={value}" for name, value in {"state": state, **of}.items())
        return list(self.get(f"/drift?{asked}")["findings"])

    def finding(self, volume_id: str, state: str) -> dict[str, Any]:
        """The finding of the volume, once it is in that state."""
        seen = lambda: self.findings(state, volume=volume_id)  # noqa: E731
        [found] = wait_until(seen, f"{volume_id} to be {state}", SETTLE_S + 2 * APART_S + SLOW_S)
        return dict(found)

    def until(self, volume_id: str, topic: str, number: int = 1) -> dict[str, Any]:
        """The last event of that topic, once there are so many."""

        def seen() -> dict[str, Any] | None:
            found = [each for each in self.history(volume_id) if each["topic"] == topic]
            return found[-1] if len(found) >= number else None

        what = f"{topic} of {volume_id}, {number} times"
        return dict(wait_until(seen, what, SETTLE_S + SLOW_S))


@contextlib.contextmanager
def beside() -> Iterator[Beside]:
    with server() as dsn, tempfile.TemporaryDirectory() as home, read_only() as auth:
        options = "\n".join(f'{name} = "{value}"' for name, value in auth.items())
        for begins in ("rabbitmqctl set_permissions", "rabbitmqctl set_policy"):
            bus(printed("observe.md", begins))
        ledger = Beside(Path(home), CONFIG.format(dsn=dsn, auth=options, **globals()))
        ledger.start()
        try:
            with _catalog_names(f"{URL}/v2.1"):
                yield ledger
        finally:
            ledger.process.stop()


@contextlib.contextmanager
def _catalog_names(url: str) -> Iterator[None]:
    """As the compute endpoint of whoever logs in from now on; Cinder does for each request."""
    session, api = person("admin").session, ENV["LEDGER_LAB_KEYSTONE"]
    [service] = session.get(f"{api}/services?type=compute").json()["services"]
    endpoints = session.get(f"{api}/endpoints?service_id={service['id']}").json()["endpoints"]
    try:
        for each in endpoints:
            session.patch(f"{api}/endpoints/{each['id']}", json={"endpoint": {"url": url}})
        yield
    finally:
        for each in endpoints:
            old = {"endpoint": {"url": each["url"]}}
            session.patch(f"{api}/endpoints/{each['id']}", json=old)


def agents_settings() -> str:
    """The path of those of LAB_HOST_2."""
    path = f"{LAB_DIR}/etc/agent-2.toml"
    words = f"2 {ENV['LAB_HOST_2']} {ENV['LAB_ADDRESS_2']} {ENV['LAB_AGENT_TOKEN_2']}"
    lab(f"umask 077; ./ledger.sh agent_toml {words} >{path}")
    return path


def act(cloud: NovaCloud, words: str, server: str, code: int = 0) -> dict[str, Any]:
    """What is said of the server by an act on the host, of the command line."""
    command = f"{ENV['LAB_VENV']}/bin/attachment-ledger host {words} -f json"
    told = cloud.openstack(command, code)
    [found] = [each for each in json.loads(told)["servers"] if each["server_id"] == server]
    return dict(found)


def lab(command: str) -> None:
    """By the lab's own scripts."""
    script = f". nova/env.sh && . ./lib.sh && {command}"
    subprocess.run(["bash", "-ec", script], cwd=LAB_SRC, check=True, timeout=SCRIPT_S)


def bus(command: str) -> str:
    """What rabbitmqctl says, of Nova's bus."""
    script = f". nova/env.sh && exec ./nova.sh {command}"
    words = ["bash", "-ec", script]
    done = subprocess.run(
        words, cwd=LAB_SRC, check=True, timeout=SCRIPT_S, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def waiting(host: str) -> dict[str, int]:
    """How many calls wait for its nova-compute, by topic, as the page has an operator see it."""
    rows = bus(printed("adopt.md", "rabbitmqctl list_queues")).splitlines()
    counts = dict(each.split("\t") for each in rows)
    topics = [printed("adopt.md", each, hv1=host) for each in ("compute.", "compute-alt.")]
    return {topic: int(counts[topic]) for topic in topics}
