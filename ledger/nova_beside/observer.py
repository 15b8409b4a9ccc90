"""Watches a Nova that runs: looks at all that it and its Cinder have, and records what is new.  Of
what Nova itself tells (`notifications`) it looks at that one server at once.

Theory of operation
-------------------
* One process of all looks, for as long as it lives (ledger.upkeep.long_work); another takes over
  when it ends.  What it keeps for that is when it looked, and not what it saw: that is in the log.
* A look reads the lists (`reads`), compares each server with what the ledger has of it (`known`),
  and asks Nova for the mappings of those alone that differ, or that are just being worked on: in a
  live migration no list shows which attachment a mapping names.
* A server that is new to the ledger is asked for its instance actions, once: what was before that.
* Each server is recorded by itself, by one append (handlers.results.observed).
* What is seen became so after the beginning of the last look that told of its server, and before
  the answer of this one.  A server that a look cannot tell of keeps the moment of the last that
  did, so an interval grows, and is never wrong.
* Between two looks, and after one that could see everything, servers of which Nova has told
  something are looked at, one by one.  Nothing that was told is recorded, but who asked for what a
  look has confirmed.
* A list that fails, even one page of it, ends a look before anything is recorded.  What a list
  lacks is asked for by its id; when a 404 then ends something, `gone` says.
* Our words for Nova and Cinder have no verb but GET.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import structlog
from eventsourcing.persistence import PersistenceError
from keystoneauth1 import exceptions, session
from prometheus_client import Counter

from aggregates.base import Actor, EventContext, Seen
from aggregates.volume import Volume
from handlers.drift.rows import Unknown
from handlers.drift.seen import Cloud, SeenAttachment, SeenServer
from handlers.results.adopt import ServerFacts
from handlers.results.observed import ServerSeen, record
from host_agent.shared.cinder.session import load_auth
from ledger.config import Observe
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.nova_beside import known, one_host
from ledger.nova_beside.adapters import OVERRIDES, TIMEOUT_S, Options, adapter_of
from ledger.nova_beside.differences import Differences, theirs
from ledger.nova_beside.gone import Absences, VolumesSeen, doubted, refuse_another
from ledger.nova_beside.known import Known
from ledger.nova_beside.notifications import Bus, Notices
from ledger.nova_beside.reads import CloudReader, CutListError, Servers
from ledger.upkeep import long_work
from ledger.upkeep.long_work import BusyError, Checkmark, WorkProgress
from projections.database_connections import LONG_ANSWER_S, DbConnection

#: What the work is called; it begins as those of which rows are counted do.
WORK = "look at Nova"
#: Whose the servers are.
ORIGIN = "nova"
ACTOR = Actor(name="observer")
#: For so many times the time that an answer took nobody is asked: a third of one API worker's time.
REST = 2.0
#: Of how many servers a look asks for the mappings: less than the lists cost, and an hour or two.
DIFFERING_MAX = 20_000
#: How long after a failure of ours, and how often it is looked whether another process has ended.
PAUSE_S = 5.0
#: How long an answer of Nova's is waited for when the service ends.
STOP_S = 5.0

_log = structlog.get_logger(__name__)


class ObserverStoppedError(Exception):
    """The service ends."""


@dataclass
class ObserverState:
    """What the next look has to know of those before it, perhaps in another process.

    `looked_at`: when the last one began that was not given up.  `since`: the same of servers of
    which that one could not tell; None: none has told of it yet.  `asked`: when the mappings were
    asked for of servers that somebody was at.
    """

    looked_at: str | None = None
    since: dict[str, str | None] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    def after(self, server_id: str) -> str | None:
        return self.since.get(server_id, self.looked_at)


@dataclass
class Observation:
    """One look under way.  `left`: servers of which it could not tell; `more`: for want of time.
    `hosts`: how many of Nova's have shown themselves; `guests`: the servers whose guests they have.
    """

    id: str
    began: str
    left: set[str] = field(default_factory=set)
    asked: dict[str, str] = field(default_factory=dict)
    more: bool = False
    recorded: int = 0
    ours: int = 0
    hosts: int = 0
    guests: frozenset[str] = frozenset()


class Observer:
    """`clock`: the database's.  Raises keystoneauth's errors for options that are not its own, and
    ConfigError for a bus that nobody can listen to.
    """

    def __init__(
        self, dsn: str, store: AggregateStore, settings: Observe, clock: Callable[[], float]
    ) -> None:
        self._dsn, self._store, self._clock = dsn, store, clock
        self._reader = reader_of(settings, clock, self._rest)
        self._interval_s = settings.interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._notices = Notices()
        url, pool = settings.notifications, settings.notifications_pool
        self._bus = None if url is None else Bus(url, pool, self._notices.hear)
        self._differences = Differences(store)
        self._absences = Absences()
        self._sees_all = False
        self._trouble: str | None = None
        self._rights: str | None = None

    async def run(self) -> None:
        """Until it is cancelled; then `stop`."""
        while True:
            try:
                await self._run_aside()
            except BusyError:
                self._trouble = None  # whoever is at it tells
            except (psycopg.OperationalError, PersistenceError) as error:
                _log.warning("observer_put_off", wait_s=PAUSE_S, why=str(error))
            except ObserverStoppedError:
                return
            except Exception as error:  # noqa: BLE001 - it is begun anew
                self._trouble = _told_nothing(error)
                _log.exception("observer_put_off", wait_s=self._interval_s)
                await asyncio.sleep(self._interval_s)
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """What is under way is given up; another process may go on at once, or when this one ends:
        an answer of Nova's may take minutes, and is not waited for.
        """
        self._stop.set()
        self._notices.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_S)

    async def check(self) -> str | None:
        """What is wrong, for /readyz: why this process's last look told nothing, that nothing is
        heard of Nova, or that we may do more than we want to.
        """
        return self._trouble or self._deaf or self._rights

    @property
    def heard(self) -> Counter:
        """What was made of Nova's notifications."""
        return self._notices.counted

    async def _run_aside(self) -> None:
        """In a thread that keeps no process from ending, as those of an executor do."""
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()

        def run() -> None:
            try:
                self._run()
                ended.set_result(None)
            except BaseException as error:  # noqa: BLE001 - whoever waits has it
                ended.set_exception(error)

        self._thread = threading.Thread(target=run, name="observer", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ended)

    def _run(self) -> None:
        if not self._stop.is_set():
            long_work.run(self._dsn, WORK, self._looks, _unwatched)

    def _looks(self, begun: Checkmark) -> Generator[Checkmark]:
        """Who looks is who listens; another one may have looked meanwhile."""
        self._absences = Absences()
        with self._bus.hearing() if self._bus else nullcontext():
            yield from self._look_on(ObserverState(**(begun.kept or {})))

    def _look_on(self, state: ObserverState) -> Generator[Checkmark]:
        while True:
            told = self._notices.mark()
            look = Observation(id=f"req-{uuid4()}", began=self._now())
            try:
                self._rights = beyond_reading(self._reader)
                servers = self._look(look, state)
            except (exceptions.ClientException, CutListError) as error:
                self._trouble, self._sees_all = _told_nothing(error), False
                _log.warning("look_at_nova_failed", why=self._trouble)
            else:
                since = {id_: state.after(id_) for id_ in sorted(look.left)}
                state = ObserverState(looked_at=look.began, since=since, asked=look.asked)
                self._trouble, self._sees_all = None, True
                self._notices.forget(told, look.left)
                self._tell(look, servers)
                yield Checkmark(servers - len(look.left), servers, vars(state))
            self._between(state, 0.0 if look.more else self._interval_s)

    def _tell(self, look: Observation, servers: int) -> None:
        reader = self._reader
        numbers = {"servers": servers, "left": len(look.left), "ours": look.ours}
        more = {"hosts": look.hosts, "recorded": look.recorded, "requests": reader.requests}
        _log.info("looked_at_nova", **numbers, **more)
        for why in reader.unread:
            _log.warning("not_read", why=why)

    # --- one look -----------------------------------------------------------------------------

    def _look(self, look: Observation, state: ObserverState) -> int:
        """How many servers there are.  Raises what the reader raises."""
        self._reader.requests = 0
        cloud = self._reader.lists({})
        with DbConnection.connect(
            self._dsn, autocommit=True, application_name="observer"
        ) as connection:
            connection.answer_s = LONG_ANSWER_S
            knows = known.servers(connection)
            cloud = replace(cloud, hosts=self._differences.hosts(connection))
            ours = known.ours(connection, (cloud.servers.keys() | cloud.guests) - knows.keys())
            ended = known.ended(connection, cloud.attachments.keys(), knows)
        look.ours, look.hosts, look.guests = len(ours), len(cloud.hosts), cloud.guests
        listed: dict[str, list[SeenAttachment]] = defaultdict(list)
        for each in cloud.attachments.values():
            if each.server_id is not None:
                listed[each.server_id].append(each)
        servers = self._with_missing(cloud, knows, look)
        refuse_another(self._reader, servers, knows)
        self._absences.end(servers)
        differing = []
        for id_, server in servers.items():
            if id_ in ours:
                continue
            if isinstance(server, Unknown) or (server is not None and not server.known):
                look.left.add(id_)
            elif _differs(server, listed.get(id_, ()), knows.get(id_)):
                differing.append(id_)
        few = self._reader.few(
            differing, "servers that differ; the next look goes on", DIFFERING_MAX
        )
        look.more = len(few) < len(differing)
        look.left |= set(differing) - set(few)
        for id_ in few:
            had = knows.get(id_)
            self._server(id_, servers, listed.get(id_, []), had, cloud.volumes, look, state)
        self._compare(look, theirs(replace(cloud, ended=ended), ours))
        return len(servers)

    def _compare(self, look: Observation, cloud: Cloud) -> None:
        context = EventContext(actor=ACTOR, request_id=look.id, cause="observation")
        with DbConnection.connect(
            self._dsn, autocommit=True, application_name="observer"
        ) as connection:
            connection.answer_s = LONG_ANSWER_S
            id_ = look.id.removeprefix("req-")
            self._differences.see(connection, self._reader, cloud, id_, context)

    # --- one server ---------------------------------------------------------------------------

    def _between(self, state: ObserverState, seconds: float) -> None:
        """Look at each server of which Nova tells something; not where a look was refused."""
        until = time.monotonic() + seconds
        while self._sees_all and (left_s := until - time.monotonic()) > 0:
            server_id = self._notices.take(left_s)
            self._wait(0.0)
            if server_id is not None:
                self._look_at(server_id, state)
        self._wait(max(0.0, until - time.monotonic()))

    def _look_at(self, server_id: str, state: ObserverState) -> None:
        """What could not be seen, the next look at everything sees."""
        look = Observation(id=f"req-{uuid4()}", began=self._now())
        with DbConnection.connect(
            self._dsn, autocommit=True, application_name="observer"
        ) as connection:
            ours = known.ours(connection, [server_id])
            had = known.servers(connection, [server_id]).get(server_id)
        if ours:
            return
        try:
            found = one_host.read_server(self._reader, server_id)
            if isinstance(found, Unknown) or (found is not None and not found.seen.known):
                return
            self._record_one(server_id, found, had, look, state)
        except (exceptions.ClientException, CutListError) as error:
            _log.warning("look_at_server_failed", server_id=server_id, why=_told_nothing(error))
            return
        if not look.left:
            state.since[server_id] = look.began
            state.asked[server_id] = look.began

    def _record_one(
        self,
        server_id: str,
        found: ServerFacts | None,
        had: Known | None,
        look: Observation,
        state: ObserverState,
    ) -> None:
        volumes: VolumesSeen = {}
        if found is None:
            server, attachments = None, one_host.attachments(self._reader, server_id)
        else:
            server, attachments = found.seen, list(found.attachments)
            volumes = {id_: each.seen for id_, each in found.volumes.items()}
        self._server(server_id, {server_id: server}, attachments, had, volumes, look, state)

    def _with_missing(self, cloud: Cloud, knows: Mapping[str, Known], look: Observation) -> Servers:
        """The servers of the lists, and those that the ledger has and Nova does not list."""
        servers = dict(cloud.servers)
        missing = [id_ for id_ in knows if id_ not in servers]
        few = self._reader.few(missing, "servers that Nova lists no more")
        look.left |= set(missing) - set(few)
        return {**servers, **{id_: self._reader.server(id_) for id_ in few}}

    def _server(
        self,
        server_id: str,
        servers: Servers,
        attachments: list[SeenAttachment],
        had: Known | None,
        volumes: VolumesSeen,
        look: Observation,
        state: ObserverState,
    ) -> None:
        server, asked_at = servers[server_id], self._now()
        if isinstance(server, SeenServer) and server.mappings is None:
            server = self._reader.mappings(servers, [server_id]).get(server_id)
            if not isinstance(server, SeenServer):  # it has just gone, or Nova does not tell
                look.left.add(server_id)
                return
            if server.busy:
                look.asked[server_id] = asked_at
        assert not isinstance(server, Unknown), "it was left"
        held = bool(attachments) or server_id in look.guests
        if server is None and not self._is_over(server_id, had, held=held):
            look.left.add(server_id)
            return
        here = {each.id for each in attachments}
        missing = had.attachments - here if had else frozenset()
        sure = missing - doubted(server, volumes)
        gone = [id_ for id_ in sorted(sure) if self._reader.is_gone(id_)]
        if len(gone) < len(missing):
            look.left.add(server_id)
        is_new = had is None and server is not None
        actions = self._reader.actions(server_id) if is_new else None
        before = self._now()
        sight = ServerSeen(
            server_id=server_id,
            server=server,
            attachments=attachments,
            gone=gone,
            mapped=had.mappings if had else (),
            shared=_shared(server, volumes),
            seen=seen_between(state.after(server_id), before),
            asked=seen_between(state.asked.get(server_id), before),
            notices=self._notices.of(server_id),
            actions=actions,
        )
        self._record(sight, look)

    def _is_over(self, server_id: str, had: Known | None, *, held: bool) -> bool:
        """Whether a server of which Nova says 404 is deleted, or was known to be.  `held`: Cinder,
        or a host of Nova's, still knows it.
        """
        if had is None:  # a stranger's, or one that is not projected yet
            return False
        if had.shape is None:
            return True
        volumes = self._store.load_many(*((Volume, UUID(id_)) for id_ in had.volumes))
        shown = any(of == server_id for each in volumes for _, of in each.shown)  # by hosts of ours
        return self._absences.are_over(self._reader, server_id, held=shown or held)

    def _record(self, sight: ServerSeen, look: Observation) -> None:
        context = EventContext(actor=ACTOR, request_id=look.id, cause="observation")

        def change(unit: Unit) -> tuple[bool, int]:
            return record(sight, unit), unit.save(context)

        theirs, position = run_optimistically(self._store, change)
        look.recorded += position > 0
        look.ours += not theirs

    # --- time ---------------------------------------------------------------------------------

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat()

    @property
    def _deaf(self) -> str | None:
        return self._bus.trouble if self._bus else None

    def _rest(self, took_s: float) -> None:
        self._wait(took_s * REST)

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise ObserverStoppedError


