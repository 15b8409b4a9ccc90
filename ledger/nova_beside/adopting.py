"""Hands a host over from the Nova beside us, server by server, and back (decision 0114).

Theory of operation
-------------------
* Nova and Cinder are read by GET alone, twice with a pause, and nothing is sent to either: all that
  changes is who answers for a server, in the log.
* Each server is recorded by one append, and together with those that share a volume with it: with
  what the last look has shown of it, so that the log has just what is adopted.
* Whoever is stopped half way does it again: what is adopted already is left as it is.
* A server goes back once Nova says of it what the ledger has.  Until then the statements that would
  make its database say so are told, and it stays ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import sql
from aggregates import errors
from aggregates.base import Aggregate, EventContext, Seen
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from handlers.drift.rows import Unknown
from handlers.requests.inventory import keep_disks
from handlers.results.adopt import (
    AdoptionVerdict,
    HostFacts,
    ServerFacts,
    groups,
    judge,
    notes_of,
    refusals_of,
)
from handlers.results.adopted import adopt, hand_back
from handlers.results.nova_rows import NEVER_NOVAS, compared
from handlers.results.observed import ServerSeen, record
from ledger.config import Observe
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.nova_beside import known, one_host
from ledger.nova_beside.observer import reader_of, seen_between
from ledger.nova_beside.reads import CloudReader
from ledger.nova_beside.script import script
from projections.database_connections import DbConnection

#: How long after the first look the second one begins, at most.
PAUSE_S = 5.0


class NovaAskedError(Exception):
    """Nova has not answered the last question yet, or does not know; ask again soon."""


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """`state`: "adopted", "adoptable", "handed_back", "returnable" or "stays", and `why`.

    `sql`: what Nova's database lacks of it.
    """

    server_id: str
    name: str
    state: str
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sql: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdoptionReport:
    """`refusals`: why nothing of the host is done.  `whole`: nothing of it stays."""

    host: str
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    servers: list[ServerReport] = field(default_factory=list)
    whole: bool = False
    position: int = 0


class Adopting:
    """`clock`: the database's.  All of it blocks.

    Each act raises what Reader.cloud raises, and DomainError.
    """

    def __init__(
        self,
        dsn: str,
        store: AggregateStore,
        settings: Observe,
        clock: Callable[[], float],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dsn, self._store, self._clock = dsn, store, clock
        self._settings, self._wait = settings, wait
        self._asking = threading.Lock()  # of one agent at a time

    def adopt(
        self, host: str, reason: str, context: EventContext, *, dry_run: bool = False
    ) -> AdoptionReport:
        """Take those of its servers that can be taken; none, if the host is not ready for that.

        NotObservedHostError if it is the ledger's own.
        """
        self._refuse_own(host)
        reader = reader_of(self._settings, self._clock, _at_once)
        facts = one_host.read(reader, host)
        report = AdoptionReport(host=host, refusals=refusals_of(facts), notes=notes_of(facts))
        before: HostFacts | None = None
        if not dry_run and not report.refusals:
            self._wait(min(self._settings.interval_s, PAUSE_S))
            before, facts = facts, one_host.read(reader, host)
            report = replace(report, refusals=refusals_of(facts))
        ours = self._ours(facts)
        closed = self._settings.pass_on_to is not None
        verdicts = judge(facts, closed=closed, ours=frozenset(ours), before=before)
        report = replace(report, notes=[*report.notes, *reader.unread])
        shown = [_shown(each) for each in verdicts]
        if not dry_run and not report.refusals and (not verdicts or list(groups(verdicts))):
            shown, position = self._take(facts, verdicts, reason, context, reader)
            report = replace(report, position=position)
        every = sorted([*map(_had, ours.values()), *shown], key=lambda each: each.server_id)
        whole = all(each.state != "stays" for each in every)
        return replace(report, servers=every, whole=whole)

    def _refuse_own(self, host: str) -> None:
        known_host = self._store.load(Host, Host.id_of(host))
        if known_host.is_known and known_host.origin is None and known_host.came_from is None:
            raise errors.NotObservedHostError(host=host)

    def refuse_two(self, host: str) -> None:
        """Before an agent is let in on an adopted host for the first time: NovaComputeRunsError, as
        long as Nova's own may work there.  Raises what `runs` raises.
        """
        if self._store.load(Host, Host.id_of(host)).awaits_agent and self.runs(host):
            raise errors.NovaComputeRunsError(host=host)

    def runs(self, host: str) -> bool:
        """Whether Nova's nova-compute may work there.

        Raises what Reader.get raises, and NovaAskedError: its cell does not answer, or a Nova that
        hangs has one thread, and not all those of agents.
        """
        if not self._asking.acquire(blocking=False):
            raise NovaAskedError("it is being asked for another agent")
        try:
            disabled, up = one_host.service(reader_of(self._settings, self._clock, _at_once), host)
        finally:
            self._asking.release()
        if isinstance(disabled, Unknown):
            raise NovaAskedError("its cell does not answer Nova")
        return up

    def _ours(self, facts: HostFacts) -> dict[str, Instance]:
        """Those of Nova's servers that the ledger has of itself, or has adopted.  One that only a
        host of ours shows is none.
        """
        ids = [UUID(each.seen.id) for each in facts.servers]
        found: list[Instance] = self._store.load_many(*((Instance, id_) for id_ in ids))
        ours = (each for each in found if each.version and each.origin is None)
        return {str(each.id): each for each in ours if not each.only_shown}

    def _take(
        self,
        facts: HostFacts,
        verdicts: list[AdoptionVerdict],
        reason: str,
        context: EventContext,
        reader: CloudReader,
    ) -> tuple[list[ServerReport], int]:
        """What became of each, and the last position."""
        seen, position = self._seen(), 0
        shown = {each.server_id: _shown(each) for each in verdicts}
        for group in groups(verdicts) or [[]]:
            sights = [self._sight(each.server_id, facts, seen, reader) for each in group]

            def change(
                unit: Unit, group: list[AdoptionVerdict] = group, sights: list[ServerSeen] = sights
            ) -> int:
                _take_host(facts.name, reason, seen, unit)
                for sight, verdict in zip(sights, group, strict=True):
                    record(sight, unit)
                    adopt(verdict, facts.name, reason, seen, unit)
                return unit.save(context)

            try:
                position = max(position, run_optimistically(self._store, change))
                why: tuple[str, ...] = ()
            except errors.DomainError as error:
                why = (str(error),)
            for each in group:
                state = "stays" if why else "adopted"
                shown[each.server_id] = replace(shown[each.server_id], state=state, why=why)
        return list(shown.values()), position

    def _sight(
        self, server_id: str, facts: HostFacts, seen: Seen, reader: CloudReader
    ) -> ServerSeen:
        server = _server_of(facts, server_id)
        with DbConnection.connect(
            self._dsn, autocommit=True, application_name="adopting"
        ) as connection:
            had = known.servers(connection, [server_id]).get(server_id)
        here = {each.id for each in server.attachments}
        missing = had.attachments - here if had else frozenset()
        return ServerSeen(
            server_id=server_id,
            server=server.seen,
            attachments=server.attachments,
            gone=[id_ for id_ in sorted(missing) if reader.is_gone(id_)],
            mapped=had.mappings if had else (),
            shared=server.shared,
            seen=seen,
            asked=seen,
        )

    def _seen(self) -> Seen:
        """By now; since when, nobody knows."""
        return seen_between(None, self._now().isoformat())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    # --- and back -----------------------------------------------------------------------------

    def hand_back(
        self, host: str, reason: str, context: EventContext, *, dry_run: bool = False
    ) -> AdoptionReport:
        """Give back those of its servers of which Nova says the same; the host with the last one.

        Raises what Host.check_returnable raises.
        """
        known_host = self._store.load(Host, Host.id_of(host))
        if not known_host.is_known:
            raise errors.NotAdoptedHostError(host=host)
        known_host.check_returnable()
        reader = reader_of(self._settings, self._clock, _at_once)
        facts = one_host.read(reader, host)
        seen, position = self._seen(), 0
        strange = self._with_strange_disks(known_host)
        servers = []
        for server_id, instance in self._ours(facts).items():
            server, mappings = _server_of(facts, server_id), self._mappings(instance)
            told = compared(server, instance, mappings, host, self._now())
            if server_id in strange:
                told = replace(told, why=(*told.why, _STRANGE))
            shown = ServerReport(
                server_id=server_id,
                name=instance.name,
                state="stays" if told.why else "returnable",
                why=told.why,
                notes=told.notes,
                sql=script(server_id, told.changes) if told.changes else None,
            )
            if not dry_run and not told.why:
                try:
                    position = self._give(server, [instance, *mappings], reason, seen, context)
                    shown = replace(shown, state="handed_back")
                except errors.DomainError as error:  # those before it are Nova's already
                    shown = replace(shown, state="stays", why=(str(error),))
            servers.append(shown)
        going = {each.server_id for each in servers if each.state != "stays"}
        left = (self._on(host) | strange) - going
        servers += [
            ServerReport(server_id=id_, name="", state="stays", why=(_NOT_NOVAS,))
            for id_ in sorted(left - {each.server_id for each in servers})
        ]
        whole = all(each.state != "stays" for each in servers)
        if whole and not dry_run:
            position = self._give_host(host, reason, context)
        return AdoptionReport(
            host=host, notes=list(reader.unread), servers=servers, whole=whole, position=position
        )

    def _mappings(self, instance: Instance) -> list[BlockDeviceMapping]:
        ids = [(BlockDeviceMapping, UUID(id_)) for id_ in instance.devices]
        found: list[BlockDeviceMapping] = self._store.load_many(*ids)
        return found

    def _give(
        self,
        server: ServerFacts,
        known: Sequence[Aggregate],
        reason: str,
        seen: Seen,
        context: EventContext,
    ) -> int:
        """`known`: its instance and mappings, as they were compared.  Raises ChangedSinceError."""
        server_id = server.seen.id
        rows = {
            volume_id: holder.attachment_id
            for volume_id, each in server.volumes.items()
            for holder in each.holders
            if holder.server_id == server_id
        }

        def change(unit: Unit) -> int:
            fresh = unit.get(Instance, server_id)
            changed = any(unit.get(type(each), each.id).version != each.version for each in known)
            if changed or fresh.claims:
                raise errors.ChangedSinceError(server_id=server_id)
            hand_back(fresh, rows, reason, seen, unit)
            return unit.save(context)

        return run_optimistically(self._store, change)

    def _give_host(self, host: str, reason: str, context: EventContext) -> int:
        """With what it shows of Nova's own guests: its agent tells of them no more."""

        def forget(server_id: str, unit: Unit) -> None:
            keep_disks(host, server_id, set(), unit)
            unit.save(context)

        def change(unit: Unit) -> int:
            unit.get(Host, host).hand_back(reason)
            return unit.save(context)

        for server_id in self._store.load(Host, Host.id_of(host)).shown:
            run_optimistically(self._store, partial(forget, server_id))
        return run_optimistically(self._store, change)

    def _with_strange_disks(self, host: Host) -> frozenset[str]:
        """The servers of the ledger's in whose guests it shows a volume that must not be there."""
        instances: list[Instance] = self._store.load_many(
            *((Instance, UUID(server_id)) for server_id in host.shown)
        )
        return frozenset(str(each.id) for each in instances if each.origin is None)

    def _on(self, host: str) -> frozenset[str]:
        """The servers that nobody else has, and that have something there, or will."""
        with DbConnection.connect(
            self._dsn, autocommit=True, application_name="adopting"
        ) as connection:
            rows = connection.execute(sql.query("observed", "ours_of_host"), {"host": host})
            return frozenset(row[0] for row in rows)


