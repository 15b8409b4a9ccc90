"""Accepts requests: load, decide, save - in one transaction.

All functions here block (the eventsourcing library and cinderclient do) and run in worker threads.
If a save loses a race, the decision is repeated on fresh state.  So a caller gets either an answer
that was true when it was stored, or a refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import orjson
import structlog

from aggregates import errors
from aggregates.base import Aggregate, EventContext
from aggregates.finding import Finding
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.plan import plan_of
from handlers.requests import accept, actions, build, deletion, grow, operator, snapshots
from handlers.requests import repair as repairs
from handlers.requests.guards import Contact, RequestOrigin
from handlers.results import presence
from handlers.results.presence import OthersShown
from handlers.results.progress import Execution
from host_agent.shared.contract.ports import Cinder, PortError, VolumeView
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.reconcile.repair_cases import RepairContexts

A = TypeVar("A", bound=Aggregate)
Edit = Callable[[A, EventContext], None]
Decide = Callable[[Unit, RequestOrigin], Operation]

_log = structlog.get_logger(__name__)

#: A permission, and no part of what is asked; the fingerprints of 0.2.0 are without it.
_NOT_ASKED = frozenset({"shelved_allowed"})


@dataclass(frozen=True)
class Accepted:
    """A request that became an operation; `position`: of its last event.

    `repeated`: the same idempotency key was used for the same request before.
    """

    operation_id: str
    position: int
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What the read side knows of hosts now.

    `legacy`: Cinder, or an agent, is too old for the new flow (S1).  `had`: the hosts that ever had
    a volume of the server.  `shown`, `unaccounted`: see handlers.results.presence.  `unfenced`:
    the names of all hosts that can be asked.  `hook_required`: from the settings (`fencing`).
    """

    contact: Callable[[str], Contact]
    legacy: Callable[[], bool] = lambda: False
    had: Callable[[str], Iterable[str]] = lambda _server_id: ()
    shown: Callable[[str, Sequence[str]], OthersShown] = lambda _server_id, _volume_ids: (
        OthersShown()
    )
    unaccounted: Callable[[str], Iterable[str]] = lambda _server_id: ()
    unfenced: Callable[[], Iterable[str]] = lambda: ()
    hook_required: bool = False


class IdempotencyKeyReusedError(errors.DomainError, code="idempotency_key_reused", status=422):
    """Idempotency key {key} was used for another request; use a new key for a new request."""


