"""The API over a real socket: PostgreSQL, dispatcher and projections as in production.

Cinder is the simulation, in this process.  Hosts' agents are played by the test, through
the same requests a real one sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from aiohttp import ClientResponse, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import Histogram
from yarl import URL

from host_agent.shared.faults import Faults
from host_agent.shared.platform.lines import left_s
from host_agent.shared.platform.telemetry import call_seconds
from ledger.agents.batches import AGENT_BATCHER
from ledger.auth.authenticator import authenticator, keystone_login
from ledger.auth.policy import Policy
from ledger.auth.tls import ServiceTls
from ledger.auth.tokens import StaticTokens
from ledger.config import AuthMode, Limits, Role, Settings, Token
from ledger.core.dispatcher import Dispatcher
from ledger.core.images import Images
from ledger.core.requests import Requests
from ledger.core.service import Service
from ledger.core.wakeups import DUE, Wakeups
from ledger.http.app import make_app
from ledger.http.components import Components
from ledger.http.limits.connections import runner_of
from ledger.http.limits.reading import readers
from ledger.http.probes.metrics import registry_of
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.nova_beside.passing import beside
from ledger.reconcile.findings import Findings
from ledger.trial.cinder.model.model import CinderModel
from ledger.web.console import with_console
from projections.catalog import ALL
from projections.reads import queries
from projections.reads.queries import read_pool
from projections.running import runner as projections_runner
from projections.running.runner import ProjectionRunner
from tests.doubles.asked_looks import AskedLooks
from tests.doubles.direct_cinder import DirectCinder
from tests.tokens import token_of

T = TypeVar("T")

HOST, OTHER = "compute-1", "compute-2"
#: What the played agents report, by verb.
OUTPUTS: dict[str, dict[str, Any]] = {
    "guest_spawn": {"power_state": "running"},
    "guest_start": {"power_state": "running"},
    "guest_stop": {"power_state": "shutdown"},
    "guest_pause": {"power_state": "paused"},
    "guest_resume": {"power_state": "running"},
    "drift_look": {
        "shown": {
            "power_state": "running",
            "live": None,
            "persistent": None,
            "running": True,
            "process": True,
            "readonly_live": False,
            "readonly_persistent": None,
            "differs": [],
            "guests": [],
            "unexplained": [],
            "record": False,
            "elsewhere": False,
            "records": {},
        }
    },
}
DEFINITION = (
    "<domain><name>vm</name><memory unit='MiB'>512</memory><vcpu>1</vcpu><devices/></domain>"
)
PROJECT = "9d1f5b0c6a7e4d8f9b2a3c4d5e6f7a8b"
DEADLINE_S = 60.0
#: How long the projections' thread sleeps, and so how long its end takes at most.
PROJECTIONS_POLL_S = 0.02
#: Of reads.  More are opened as soon as one waits, and each is a process of PostgreSQL's.
READ_CONNECTIONS_MAX = 2
NEWEST = "2.105"


def _token(name: str, role: Role, **fields: Any) -> Token:
    given = {"user_id": f"user-{name}", "project_id": PROJECT, **fields}
    return Token(name=name, roles=(role,), token=token_of(name), **given)


TOKENS = (
    _token("admin", Role.ADMIN),
    _token("operator", Role.OPERATOR, project_id="operators"),
    _token("member", Role.MEMBER),
    _token("manager", Role.MANAGER),
    _token("reader", Role.READER),
    _token("stranger", Role.MEMBER, project_id="another-project"),
    _token("cinder", Role.SERVICE, project_id="service"),
    _token("agent-1", Role.AGENT, project_id="service", host=HOST),
    _token("agent-2", Role.AGENT, project_id="service", host="compute-2"),
)

SETTINGS = Settings(
    auth=AuthMode.TOKENS,
    tokens=TOKENS,
    limits=Limits(
        request_body_bytes_max=64 * 1024, page_items_default=50, page_items_max=100, streams_max=20
    ),
)


@dataclass
class Api:
    """The service, and ways to play the people and agents around it."""

    http: TestClient[Any, Any]
    components: Components
    cinder: CinderModel
    faults: Faults
    dispatcher: Dispatcher
    looker: AskedLooks
    calls: Histogram

    async def ask(
        self,
        method: str,
        path: str | URL,
        who: str | None = "admin",
        version: str | None = None,
        **options: Any,
    ) -> ClientResponse:
        headers = dict(options.pop("headers", {}))
        if who is not None:
            headers["X-Auth-Token"] = token_of(who)
        if version is not None:
            headers["OpenStack-API-Version"] = f"compute {version}"
            headers["X-OpenStack-Nova-API-Version"] = version
        return await self.http.request(method, path, headers=headers, **options)

    async def get(self, path: str, who: str | None = "admin", **options: Any) -> Any:
        """The JSON of an answer that must be 200."""
        response = await self.ask("GET", path, who, **options)
        assert response.status == 200, (response.status, await response.text())
        return await response.json()

    async def head(self) -> int:
        return int((await self.components.queries.head())["position"])

    async def projected(self) -> None:
        """Wait until what is written is shown: agents are answered before that, users after."""
        future = asyncio.wrap_future(self.components.runner.projected(await self.head()))
        await asyncio.wait_for(future, DEADLINE_S)

    # ---------------------------------------------------------------------- agents

    async def register(self, *guests: dict[str, Any], host: str = HOST, **said: Any) -> Any:
        migration = {"uri": f"qemu+tcp://{host}/system", "address": host}
        body = {
            "service_version": 3,
            "capabilities": {"multiattach": True, "tag": True, "migration": migration},
            "guests": list(guests),
            **said,
        }
        response = await self.ask("PUT", f"/v1/hosts/{host}", f"agent-{host[-1]}", json=body)
        assert response.status == 200, await response.text()
        return await response.json()

    async def changes(self, *guests: dict[str, Any], gone: Sequence[str] = (), **said: Any) -> Any:
        """What has changed of compute-1's guests."""
        body = {"epoch": 0, "guests": list(guests), "gone": list(gone), **said}
        response = await self.ask("POST", f"/v1/hosts/{HOST}/guests", "agent-1", json=body)
        assert response.status == 200, await response.text()
        await self.projected()
        return await response.json()

    def connection(self) -> Any:
        """One of those that it reads by."""
        reads: Any = self.components.queries._pool
        return reads.pool.connection()

    async def silent(self, host: str = HOST) -> None:
        """Its agent was heard of last an hour ago: what is not written yet is not written later."""
        await self.http.app[AGENT_BATCHER]._contacts.written()
        ago = "UPDATE host_contact SET seen_at = seen_at - interval '1 hour' WHERE host = %s"
        async with self.connection() as connection:
            await connection.execute(ago, [host])

    async def server(self, project_id: str | None = PROJECT, **fields: Any) -> str:
        """A running guest on compute-1; forgets the guests shown before."""
        shown = guest(project_id=project_id, **fields)
        await self.register(shown)
        return str(shown["server_id"])

    def volume(self, project_id: str = PROJECT, **fields: Any) -> str:
        return self.cinder.add_volume(project_id=project_id, **fields).id

    async def commands(
        self, after: int = 0, epoch: int = 0, wait_s: float = 10, host: str = HOST
    ) -> list[Any]:
        query = f"after={after}&epoch={epoch}&wait_s={wait_s}"
        answer = await self.get(f"/v1/hosts/{host}/commands?{query}", f"agent-{host[-1]}")
        return list(answer["commands"])

    async def report(
        self,
        command: dict[str, Any],
        step: str,
        host: str = HOST,
        more: Sequence[dict[str, Any]] = (),
        **fields: Any,
    ) -> ClientResponse:
        first = {"step": step, "took_ms": 5, "outputs": {}, "error": None, **fields}
        about = {name: command[name] for name in ("operation_id", "run", "epoch")}
        body = {**about, "results": [first, *more]}
        path, who = f"/v1/hosts/{host}/reports", f"agent-{host[-1]}"
        answer = await self.ask("POST", path, who, json=body)
        await self.projected()
        return answer

    async def do_next_command(self, after: int = 0) -> dict[str, Any]:
        """Play the agent for one command: every step succeeds."""
        [command, *_] = await self.commands(after)
        for step in command["steps"]:
            answer = await self.report(command, step["name"])
            assert answer.status == 200, await answer.text()
        return dict(command)

    async def played(self, answer: ClientResponse, *, until: str | None = None) -> Any:
        """The operation an answer names, its hosts played: every step succeeds.

        `until`: stop before this step is done.
        """
        path = answer.headers["X-Attachment-Ledger-Operation"]
        while True:
            shown = await self.get(path)
            if shown["state"] != "running":
                return shown
            for row in (await self.get("/v1/hosts"))["hosts"]:
                host, epoch = row["host"], row["epoch"]
                for command in await self.commands(epoch=epoch, wait_s=0, host=host):
                    for step in command["steps"]:
                        if step["name"] == until:
                            return shown
                        outputs = dict(OUTPUTS.get(step["verb"], {}))
                        if outputs.get("power_state") == "running":
                            runs = command["guest"]["running"]
                            outputs["power_state"] = "running" if runs else "shutdown"
                        if step["verb"] in {"attachment_create", "attachment_convert"}:
                            outputs["attachment_id"] = str(uuid4())
                        done = await self.report(command, step["name"], host, outputs=outputs)
                        assert done.status == 200, await done.text()

    async def two_hosts(self, *guests: dict[str, Any]) -> None:
        """The guests on compute-1, and compute-2 empty."""
        await self.register(*guests)
        await self.register(host=OTHER)

    # ----------------------------------------------------------------------- users

    async def act(
        self,
        server: str,
        name: str,
        body: Any = None,
        who: str = "admin",
        version: str = "2.95",
        **headers: str,
    ) -> ClientResponse:
        path = f"/v2.1/servers/{server}/action"
        return await self.ask("POST", path, who, version, json={name: body}, headers=headers)

    async def attach(
        self, server: str, volume: str, version: str = "2.89", who: str = "admin", **body: Any
    ) -> ClientResponse:
        headers = body.pop("headers", {})
        return await self.ask(
            "POST",
            f"/v2.1/servers/{server}/os-volume_attachments",
            who,
            version,
            json={"volumeAttachment": {"volumeId": volume, "device": None, **body}},
            headers=headers,
        )

    async def attached(self, **fields: Any) -> tuple[str, str]:
        """A server with a volume that its host has connected."""
        server, volume = await self.server(), self.volume(**fields)
        answer = await self.attach(server, volume)
        assert answer.status == 200, await answer.text()
        await self.do_next_command()
        operation = await self.finished(answer)
        assert operation["outcome"] == "completed", operation
        return server, volume

    async def finished(self, answer: ClientResponse) -> Any:
        """The operation an answer names, when it is finished or parked."""
        operation = await self.get(answer.headers["X-Attachment-Ledger-Operation"] + "?wait_s=20")
        assert operation["state"] != "running", operation
        return operation