_STRANGE = (
    "The host shows a volume in its guest that must not be there: remove it, and start the agent "
    "once more."
)
_NOT_NOVAS = (
    "Nova does not have it there, and the ledger has something of it there (its guest, an "
    "attachment, or an operation): end that, confirm or revert its resize, move it to a host of "
    "the ledger's, or delete it."
)


def _take_host(name: str, reason: str, seen: Seen, unit: Unit) -> None:
    host = unit.get(Host, name)
    if not host.is_known:
        host.record(Host.HostSeen, name=name, seen=seen.stored())
    host.adopt(reason)


def _server_of(facts: HostFacts, server_id: str) -> ServerFacts:
    return next(each for each in facts.servers if each.seen.id == server_id)


def _had(instance: Instance) -> ServerReport:
    """A server that the ledger has already."""
    adopted = instance.came_from is not None
    return ServerReport(
        server_id=str(instance.id),
        name=instance.name,
        state="adopted" if adopted else "stays",
        why=() if adopted else (NEVER_NOVAS,),
    )


def _shown(verdict: AdoptionVerdict) -> ServerReport:
    return ServerReport(
        server_id=verdict.server_id,
        name=verdict.name,
        state="stays" if verdict.refusals else "adoptable",
        why=verdict.refusals,
        notes=verdict.notes,
    )


def _at_once(_took_s: float) -> None:
    """No pause: it is one host, and somebody waits."""
