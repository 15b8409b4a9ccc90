"""Agents on one service process: how soon a command is there, what they cost, how they return.

The service runs as it is shipped, with a token for each host; the agents are light ones in
this process (tests.benchmarks.light_agent), as is the simulated Cinder.

Latency (row 7) is from the moment the appender is told that its commit is durable until the
agent has the whole answer of its poll, by one clock.  The appender accepts stops and starts
of a guest with the ledger's own code, as another service process would.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from aggregates.base import Actor, Aggregate, EventContext
from handlers.requests.actions import ActOnServer
from handlers.requests.guards import Contact
from host_agent.shared.faults import Faults
from ledger.core.requests import Fleet, Requests
from ledger.log.application import Ledger
from ledger.trial.cloud import free_port
from tests.benchmarks.figures import Figure, Size, percentile
from tests.benchmarks.light_agent import PROJECT, Given, LightAgent
from tests.benchmarks.servers import server
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.tokens import token_of, write_private

ADMIN = token_of("admin")
SAMPLES = 300
AGENTS = {Size.QUICK: 2_000, Size.FULL: 5_000}
#: The first agents have work to do; the others are there.
PLAYERS = 2
#: One host in so many is given a command in each part of the storm.
COMMANDED = 50
DEADLINE_S = 180.0
_LOOK_S = 0.02


def figures(size: Size) -> Iterator[Figure]:
    yield from asyncio.run(measured(AGENTS[size]))


async def measured(count: int) -> list[Figure]:
    """Rows 7 and 8 with so many agents."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with server() as dsn, running_cinder() as cinder, _home() as home, ExitStack() as held:
        service = Service(home, dsn, cinder, count, free_port(held))
        try:
            await service.start()
            async with agents_on(service, count) as agents:
                memory = await _memory(service, agents)
                latency = await _latencies(dsn, service, agents)
                storm = await _storm(service, agents)
                return [*latency, memory, *storm]
        finally:
            service.kill()


@contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="attachment-ledger-bench-") as home:
        yield Path(home)


class Service:
    """The service as a process of its own, and an operator's view of it."""

    def __init__(self, home: Path, dsn: str, cinder: RunningCinder, hosts: int, port: int) -> None:
        self.port, self.cinder = port, cinder
        self._config, self._log = home / "ledger.toml", home / "service.log"
        write_private(self._config, _settings(dsn, self.port, cinder.endpoint, hosts))
        self._process: subprocess.Popen[bytes] | None = None
        cinder.compute.endpoint = self.url("/v2.1")

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def start(self) -> float:
        """Start it; the moment at which it listened."""
        process = self._process = self._started()
        while True:
            assert process.poll() is None, self._log.read_text()[-3000:]
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return time.perf_counter()
            await asyncio.sleep(_LOOK_S)

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ledger", "serve", "--config", str(self._config)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def rss(self) -> int:
        """Bytes of memory it has."""
        assert self._process is not None, "started"
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU time it has had."""
        assert self._process is not None, "started"
        parts = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    async def held(self, http: aiohttp.ClientSession) -> int:
        """How many requests it holds open."""
        async with http.get(self.url("/metrics")) as answer:
            text = await answer.text()
        [count] = re.findall(r"^ledger_http_requests_held (\S+)$", text, re.MULTILINE)
        return int(float(count))


def _settings(dsn: str, port: int, cinder: str, hosts: int) -> str:
    tokens = "".join(
        f'[[tokens]]\nname = "agent of {host}"\ntoken = "{token_of(host)}"\nuser_id = "agents"\n'
        f'project_id = "service"\nroles = ["agent"]\nhost = "{host}"\n'
        for host in map(_host, range(hosts))
    )
    return (
        f'database_url = "{dsn}"\nauth = "tokens"\n'
        f"[listen]\nport = {port}\n"
        f'[cinder]\nendpoint = "{cinder}"\n'
        f'[[tokens]]\nname = "admin"\ntoken = "{ADMIN}"\nuser_id = "admin"\n'
        f'project_id = "{PROJECT}"\nroles = ["admin"]\n{tokens}'
    )


def _host(number: int) -> str:
    return f"compute-{number}"


@dataclass
class Agents:
    """All of them, and what runs them."""

    all: list[LightAgent]
    tasks: list[asyncio.Task[None]]

    async def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something of theirs to be so."""
        end = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < end, f"not in {DEADLINE_S:g} s: {what}"
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(_LOOK_S)

    def poll_since(self, session: int) -> bool:
        """Whether each has registered so often, and polls."""
        return all(agent.polling and agent.session >= session for agent in self.all)


