"""The composition root of the service: builds the parts, runs them, takes them down.

Everything that has a life is entered here, in the order it is needed, and left in
the reverse order: first nothing new is let in, then what is under way gets to its
next recorded point, then the connections close.  Stopping loses nothing, as a
crash does not; it is only quicker to come back from.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram

from handlers.drift.automatic import RepairPolicy, SoFar
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.lists import CinderLists
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform import notify
from host_agent.shared.platform.process import answer_signals
from host_agent.shared.platform.telemetry import call_seconds
from ledger.auth.authenticator import authenticator, keystone_login
from ledger.auth.policy import Policy as AccessPolicy
from ledger.auth.renewal import Renewal, SettingsReload
from ledger.config import Settings
from ledger.core.after_fence import AfterFence
from ledger.core.dispatcher import Dispatcher
from ledger.core.images import Images
from ledger.core.requests import Requests
from ledger.core.service import Service
from ledger.core.wakeups import DUE, Wakeups
from ledger.http.app import make_app
from ledger.http.components import COMPONENTS, Check, Components
from ledger.http.limits.connections import CONNECTIONS, end_unread, runner_of
from ledger.http.limits.reading import readers
from ledger.http.probes import neighbours
from ledger.http.probes.metrics import registry_of
from ledger.http.probes.state import state_of
from ledger.log import schema
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.native.accepting import fleet_of
from ledger.nova_beside.adopting import Adopting
from ledger.nova_beside.observer import Observer
from ledger.nova_beside.passing import beside
from ledger.reconcile.asking import LookRequests
from ledger.reconcile.automatic import ACTOR, HOUR_S, Automatic
from ledger.reconcile.findings import Findings
from ledger.reconcile.job import Looking
from ledger.reconcile.look import LookSources
from ledger.traces.export import Traces, sender
from ledger.trial.embedded import EmbeddedPostgres
from ledger.web.console import with_console
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.runner import ProjectionRunner, ReplayedProjections

#: How long the dispatcher waits at most for the projections to show what it did.
PROJECTED_S = 5.0
#: Connections that wait to be accepted: all agents may come at once, and one that is not let
#: in tries again only after a second.  asyncio accepts as many in one go.
BACKLOG = 1024
#: A full collection of garbage looks at every object there is, 0.3 s with 2,000 agents in which
#: nobody is answered, and finds next to nothing: what is garbage dies young.  Python's own
#: measure, 10, has one every few seconds under load; this has one in some ten minutes.
COLLECTIONS_UNTIL_FULL = 1_000
#: How long open requests may go on after the service was told to stop.
SHUTDOWN_S = 10.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Running:
    """A service that serves: where, its parts for those who look inside (tests), and its state."""

    url: str
    components: Components
    state: Callable[[], Iterator[str]]


def serve(settings: Settings, again: SettingsReload | None = None) -> None:
    """Run until SIGTERM or SIGINT.  `again`: how the settings are read when their file changes.

    Raises SchemaError if the database is not at this version's schema, PortError if
    Cinder would refuse our deletes for want of a service token.
    """
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))  # one for each agent
    answer_signals()
    gc.set_threshold(*gc.get_threshold()[:2], COLLECTIONS_UNTIL_FULL)
    asyncio.run(_serve_until_stopped(settings, again))


async def _serve_until_stopped(settings: Settings, again: SettingsReload | None) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with _database(settings) as dsn:
        async with running(settings, dsn, again) as service:
            answer_signals(service.state)
            _log.info("serving", url=service.url, auth=settings.auth.value)
            notify.tell("READY=1")
            await _watched(stopped, service.components.checks.get("dispatcher", _nothing))
            _log.info("stopping")
            notify.tell("STOPPING=1")


async def _watched(stopped: asyncio.Event, wrong: Callable[[], Awaitable[str | None]]) -> None:
    """Until it is stopped.  systemd starts a process anew that hangs, or does its steps no more."""
    while not stopped.is_set():
        if await wrong() is None:
            notify.tell("WATCHDOG=1")
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), notify.watchdog_s())


@contextmanager
def _database(settings: Settings) -> Any:
    """The database of the settings; without one, a small one of our own, for trial."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with EmbeddedPostgres() as embedded:
        dsn = embedded.start()
        schema.upgrade(dsn)
        yield dsn


