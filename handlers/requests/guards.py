"""The checks of every request, and the start of the operation for an accepted one.

The order of the checks, and their messages, are nova-api's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.base import EventContext
from aggregates.host import Host
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine import claims
from handlers.engine.plan import Flow, Place
from handlers.engine.volumes import check
from handlers.flows import FLOWS
from handlers.results.meaning import Book
from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import GuestOrder, PowerState
from host_agent.shared.contract.ports import VolumeView
from host_agent.shared.contract.volume_states import is_migrating

#: Volumes as Cinder shows them; None is one that it has forgotten.
Views = Callable[[], Sequence[VolumeView | None]]

#: What an agent must be to know attachments (S1's new flow); below it knows Cinder's old calls.
NEW_FLOW_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RequestOrigin:
    """Who sent the request, and the ids for new objects (nothing here is random).

    `at`: its time by the ledger's clock; what Cinder showed for the request is not older.
    `hooked`: see handlers.engine.plan.Plan.
    """

    operation_id: UUID
    bdm_id: UUID
    context: EventContext
    fingerprint: str | None = None
    finding: dict[str, Any] | None = None  # see Operation.OperationStarted
    at: float = 0.0
    hooked: bool = False


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Whether a host's agent has been in contact lately, and when last (for people)."""

    alive: bool
    since: str


@dataclass(frozen=True, kw_only=True)
class Concerned:
    """The volumes of a request.  `known`: their aggregates, which the operation claims.  `shown`:
    what Cinder says of them; Cinder is asked after all other checks.  `judged`: further volumes
    that Cinder has shown, to which the flow's rule does not apply.
    """

    known: Iterable[Volume] = ()
    shown: Views
    judged: Sequence[VolumeView] = ()


@dataclass(frozen=True, kw_only=True)
class WholeServer:
    """A server with its mappings, attachments and volumes, as they are now."""

    instance: Instance
    mappings: Sequence[BlockDeviceMapping]
    volumes: dict[str, Volume]

    @property
    def attached(self) -> list[BlockDeviceMapping]:
        """The mappings that have a volume."""
        return [m for m in self.mappings if m.live and m.volume_id is not None]


#: What a lock of a server does not hold up, by the names of `check_vm_state`.  All else it does,
#: as nova/compute/api.py has check_instance_lock: there evacuate, tags and names have none, and
#: repairs and Cinder's snapshots are nobody's whom a lock is for.
PAST_LOCKS = frozenset(
    {"evacuate", "refresh", "convert", "snapshot", "delete_snapshot", "update", "update tags"}
)


def check_lock(instance: Instance, action: str, context: EventContext) -> None:
    """Raises LockedError if the server's lock applies to the caller, and ObservedServerError for
    any caller if the server is only observed.

    A lock does not apply to administrators and services, who see all projects.
    """
    instance.refuse_observed()
    if instance.locked and action not in PAST_LOCKS and not context.passes_locks:
        raise errors.LockedError(server_id=str(instance.id))


def check_lock_of(operation: Operation, action: str, context: EventContext, book: Book) -> None:
    """The same check for an act on an operation of a server."""
    if operation.started and operation.started.server_id and not context.passes_locks:
        check_lock(book.get(Instance, operation.started.server_id), action, context)


def check_vm_state(
    instance: Instance, action: str, allowed: Iterable[VmState], context: EventContext
) -> None:
    """Raises if the server's lock or state forbids the action; the lock is checked first, as in
    Nova.

    A parked operation puts the server into ERROR, as S1 demands, but blocks only what its claim
    excludes.
    """
    check_lock(instance, action, context)
    if instance.own_state not in set(allowed):
        instance.refuse_parked()
        raise errors.VmStateError(
            action=action, server_id=str(instance.id), vm_state=instance.own_state
        )


def refuse_guestless(instance: Instance, action: str) -> None:
    """Raises GuestNotThereError if the server's host shows no guest of it."""
    if instance.power_state == PowerState.NOSTATE.value:
        raise errors.GuestNotThereError(
            action=action, server_id=str(instance.id), host=instance.host
        )


def refuse_deleting(instance: Instance, action: str, operation_id: str) -> None:
    """Raises DeletingError, in Nova's words, if a deletion of the server waits for another
    operation.
    """
    if instance.deletion is not None and instance.deletion.operation_id != operation_id:
        raise errors.DeletingError(action=action, server_id=str(instance.id))


def check_contact(host: Host, contact: Contact) -> None:
    """Refuse work that no agent can do (LP 1909120), and work on a host that is only observed."""
    host.refuse_observed()
    if host.fenced or not contact.alive:
        raise errors.HostUnavailableError(host=host.name, since=contact.since)


def start(
    flow: str,
    origin: RequestOrigin,
    instance: Instance,
    lanes: Sequence[Lane],
    hosts: dict[Place, str | None],
    volumes: Concerned,
    order: GuestOrder | None = None,
) -> Operation:
    """Claim what the operation works on, and begin it.

    Raises ClaimedError; VolumeStateError if the flow does not accept the state of a volume in
    Cinder; DeletingError if a deletion of the server waits for another operation.
    """
    table, operation_id = FLOWS[flow], str(origin.operation_id)
    beside = not table.claims_volumes
    refuse_deleting(instance, flow, operation_id)
    instance.claim(operation_id, exclusive=table.exclusive, flow=flow, beside_parked=beside)
    plan = table.expand(tuple(lanes), hosts, order, hooked=origin.hooked)
    known = {str(volume.id): volume for volume in volumes.known if table.claims_volumes}
    for volume_id in sorted(_volumes_of(lanes) & set(known)):
        claim = claims.on_volume(plan, volume_id)
        known[volume_id].claim(operation_id, server_id=str(instance.id), flow=flow, **claim)
    if table.volumes is not None:
        shown = volumes.shown()
        check(table.volumes, shown, _refusal_of(table))
        views = [view for view in (*shown, *volumes.judged) if view and not is_migrating(view)]
        seen = [_seen(view, origin.at) for view in views]
        plan = replace(plan, lanes=tuple(_having(lane, seen) for lane in plan.lanes))
    operation = Operation(origin.operation_id)
    operation.record(
        Operation.OperationStarted,
        flow=flow,
        server_id=str(instance.id),
        plan=plan.to_json(),
        request_id=origin.context.request_id,
        actor=origin.context.actor.stored(),
        fingerprint=origin.fingerprint,
        global_request_id=origin.context.global_request_id,
        traceparent=origin.context.traceparent,
        sender=origin.context.sender,
        finding=origin.finding,
    )
    return operation


def _seen(view: VolumeView, at: float) -> VolumeSeen:
    """The facts about the volume that the operation's steps need."""
    return VolumeSeen(
        id=view.id,
        at=at,
        status=view.status,
        size_gb=view.size_gb,
        multiattach=view.multiattach,
        shared_targets=view.shared_targets,
        service_uuid=view.service_uuid,
    )


def _having(lane: Lane, seen: Sequence[VolumeSeen]) -> Lane:
    return replace(lane, seen=tuple(each for each in seen if each.id in lane.volume_ids))


def _volumes_of(lanes: Sequence[Lane]) -> set[str]:
    return set().union(*(lane.volume_ids for lane in lanes))


def _refusal_of(flow: Flow) -> type[errors.VolumeStateError]:
    """The error; nova-api has a separate one for requests about a single volume."""
    return errors.VolumeStateError if flow.exclusive else errors.AttachmentVolumeStateError
