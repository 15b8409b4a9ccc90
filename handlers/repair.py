"""Requests to mend what a look has found: which flow, on which hosts, and what it claims.

Only a confirmed finding is repaired.  The first steps of each flow look again
(handlers.drift.again); here it is made sure that everybody who is to be asked can answer: no agent,
no repair.  An operation claims a deleted server as any other: a deletion itself works on when its
server is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.finding import Finding, FindingState
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.actions import Hosts
from handlers.drift.again import cannot
from handlers.drift.classes import BY_NAME, Repair
from handlers.guards import (
    REPAIRS_VERSION,
    Concerned,
    Origin,
    check_contact,
    lane_of_mapping,
    start,
)
from handlers.plan import LANES_MAX, Place
from host_agent.shared.contract import GuestOrder
from host_agent.shared.lane import Lane, LaneSide
from host_agent.shared.ports import AttachmentView, VolumeView


@dataclass(frozen=True, kw_only=True)
class RepairDrift:
    """`repair`: the one to take, of the two of a class; None: by what the ledger knows."""

    finding_id: str
    reason: str
    repair: str | None = None
    automatic: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """A finding with what the ledger and Cinder have of its subject now.

    `server_id`: the finding's, or of the server that had the volume last.  `hosts`: all that may
    ever have had the volume for the server.  `held`: all that the server has.  `every_host`: those
    that are not fenced.
    """

    finding: Finding
    server_id: str
    instance: Instance
    mappings: Sequence[BlockDeviceMapping]
    attachment: Attachment | None
    volume: Volume | None
    shown: AttachmentView | None
    view: VolumeView | None
    hosts: Sequence[str]
    held: Sequence[tuple[Attachment, Volume]] = ()
    every_host: Sequence[str] = ()

    @property
    def mapping(self) -> BlockDeviceMapping | None:
        """The mapping that is to have the disk, or has the attachment."""
        about = self.finding.about()
        for mapping in self.mappings:
            if about.attachment_id and about.attachment_id in {mapping.attachment_id, mapping.kept}:
                return mapping
        live = (m for m in self.mappings if m.live and m.volume_id)
        return next((m for m in live if m.volume_id == about.volume_id), None)


def refuse(finding: Finding, finding_id: str) -> None:
    """Raises NoFindingError, RepairError if it cannot be repaired as it stands."""
    if finding.found is None:
        raise errors.NoFindingError(finding_id=finding_id)
    drift = BY_NAME.get(finding.found.drift_class)
    why = None
    if drift is None or drift.repair is None:
        why = f"nothing mends it by itself. {drift.by_hand if drift else ''}".strip()
    elif finding.repairing is not None:
        why = f"operation {finding.repairing} is at it."
    elif finding.state is not FindingState.CONFIRMED:
        why = f"it is {finding.state}, and only what a second look has confirmed is repaired."
    elif (never := cannot(drift, finding.found.key, finding.differs)) is not None:
        why = f"its repair cannot work. {never}"
    if why is not None:
        raise errors.RepairError(finding_id=finding_id, why=why)


def repair(request: RepairDrift, origin: Origin, case: Case, hosts: Hosts) -> Operation:
    """Accept it, or raise a DomainError."""
    finding = case.finding
    refuse(finding, request.finding_id)
    assert finding.found is not None, "refuse has seen to it"
    chosen = _chosen(request, case)
    flow = _flow_of(chosen, case)
    lanes = LANES[flow](case, str(origin.bdm_id))
    names = {lane.host for lane in lanes} - {None}
    for name in sorted(filter(None, names)):
        _check_host(request, hosts, name)
    here = lanes[0].host
    evidence = {
        "id": request.finding_id,
        "drift_class": finding.found.drift_class,
        "differs": finding.differs,
        "reason": request.reason,
    }
    operation = start(
        flow,
        replace(origin, finding=evidence),
        case.instance,
        lanes,
        {Place.HOST: here},
        Concerned(known=_volumes(case), shown=lambda: (case.view,)),
        GuestOrder(server_id=case.server_id, running=False, force=True),
    )
    finding.record(
        Finding.RepairBegun,
        repair=chosen.value,
        by_operation=str(operation.id),
        reason=request.reason,
        automatic=request.automatic,
    )
    return operation


def _volumes(case: Case) -> list[Volume]:
    held = {volume.id: volume for _, volume in case.held}
    return list((held | ({case.volume.id: case.volume} if case.volume else {})).values())


def _chosen(request: RepairDrift, case: Case) -> Repair:
    """The class's repair, or its other one: asked for, or because no guest is to have the disk."""
    assert case.finding.found is not None, "refuse has seen to it"
    drift = BY_NAME[case.finding.found.drift_class]
    assert drift.repair is not None, "refuse has seen to it"
    may = [each for each in (drift.repair, drift.or_else) if each is not None]
    if request.repair is not None:
        if request.repair not in may:
            raise _refusal(case, f"its repairs are {', '.join(may)}, not {request.repair}.")
        return Repair(request.repair)
    mapping = case.mapping
    out = mapping is None or mapping.state is MappingState.UNPLUGGED
    on_host = case.attachment is not None and case.attachment.host is not None
    return drift.or_else if drift.or_else is not None and out and on_host else drift.repair


