"""Requests about a whole server: moves, power, shelving, deletion, repair.

A table has the conditions for the server and its host (Nova's guards and messages), as tables have
the flows.  Flows differ only in the attachments that are their lanes (handlers.requests.lanes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.host import Host
from aggregates.instance import RUNNING, Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume, VolumeClaim
from handlers.engine.claims import leaves_disks
from handlers.engine.fences import vouches
from handlers.engine.plan import Place
from handlers.flows import FLOWS
from handlers.requests import edits
from handlers.requests.guards import (
    Concerned,
    Contact,
    RequestOrigin,
    Views,
    WholeServer,
    check_contact,
    check_lock,
    check_vm_state,
    refuse_guestless,
    start,
)
from handlers.requests.lanes import LANES, imaged, of_attachment, of_unlearnt, of_unmade, one_sided
from host_agent.shared.contract.definition import resized
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import GuestOrder

S = VmState
#: After these a guest runs, whatever it did before (Nova's hard reboot starts it).
_STARTS = frozenset({"start", "unshelve", "reboot"})


@dataclass(frozen=True, kw_only=True)
class ActOnServer:
    """The requested flow, and fields that only some flows need.

    `running`: whether the guest should run afterwards; None: as it does now.  `image`: for a
    reimage, the image for the root volume.
    """

    server_id: str
    flow: str
    destination: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None
    force: bool = False
    running: bool | None = None
    disk_config: str | None = None
    image: str | None = None


class Need(StrEnum):
    """The state that a host must have for a flow that concerns it."""

    ANSWERS = "answers"
    FENCED = "fenced"
    EITHER = "either"  # it lets go itself, or its fence is the evidence


_HERE = {Place.HOST: Need.ANSWERS}


@dataclass(frozen=True)
class ActionRule:
    """The conditions of an action; `action` is its name in Nova's messages."""

    action: str
    states: frozenset[VmState]
    needs: dict[Place, Need] = field(default_factory=lambda: _HERE)
    moves: bool = False  # the guest leaves its host: its disks must all be volumes
    root: bool = False  # refused while the root volume is detached (S2)
    destination: bool = False
    guest: bool = False  # refused while its host shows no guest of it: there is nothing to act on


def _states(*states: VmState) -> frozenset[VmState]:
    return frozenset(states)


RULES: dict[str, ActionRule] = {
    "live_migrate": ActionRule(
        "os-migrateLive",
        _states(S.ACTIVE, S.PAUSED),
        moves=True,
        destination=True,
        guest=True,
    ),
    "resize": ActionRule("resize", _states(S.ACTIVE, S.STOPPED), moves=True, destination=True),
    "confirm_resize": ActionRule(
        "confirmResize", _states(S.RESIZED), needs={Place.SOURCE: Need.EITHER}
    ),
    "revert_resize": ActionRule(
        "revertResize",
        _states(S.RESIZED),
        needs={Place.SOURCE: Need.ANSWERS, Place.DESTINATION: Need.EITHER},
    ),
    "evacuate": ActionRule(
        "evacuate",
        _states(S.ACTIVE, S.PAUSED, S.STOPPED, S.ERROR),
        needs={Place.SOURCE: Need.FENCED},
        moves=True,
        destination=True,
    ),
    "shelve": ActionRule("shelve", _states(S.ACTIVE, S.PAUSED, S.STOPPED), moves=True),
    "unshelve": ActionRule(
        "unshelve", _states(S.SHELVED_OFFLOADED), needs={}, root=True, destination=True
    ),
    "start": ActionRule("start", _states(S.STOPPED), root=True),
    "stop": ActionRule("stop", _states(S.ACTIVE, S.PAUSED, S.ERROR), guest=True),
    "pause": ActionRule("pause", _states(S.ACTIVE), guest=True),
    "unpause": ActionRule("unpause", _states(S.PAUSED), guest=True),
    "reboot": ActionRule(
        "reboot",
        _states(S.ACTIVE, S.PAUSED, S.STOPPED, S.ERROR),
        root=True,
    ),
    "rebuild": ActionRule("rebuild", _states(S.ACTIVE, S.STOPPED, S.ERROR), root=True),
    "reimage": ActionRule("rebuild", _states(S.ACTIVE, S.STOPPED, S.ERROR), root=True),
    "refresh": ActionRule("refresh", _states(S.ACTIVE, S.PAUSED, S.STOPPED), guest=True),
    "convert": ActionRule("convert", _states(S.ACTIVE, S.PAUSED, S.STOPPED), guest=True),
    "convert_offloaded": ActionRule("convert", _states(S.SHELVED_OFFLOADED), needs={}),
    "convert_resized": ActionRule(
        "convert",
        _states(S.RESIZED),
        needs={Place.SOURCE: Need.ANSWERS, Place.DESTINATION: Need.ANSWERS},
    ),
}
#: Converted in another way where the server is on no host, or on two.
_CONVERTED = {S.SHELVED_OFFLOADED: "convert_offloaded", S.RESIZED: "convert_resized"}