@asynccontextmanager
async def agents_on(service: Service, count: int) -> AsyncIterator[Agents]:
    """So many agents, none of which is started."""
    agents = [
        LightAgent(host=_host(number), port=service.port, plays=number < PLAYERS)
        for number in range(count)
    ]
    running = Agents(agents, [])
    try:
        yield running
    finally:
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)


# ------------------------------------------------------------------------------- memory


async def _memory(service: Service, agents: Agents) -> Figure:
    """Start them all: what the process grows by, for each, when all its polls are held."""
    warm = len(agents.all) // 20
    agents.tasks += [asyncio.create_task(agent.run()) for agent in agents.all[:warm]]
    before = await _settled(service, agents, warm)
    began, had_s = time.perf_counter(), service.cpu_s
    agents.tasks += [asyncio.create_task(agent.run()) for agent in agents.all[warm:]]
    after = await _settled(service, agents, len(agents.all))
    took_s, cpu_s = time.perf_counter() - began, service.cpu_s - had_s
    _say(f"{len(agents.all) - warm} new agents: {took_s:.1f} s, CPU {cpu_s:.1f} s")
    each = (after - before) / (len(agents.all) - warm)
    return Figure(row=8, name="memory per agent", value=each / 1024, unit="KB", target=40)


async def _settled(service: Service, agents: Agents, count: int) -> int:
    """Bytes the process has when it holds so many polls, and grows no more."""
    await agents.until(
        lambda: sum(agent.polling for agent in agents.all) == count, f"{count} agents poll"
    )
    last, same = 0, 0
    async with aiohttp.ClientSession() as http:
        while same < 5:
            held, rss = await service.held(http), service.rss
            same = same + 1 if held >= count and abs(rss - last) < rss / 200 else 0
            last = rss
            await asyncio.sleep(_LOOK_S)
    return last


# ------------------------------------------------------------------------------ latency


class Timed(Ledger):
    """The log, noting when each append was known to be durable."""

    committed_at: float = 0.0

    def save(  # type: ignore[override]
        self, *aggregates: Aggregate, context: EventContext | None = None
    ) -> int:
        position = super().save(*aggregates, context=context)
        self.committed_at = time.perf_counter()
        return position


async def _latencies(dsn: str, service: Service, agents: Agents) -> list[Figure]:
    ledger = Timed(dsn)
    try:
        idle = await _samples(ledger, agents.all[0])
        writing = asyncio.create_task(_attach_in_a_loop(service, agents.all[1]))
        loaded = await _samples(ledger, agents.all[0])
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    finally:
        ledger.close()
    return [
        figure
        for name, values in (("idle", idle), ("under load of one writer", loaded))
        for figure in (
            _latency(f"commit to agent p50, {name}", values, 0.5, 5),
            _latency(f"commit to agent p99, {name}", values, 0.99, 50),
        )
    ]


def _latency(name: str, values: Sequence[float], share: float, target: float) -> Figure:
    value = percentile(values, share) * 1000
    return Figure(row=7, name=name, value=value, unit="ms", target=target)


async def _samples(ledger: Timed, agent: LightAgent) -> list[float]:
    """Seconds from the commit of a command until its agent has it."""
    requests = Requests(ledger, DirectCinder(None, Faults()), time.time)  # type: ignore[arg-type]
    actor = Actor(name="bench", user_id="bench", project_id=PROJECT, roles=("admin",))
    context = EventContext(actor=actor, request_id="req-bench", cause="api")
    fleet = Fleet(contact=lambda _: Contact(alive=True, since="now"))
    came: asyncio.Queue[Given] = asyncio.Queue()
    agent.on_command = came.put_nowait
    taken = []
    for number in range(SAMPLES):
        await _polls(agent)  # its last run is reported, and it waits
        act = ActOnServer(server_id=agent.guest(), flow="start" if number % 2 else "stop")
        done = await asyncio.to_thread(requests.act, act, context, fleet)
        given = await asyncio.wait_for(came.get(), DEADLINE_S)
        assert given.command["operation_id"] == done.operation_id
        taken.append(given.at - ledger.committed_at)
    await _polls(agent)
    agent.on_command = None
    return taken


async def _polls(agent: LightAgent) -> None:
    while not agent.polling:  # noqa: ASYNC110 - as it is asked
        await asyncio.sleep(0.001)
    await asyncio.sleep(_LOOK_S)  # until the service holds it


