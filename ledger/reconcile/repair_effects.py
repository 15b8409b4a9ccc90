"""What the ledger's own steps of repairs do: look again, and what they change in Cinder.

As all effects (ledger.core.effects), each is an *ensure*.  `drift_again` asks the ledger and
Cinder anew and puts what they say, with what the host has just told, into the row that the
finding's class judges (handlers.drift.recheck).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aggregates.attachment import Attachment, AttachmentState
from aggregates.finding import Finding
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.drift import join, proofs, recheck, rows
from handlers.drift.rows import UNKNOWN, Row, Subject
from handlers.flows.repair_host import DELETE_VOLUME
from handlers.results.made import Evidence, asked_by
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import AttachmentView, PortError, VolumeView
from host_agent.shared.contract.survey import ConnectionShown, DiskShown, StorageShown
from host_agent.shared.contract.volume_states import letting_go
from ledger.core.steps.context import EffectContext
from ledger.core.steps.volumes import evidence_of
from ledger.reconcile.repair_cases import shown_by

_GONE = frozenset({AttachmentState.DELETED})


def drift_again(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """FINAL drift_gone, drift_changed, drift_unproven: then nothing is done."""
    started = context.operation.started if context.operation else None
    assert started is not None, "it is a step of an operation"
    assert started.finding is not None, "which is a repair"
    finding = context.book.get(Finding, started.finding["id"])
    assert finding.found is not None, "and repairs what was found"
    row = _ROWS[Subject(finding.found.subject)](finding, lane, context)
    view = _attachment(lane, context)
    asked = proofs.ProofFacts(
        row=row,
        lane=lane,
        shown=lane.shown or {},
        statuses=tuple(each.status for each in _attachments(lane, context)),
        bare=view is not None and view.status == "reserved" and not view.connection_info,
        held=frozenset(_held_on(lane, context)),
        made=_made(finding, lane, context) if started.flow == DELETE_VOLUME.name else None,
    )
    if (refused := recheck.refusal(started.flow, finding, asked)) is not None:
        raise PortError(ErrorKind.FINAL, *refused)
    return {}


def attachment_drop(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Have Cinder delete what the ledger does not hold; gone is success."""
    assert lane.attachment_id is not None, "the finding is of one"
    known = context.book.get(Attachment, lane.attachment_id)
    if known.version and known.state is not AttachmentState.DELETED:
        text = f"Attachment {known.id} is held by the ledger now. Nothing was changed."
        raise PortError(ErrorKind.FINAL, recheck.GONE, text)
    with letting_go(context.cinder, lane) as deletion:
        deletion.shown = context.cinder.attachment_delete(lane.attachment_id) is not None
    if not deletion.shown and (left := _attachment(lane, context)) is not None:
        text = f"Attachment {left.id} is still there ({left.status!r}) after its deletion."
        raise PortError(ErrorKind.RETRYABLE, "attachment_left", text)  # LP 1935057
    return {"ended": {lane.attachment_id: lane.volume_id}}