class Requests:
    """The write side for users.  Every method raises DomainError if it refuses, and PortError if
    Cinder does not return a volume that is needed.

    `clock` gives the database's time (ledger.log.clock).
    """

    def __init__(self, store: AggregateStore, cinder: Cinder, clock: Callable[[], float]) -> None:
        self._store = store
        self._cinder = cinder
        self._clock = clock

    def attach(
        self,
        request: accept.AttachVolume,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
        seen: VolumeView | None = None,
    ) -> Accepted:
        """Attach a volume to a server; `seen`: the volume, if Cinder has just returned it."""
        # Once for all attempts, and not at all for a repeated request.
        view = cache(lambda: seen or self._cinder.volume(request.volume_id))

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            shown = view()  # before anything is read that it would make old
            instance = unit.get(Instance, request.server_id)
            asks_root = request.is_root or request.device
            mappings = _mappings(unit, instance) if asks_root else []
            return accept.attach(
                request,
                origin,
                instance=instance,
                volume=unit.get(Volume, request.volume_id),
                view=shown,
                where=_where(unit, instance, fleet),
                root=next((m for m in mappings if m.boot_index == 0 and m.live), None),
            )

        return self._accept("attach", request, context, key, _asked(decide, fleet))

    def detach(
        self,
        request: accept.DetachVolume,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
    ) -> Accepted:
        """Detach a volume from a server."""
        view = cache(self._shown)

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            instance = unit.get(Instance, request.server_id)
            return accept.detach(
                request,
                origin,
                instance=instance,
                volume=unit.get(Volume, request.volume_id),
                mapping=_mapping(unit, instance, request.volume_id),
                views=lambda: [view(request.volume_id)],
                where=_where(unit, instance, fleet),
            )

        return self._accept("detach", request, context, key, _asked(decide, fleet))

    def swap(
        self,
        request: accept.SwapVolume,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
    ) -> Accepted:
        """Replace the volume of a server's disk."""
        views = cache(
            lambda: (
                self._cinder.volume(request.volume_id),
                self._cinder.volume(request.new_volume_id),
            )
        )

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            instance = unit.get(Instance, request.server_id)
            ids = (request.volume_id, request.new_volume_id)
            return accept.swap(
                request,
                origin,
                instance=instance,
                mapping=_mapping(unit, instance, request.volume_id),
                volumes=(unit.get(Volume, ids[0]), unit.get(Volume, ids[1])),
                views=views(),
                where=_where(unit, instance, fleet),
            )

        return self._accept("swap", request, context, key, _asked(decide, fleet))

    def build(
        self,
        request: build.BuildServer,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
    ) -> Accepted:
        """Build a server with its volumes; its id is `build.server_id_of` the operation."""
        ids = sorted({disk.volume_id for disk in request.disks if disk.volume_id})
        views = cache(lambda: {id_: self._cinder.volume(id_) for id_ in ids})

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            return build.build(
                request,
                origin,
                instance=unit.get(Instance, build.server_id_of(origin)),
                host=unit.get(Host, request.host),
                contact=fleet.contact(request.host),
                volumes={id_: (unit.get(Volume, id_), views()[id_]) for id_ in ids},
                legacy=fleet.legacy(),
            )

        return self._accept("build", request, context, key, _asked(decide, fleet))

    def act(
        self,
        request: actions.ActOnServer,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
    ) -> Accepted:
        """Move, start, stop, shelve, refresh, ... a server."""
        view = cache(self._shown)  # once for all attempts

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            hosts = _hosts(unit, fleet)
            server = deletion.server_of(request.server_id, unit)
            return actions.act(
                request,
                origin,
                server=server,
                hosts=hosts,
                views=lambda: [view(volume_id) for volume_id in server.volumes],
            )

        return self._accept(request.flow, request, context, key, _asked(decide, fleet))

    def delete(
        self, server_id: str, context: EventContext, fleet: Fleet, key: str | None = None
    ) -> Accepted:
        """Delete a server; its parked operations end, and the deletion releases their volumes.

        If an operation works on the server, the deletion begins when that ends.
        """
        request = actions.ActOnServer(server_id=server_id, flow="delete")
        decide = _asked(lambda unit, origin: deletion.begin(server_id, origin, unit), fleet)
        accepted: Accepted | None = None
        while accepted is None:
            origin = self._origin(request.flow, request, context, key)
            try:
                accepted = self._begin(origin, decide, key)
            except errors.ClaimedError as claimed:
                accepted = self._keep_deletion(server_id, origin, claimed)
        return accepted

    def _keep_deletion(
        self, server_id: str, origin: RequestOrigin, claimed: errors.ClaimedError
    ) -> Accepted | None:
        """Accept it for later, if the operation is still in the way."""

        def keep(unit: Unit) -> Accepted | None:
            operation_id = deletion.keep(server_id, origin, claimed, unit)
            position = unit.save(replace(origin.context, operation_id=None))
            return Accepted(operation_id, position) if operation_id else None

        return run_optimistically(self._store, keep)

    def grow(self, server_id: str, volume_id: str, context: EventContext) -> Accepted | None:
        """Cinder reports that a volume has grown: let the server's guest see it.

        None: there is nothing to do, or the growth waits for another operation, whose end begins
        it.
        """
        at, view = self._clock(), self._just_shown(volume_id)
        # If nobody knows, what fails parks; a Cinder that waits hears of the success alone.
        waiting = view is not None and view.status == "extending"
        request = grow.GrowVolume(server_id=server_id, volume_id=volume_id, waiting=waiting)
        operation_id = uuid4()
        context = replace(context, operation_id=str(operation_id))
        origin = RequestOrigin(
            operation_id=operation_id, bdm_id=operation_id, context=context, at=at
        )

        def change(unit: Unit) -> Accepted | None:
            try:
                operation = grow.grow(request, origin, view, unit)
            except (errors.NotAttachedError, errors.DeletingError):
                return None
            unit.add(operation)
            deletion.advance(Execution(operation, unit), self._clock())
            return Accepted(str(operation_id), unit.save(context))

        def wait(unit: Unit) -> bool:
            held_up = grow.is_held_up(request, unit)
            if held_up:
                grow.wait(request, origin, unit.get(Instance, server_id))
                unit.save(replace(context, operation_id=None))
            return held_up

        while True:
            try:
                return run_optimistically(self._store, change)
            except grow.IN_THE_WAY:
                if run_optimistically(self._store, wait):
                    return None

    def snapshot(
        self, request: snapshots.SnapshotInUse, context: EventContext, fleet: Fleet
    ) -> Accepted:
        """Let the guest take or delete a snapshot; Cinder waits for it."""
        view = cache(lambda: self._cinder.volume(request.volume_id))

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            return snapshots.begin(request, origin, unit, view(), fleet.contact)

        return self._accept(request.flow, request, context, None, _asked(decide, fleet))

    def repair(
        self,
        request: repairs.RepairDrift,
        context: EventContext,
        fleet: Fleet,
        key: str | None = None,
    ) -> Accepted:
        """Repair what a look has found (decision 0059)."""
        return self._accept("repair", request, context, key, self._mending(request, fleet))

    def propose(
        self, request: repairs.RepairDrift, context: EventContext, fleet: Fleet
    ) -> tuple[Operation, Finding]:
        """The operation that `repair` would begin, and its finding; nothing is changed.

        Raises the same errors as `repair`.
        """
        unit = Unit(self._store)
        origin = RequestOrigin(operation_id=uuid4(), bdm_id=uuid4(), context=context)
        with operator.explained(unit):
            operation = self._mending(request, fleet)(unit, origin)
        return operation, unit.get(Finding, request.finding_id)

    def _mending(self, request: repairs.RepairDrift, fleet: Fleet) -> Decide:
        case = RepairContexts(self._cinder, fleet)  # asks Cinder once for all attempts

        def decide(unit: Unit, origin: RequestOrigin) -> Operation:
            finding = unit.get(Finding, request.finding_id)
            repairs.refuse(finding, request.finding_id)
            hosts = _hosts(unit, fleet)
            return repairs.repair(request, origin, case.of(finding, unit), hosts)

        return _asked(decide, fleet)

    def edit(self, kind: type[A], id_: str, edit: Edit[A], context: EventContext) -> int:
        """Make a change that needs no operation; returns the last position written, 0 for none."""

        def change(unit: Unit) -> int:
            with operator.explained(unit):
                edit(unit.get(kind, id_), context)
            return unit.save(context)

        return run_optimistically(self._store, change)

    def came_from(self, server_id: str) -> str | None:
        """The Nova that managed an adopted server before."""
        return Unit(self._store).get(Instance, server_id).came_from

    def showing(self, server_id: str, volume_id: str) -> list[str]:
        """The hosts that show a volume in a server's guest where the ledger did not put it."""
        shown = Unit(self._store).get(Volume, volume_id).shown
        return [host for host, of in shown if of == server_id]

    def _shown(self, volume_id: str) -> VolumeView | None:
        """A volume of a server; None if Cinder no longer has it."""
        try:
            return self._cinder.volume(volume_id)
        except PortError as error:
            if error.code != "not_found":
                raise
            return None

    def _just_shown(self, volume_id: str) -> VolumeView | None:
        """A volume; None also if Cinder cannot return it now."""
        try:
            return self._cinder.volume(volume_id)
        except PortError as error:
            _log.warning("volume_not_shown", volume=volume_id, code=error.code)
            return None

    def _accept(
        self,
        kind: str,
        request: Any,
        context: EventContext,
        key: str | None,
        decide: Decide,
    ) -> Accepted:
        return self._begin(self._origin(kind, request, context, key), decide, key)

    def _origin(
        self, kind: str, request: Any, context: EventContext, key: str | None
    ) -> RequestOrigin:
        operation_id = operation_id_of(context, key) if key else uuid4()
        asked = {name: value for name, value in asdict(request).items() if name not in _NOT_ASKED}
        fingerprint = hashlib.sha256(kind.encode() + orjson.dumps(asked)).hexdigest()
        return RequestOrigin(
            operation_id=operation_id,
            bdm_id=uuid4(),
            context=replace(context, operation_id=str(operation_id)),
            fingerprint=fingerprint,
            at=self._clock(),
        )

    def _begin(self, origin: RequestOrigin, decide: Decide, key: str | None) -> Accepted:
        operation_id = origin.operation_id

        def change(unit: Unit) -> Accepted:
            if key is not None:
                known = unit.get(Operation, operation_id)
                if known.started is not None:
                    if known.started.fingerprint != origin.fingerprint:
                        raise IdempotencyKeyReusedError(key=key)
                    return Accepted(str(operation_id), 0, repeated=True)
            with operator.explained(unit):
                operation = decide(unit, origin)
            unit.add(operation)
            deletion.advance(Execution(operation, unit), self._clock())
            return Accepted(str(operation.id), unit.save(origin.context))

        return run_optimistically(self._store, change)