@dataclass(frozen=True, kw_only=True)
class RequestHosts:
    """The hosts of a request, in their present state.

    `hook_required`: for an evacuation, the program that runs after a fence must have succeeded.
    """

    get: Callable[[str], Host]
    contact: Callable[[str], Contact]
    hook_required: bool


def act(
    request: ActOnServer,
    origin: RequestOrigin,
    *,
    server: WholeServer,
    hosts: RequestHosts,
    views: Views,
) -> Operation:
    """Accept the request, or raise a DomainError."""
    instance = server.instance
    if request.flow == "convert":
        request = replace(request, flow=_CONVERTED.get(instance.own_state, "convert"))
    rule = RULES[request.flow]
    check_vm_state(instance, rule.action, _allowed(rule, instance), origin.context)
    if rule.root and (root := instance.vacant_root):
        lacking = {"device": f"/dev/{root}", "server_id": request.server_id}
        raise errors.NoRootError(action=rule.action, **lacking)
    if rule.guest:
        refuse_guestless(instance, rule.action)
    if rule.moves and instance.local_disks:
        raise errors.LocalDisksError(
            server_id=request.server_id, disks=", ".join(instance.local_disks)
        )
    if rule.moves and instance.bound:
        raise errors.BoundPortsError(server_id=request.server_id, host=instance.host)
    places = _places(request, rule, server, hosts)
    order = _order(request, instance, places, hosts)
    if not FLOWS[request.flow].claims_volumes:
        server = _idle(server)
    lanes = LANES.get(request.flow, one_sided)(server, places)
    if request.image is not None:
        lanes = imaged(lanes, request.image, server)
    concerned = Concerned(known=server.volumes.values(), shown=views)
    if request.disk_config:
        edits.describe(instance, {"disk_config": request.disk_config}, origin.context)
    origin = replace(origin, hooked=hosts.hook_required)
    return start(request.flow, origin, instance, lanes, places, concerned, order)


def _idle(server: WholeServer) -> WholeServer:
    """The server without the volumes that another operation works on.  That operation decides about
    them, unless it leaves the server's disks where they are.
    """
    server_id = str(server.instance.id)
    busy = {
        id_
        for id_, volume in server.volumes.items()
        if any(_moves_disks(volume.claims[op]) for op in volume.works_for(server_id))
    }
    idle = [mapping for mapping in server.mappings if mapping.volume_id not in busy]
    return replace(server, mappings=idle)


def _moves_disks(claim: VolumeClaim) -> bool:
    """True if the flow is unknown: the operation began before claims had the name of their flow."""
    flow = FLOWS.get(claim.flow or "")
    return flow is None or not leaves_disks(flow)


def _allowed(rule: ActionRule, instance: Instance) -> frozenset[VmState]:
    """Not every server in ERROR allows what ERROR allows.  One that was never built can only be
    deleted; one that was resized has to be confirmed or reverted first.
    """
    unsettled = instance.resize_source is not None and S.RESIZED not in rule.states
    return frozenset() if instance.never_built or unsettled else rule.states


def check_deletion(instance: Instance, origin: RequestOrigin) -> None:
    """A deletion is possible in any state.  Raises LockedError; and VmStateError for a second
    deletion, also if the first is parked, because the second would have nothing to do.
    """
    check_lock(instance, "delete", origin.context)
    if instance.deleted:
        state = S.DELETED
        raise errors.VmStateError(action="delete", server_id=str(instance.id), vm_state=state)


