"""What a repair works on: the case it is asked for, and its lanes (`handlers.repairs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.finding import Finding
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.guards import lane_of_mapping
from handlers.plan import LANES_MAX
from host_agent.shared.lane import Lane, LaneSide
from host_agent.shared.ports import AttachmentView, VolumeView


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


def refusal(case: Case, why: str) -> errors.RepairError:
    return errors.RepairError(finding_id=str(case.finding.id), why=why)


def of_attachment(case: Case, no_mapping: str) -> list[Lane]:
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


def of_each_host(case: Case, no_mapping: str) -> list[Lane]:
    """Whoever could have it has to show that it does not; a guest knows it by its mapping's id.

    Cinder's lists name the host of what is attached only.  Where it names none, any host may have
    given the connector that Cinder has.
    """
    hosts = set(case.hosts)
    if (case.finding.differs.get("cinder") or {}).get("host") is None:
        hosts |= set(case.every_host)
    if not hosts:
        raise refusal(case, "a host was given the volume, and nobody knows which: look for it.")
    if len(hosts) > LANES_MAX:
        why = (
            f"Cinder has some host's connector for it and does not say whose, and more than "
            f"{LANES_MAX} hosts cannot be asked at once. Find the host, then delete it in Cinder."
        )
        raise refusal(case, why)
    [lane] = of_attachment(case, no_mapping)
    serial = case.mapping.serial if case.mapping else None
    return [replace(lane, host=host, serial=serial) for host in sorted(hosts)]


def of_record(case: Case, no_mapping: str) -> list[Lane]:
    [lane] = of_attachment(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def of_mapping(case: Case, no_mapping: str) -> list[Lane]:
    del no_mapping
    mapping, host = case.mapping, case.instance.host
    if mapping is None or case.volume is None:
        raise refusal(case, "no device of the server goes through it any more.")
    if mapping.legacy:
        raise refusal(case, "it was made by Cinder's old calls: convert it first.")
    if mapping.kept is not None:
        raise refusal(case, "the server is being resized: confirm or revert that first.")
    if host is None:
        raise refusal(case, "the server is on no host.")
    if case.attachment is not None and case.attachment.host not in {host, None}:
        raise refusal(case, f"host {case.attachment.host} has it, and the guest is on {host}.")
    return [lane_of_mapping(mapping, case.volume, host)]


def corrected(case: Case, no_mapping: str) -> list[Lane]:
    """The host that has it, first; all others that could have it, if Cinder names one of them:
    by whose connector alone they could be made to let go.
    """
    [mine] = of_mapping(case, no_mapping)
    if (case.finding.differs.get("cinder") or {}).get("host") in {None, mine.host}:
        return [mine]
    others = [lane for lane in of_each_host(case, no_mapping) if lane.host != mine.host]
    return [mine, *others]


def replaced(case: Case, no_mapping: str) -> list[Lane]:
    new = LaneSide(host=case.instance.host)
    return [replace(lane, new=new) for lane in of_mapping(case, no_mapping)]


def reserved_anew(case: Case, no_mapping: str) -> list[Lane]:
    """On no host, or not yet: a reservation in place of one that Cinder has lost."""
    del no_mapping
    if case.mapping is None or case.volume is None:
        raise refusal(case, "no device of the server goes through it any more.")
    return [replace(lane_of_mapping(case.mapping, case.volume, None), new=LaneSide())]


def of_volume(case: Case, no_mapping: str) -> list[Lane]:
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


def of_volume_here(case: Case, no_mapping: str) -> list[Lane]:
    [lane] = of_volume(case, no_mapping)
    return [replace(lane, host=case.finding.about().host)]


def of_guest(case: Case, no_mapping: str) -> list[Lane]:
    """The server alone.  Where its guest is, is what the look has seen."""
    shown = [host for host, _ in case.finding.differs.get("host") or ()]
    if len(shown) != 1:
        hosts = ", ".join(shown)
        raise refusal(case, f"its guest is on several hosts ({hosts}): remove all but one by hand.")
    lane = Lane(
        server_id=case.server_id,
        volume_id="",
        bdm_id=no_mapping,
        attachment_id=None,
        device_name=None,
        host=shown[0],
    )
    return [lane]


def of_server(case: Case, no_mapping: str) -> list[Lane]:
    """One for each attachment, with the host that may have it; one for each other host."""
    here = case.instance.host
    if here is None:
        raise refusal(case, "the server is on no host.")
    if case.instance.resize_source is not None:
        raise refusal(case, "the server is being resized: confirm or revert that first.")
    if any(attachment.legacy for attachment, _ in case.held):
        raise refusal(case, "it has volumes by Cinder's old calls: `server delete` releases them.")
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