def volume_settle(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder puts the status right by itself: each call does nothing in any other status."""
    view = _volume(lane, context)
    statuses = {each.status for each in _attachments(lane, context)} if view else set()
    if view and view.status == "detaching" and statuses:
        context.cinder.roll_detaching(lane.volume_id)
    if view and view.status == "attaching" and statuses <= {"attached"}:
        context.cinder.unreserve(lane.volume_id)
    return {}


def volume_drop(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """We made it, and nobody has it (`_made`); Cinder refuses to delete one that is in use."""
    context.cinder.volume_delete(lane.volume_id)
    return {"deleted": [lane.volume_id]}


# --- what everybody says now --------------------------------------------------------------------


def _attachment_row(finding: Finding, lane: Lane, context: EffectContext) -> Row:
    instance = context.book.get(Instance, lane.server_id)
    known = "deleted" if instance.deleted else "live"
    return rows.AttachmentRow(
        id=str(lane.attachment_id),
        about=finding.about(),
        server=known if instance.version else None,
        ledger=_held(lane, context),
        cinder=_in_cinder(lane, context),
        connected=UNKNOWN if lane.shown is None else bool(lane.shown.get("record")),
    )


def _volume_row(finding: Finding, lane: Lane, context: EffectContext) -> Row:
    volume = context.book.get(Volume, lane.volume_id)
    servers = {*volume.holders.values(), lane.server_id}
    instances = [context.book.get(Instance, server_id) for server_id in servers]
    has = [each for each in instances if each.device_of(lane.volume_id) is not None]
    return join.volume(
        lane.volume_id,
        _volume_in_cinder(lane, context),
        mappings=len(has),
        had=volume.had,
        projects={each.project_id for each in has if each.project_id},
        made_by=_made_by(finding),
    )


def _volume_in_cinder(lane: Lane, context: EffectContext) -> rows.CinderVolume | None:
    """As a list has it: attachments that are not in use are not in it (ledger.reconcile.ids)."""
    view = _volume(lane, context)
    if view is None:
        return None
    attached = len(context.cinder.old_attachments(lane.volume_id))
    return rows.CinderVolume(
        status=view.status,
        attachments=attached or len(context.book.get(Volume, lane.volume_id).holders),
        migration_status=view.migration_status,
        made=view.origin.mark is not None,
        project_id=view.project_id,
    )


def _made_by(finding: Finding) -> str | None:
    """The operation that was to make a volume with its mark, as the look found it."""
    found = finding.differs.get("ledger")
    return found.get("made_by") if isinstance(found, dict) else None


def _made(finding: Finding, lane: Lane, context: EffectContext) -> Evidence | None:
    """What there is to say whether the volume is one that we made (handlers.results.made)."""
    volume, operation_id = _volume(lane, context), _made_by(finding)
    if volume is None:
        return None
    making = context.book.get(Operation, operation_id) if operation_id else None
    mark = context.book.get(Volume, volume.id).mark or volume.origin.mark
    wanted = asked_by(making, mark)[0] if making and mark else None
    listed = context.cinder.volumes_made(mark, wanted.get("project_id")) if wanted and mark else []
    return evidence_of(volume, mark, making, context, [each.id for each in listed])


def _server_row(finding: Finding, lane: Lane, context: EffectContext) -> Row:
    instance = context.book.get(Instance, lane.server_id)
    power = (lane.shown or {}).get("power_state")
    return rows.ServerRow(
        id=lane.server_id,
        about=finding.about(),
        ledger=join.ledger_server({**vars(instance), "server_id": lane.server_id}),
        shown=((lane.host or "", power),) if power else (),
    )


def _disk_row(finding: Finding, lane: Lane, context: EffectContext) -> Row:
    mapping, shown = context.book.get(BlockDeviceMapping, lane.bdm_id), lane.shown or {}
    here = shown.get("live") or shown.get("persistent")
    disk = DiskShown(
        serial=lane.disk_serial,
        live=shown.get("live"),
        persistent=shown.get("persistent"),
        readonly_live=shown.get("readonly_live"),
        readonly_persistent=shown.get("readonly_persistent"),
        differs=tuple(shown.get("differs") or ()),
    )
    assert finding.found is not None, "it is a finding"
    return rows.DiskRow(
        id=finding.found.key,
        about=finding.about(),
        ledger=join.ledger_disk(vars(mapping)) if mapping.live else None,
        shown=disk if here else None,
        running=bool(shown.get("running")),
    )


def _connection_row(finding: Finding, lane: Lane, context: EffectContext) -> Row | None:
    if not (lane.shown and lane.shown.get("record")):
        return None
    on_host = finding.differs.get("host") or {}
    record = ConnectionShown(
        attachment_id=str(lane.attachment_id),
        volume_id=lane.volume_id,
        server_id=lane.server_id,
        serial=lane.disk_serial,
        present=on_host.get("present"),  # a disconnect does not go by it
    )
    return rows.ConnectionRow(
        id=str(lane.attachment_id),
        about=finding.about(),
        ledger=_held(lane, context, mapped=True),
        shown=record,
    )


def _storage_row(finding: Finding, lane: Lane, context: EffectContext) -> Row:
    """Only secrets are repaired: one is wanted where the volume is to be."""
    held = context.book.get(Volume, lane.volume_id).holders
    attachments = [context.book.get(Attachment, each) for each in held]
    assert finding.found is not None, "it is a finding"
    return rows.StorageRow(
        id=finding.found.key,
        about=finding.about(),
        shown=StorageShown(kind="secret", name=lane.volume_id, recorded=False, used=False),
        wanted=any(each.host == lane.host and each.may_be_connected for each in attachments),
    )


_ROWS: dict[Subject, Callable[[Finding, Lane, EffectContext], Row | None]] = {
    Subject.ATTACHMENT: _attachment_row,
    Subject.VOLUME: _volume_row,
    Subject.SERVER: _server_row,
    Subject.DISK: _disk_row,
    Subject.CONNECTION: _connection_row,
    Subject.STORAGE: _storage_row,
}


def _held(
    lane: Lane, context: EffectContext, *, mapped: bool | None = None
) -> rows.LedgerAttachment | None:
    """The lane's attachment as the ledger holds it, if it is open; `mapped`: if nobody asks."""
    attachment = context.book.get(Attachment, str(lane.attachment_id))
    if not attachment.version or attachment.state in _GONE:
        return None
    instance = context.book.get(Instance, str(attachment.server_id))
    mappings = [context.book.get(BlockDeviceMapping, bdm_id) for bdm_id in instance.devices]
    named = [m for m in mappings if str(attachment.id) in {m.attachment_id, m.kept}]
    device = named[0].device_name if named else None
    return join.ledger_attachment(
        vars(attachment), bool(named) if mapped is None else mapped, device
    )


def _held_on(lane: Lane, context: EffectContext) -> Iterator[str]:
    """The attachments by which the lane's server has the volume on the lane's host."""
    held = context.book.get(Volume, lane.volume_id) if lane.volume_id else None
    for attachment_id in held.held_by(lane.server_id) if held else ():
        attachment = context.book.get(Attachment, attachment_id)
        if attachment.may_be_connected and attachment.host == lane.host:
            yield attachment_id


def _in_cinder(lane: Lane, context: EffectContext) -> rows.CinderAttachment | None:
    view = _attachment(lane, context)
    if view is None:
        return None
    rows_of = context.cinder.old_attachments(view.volume_id)
    listed = next((row for row in rows_of if row.id == view.id), None)
    return rows.CinderAttachment(
        status=view.status,
        host=listed.host_name if listed else None,
        mountpoint=listed.mountpoint if listed else None,
    )


def _attachment(lane: Lane, context: EffectContext) -> AttachmentView | None:
    """Absence is Cinder's own 404, never a row that is not in a list."""
    if lane.attachment_id is None:
        return None
    return shown_by(context.cinder, lane.attachment_id, lane.volume_id or None)


def _volume(lane: Lane, context: EffectContext) -> VolumeView | None:
    try:
        return context.cinder.volume(lane.volume_id)
    except PortError as error:
        if error.code != "not_found":
            raise
        return None


def _attachments(lane: Lane, context: EffectContext) -> list[AttachmentView]:
    """All that Cinder has of the volume, of any server."""
    return context.cinder.attachments(lane.volume_id, None) if lane.volume_id else []