@asynccontextmanager
async def running(
    settings: Settings, dsn: str, again: SettingsReload | None = None
) -> AsyncIterator[Running]:
    """The whole service, serving, for as long as the block lasts."""
    schema.check(dsn)
    works = not settings.read_only
    async with AsyncExitStack() as stack:
        ledger, calls = stack.enter_context(closing(Ledger(dsn))), call_seconds()
        cinder = stack.enter_context(closing(CinderClient(settings.cinder, calls=calls)))
        await asyncio.to_thread(_check_roles, cinder, settings)
        pool = await stack.enter_async_context(read_pool(dsn))
        runner = _projecting(dsn, stack, works=works)
        clock = await asyncio.to_thread(DatabaseClock.of, dsn)
        renewal = Renewal(settings, clock, again)
        wakeups = await stack.enter_async_context(Wakeups(dsn, clock, listens=works))
        service, (queries, inner) = Service(ledger, cinder, clock), readers(pool)
        listener = stack.enter_context(_listening_socket(settings))
        registry = registry_of(ledger.log_recorder.writer, ledger.steps, calls)
        looks, checks, dispatcher = LookRequests(dsn), {**neighbours.checks(settings, stack)}, None
        warnings = {**neighbours.warnings(settings, stack), **renewal.warnings()}
        if works:
            _begin_tracing(settings, ledger, queries, registry, stack)
            dispatcher = Dispatcher(
                place=_place(listener),
                leases=inner,
                operations=service,
                projected=partial(_projected, runner),
                woken=stack.enter_context(wakeups.watch(DUE)),  # one, so that nothing falls between
                concurrency_max=settings.limits.dispatcher_concurrency_max,
            )
            checks |= _begin_dispatching(dispatcher, stack)
            warnings |= _begin_observing(settings, ledger, looks, clock, registry, stack)
            warnings |= _begin_after_fences(settings, ledger, looks, inner, clock, stack)
        components = Components(
            requests=Requests(ledger, cinder, clock),
            service=service,
            findings=Findings(ledger),
            writer=ledger.log_recorder.writer,
            queries=queries,
            inner=inner,
            wakeups=wakeups,
            runner=runner,
            cinder=cinder,
            images=_images(settings, calls, stack),
            settings=settings,
            authenticator=authenticator(settings, stack, renewal.static, renewal.tls, calls),
            keystone_login=keystone_login(settings, stack, calls),
            clock=clock,
            nova=await stack.enter_async_context(beside(settings, renewal.static)),
            adopting=_adopting(settings, ledger, looks, clock) if works else None,
            policy=_policy(settings, stack),
            looker=looks,
            checks=checks,
            warnings=warnings,
            registry=registry,
        )
        if works:
            _begin_looking(ledger, looks, components, calls, stack)
        url = await _serve(app := make_app(components), listener, renewal, stack)
        yield Running(url, components, partial(state_of, app, dispatcher))


def _projecting(dsn: str, stack: AsyncExitStack, *, works: bool) -> ProjectionRunner:
    """At work, until the stack is left."""
    runner = (ProjectionRunner if works else ReplayedProjections)(dsn, ALL)
    runner.start()
    stack.callback(runner.stop)
    return runner


async def _projected(runner: ProjectionRunner, position: int) -> None:
    async with asyncio.timeout(PROJECTED_S):
        await asyncio.wrap_future(runner.projected(position))


def _images(settings: Settings, calls: Histogram, stack: AsyncExitStack) -> Images:
    images = Images(settings.cinder, calls)
    stack.callback(images.close)
    return images


def _begin_renewing(renewal: Renewal, app: web.Application, stack: AsyncExitStack) -> None:
    """From now on certificates and tokens are taken when their files change."""
    if renewal.tls is not None:
        app[COMPONENTS].registry.register(renewal.tls)
    renewing = asyncio.create_task(renewal.run(app[CONNECTIONS].end), name="renewal")
    stack.push_async_callback(_cancelled, renewing)


def _begin_looking(
    ledger: Ledger,
    looks: LookRequests,
    components: Components,
    calls: Histogram,
    stack: AsyncExitStack,
) -> None:
    """From now on looks are begun, as somebody asks for them or they are due.

    They have connections to Cinder of their own, and are in nobody's way.
    """
    settings = components.settings
    lists = CinderLists(settings.cinder, calls=calls)
    stack.callback(lists.close)
    sides = LookSources(
        dsn=looks.dsn,
        store=ledger,
        lists=lists,
        share=settings.reconcile.cinder_share,
        silent_after_s=settings.host_down_after_s,
        stop=threading.Event(),
        confirmed=_automatic(ledger, components).confirmed,
    )
    looking = Looking(sides, looks, components.inner, settings.reconcile.interval_s)
    stack.push_async_callback(looking.stop)
    stack.push_async_callback(_cancelled, asyncio.create_task(looking.run(), name="looking"))


def _begin_observing(
    settings: Settings,
    ledger: Ledger,
    looks: LookRequests,
    clock: DatabaseClock,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
) -> dict[str, Check]:
    """From now on a Nova beside us is watched, if there is one; what is wrong with that."""
    if settings.observe.auth is None:
        return {}
    observer = Observer(looks.dsn, ledger, settings.observe, clock)
    registry.register(observer.heard)
    stack.push_async_callback(observer.stop)
    stack.push_async_callback(_cancelled, asyncio.create_task(observer.run(), name="observer"))
    return {"observer": observer.check}