def delete(
    origin: RequestOrigin,
    *,
    server: WholeServer,
    attachments: Sequence[tuple[Attachment, str | None]],
    unlearnt: Sequence[Lane] = (),
    unmade: Sequence[Lane] = (),
    other_host: str | None = None,
    arrival: str | None = None,
) -> Operation:
    """Accept a deletion that has passed `check_deletion`, unless an operation works on the server.

    `attachments`: all that the server still has, each with the host that may have the volume
    connected by it.  `unlearnt`: lanes for which Cinder may have further attachments, which no host
    has connected.  `unmade`: lanes for which a volume may have been made that no mapping has.
    `other_host`: a host to which an unfinished move may have brought the guest.  `arrival`: a host
    to which the guest may still come.
    """
    instance = server.instance
    by_volume = {mapping.volume_id: mapping for mapping in server.attached}
    # What no mapping leads to has nothing to be unbound, and ends by itself.
    no_mapping, lanes = str(origin.bdm_id), []
    known = [str(attachment.id) for attachment, _ in attachments]
    for attachment, host in attachments:
        mapping = by_volume.get(attachment.volume_id)
        lanes.append(of_attachment(attachment, mapping, host, no_mapping, known))
    for lane in unlearnt:
        mapping = by_volume.get(lane.volume_id)
        lanes.append(of_unlearnt(lane, mapping, no_mapping))
    bound = {lane.bdm_id for lane in lanes}
    # A refused undo leaves mappings whose attachment is deleted already.
    lanes += [
        _of_unbound(mapping, server.volumes[str(mapping.volume_id)])
        for mapping in server.attached
        if str(mapping.id) not in bound
    ]
    lanes += [of_unmade(lane, known) for lane in unmade if lane.bdm_id not in bound]
    places: dict[Place, str | None] = {
        Place.HOST: instance.host,
        Place.SOURCE: instance.resize_source,
        Place.DESTINATION: other_host,
        Place.ARRIVAL: arrival,
    }
    order = GuestOrder(server_id=str(instance.id), running=False, force=True)
    # Asks for no state: what Cinder is doing with a volume its release waits for (0040).
    concerned = Concerned(known=server.volumes.values(), shown=tuple)
    return start("delete", origin, instance, lanes, places, concerned, order)


def _of_unbound(mapping: BlockDeviceMapping, volume: Volume) -> Lane:
    """A volume whose attach has failed is its user's again, unless the server's build made it."""
    ours = volume.mark == str(mapping.id)
    lane = mapping.lane(volume, None)
    return replace(lane, delete_on_termination=ours and mapping.delete_on_termination)


def _places(
    request: ActOnServer, rule: ActionRule, server: WholeServer, hosts: RequestHosts
) -> dict[Place, str | None]:
    """The hosts of the flow's places; each is checked to be fit for it."""
    instance, here = server.instance, server.instance.host
    places: dict[Place, str | None] = {Place.HOST: here, Place.SOURCE: here}
    if instance.resize_source is not None:  # to be confirmed or reverted
        places = {Place.SOURCE: instance.resize_source, Place.DESTINATION: here}
    for place, need in rule.needs.items():
        if (name := places[place]) is not None:
            _check_need(need, instance, hosts.get(name), hosts.contact(name))
            if need is Need.FENCED and hosts.hook_required:
                hosts.get(name).check_hooked()
    if rule.destination:
        places[Place.DESTINATION] = _destination(request, server, hosts)
    return places


def _check_need(need: Need, instance: Instance, host: Host, contact: Contact) -> None:
    if need is Need.FENCED and not host.fenced:
        raise errors.HostNotFencedError(host=host.name)
    if need is Need.ANSWERS or (need is Need.EITHER and not host.fenced):
        check_contact(host, contact)
    elif not vouches(host, instance):
        raise errors.FenceTooOldError(host=host.name, server_id=str(instance.id))


def _destination(request: ActOnServer, server: WholeServer, hosts: RequestHosts) -> str:
    name = request.destination
    assert name is not None, "the caller chooses a host if the user does not"
    host = hosts.get(name)
    why = None
    if host.version == 0:
        why = "no agent of that name has ever registered"
    elif name == server.instance.host:
        why = "the instance is there already"
    elif host.disabled:
        why = host.why_disabled
    elif host.suspect:
        why = "it was fenced, and has not released its leftovers yet"
    elif request.flow == "live_migrate" and not host.capabilities.get("migration"):
        why = "its agent is not configured to receive live migrations"
    elif any(m.multiattach for m in server.attached) and not host.capabilities.get("multiattach"):
        why = "it cannot share multi-attach volumes"
    if why is not None:
        raise errors.DestinationError(host=name, server_id=request.server_id, why=why)
    check_contact(host, hosts.contact(name))
    return name


#: What a guest need not be defined anew for.
_AS_IT_IS = frozenset(
    {"stop", "pause", "unpause", "refresh", "convert", "reimage", *_CONVERTED.values()}
)


def _order(
    request: ActOnServer, instance: Instance, places: dict[Place, str | None], hosts: RequestHosts
) -> GuestOrder:
    """The order about the whole guest, which its hosts get."""
    definition = instance.definition
    if request.flow not in _AS_IT_IS and not definition:
        raise errors.DefinitionError(server_id=request.server_id)
    if definition and (request.vcpus or request.memory_mb):
        definition = resized(definition, request.vcpus, request.memory_mb)
    running = request.running
    if running is None:
        running = instance.power_state in RUNNING or request.flow in _STARTS
    order = GuestOrder(
        server_id=request.server_id,
        definition=definition,
        running=running,
        force=request.force,
    )
    if request.flow == "live_migrate":
        name = places[Place.DESTINATION] or ""
        order = replace(
            order, destination={"host": name, **hosts.get(name).capabilities["migration"]}
        )
    return order