def guest(project_id: str | None = PROJECT, **fields: Any) -> dict[str, Any]:
    """A guest as an agent shows it."""
    return {
        "server_id": str(uuid4()),
        "name": "vm",
        "power_state": "running",
        "devices": [],
        "project_id": project_id,
        "user_id": "someone",
        "definition": DEFINITION,
        **fields,
    }


async def eventually(look: Callable[[], Awaitable[T]], what: str) -> T:
    """The first true answer of `look`; fails with `what` at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while not (found := await look()):
        assert loop.time() < end, f"not in {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(0.02)
    return found


async def so(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds; fails with `what` at the deadline."""

    async def look() -> bool:
        return holds()

    await eventually(look, what)


class AskedInTime:
    """Cinder as requests may ask it: in the room for that, which sets an end to it."""

    def __init__(self, cinder: DirectCinder) -> None:
        self._cinder = cinder

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            assert left_s() is not None, f"{name} is asked where nobody may wait for Cinder"
            return getattr(self._cinder, name)(*args, **kwargs)

        return ask


@asynccontextmanager
async def running_api(
    dsn: str,
    settings: Settings = SETTINGS,
    tls: ServiceTls | None = None,
    static: StaticTokens | None = None,
) -> AsyncIterator[Api]:
    """The service on a free port, with settings of its own: a test may change them."""
    settings, model, faults = replace(settings), CinderModel(), Faults()
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(projections_runner, "POLL_INTERVAL_S", PROJECTIONS_POLL_S)
        patch.setattr(queries, "POOL_CONNECTIONS_MAX", READ_CONNECTIONS_MAX)
        log, calls = stack.enter_context(closing(Ledger(dsn))), call_seconds()
        static = static or StaticTokens(settings)
        cinder = DirectCinder(model, faults)
        asked: Any = AskedInTime(cinder)
        looker = AskedLooks()
        reads, inner = readers(await stack.enter_async_context(read_pool(dsn)))
        runner = ProjectionRunner(dsn, ALL)
        runner.start()
        stack.callback(runner.stop)
        clock = DatabaseClock.of(dsn)
        wakeups = await stack.enter_async_context(Wakeups(dsn, clock))
        components = Components(
            requests=Requests(log, asked, clock),
            service=Service(log, cinder, clock),
            findings=Findings(log),
            looker=looker,
            writer=log.log_recorder.writer,
            queries=reads,
            inner=inner,
            wakeups=wakeups,
            runner=runner,
            cinder=asked,
            images=Images(settings.cinder, calls),
            settings=settings,
            authenticator=authenticator(settings, stack, static, tls, calls),
            keystone_login=keystone_login(settings, stack, calls),
            clock=clock,
            nova=await stack.enter_async_context(beside(settings, static)),
            policy=Policy(Path(settings.policy.file)) if settings.policy.file else _built_in(),
            registry=registry_of(log.log_recorder.writer, log.steps, calls),
            warnings={} if tls is None else {"tls": tls.warning},
        )
        if tls is not None:
            components.registry.register(tls)
        dispatcher = Dispatcher(
            place="test",
            leases=components.inner,
            operations=components.service,
            projected=lambda position: asyncio.wrap_future(runner.projected(position)),
            woken=stack.enter_context(wakeups.watch(DUE)),
            concurrency_max=4,
        )
        task = asyncio.create_task(dispatcher.run())
        stack.push_async_callback(_cancelled, task)
        # Whom a test believes is the test's own matter; the world's own calls believe anybody.
        connector = None if tls is None else TCPConnector(ssl=False)
        client = TestClient(_Server(with_console(make_app(components)), tls), connector=connector)
        await stack.enter_async_context(client)
        yield Api(client, components, model, faults, dispatcher, looker, calls)


@cache
def _built_in() -> Policy:
    """Nothing changes it, and to make it costs as much as all the rest of a start."""
    return Policy()


class _Server(TestServer):
    """As in production, a handler goes on when its client has gone."""

    def __init__(self, app: web.Application, tls: ServiceTls | None) -> None:
        super().__init__(app)
        self._tls = tls

    async def start_server(self, *given: Any, **kwargs: Any) -> None:
        context = None if self._tls is None else self._tls.context
        await super().start_server(*given, ssl=context, **kwargs)

    async def _make_runner(self, **kwargs: Any) -> web.BaseRunner:
        return runner_of(self.app, **{**kwargs, "handler_cancellation": False})


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