def _differs(
    server: SeenServer | None, attachments: list[SeenAttachment] | tuple[()], had: Known | None
) -> bool:
    """Whether there is something to ask or record.  A server that is deleted: what it had."""
    if server is None:
        here = frozenset(each.id for each in attachments)
        return had is not None and (had.shape is not None or bool(had.attachments - here))
    return server.busy or had is None or known.shape_of(server, attachments) != had.shape


def _shared(server: SeenServer | None, volumes: VolumesSeen) -> frozenset[str]:
    """Those of its volumes that are multi-attach."""
    own = server.volumes if server is not None else ()
    return frozenset(id_ for id_ in own if getattr(volumes.get(id_), "multiattach", False))


def seen_between(after: str | None, before: str) -> Seen:
    """Where the clock was set back between two looks, nobody knows after which moment it was."""
    known = after is not None and after <= before
    return Seen(origin=ORIGIN, after=after if known else None, before=before)


def _told_nothing(error: Exception) -> str:
    why = " ".join(map(str, error.args))
    return f"The last look at Nova told nothing: {why} ({type(error).__name__})"


def _unwatched(_: WorkProgress) -> None:
    """How far it is can be read where long work is noted."""


def reader_of(
    settings: Observe, clock: Callable[[], float], rest: Callable[[float], None]
) -> CloudReader:
    """Logged in at the first request."""
    assert settings.auth is not None, "else nobody is watched"
    cloud: Options = {
        "interface": settings.interface,
        "region_name": settings.region_name,
        "compute_endpoint_override": settings.compute_endpoint,
        "block_storage_endpoint_override": settings.volume_endpoint,
    }
    verify = False if settings.insecure else settings.cacert or True
    to = session.Session(auth=load_auth(settings.auth), verify=verify, timeout=TIMEOUT_S)
    nova, cinder = (adapter_of(cloud, to, each) for each in OVERRIDES)
    return CloudReader(nova, cinder, clock, rest)


def beyond_reading(reader: CloudReader) -> str | None:
    """What the credential may do that no observer does.  Raises what keystoneauth raises."""
    to = reader.nova.session
    ask = getattr(to.auth, "get_access", None)  # a static token says nothing of itself
    rules = getattr(ask(to), "application_credential_access_rules", None) if ask else None
    if rules and all(rule["method"] == "GET" for rule in rules):
        return None
    return (
        "The credential of [observe.auth] may do more than read. Give it access rules for GET "
        "alone: docs/observe.md"
    )