def operation_id_of(context: EventContext, key: str) -> UUID:
    """The idempotency key determines the operation's id, so the log itself keeps it unique."""
    project = context.actor.project_id or context.actor.name
    return uuid5(NAMESPACE_URL, f"{project}/{key}")


def _asked(decide: Decide, fleet: Fleet) -> Decide:
    """Decide, unless others show what the operation would start or free (decision 0088)."""

    def asked(unit: Unit, origin: RequestOrigin) -> Operation:
        operation = decide(unit, origin)
        started = operation.started
        assert started is not None, "a decision begins an operation"
        repaired = started.finding["id"] if started.finding else None
        presence.refuse(plan_of(operation), started.server_id, unit, fleet, repaired)
        return operation

    return asked


def _where(unit: Unit, instance: Instance, fleet: Fleet) -> accept.Where:
    if instance.host is None:
        return accept.Where(host=None, contact=None, legacy=fleet.legacy())
    host = unit.get(Host, instance.host)
    return accept.Where(host=host, contact=fleet.contact(host.name), legacy=fleet.legacy())


def _hosts(unit: Unit, fleet: Fleet) -> actions.RequestHosts:
    return actions.RequestHosts(
        get=lambda name: unit.get(Host, name),
        contact=fleet.contact,
        hook_required=fleet.hook_required,
    )


def _mappings(unit: Unit, instance: Instance) -> list[BlockDeviceMapping]:
    return [unit.get(BlockDeviceMapping, bdm_id) for bdm_id in instance.devices]


def _mapping(unit: Unit, instance: Instance, volume_id: str) -> BlockDeviceMapping | None:
    device = instance.device_of(volume_id)
    return unit.get(BlockDeviceMapping, device.bdm_id) if device else None
