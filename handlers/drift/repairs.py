"""The repairs of drift: one row for each, by the name of its flow.  Pure.

A new repair is a flow in `handlers/flows/`, and its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.finding import Finding
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.drift import proofs
from handlers.drift.proofs import ProofFacts
from handlers.engine.plan import Flow
from handlers.flows import repair, repair_correct, repair_host, repair_replace, repair_server
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import Verb
from host_agent.shared.contract.ports import AttachmentView, VolumeView

#: Hosts that one repair asks, at most.
HOSTS_ASKED_MAX = 192


@dataclass(frozen=True, kw_only=True)
class RepairContext:
    """A finding, and what the ledger and Cinder have of its subject now.

    `server_id`: the finding's, or else the last server of the volume.  `shown`, `view`: the
    attachment and the volume in Cinder.  `hosts`: all that may ever have had the volume for the
    server.  `held`: the server's attachments.  `every_host`: all hosts that are not fenced.
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
        """The mapping that has the attachment, or else the live one of the volume."""
        about = self.finding.about()
        for mapping in self.mappings:
            if about.attachment_id and about.attachment_id in {mapping.attachment_id, mapping.kept}:
                return mapping
        live = (m for m in self.mappings if m.live and m.volume_id)
        return next((m for m in live if m.volume_id == about.volume_id), None)


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The repair of a class (`DriftClass.repair`).

    `lanes`: what it works on; the second argument is an id for lanes without a mapping.  `proof`:
    why the evidence is not sufficient, as a sentence; None: it is.  `never`: what it never does,
    for operators.  `variant`: the flow of this case, if it differs.  `cannot`: why it can never
    work, by the finding's key and its `differs`.  `after_resize`: it is refused (RESIZED) until a
    resize of its subject is confirmed or reverted.
    """

    flow: Flow
    lanes: Callable[[RepairContext, str], list[Lane]]
    proof: Callable[[ProofFacts], str | None]
    never: str
    variant: Callable[[RepairContext], Flow] | None = None
    cannot: Callable[[str, Mapping[str, Any]], str | None] | None = None
    after_resize: bool = False

    @property
    def asks_hosts(self) -> bool:
        """Whether its first step asks hosts what they have."""
        return self.flow.stages[0].steps[0].do is Verb.DRIFT_LOOK


RESIZED = "the server is being resized: confirm or revert that first."


def repair_error(case: RepairContext, why: str) -> errors.RepairError:
    return errors.RepairError(finding_id=str(case.finding.id), why=why)


def _of_attachment(case: RepairContext, no_mapping: str) -> list[Lane]:
    """An attachment that is not in the ledger, so it has no mapping."""
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


def _of_each_host(case: RepairContext, no_mapping: str) -> list[Lane]:
    """One lane for each host that could have the volume: each must show that it does not.

    Cinder's lists name only the hosts of attached volumes.  If no host is named, any host may have
    given the connector.
    """
    hosts = set(case.hosts)
    if (case.finding.differs.get("cinder") or {}).get("host") is None:
        hosts |= set(case.every_host)
    if not hosts:
        raise repair_error(case, "an unknown host was given the volume: find out which.")
    if len(hosts) > HOSTS_ASKED_MAX:
        why = (
            f"Cinder has some host's connector for it and does not say whose, and more than "
            f"{HOSTS_ASKED_MAX} hosts cannot be asked at once. Find the host, then delete it in "
            "Cinder."
        )
        raise repair_error(case, why)
    [lane] = _of_attachment(case, no_mapping)
    serial = case.mapping.serial if case.mapping else None
    return [replace(lane, host=host, serial=serial) for host in sorted(hosts)]


def _of_record(case: RepairContext, no_mapping: str) -> list[Lane]:
    [lane] = _of_attachment(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def _of_mapping(case: RepairContext, no_mapping: str) -> list[Lane]:
    del no_mapping
    mapping, host = case.mapping, case.instance.host
    if mapping is None or case.volume is None:
        raise repair_error(case, "no device of the server goes through it any more.")
    if mapping.legacy:
        raise repair_error(case, "it was made by Cinder's old calls: convert it first.")
    if mapping.kept is not None:
        raise repair_error(case, RESIZED)
    if host is None:
        raise repair_error(case, "the server is on no host.")
    if case.attachment is not None and case.attachment.host not in {host, None}:
        raise repair_error(case, f"host {case.attachment.host} has it, and the guest is on {host}.")
    return [mapping.lane(case.volume, host)]


def _corrected(case: RepairContext, no_mapping: str) -> list[Lane]:
    """The ledger's host first.  If Cinder names another host, also all others that could have the
    volume: the update replaces the connector that they would need to disconnect.
    """
    [mine] = _of_mapping(case, no_mapping)
    if (case.finding.differs.get("cinder") or {}).get("host") in {None, mine.host}:
        return [mine]
    others = [lane for lane in _of_each_host(case, no_mapping) if lane.host != mine.host]
    return [mine, *others]


def _replaced(case: RepairContext, no_mapping: str) -> list[Lane]:
    new = LaneSide(host=case.instance.host)
    return [replace(lane, new=new) for lane in _of_mapping(case, no_mapping)]


def _reserved_anew(case: RepairContext, no_mapping: str) -> list[Lane]:
    """A new reservation in place of one that Cinder has lost; no host has the volume."""
    del no_mapping
    if case.mapping is None or case.volume is None:
        raise repair_error(case, "no device of the server goes through it any more.")
    return [replace(case.mapping.lane(case.volume, None), new=LaneSide())]


def _of_volume(case: RepairContext, no_mapping: str) -> list[Lane]:
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


def _of_volume_here(case: RepairContext, no_mapping: str) -> list[Lane]:
    [lane] = _of_volume(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def _of_guest(case: RepairContext, no_mapping: str) -> list[Lane]:
    """The server alone, on the host where the look has seen its guest."""
    shown = [host for host, _ in case.finding.differs.get("host") or ()]
    if len(shown) != 1:
        hosts = ", ".join(shown)
        raise repair_error(
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


def _of_server(case: RepairContext, no_mapping: str) -> list[Lane]:
    """One lane for each attachment, on the host that may have it, and one for each other host."""
    here = case.instance.host
    if here is None:
        raise repair_error(case, "the server is on no host.")
    if case.instance.resize_source is not None:
        raise repair_error(case, RESIZED)
    if any(attachment.legacy for attachment, _ in case.held):
        raise repair_error(
            case, "it has volumes by Cinder's old calls: `server delete` releases them."
        )
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
        lane = mapping.lane(volume, host)
        gone = attachment.state is AttachmentState.DELETED  # there is nothing to let go of
        return replace(lane, attachment_id=None) if gone else lane
    id_ = str(attachment.id)
    return replace(bare, volume_id=str(volume.id), attachment_id=id_, host=host)


def _bare(case: RepairContext) -> Flow:
    if case.shown is None:
        raise repair_error(case, "Cinder does not have the attachment any more.")
    bare = case.shown.status == "reserved" and not case.shown.connection_info
    return repair.DROP_RESERVATION if bare else repair.DROP_ATTACHMENT


def _reserved(case: RepairContext) -> Flow:
    held = case.attachment
    reserved = held is not None and held.state is AttachmentState.RESERVED
    return repair_replace.REPLACE_RESERVATION if reserved else repair_replace.REPLACE_ATTACHMENT


# --- the table ----------------------------------------------------------------------------------

_ROWS = (
    Repair(
        flow=repair.DROP_RESERVATION,
        lanes=_of_attachment,
        proof=proofs.is_bare,
        never="An attachment that was given a connector is not deleted.",
    ),
    Repair(
        flow=repair.DROP_ATTACHMENT,
        variant=_bare,
        lanes=_of_each_host,
        proof=proofs.is_unused,
        never="It is not deleted if any of these hosts shows it in a guest or a record, "
        "or is not sure.",
    ),
    Repair(
        flow=repair_host.RELEASE_CONNECTION,
        lanes=_of_record,
        proof=proofs.guest_lets_it_go,
        never="Nothing is taken from a guest, no session is logged out, and the device "
        "stays if another server has the volume on that host.",
    ),
    Repair(
        flow=repair.FORGET_ATTACHMENT,
        lanes=_of_mapping,
        after_resize=True,
        proof=proofs.disk_is_gone,
        never="Nothing is taken from a guest, and nothing is deleted in Cinder.",
    ),
    Repair(
        flow=repair_replace.REPLACE_ATTACHMENT,
        variant=_reserved,
        lanes=_replaced,
        after_resize=True,
        proof=proofs.disk_is_here,
        never="The guest keeps its disk. Cinder is not told that the volume is in use "
        "unless it is the very device of the guest; otherwise the operation parks.",
    ),
    Repair(
        flow=repair_replace.REPLACE_RESERVATION,
        lanes=_reserved_anew,
        proof=proofs.is_on_no_host,
        never="No host is asked for anything: the server is on none.",
    ),
    Repair(
        flow=repair.COMPLETE_ATTACHMENT,
        lanes=_of_mapping,
        after_resize=True,
        proof=proofs.is_taken_back,
        never="Cinder is not told that it is in use unless the guest has the disk.",
    ),
    Repair(
        flow=repair_correct.CORRECT_ATTACHMENT,
        lanes=_corrected,
        after_resize=True,
        proof=proofs.is_only_here,
        never="Cinder is told nothing if another host shows the volume in a guest or a "
        "record, or is not sure. The guest keeps its disk, and nothing is deleted.",
    ),
    Repair(
        flow=repair_host.SETTLE_VOLUME,
        lanes=_of_volume,
        proof=proofs.settles,
        cannot=proofs.found_unsettled,
        never="The state is not reset, for that would drop attachments under their hosts.",
    ),
    Repair(
        flow=repair_host.DELETE_VOLUME,
        lanes=_of_volume,
        proof=proofs.is_ours_alone,
        never="It is not deleted unless the log shows that we made this very volume, or all "
        "that is known of it says so and no other volume can be the one; nor if Cinder has an "
        "attachment, a snapshot, a backup or a clone of it, or does not say.",
    ),
    Repair(
        flow=repair_host.PLUG_DISK,
        lanes=_of_mapping,
        after_resize=True,
        proof=proofs.guest_is_here,
        never="What the running guest has already is not changed.",
    ),
    Repair(
        flow=repair_host.DEFINE_DISK,
        lanes=_of_mapping,
        after_resize=True,
        proof=proofs.definition_can_follow,
        never="The running guest is not changed.",
    ),
    Repair(
        flow=repair_host.DROP_SECRET,
        lanes=_of_volume_here,
        proof=proofs.not_on_the_host,
        never="It stays if the host has the volume in a guest or a record.",
    ),
    Repair(
        flow=repair_host.FORGET_GUEST,
        lanes=_of_guest,
        proof=proofs.guest_is_here,
        never="What it has connected stays connected: that is a finding of its own.",
    ),
    Repair(
        flow=repair_server.FORGET_SERVER,
        lanes=_of_server,
        after_resize=True,
        proof=proofs.has_let_go,
        never="The server is kept if any of these hosts has its guest, a process of it, or "
        "anything in use of its volumes. No volume is deleted, even with delete_on_termination.",
    ),
)
#: By the name of its flow.
REPAIRS: dict[str, Repair] = {row.flow.name: row for row in _ROWS}
