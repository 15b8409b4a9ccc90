"""What the success of a repair's steps means, and what becomes of its finding."""

from __future__ import annotations

from collections.abc import Callable

from aggregates.attachment import Attachment, AttachmentState
from aggregates.finding import Finding, FindingState
from aggregates.operation import Operation, Outcome
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from handlers.results.meaning import Book, Done
from host_agent.shared.contract.messages import Verb


def note_end(operation: Operation, outcome: Outcome, book: Book) -> None:
    """The finding hears how its repair ended, in the same append."""
    started = operation.started
    if started is None or started.finding is None:
        return
    finding = book.get(Finding, started.finding["id"])
    if outcome is not Outcome.COMPLETED:
        why = (operation.first_error or {}).get("message") or f"The repair was {outcome.value}."
        finding.record(Finding.RepairFailed, by_operation=str(operation.id), why=why)
    elif finding.state is not FindingState.OVER:
        finding.record(Finding.DriftRepaired, by_operation=str(operation.id))


def _released(done: Done) -> None:
    """The ledger may never have known it, or have it somewhere else."""
    if done.lane.attachment_id is None:  # the host was asked about the guest alone
        return
    attachment = done.attachment
    if attachment.may_be_connected and attachment.host == done.host:
        shared = bool(done.outputs.get("shared"))
        stands_for = _stands_for(done)
        attachment.record(Attachment.Disconnected, shared=shared, converted_to=stands_for)


def _stands_for(done: Done) -> str | None:
    """Which attachment has its connection from here on."""
    return done.lane.other.attachment_id if done.lane.other else None


def _forgotten(done: Done) -> None:
    """Cinder does not have it, and its host has let go."""
    attachment, volume_id = done.attachment, done.lane.volume_id
    if attachment.state is not AttachmentState.DELETED:
        attachment.record(Attachment.Deleted, converted_to=_stands_for(done))
        done.book.get(Volume, volume_id).record(
            Volume.Released, server_id=done.server_id, attachment_id=done.attachment_id
        )


def _dropped(done: Done) -> None:
    for attachment_id, volume_id in done.outputs["ended"].items():
        attachment = done.book.get(Attachment, attachment_id)
        if attachment.version == 0:
            why = "found in Cinder, and no host has it"
            about = {"volume_id": volume_id, "server_id": done.server_id}
            attachment.record(Attachment.Disowned, **about, why=why)


def _volume_dropped(done: Done) -> None:
    if not done.volume.deleted:
        why = "made for a server that never had it"
        done.volume.record(Volume.VolumeDeleted, server_id=done.server_id, why=why)


MENDED: dict[str, Callable[[Done], None]] = {
    Verb.CONNECTION_RELEASE: _released,
    LedgerVerb.ATTACHMENT_FORGET: _forgotten,
    LedgerVerb.ATTACHMENT_DROP: _dropped,
    LedgerVerb.VOLUME_DROP: _volume_dropped,
}