async def _attach_in_a_loop(service: Service, agent: LightAgent) -> None:
    """One client that attaches a volume and detaches it, without end."""
    volume = service.cinder.model.add_volume(project_id=PROJECT).id
    path = service.url(f"/v2.1/servers/{agent.guest()}/os-volume_attachments")
    headers = {"X-Auth-Token": ADMIN, "OpenStack-API-Version": "compute 2.89"}
    body = {"volumeAttachment": {"volumeId": volume}}
    async with aiohttp.ClientSession(headers=headers) as http:
        while True:
            async with http.post(path, json=body) as answer:
                assert answer.ok, await answer.text()
                await _finished(service, http, answer)
            async with http.delete(f"{path}/{volume}") as answer:
                assert answer.ok, await answer.text()
                await _finished(service, http, answer)
            for attachment in service.cinder.model.attachments_of(volume):  # as its agent would
                service.cinder.model.drop_attachment(attachment.id)


async def _finished(
    service: Service, http: aiohttp.ClientSession, accepted: aiohttp.ClientResponse
) -> None:
    path = accepted.headers["X-Attachment-Ledger-Operation"]
    async with http.get(service.url(f"{path}?wait_s=30")) as answer:
        operation = await answer.json()
    assert operation["outcome"] == "completed", operation


# -------------------------------------------------------------------------------- storm


async def _storm(service: Service, agents: Agents) -> list[Figure]:
    """Kill the service while all are connected: how long until it has them all again."""
    quiet = agents.all[PLAYERS:]
    parts = [quiet[part::COMMANDED] for part in range(3)]
    sessions = {agent.session for agent in agents.all}
    owed = await _command(service, parts[0])
    await agents.until(lambda: _had(parts[0], owed), "the commands before the storm")
    service.kill()
    listened = await service.start()
    next_session = max(sessions) + 1
    during = asyncio.create_task(_command(service, parts[1]))
    await agents.until(lambda: agents.poll_since(next_session), "all agents are back")
    async with aiohttp.ClientSession() as http:
        while await service.held(http) < len(agents.all):  # noqa: ASYNC110 - as it is asked
            await asyncio.sleep(_LOOK_S)
    took_s, cpu_s = time.perf_counter() - listened, service.cpu_s
    owed += await during + await _command(service, parts[2])
    lost, doubled = await _miscounts(agents, owed, next_session)
    count = len(agents.all)
    _say(f"storm: {took_s:.2f} s, CPU from the start {cpu_s:.2f} s, {len(owed)} commands")
    return [
        Figure(
            row=8,
            name="agents connected",
            value=count,
            unit="agents",
            target=AGENTS[Size.FULL] if count >= AGENTS[Size.FULL] else None,
            more_is_better=True,
        ),
        Figure(row=8, name="reconnect storm", value=took_s, unit="s", target=15),
        Figure(row=8, name="reconnect storm: commands lost", value=lost, unit="", target=0),
        Figure(
            row=8,
            name="reconnect storm: commands delivered twice",
            value=doubled,
            unit="",
            target=0,
        ),
    ]


async def _command(service: Service, agents: Sequence[LightAgent]) -> list[str]:
    """Have each one's guest stopped; the operations."""
    headers = {"X-Auth-Token": ADMIN, "OpenStack-API-Version": "compute 2.95"}
    begun = []
    async with aiohttp.ClientSession(headers=headers) as http:
        for agent in agents:
            url = service.url(f"/v2.1/servers/{agent.guest()}/action")
            async with http.post(url, json={"os-stop": None}) as answer:
                assert answer.ok, await answer.text()
                begun.append(answer.headers["X-Attachment-Ledger-Operation"].rsplit("/", 1)[-1])
    return begun


def _had(agents: Sequence[LightAgent], operations: Sequence[str]) -> bool:
    received = {given.key[0] for agent in agents for given in agent.given}
    return received.issuperset(operations)


async def _miscounts(agents: Agents, owed: Sequence[str], session: int) -> tuple[int, int]:
    """Operations whose command did not come since the storm, and those that came twice."""

    def counts() -> Counter[str]:
        return Counter(
            given.key[0]
            for agent in agents.all
            for given in agent.given
            if given.session >= session
        )

    with suppress(AssertionError):
        await agents.until(lambda: counts().keys() >= set(owed), "all commands")
    found = counts()
    lost = sum(operation not in found for operation in owed)
    twice = sum(found[operation] > 1 for operation in owed)
    return lost, twice + sum(agent.passed for agent in agents.all)


def _say(text: str) -> None:
    sys.stderr.write(f"agents: {text}\n")