def _flow_of(chosen: Repair, case: Case) -> str:
    shown = case.shown
    if chosen is Repair.DROP_ATTACHMENT:
        if shown is None:
            raise _refusal(case, "Cinder does not have the attachment any more.")
        bare = shown.status == "reserved" and not shown.connection_info
        return "drop_reservation" if bare else "drop_attachment"
    held = case.attachment
    if chosen is Repair.REPLACE_ATTACHMENT and held and held.state is AttachmentState.RESERVED:
        return "replace_reservation"
    return chosen.value


def _check_host(request: RepairDrift, hosts: Hosts, name: str) -> None:
    host = hosts.get(name)
    if not host.version:
        why = f"host {name} may have it, and no agent has ever registered for it: look there."
        raise errors.RepairError(finding_id=request.finding_id, why=why)
    check_contact(host, hosts.contact(name))
    if host.service_version < REPAIRS_VERSION:
        version = f"the agent of host {name} is of service version {host.service_version}"
        why = f"{version}, and repairs need {REPAIRS_VERSION}: upgrade it."
        raise errors.RepairError(finding_id=request.finding_id, why=why)


def _refusal(case: Case, why: str) -> errors.RepairError:
    return errors.RepairError(finding_id=str(case.finding.id), why=why)


# --- lanes -----------------------------------------------------------------------------


def _of_attachment(case: Case, no_mapping: str) -> list[Lane]:
    """One that the ledger does not hold: no mapping leads to it."""
    about = case.finding.about()
    assert about.attachment_id is not None, "the class is of attachments"
    return [
        Lane(
            server_id=case.server_id,
            volume_id=(case.shown.volume_id if case.shown else None) or about.volume_id or "",
            bdm_id=no_mapping,
            attachment_id=about.attachment_id,
            device_name=None,
            multiattach=case.view is not None and case.view.multiattach,
        )
    ]


def _of_each_host(case: Case, no_mapping: str) -> list[Lane]:
    """Whoever could have it has to show that it does not; a guest knows it by its mapping's id.

    Cinder's lists name the host of what is attached only.  Where it names none, any host may have
    given the connector that Cinder has.
    """
    hosts = set(case.hosts)
    if (case.finding.differs.get("cinder") or {}).get("host") is None:
        hosts |= set(case.every_host)
    if not hosts:
        raise _refusal(case, "a host was given the volume, and nobody knows which: look for it.")
    if len(hosts) > LANES_MAX:
        why = (
            f"Cinder has some host's connector for it and does not say whose, and more than "
            f"{LANES_MAX} hosts cannot be asked at once. Find the host, then delete it in Cinder."
        )
        raise _refusal(case, why)
    [lane] = _of_attachment(case, no_mapping)
    serial = case.mapping.serial if case.mapping else None
    return [replace(lane, host=host, serial=serial) for host in sorted(hosts)]


