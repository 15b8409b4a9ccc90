"""The evidence that a repair needs before it removes something (decision 0059).

Each proof returns None if the evidence is sufficient, else a sentence that says why not.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregates.attachment import AttachmentState
from handlers.drift.rows import AttachmentRow, CinderAttachment, DiskRow, Party, Row, VolumeRow
from handlers.results.made import Evidence, why_not
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.volume_states import FAILED


@dataclass(frozen=True, kw_only=True)
class ProofFacts:
    """The facts for a proof: all read now, except the host's report, which is one step older.

    `row`: None if the finding's subject does not exist any more.
    `shown`: the host's report (host_agent.verbs.drift.drift_look).  `statuses`: of all attachments
    of the volume in Cinder.  `bare`: the attachment was never given a connector.  `held`: the
    ledger's attachments of the lane's volume and server on the lane's host.  `made`: for a volume
    to be deleted, the evidence that the ledger created it.
    """

    row: Row | None
    lane: Lane
    shown: dict[str, Any] = field(default_factory=dict)
    statuses: tuple[str, ...] = ()
    bare: bool = False
    held: frozenset[str] = frozenset()
    made: Evidence | None = None


def is_hidden(asked: ProofFacts) -> str | None:
    """Why nobody can tell which disks the guest has: QEMU runs where libvirt does not show it, as
    after libvirt was started without its state.
    """
    lane, shown = asked.lane, asked.shown
    if shown.get("process") and not shown["power_state"]:
        return f"Host {lane.host} runs a process of the guest of server {lane.server_id}."
    return None


def is_bare(asked: ProofFacts) -> str | None:
    if asked.bare:
        return None
    return "Cinder was given a host's connector for it, so that host has to be asked."


def is_unused(asked: ProofFacts) -> str | None:
    """Neither guests nor records of the host have the volume (CVE-2023-2088).

    If Cinder names another host for this attachment, what the server has here by its other
    attachments does not count.
    """
    lane, shown = asked.lane, asked.shown
    server = lane.server_id
    mine = {id_ for id_, of in shown["records"].items() if of == server}
    by_another = mine and mine <= asked.held and _is_of_another_host(asked)
    if server in shown["guests"] and not by_another:
        return f"Guest {server} on host {lane.host} has a disk of volume {lane.volume_id}."
    if shown["record"] or (mine and not by_another):
        return f"Host {lane.host} has volume {lane.volume_id} connected for server {server}."
    others = {*shown["guests"], *shown["records"].values()} - {server}
    if others and not lane.multiattach:
        return f"Host {lane.host} has volume {lane.volume_id} in use, and it is no shared one."
    if shown["unexplained"]:
        which = ", ".join(shown["unexplained"])
        return (
            f"Guest {server} on host {lane.host} has disks that no record explains ({which}): "
            "one of them may be of this volume."
        )
    return None


def _is_of_another_host(asked: ProofFacts) -> bool:
    """Whether Cinder names another host: only then does the deletion leave the lane's host alone.
    No name proves nothing; and two attachments of a volume on one host share their connection.
    """
    host = getattr(getattr(asked.row, "cinder", None), "host", None)
    return host not in {None, asked.lane.host}


def disk_is_gone(asked: ProofFacts) -> str | None:
    if asked.lane.server_id in asked.shown["guests"]:
        return "The guest still has the disk: repair it by replace_attachment, or detach it."
    return None


def disk_is_here(asked: ProofFacts) -> str | None:
    shown = asked.shown
    missing = shown["live"] is None if shown["running"] else shown["persistent"] is None
    if missing:
        return "The guest does not have the disk: repair it by forget_attachment, or plug_disk."
    return "The disk differs between guest and definition." if shown["differs"] else None


def is_taken_back(asked: ProofFacts) -> str | None:
    """A late attachment update sets a complete attachment back to `attaching` (decision 0034)."""
    row = asked.row
    assert isinstance(row, AttachmentRow), "the class is of attachments"
    cinder = row.cinder.status if isinstance(row.cinder, CinderAttachment) else None
    ledger = row.ledger.state if row.ledger else None
    if (ledger, cinder) != (AttachmentState.ATTACHED, "attaching"):
        return f"It is {ledger} in the ledger and {cinder} in Cinder: completing does not fix it."
    return disk_is_here(asked)


def is_on_no_host(asked: ProofFacts) -> str | None:
    row = asked.row
    assert isinstance(row, AttachmentRow), "the class is of attachments"
    return f"Host {row.ledger.host} may have it." if row.ledger and row.ledger.host else None


def guest_lets_it_go(asked: ProofFacts) -> str | None:
    """The verb refuses while a guest has the disk; this says so before anything starts.

    If the host has the volume connected for the guest by another attachment, the disk belongs to
    that one, and only the record is removed.  After a swap the disk keeps the former volume's
    serial.
    """
    server, own = asked.lane.server_id, asked.lane.attachment_id
    others = {of for id_, of in asked.shown["records"].items() if id_ != own}
    elsewhere = server in others or asked.shown.get("elsewhere") is True
    if server in asked.shown["guests"] and not elsewhere:
        return f"Guest {server} has the disk: a repair takes nothing from a guest."
    return None


def settles(asked: ProofFacts) -> str | None:
    """By roll_detaching or unreserve, because a reset-state could drop attachments in use."""
    assert isinstance(asked.row, VolumeRow), "the class is of volumes"
    status = getattr(asked.row.cinder, "status", None)
    if set(asked.statuses) <= {"attached"}:
        return never_settles(asked.row.id, status, len(asked.statuses))
    has = ", ".join(sorted(asked.statuses))
    return f"The volume is {status}, its attachments {has}: see to those that are not attached."


def never_settles(volume_id: str, status: str | None, attachments: int) -> str | None:
    """Cinder can roll back `attaching`, and `detaching` while there is an attachment; an
    administrator must reset the rest.
    """
    if status == "attaching" or (status == "detaching" and attachments):
        return None
    said = f"The volume is {status} and has {attachments or 'no'} attachments: only an "
    if status == "error_deleting" and not attachments:
        return f"{said}administrator ends that: `openstack volume delete --force {volume_id}`."
    to = "in-use" if attachments else "available"
    command = f"`openstack volume set --state {to} {volume_id}`"
    safe = _RESETS_ATTACHED if attachments else _RESETS_FREE.format(id=volume_id)
    return f"{said}administrator ends that: {command}. {_FIRST.get(str(status), '')}{safe}"


#: When a reset of the state is safe.
_RESETS_ATTACHED = (
    "It sets the state alone, and the attachments stay (say `reserved`, not in-use, if none of "
    "them is attached). Never add `--detached`: that drops them under their hosts."
)
_RESETS_FREE = (
    "It is safe if the volume is unused: no attachment (`openstack --os-volume-api-version 3.27 "
    "volume attachment list --all-projects --volume-id {id}`), and no finding of it on a host."
)
#: By status: what the administrator checks first.
_FIRST = {
    **dict.fromkeys(FAILED, "Cinder's log says what went wrong: see to that first. "),
    **dict.fromkeys(
        ("creating", "deleting", "managing"), "See first that Cinder is not still at it. "
    ),
    "maintenance": "Ask first who has put it there: it is being worked on. ",
    "awaiting-transfer": "Delete the transfer first (`openstack volume transfer request list`). ",
}


def found_unsettled(volume_id: str, differs: Mapping[str, Any]) -> str | None:
    in_cinder = differs.get(Party.CINDER.value)
    if not isinstance(in_cinder, Mapping) or "status" not in in_cinder:
        return None
    return never_settles(volume_id, in_cinder["status"], in_cinder.get("attachments") or 0)


def is_ours_alone(asked: ProofFacts) -> str | None:
    """The mark alone proves nothing, because a copied volume has it too (handlers.results.made)."""
    assert asked.made is not None, "the volume is there"
    if (why := why_not(asked.made)) is None:
        return None
    volume = f"Volume {asked.lane.volume_id}"
    return f"{volume} is not deleted: {why}. If it has no owner, delete it in Cinder."


def is_only_here(asked: ProofFacts) -> str | None:
    """The ledger's host has its disk and its record, and no other host has anything of it, because
    the update replaces the connector that Cinder has.
    """
    row = asked.row
    assert isinstance(row, AttachmentRow), "the class is of attachments"
    if row.ledger is None or row.ledger.host != asked.lane.host:
        return is_unused(asked)
    if not asked.shown["record"]:
        return f"Host {asked.lane.host} has no record of it: `attachment refresh` writes it anew."
    return disk_is_here(asked)


def guest_is_here(asked: ProofFacts) -> str | None:
    return None if asked.shown["power_state"] else "The host does not have the guest."


def definition_can_follow(asked: ProofFacts) -> str | None:
    """The access mode of a running guest's disk must be right, because only a stop or a detach
    changes it.  Read-only in a definition stays read-only (decision 0041).
    """
    row, shown = asked.row, asked.shown
    assert isinstance(row, DiskRow), "the class is of disks"
    assert row.ledger is not None, "and of mapped ones"
    wanted = None if row.ledger.access_mode is None else row.ledger.access_mode == "ro"
    readonly = shown["readonly_live" if shown["running"] else "readonly_persistent"]
    if wanted is None or readonly in {None, wanted} or (wanted and not shown["running"]):
        return guest_is_here(asked)
    if shown["running"]:
        may = "may write to it" if wanted else "may not write to it"
        return f"The running guest {may}: stop the server, then look and repair again."
    return "Its definition has it read-only, and only a detach ends that: detach and attach it."


def has_let_go(asked: ProofFacts) -> str | None:
    """The host does not have the guest; nobody else there uses its volume, unless that is
    multi-attach; and the host has the record for a disconnect, unless the attachment was never
    given a connector.
    """
    lane, shown = asked.lane, asked.shown
    if shown["power_state"]:
        return f"Host {lane.host} has the guest of server {lane.server_id}."
    if lane.attachment_id is None:
        return None
    others = {id_ for id_ in shown["records"] if id_ != lane.attachment_id}
    if not lane.multiattach and (shown["guests"] or others):
        return f"Volume {lane.volume_id} is in use on host {lane.host}."
    if not (asked.bare or shown["record"]):
        return (
            f"Host {lane.host} has no record by which volume {lane.volume_id} could be let go of: "
            "`server delete` lets go of it by what Cinder knows."
        )
    return None


def not_on_the_host(asked: ProofFacts) -> str | None:
    if asked.shown["guests"] or asked.shown["records"]:
        return f"Volume {asked.lane.volume_id} is in use on host {asked.lane.host}."
    return None