def _begin_after_fences(
    settings: Settings,
    ledger: Ledger,
    looks: LookRequests,
    queries: Queries,
    clock: DatabaseClock,
    stack: AsyncExitStack,
) -> dict[str, Check]:
    """From now on the site's program is run after each fence, if there is one; whether it fails."""
    if not settings.fencing.hook:
        return {}
    after = AfterFence(looks.dsn, ledger, queries, settings.fencing, clock)
    stack.push_async_callback(after.stop)
    stack.push_async_callback(_cancelled, asyncio.create_task(after.run(), name="after-fence"))
    return {"after_fence": after.check}


def _adopting(
    settings: Settings, ledger: Ledger, looks: LookRequests, clock: DatabaseClock
) -> Adopting | None:
    """Who takes hosts over from a Nova beside us, if one is watched."""
    if settings.observe.auth is None:
        return None
    return Adopting(looks.dsn, ledger, settings.observe, clock)


def _begin_dispatching(dispatcher: Dispatcher, stack: AsyncExitStack) -> dict[str, Check]:
    """From now on its steps are done; whether they still are."""
    working = asyncio.create_task(dispatcher.run(), name="dispatcher")
    stack.push_async_callback(_cancelled, working)
    return {"dispatcher": _alive(working)}


def _begin_tracing(
    settings: Settings,
    ledger: Ledger,
    queries: Queries,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
) -> None:
    """From now on traces of what has ended are sent, if there is whom to.  Raises ConfigError."""
    if settings.tracing.endpoint is None:
        return
    send = sender(settings.tracing.endpoint, stack)
    traces = Traces(queries, send, asyncio.get_running_loop())
    registry.register(traces)
    stack.push_async_callback(_cancelled, asyncio.create_task(traces.run(), name="traces"))
    ledger.listeners.append(traces.take)
    stack.callback(ledger.listeners.remove, traces.take)


def _automatic(ledger: Ledger, components: Components) -> Automatic:
    """Repairs what looks confirm, as far as the settings let it."""
    loop, queries = asyncio.get_running_loop(), components.queries
    wanted = components.settings.reconcile
    policy = RepairPolicy(
        classes=frozenset(wanted.automatic), per_hour_max=wanted.automatic_per_hour_max
    )

    def so_far(host: str | None) -> SoFar:
        since = datetime.fromtimestamp(components.clock() - HOUR_S, UTC)
        asked = queries.repairs_so_far(ACTOR.name, since, host)
        return SoFar(**asyncio.run_coroutine_threadsafe(asked, loop).result())

    return Automatic(
        ledger, components.requests, lambda: fleet_of(components, loop), so_far, policy
    )


def _policy(settings: Settings, stack: AsyncExitStack) -> AccessPolicy:
    """Who may do what, by a file that is read whenever it changes.  Raises ConfigError."""
    file = settings.policy.file
    policy = AccessPolicy(Path(file) if file is not None else None)
    following = asyncio.create_task(policy.follow(), name="policy")
    stack.push_async_callback(_cancelled, following)
    return policy


def _listening_socket(settings: Settings) -> socket.socket:
    """The listening socket.  Raises OSError if the address is taken."""
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    end_unread(listener)
    return listener


def _place(listener: socket.socket) -> str:
    """What only one living process has: an address, on one network of one running kernel.

    Host name and port are not enough: containers may share both.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = Path("/proc/self/ns/net").stat().st_ino
    host, port = listener.getsockname()[:2]
    return f"{socket.gethostname()}/{boot}/{network}/{host}:{port}"


async def _serve(
    app: web.Application, listener: socket.socket, renewal: Renewal, stack: AsyncExitStack
) -> str:
    _begin_renewing(renewal, app, stack)
    tls = renewal.tls
    runner = runner_of(with_console(app), shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    context = None if tls is None else tls.context
    await web.SockSite(runner, listener, ssl_context=context, backlog=BACKLOG).start()
    host, port = listener.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _nothing() -> None:
    """What is wrong with the dispatcher of a read-only process, which has none."""


def _alive(task: asyncio.Task[None]) -> Callable[[], Awaitable[str | None]]:
    async def check() -> str | None:
        return "the dispatcher has stopped; restart the service" if task.done() else None

    return check


def _check_roles(cinder: CinderClient, settings: Settings) -> None:
    """Without a service token Cinder refuses our deletes: better not to begin (LP 2019892).
    Whoever only reads or watches deletes nothing.

    Raises PortError if the token is known to lack the role; if nobody can be asked now,
    that is logged, and every delete will say what is wrong.
    """
    watches = settings.observe.auth is not None and not settings.cinder.service_token
    if settings.read_only or watches:
        return
    try:
        cinder.check_service_token()
    except PortError as error:
        if error.kind is ErrorKind.FINAL:
            raise
        _log.warning("service_token_not_checked", why=error.message)
    if why := neighbours.empty_lists(cinder):
        _log.warning("cinder_lists_empty", why=why)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