def _of_record(case: Case, no_mapping: str) -> list[Lane]:
    [lane] = _of_attachment(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def _of_mapping(case: Case, no_mapping: str) -> list[Lane]:
    del no_mapping
    mapping, host = case.mapping, case.instance.host
    if mapping is None or case.volume is None:
        raise _refusal(case, "no device of the server goes through it any more.")
    if mapping.legacy:
        raise _refusal(case, "it was made by Cinder's old calls: convert it first.")
    if mapping.kept is not None:
        raise _refusal(case, "the server is being resized: confirm or revert that first.")
    if host is None:
        raise _refusal(case, "the server is on no host.")
    if case.attachment is not None and case.attachment.host not in {host, None}:
        raise _refusal(case, f"host {case.attachment.host} has it, and the guest is on {host}.")
    return [lane_of_mapping(mapping, case.volume, host)]


def _corrected(case: Case, no_mapping: str) -> list[Lane]:
    """The host that has it, first; all others that could have it, if Cinder names one of them:
    by whose connector alone they could be made to let go.
    """
    [mine] = _of_mapping(case, no_mapping)
    if (case.finding.differs.get("cinder") or {}).get("host") in {None, mine.host}:
        return [mine]
    others = [lane for lane in _of_each_host(case, no_mapping) if lane.host != mine.host]
    return [mine, *others]


def _replaced(case: Case, no_mapping: str) -> list[Lane]:
    new = LaneSide(host=case.instance.host)
    return [replace(lane, new=new) for lane in _of_mapping(case, no_mapping)]


def _reserved_anew(case: Case, no_mapping: str) -> list[Lane]:
    """On no host, or not yet: a reservation in place of one that Cinder has lost."""
    del no_mapping
    if case.mapping is None or case.volume is None:
        raise _refusal(case, "no device of the server goes through it any more.")
    return [replace(lane_of_mapping(case.mapping, case.volume, None), new=LaneSide())]


def _of_volume(case: Case, no_mapping: str) -> list[Lane]:
    assert case.volume is not None, "the class is of volumes"
    return [
        Lane(
            server_id=case.server_id,
            volume_id=str(case.volume.id),
            bdm_id=no_mapping,
            attachment_id=None,
            device_name=None,
        )
    ]


def _of_volume_here(case: Case, no_mapping: str) -> list[Lane]:
    [lane] = _of_volume(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def _of_guest(case: Case, no_mapping: str) -> list[Lane]:
    """The server alone.  Where its guest is, is what the look has seen."""
    shown = [host for host, _ in case.finding.differs.get("host") or ()]
    if len(shown) != 1:
        hosts = ", ".join(shown)
        raise _refusal(
            case, f"its guest is on several hosts ({hosts}): remove all but one by hand."
        )
    lane = Lane(
        server_id=case.server_id,
        volume_id="",
        bdm_id=no_mapping,
        attachment_id=None,
        device_name=None,
        host=shown[0],
    )
    return [lane]


def _of_server(case: Case, no_mapping: str) -> list[Lane]:
    """One for each attachment, with the host that may have it; one for each other host."""
    here = case.instance.host
    if here is None:
        raise _refusal(case, "the server is on no host.")
    if case.instance.resize_source is not None:
        raise _refusal(case, "the server is being resized: confirm or revert that first.")
    if any(attachment.legacy for attachment, _ in case.held):
        raise _refusal(case, "it has volumes by Cinder's old calls: `server delete` releases them.")
    bare = replace(Lane.of_server(case.server_id), bdm_id=no_mapping)
    by_attachment = {mapping.attachment_id: mapping for mapping in case.mappings if mapping.live}
    lanes = [
        _of_held(bare, attachment, volume, by_attachment.get(str(attachment.id)), here)
        for attachment, volume in case.held
    ]
    others = {here, *case.hosts} - {lane.host for lane in lanes}
    return [*lanes, *(replace(bare, host=host) for host in sorted(others))]


def _of_held(
    bare: Lane,
    attachment: Attachment,
    volume: Volume,
    mapping: BlockDeviceMapping | None,
    here: str,
) -> Lane:
    host = attachment.host or here
    if mapping is not None:
        return lane_of_mapping(mapping, volume, host)
    id_ = str(attachment.id)
    return replace(bare, volume_id=str(volume.id), attachment_id=id_, host=host)


#: By flow.
LANES: dict[str, Callable[[Case, str], list[Lane]]] = {
    "drop_reservation": _of_attachment,
    "drop_attachment": _of_each_host,
    "release_connection": _of_record,
    "forget_attachment": _of_mapping,
    "replace_attachment": _replaced,
    "replace_reservation": _reserved_anew,
    "complete_attachment": _of_mapping,
    "correct_attachment": _corrected,
    "settle_volume": _of_volume,
    "delete_volume": _of_volume,
    "plug_disk": _of_mapping,
    "define_disk": _of_mapping,
    "drop_secret": _of_volume_here,
    "forget_guest": _of_guest,
    "forget_server": _of_server,
}

#: By flow: what it does not do, for people.
NEVER: dict[str, str] = {
    "drop_reservation": "An attachment that was given a connector is not deleted.",
    "drop_attachment": "It is not deleted if any of these hosts shows it in a guest or a record, "
    "or is not sure.",
    "release_connection": "Nothing is taken from a guest, no session is logged out, and the device "
    "stays if somebody else has the volume on that host.",
    "forget_attachment": "Nothing is taken from a guest, and nothing is deleted in Cinder.",
    "replace_attachment": "The guest keeps its disk. Cinder is not told that the volume is in use "
    "unless it is the very device of the guest; otherwise the operation parks.",
    "replace_reservation": "No host is asked for anything: the server is on none.",
    "complete_attachment": "Cinder is not told that it is in use unless the guest has the disk.",
    "correct_attachment": "Cinder is told nothing if another host shows the volume in a guest or a "
    "record, or is not sure. The guest keeps its disk, and nothing is deleted.",
    "settle_volume": "The state is not reset, for that would drop attachments under their hosts.",
    "delete_volume": "It is not deleted unless the log shows that we made this very volume, or all "
    "that is known of it says so and no other volume can be the one; nor if Cinder has an "
    "attachment, a snapshot, a backup or a clone of it, or does not say.",
    "plug_disk": "What the running guest has already is not changed.",
    "define_disk": "The running guest is not changed.",
    "drop_secret": "It stays if the host has the volume in a guest or a record.",
    "forget_guest": "What it has connected stays connected: that is a finding of its own.",
    "forget_server": "The server is kept if any of these hosts has its guest, a process of it, or "
    "anything in use of its volumes. No volume is deleted, whatever was to go with the server.",
}
